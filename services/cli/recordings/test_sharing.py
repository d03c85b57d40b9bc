"""`hindcast merge`, `anonymise` and `label`, on a small recording of the real incident."""

import json
from pathlib import Path
from typing import Any

import pytest

from detectors.contract import Finding
from services.cli.conftest import hindcast
from services.kit.errors import UserError
from services.recording.embedded import findings_of
from services.recording.importers.dcgm_text import convert
from services.recording.reader import Recording
from services.recording.validate import validate_recording
from services.recording.writer import RecordingWriter
from tests.small import Brake, small_recording


@pytest.fixture(scope="module")
def brake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    brakes = [Brake("v002", 150, 210)]
    return small_recording(tmp_path_factory.mktemp("recordings"), "brake", nodes=4, minutes=5, brakes=brakes)


def facts(finding: Finding, names: dict[str, str]) -> Any:
    """Return what a finding says, its machine by the name it has in the other recording."""
    entity = {key: names.get(str(value), value) for key, value in finding.entity.items()}
    numbers = {key: value for key, value in finding.evidence.items() if isinstance(value, int | float)}
    return finding.detector, finding.fault, finding.state, finding.detected_at, sorted(entity.items()), numbers


def test_detectors_find_the_same_in_an_anonymised_recording(brake: Path, tmp_path: Path) -> None:
    out = tmp_path / "shared"
    result = hindcast("anonymise", brake, "--out", out)
    assert result.exit_code == 0, result.output
    assert "new names of nodes" in result.output
    assert validate_recording(out) == []
    original, shared = Recording.open(brake), Recording.open(out)
    pairs = zip(original.topology.nodes, shared.topology.nodes, strict=True)
    names = {old.name: new.name for old, new in pairs}
    assert all(old != new for old, new in names.items())
    ours = [facts(finding, names) for finding in findings_of(original)]
    theirs = [facts(finding, {}) for finding in findings_of(shared)]
    assert any(finding[2] == "firing" for finding in ours)
    assert sorted(map(repr, ours)) == sorted(map(repr, theirs))
    for path in (*out.glob("*.json*"), out / "recording.yaml"):
        text = path.read_text()
        for name in (*names, "vela", next(original.jobs()).user, next(original.jobs()).name):
            assert f'"{name}"' not in text


def test_a_salt_file_makes_two_parts_fit_together(brake: Path, tmp_path: Path) -> None:
    salt = tmp_path / "salt"
    salt.write_text("0123456789abcdef" * 2)
    recording = Recording.open(brake)
    for stream in ("dcgm", "bmc"):
        manifest = recording.manifest.model_dump(exclude={"format", "streams", "files"}, exclude_unset=True)
        with RecordingWriter(tmp_path / f"part-{stream}") as writer:
            for batch in recording.batches(stream):
                writer.write(stream, batch, interval_s=recording.manifest.streams[stream].interval_s)
            writer.write_jobs(recording.jobs())
            writer.finish({**manifest, "name": f"part-{stream}"}, recording.topology)
        anonymised = tmp_path / f"shared-{stream}"
        arguments = ("--out", anonymised, "--salt-file", salt)
        assert hindcast("anonymise", tmp_path / f"part-{stream}", *arguments).exit_code == 0
    result = hindcast("merge", tmp_path / "shared-dcgm", tmp_path / "shared-bmc", "--out", tmp_path / "whole")
    assert result.exit_code == 0, result.output
    whole = Recording.open(tmp_path / "whole")
    assert validate_recording(whole.path) == []
    assert whole.streams() == ("dcgm", "bmc")
    assert whole.manifest.cluster.nodes == 4
    assert whole.manifest.streams["dcgm"].rows == recording.manifest.streams["dcgm"].rows
    assert "skipped" not in result.output


def test_truth_is_written_by_hand(brake: Path, tmp_path: Path) -> None:
    directory = tmp_path / "brake"
    directory.mkdir()
    for path in brake.iterdir():
        (directory / path.name).write_bytes(path.read_bytes())
    listed = hindcast("label", directory, "list").output
    assert "f1: power_throttle" in listed
    arguments = ["--fault", "thermal_throttle", "--entity", "node=v001,gpu=3", "--onset", "+00:01:00", "--within", "30"]
    added = hindcast("label", directory, "add", *arguments, "--note", "fan", "--impact", "gpus=1,gpu_hours_lost=0.5")
    assert added.exit_code == 0, added.output
    assert "thermal_throttle, due within 30 s, at node=v001,gpu=3" in added.output
    (label,) = (one for one in Recording.open(directory).labels() if one.fault == "thermal_throttle")
    manifest = Recording.open(directory).manifest
    assert (label.onset, label.end) == (manifest.start + 60_000, manifest.end)
    assert label.impact == {"gpus": 1, "gpu_hours_lost": 0.5}
    edited = hindcast("label", directory, "edit", label.id, "--end", "+00:02:00", "--optional", "--clear", "impact")
    assert edited.exit_code == 0, edited.output
    (label,) = (one for one in Recording.open(directory).labels() if one.id == label.id)
    assert (label.end, label.optional, label.impact) == (manifest.start + 120_000, True, None)
    assert hindcast("label", directory, "remove", label.id).exit_code == 0
    calm = ("--entity", "node=v003", "--onset", "+00:00:10", "--end", "+00:00:20", "--distractor")
    assert hindcast("label", directory, "add", *calm).exit_code == 0
    lines = [json.loads(line) for line in (directory / "labels.jsonl").read_text().splitlines()]
    assert "d1" in [line["id"] for line in lines if line.get("distractor")]
    assert validate_recording(directory) == []


@pytest.mark.parametrize(
    "arguments",
    [
        (
            "label",
            "{brake}",
            "add",
            "--fault",
            "gremlins",
            "--entity",
            "node=v001",
            "--onset",
            "+00:01:00",
            "--within",
            "9",
        ),
        ("label", "{brake}", "add", "--entity", "node", "--onset", "+00:01:00"),
        ("label", "{brake}", "add", "--entity", "node=v001", "--onset", "yesterday"),
        ("label", "{brake}", "add", "--entity", "node=v001", "--onset", "+00:01:00", "--impact", "gpus=inf"),
        ("label", "{brake}", "edit", "f1"),
        ("label", "{brake}", "edit", "f1", "--clear", "nothing"),
        ("merge", "{brake}", "--out", "{out}"),
        ("merge", "{brake}", "{out}", "--out", "{out}"),
        ("anonymise", "{brake}", "--out", "{out}", "--salt-file", "{out}"),
        ("anonymise", "{brake}", "--out", "Bad_Name"),
    ],
)
def test_what_cannot_be_done_is_refused_plainly(brake: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    before = {path.name: path.read_bytes() for path in brake.iterdir()}
    result = hindcast(*(part.format(brake=brake, out=tmp_path / "out") for part in arguments))
    assert isinstance(result.exception, UserError)
    assert result.exception.remedy
    assert {path.name: path.read_bytes() for path in brake.iterdir()} == before


@pytest.mark.parametrize(
    ("options", "message", "remedy"),
    [
        ([], "--fault is missing", "--distractor"),
        (["--fault", "thermal_throttle"], "--within is missing", "--within 60"),
        (["--fault", "thermal_throttle", "--within", "30", "--job", "none"], "not in jobs.jsonl (correct", "named"),
    ],
)
def test_what_a_label_lacks_is_named_by_its_option(brake: Path, options: list[str], message: str, remedy: str) -> None:
    result = hindcast("label", brake, "add", "--entity", "node=v001", "--onset", "+00:01:00", *options)
    assert isinstance(result.exception, UserError)
    assert message in result.exception.message
    assert remedy in result.exception.remedy
    assert "faults are" not in result.exception.remedy


def test_merge_brings_the_names_of_one_machine_together_by_a_file_of_aliases(tmp_path: Path) -> None:
    for host, field in (("gpu07", "GPU_TEMP"), ("node-17", "POWER_USAGE")):
        scrape = tmp_path / f"{host}-1711958400.prom"
        scrape.write_text(f'DCGM_FI_DEV_{field}{{gpu="0",Hostname="{host}"}} 60\n')
        convert(scrape, tmp_path / host)
    (tmp_path / "aliases.yaml").write_text("gpu07: [node-17]\n")
    both = [tmp_path / "gpu07", tmp_path / "node-17"]
    result = hindcast("merge", *both, "--out", tmp_path / "one", "--aliases", tmp_path / "aliases.yaml")
    assert result.exit_code == 0, result.output
    assert "node-17 is gpu07: as the file of aliases says" in result.output
    assert [node.name for node in Recording.open(tmp_path / "one").topology.nodes] == ["gpu07"]
