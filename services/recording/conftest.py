"""A small recording with every stream in it, and ways to break it; how files are imported and rows read back."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from services.recording.importers.contract import Report
from services.recording.model import Event, Gpu, Job, Label, Link, Mount, Nic, Node, Switch, Topology
from services.recording.reader import Recording
from services.recording.schema import STREAMS, TIMESTAMP, name_column
from services.recording.validate import validate_recording
from services.recording.writer import RecordingWriter, sha256_of

START = 1_711_958_400_000  # 2024-04-01T08:00:00Z
TICKS = 60
INTERVAL_MS = 5000
END = START + TICKS * INTERVAL_MS

Stream = Callable[..., pa.RecordBatch]


def topology() -> Topology:
    nodes = [
        Node(
            name=name,
            rack="r01",
            gpu_model="NVIDIA A100-SXM4-80GB",
            gpus=[Gpu(gpu=gpu, uuid=f"GPU-{name}-{gpu}", pcie_gen=4, pcie_width=16) for gpu in (0, 1)],
            nics=[Nic(nic="mlx5_0", switch="tor-1", port="Ethernet8", gbps=100)],
        )
        for name in ("n1", "n2")
    ]
    return Topology(
        nodes=nodes,
        switches=[Switch(name="tor-1", role="leaf"), Switch(name="spine-1", role="spine")],
        links=[Link(a="tor-1:Ethernet200", b="spine-1:Ethernet8", gbps=100)],
        mounts=[Mount(mount="/scale", kind="gpfs")],
    )


def batch(stream: str, first: int = 0, last: int = TICKS) -> pa.RecordBatch:
    """Rows of ticks ``first`` to ``last`` for two entities, every value a function of tick and entity."""
    ticks = np.repeat(np.arange(first, last), 2)
    entity = np.tile(np.array([0, 1]), last - first)
    times = pa.array(START + ticks * INTERVAL_MS).cast(TIMESTAMP)
    value = pa.array((ticks * 2 + entity).astype(np.float32))
    zeros = np.zeros(len(ticks), dtype=np.int64)
    columns: dict[str, dict[str, Any]] = {
        "dcgm": {
            "node": name_column(entity, ["n1", "n2"]),
            "gpu": pa.array(entity.astype(np.uint8)),
            "DCGM_FI_DEV_GPU_TEMP": value,
        },
        "nic": {
            "node": name_column(entity, ["n1", "n2"]),
            "nic": name_column(zeros, ["mlx5_0"]),
            "port_xmit_data": value,
        },
        "switch": {
            "switch": name_column(entity, ["tor-1", "spine-1"]),
            "port": name_column(zeros, ["Ethernet8"]),
            "SAI_PORT_STAT_IF_IN_OCTETS": value,
        },
        "bmc": {
            "node": name_column(entity, ["n1", "tor-1"]),
            "sensor": name_column(zeros, ["node_power"]),
            "reading": pa.array((ticks + 0.5).astype(np.float64)),
            "unit": name_column(zeros, ["W"]),
            "state": pa.nulls(len(ticks), pa.uint8()),
        },
        "steps": {
            "job_id": name_column(zeros, ["812"]),
            "rank": pa.array(np.where(entity == 0, -1, 0).astype(np.int32)),
            "node": name_column(entity, ["n1", "n2"], entity == 0),
            "iteration": pa.array(ticks),
            "step_time_s": value,
            "loss": pa.array(np.where(ticks == 3, np.nan, 1.5).astype(np.float32), mask=entity == 1),
        },
        "storage": {
            "node": name_column(entity, ["n1", "n2"]),
            "mount": name_column(zeros, ["/scale"]),
            "read_bytes": value,
        },
    }
    return pa.RecordBatch.from_pydict({"timestamp": times, **columns[stream]})


def documents(writer: RecordingWriter) -> None:
    writer.write_events(
        [
            Event(timestamp=START + 9000, source="job", node="n1", job_id="812", severity="info", message="hello"),
            Event(timestamp=START + 4000, source="sel", node="n2", severity="critical", message="PSU"),
        ]
    )
    writer.write_jobs(
        [Job(job_id="812", name="train", user="u", nodes=["n1", "n2"], start=START + 1000, end=None, state="RUNNING")]
    )
    writer.write_labels(
        [
            Label(
                id="f1",
                fault="power_throttle",
                entity={"node": "n2"},
                onset=START + 100_000,
                end=START + 200_000,
                within_s=30,
                job_id="812",
                incident="i1",
                root=True,
                impact={"gpus": 4, "gpu_hours_lost": 1.5},
            ),
            Label(
                id="d1",
                fault="none",
                entity={"job_id": "812"},
                onset=START,
                end=START + 5000,
                within_s=0,
                distractor=True,
            ),
        ]
    )


def header(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "title": "A small recording",
        "summary": "For tests.",
        "origin": "captured",
        "source": {"document": "none"},
        "start": START,
        "end": END,
        "cluster": {"name": "small"},
    }


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A valid recording that no test changes."""
    out = tmp_path_factory.mktemp("recordings") / "small"
    with RecordingWriter(out) as writer:
        for stream in STREAMS:
            writer.write(stream, batch(stream), interval_s=5)
        documents(writer)
        writer.finish(header("small"), topology())
    return out


@pytest.fixture
def small(made: Path, tmp_path: Path) -> Path:
    """A valid recording of this test's own."""
    return Path(shutil.copytree(made, tmp_path / "small"))


def rewrite(directory: Path, stream: str, change: Callable[[pa.Table], pa.Table], **options: Any) -> None:
    """Change a stream's table, and keep recording.yaml in step, so that only the change itself is wrong."""
    path = directory / f"{stream}.parquet"
    table = change(pq.read_table(path))
    pq.write_table(table, path, **{"compression": "zstd", **options})
    edit_manifest(directory, lambda content: content["streams"][stream].update(rows=table.num_rows))
    edit_manifest(directory, lambda content: content["streams"][stream].update(sha256=sha256_of(path)))


def edit_manifest(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = directory / "recording.yaml"
    content = yaml.safe_load(path.read_text())
    change(content)
    path.write_text(yaml.safe_dump(content))


def without_file(directory: Path, name: str) -> None:
    """Take a file away that is no stream, and out of recording.yaml."""
    (directory / name).unlink()
    edit_manifest(directory, lambda content: content["files"].pop(name, None))


def edit_lines(directory: Path, name: str, change: Callable[[list[str]], list[str]]) -> None:
    """Change a JSON-lines file, and its hash in recording.yaml."""
    path = directory / name
    path.write_text("".join(change(path.read_text().splitlines(keepends=True))))
    edit_manifest(directory, lambda content: content["files"][name].update(sha256=sha256_of(path)))


def written(folder: Path, files: Mapping[str, Any]) -> Path:
    """Write files below `folder`, what is no text as JSON, and return it."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def imported(
    convert: Callable[..., Report], tmp_path: Path, files: Mapping[str, Any], **options: Any
) -> tuple[Report, Recording]:
    """Import these files; the recording must be clean."""
    report = convert(written(tmp_path / "in", files), tmp_path / "out", **options)
    assert validate_recording(tmp_path / "out") == []
    return report, Recording.open(tmp_path / "out")


def rows_in(recording: Recording | Path, stream: str = "dcgm") -> list[dict[str, Any]]:
    """Return the rows of a stream; a recording that is named by its folder must be clean."""
    if isinstance(recording, Path):
        assert validate_recording(recording) == []
        recording = Recording.open(recording)
    return [row for batch in recording.batches(stream) for row in batch.to_pylist()]
