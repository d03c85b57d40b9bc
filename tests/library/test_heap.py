"""What an SRE has in the morning: forty files of sixteen kinds from eight nodes, with five faults in them."""

from pathlib import Path

import pytest

from services.recording.embedded import findings_of
from services.recording.importers.heap import convert
from services.recording.reader import Recording
from services.recording.validate import validate_recording
from tests.heap_of_files import write_heap
from tests.heap_scenario import FAULTS, incident

NODES = [f"v{number:03d}" for number in range(1, 9)]


@pytest.fixture(scope="module")
def heap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("heap")
    return write_heap(incident(folder), folder / "files")


def test_one_command_makes_forty_files_a_recording_with_five_findings(heap: Path, tmp_path: Path) -> None:
    report = convert(heap, tmp_path / "morning", timezone="Europe/Zurich")
    assert sum(path.is_file() for path in heap.rglob("*")) == 40
    assert validate_recording(tmp_path / "morning") == []
    recording = Recording.open(tmp_path / "morning")
    assert [node.name for node in recording.topology.nodes if node.gpus] == NODES
    assert [job.nodes for job in recording.jobs()] == [NODES]
    rows = {row.name: row for row in report.files}
    kinds = {
        (row.kind.partition(": ")[0], row.kind.partition(": ")[2].split(" of its ")[0])
        for row in rows.values()
        if row.kind
    }
    assert len(kinds) >= 12
    assert [name for name, row in rows.items() if not row.kind] == ["notes.md"]
    assert "v006 +2" in rows["journal.json"].clock, "its clock is off by 260 s"
    assert rows["v005-nvidia-smi.csv"].clock == "no zone in it: taken as Europe/Zurich"
    found = [finding for finding in findings_of(recording) if finding.severity != "info" and finding.state == "firing"]
    assert {finding.fault: dict(finding.entity) for finding in found} == FAULTS
    assert len(found) == len(FAULTS)
