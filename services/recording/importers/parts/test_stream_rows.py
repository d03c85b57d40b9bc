from pathlib import Path

from services.recording.conftest import rows_in
from services.recording.importers.contract import Draft, Report
from services.recording.importers.parts.stream_rows import StreamRows
from services.recording.model import Node, Topology
from services.recording.reader import Recording
from services.recording.validate import validate_recording


def test_rows_with_different_columns(tmp_path: Path) -> None:
    out = tmp_path / "rows"
    with Draft(out, Report()) as draft:
        rows = StreamRows(draft, "bmc")
        rows.add(2000, ("a", "s"), {"reading": 2.0, "unit": "W", "state": 1})
        rows.add(1000, ("a", "s"), {"reading": 2.0**53, "unit": "W", "state": None})
        rows.finish()
        draft.imported(Topology(nodes=[Node(name="a")]), "c", title="t", summary="s", document="d")
    assert validate_recording(out) == []
    recording = Recording.open(out)
    found = rows_in(recording, "bmc")
    assert [(row["reading"], row["unit"], row["state"]) for row in found] == [(2.0**53, "W", None), (2.0, "W", 1)]
    assert recording.manifest.streams["bmc"].interval_s == 1


def test_many_rows_are_handed_on_in_batches(tmp_path: Path) -> None:
    out = tmp_path / "rows"
    report = Report()
    with Draft(out, report) as draft:
        rows = StreamRows(draft, "nic")
        for at in range(120_000):
            rows.add(1000 * at, ("a", "mlx5_0"), {"port_rcv_data": at} if at % 2 else {"symbol_error": at, "state": 1})
        rows.finish()
        node = Node.model_validate({"name": "a", "nics": [{"nic": "mlx5_0"}]})
        draft.imported(Topology(nodes=[node]), "c", title="t", summary="s", document="d")
    assert report.made["nic"] == 120_000
    assert validate_recording(out) == []
    batch = next(iter(Recording.open(out).batches("nic"))).to_pylist()
    assert (batch[0]["symbol_error"], batch[0]["port_rcv_data"]) == (0, None)
    assert (batch[1]["symbol_error"], batch[1]["port_rcv_data"]) == (None, 1)
