"""Blocks of Prometheus' own TSDB, made and read by the real promtool."""

import json
import subprocess
from pathlib import Path

import pytest

from services.kit.errors import UserError
from services.recording.importers.heap import convert
from services.recording.importers.parts.heap import blocks as heap_blocks
from services.recording.reader import Recording
from services.recording.validate import validate_recording
from services.stack import build
from services.stack.settings import load_settings

START = 1_711_958_400
MINUTES = 30


@pytest.fixture(scope="module")
def promtool() -> Path:
    return build.ensure(load_settings().cache_dir, ("prometheus",))["prometheus"] / "promtool"


@pytest.fixture
def snapshot(promtool: Path, tmp_path: Path) -> Path:
    """Return what Prometheus' snapshots hold, a folder of blocks, on both sides of an edge; not all series are ours."""
    lines = ["# TYPE DCGM_FI_DEV_GPU_TEMP gauge"]
    for gpu in range(4):
        for minute in range(-MINUTES, MINUTES):
            labels = f'gpu="{gpu}",UUID="GPU-{gpu}",Hostname="n7",instance="10.0.0.7:9400"'
            lines.append(f"DCGM_FI_DEV_GPU_TEMP{{{labels}}} {40 + gpu + minute % 7} {START + 60 * minute}")
    lines += ["# TYPE go_goroutines gauge", f'go_goroutines{{instance="10.0.0.7:9400"}} 7 {START}', "# EOF"]
    (tmp_path / "metrics.om").write_text("\n".join(lines) + "\n")
    out = tmp_path / "heap" / "snapshot"
    command = [str(promtool), "tsdb", "create-blocks-from", "openmetrics", str(tmp_path / "metrics.om"), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(list(out.glob("*/meta.json"))) == 2
    return tmp_path / "heap"


@pytest.mark.parametrize("samples", [heap_blocks._SAMPLES, 50])
def test_blocks_are_read_by_promtool(
    promtool: Path, snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, samples: int
) -> None:
    """However many files their text is cut into, each sample comes in once, and the user's files stay as they are."""
    before = {path: path.stat().st_mtime_ns for path in snapshot.rglob("*")}
    monkeypatch.setenv("PATH", str(promtool.parent))
    monkeypatch.setattr(heap_blocks, "_SAMPLES", samples)
    report = convert(snapshot, tmp_path / "out")
    assert validate_recording(tmp_path / "out") == []
    rows = [row for batch in Recording.open(tmp_path / "out").batches("dcgm") for row in batch.to_pylist()]
    found = {(int(row["timestamp"].timestamp()), row["node"], row["gpu"]): row["DCGM_FI_DEV_GPU_TEMP"] for row in rows}
    assert found == {
        (START + 60 * minute, "n7", gpu): 40 + gpu + minute % 7
        for gpu in range(4)
        for minute in range(-MINUTES, MINUTES)
    }
    (row,) = report.files
    assert row.kind.startswith("dcgm-text")
    assert ("files)" in row.name) == (samples == 50)
    assert {path: path.stat().st_mtime_ns for path in snapshot.rglob("*")} == before


def test_what_promtool_cannot_read_is_reported_in_its_words(
    promtool: Path, snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(promtool.parent))
    index = next(snapshot.rglob("index"))
    index.write_bytes(index.read_bytes()[:20])
    with pytest.raises(UserError, match=r"(?s)promtool cannot read it: .*"):
        convert(snapshot, tmp_path / "out")
    meta = next(snapshot.rglob("meta.json"))
    meta.write_text(json.dumps({"minTime": "noon"}))
    with pytest.raises(UserError, match=r"(?s)promtool cannot read it"):
        convert(snapshot, tmp_path / "out")


def test_without_promtool_the_table_says_what_would_read_them(
    snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"(?s)with promtool on the PATH it is read"):
        convert(snapshot, tmp_path / "out")
