"""A small recording with every kind of stream: jitter, ties, nulls, a NaN, jobs around the window, log lines."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from services.recording.model import Event, Gpu, Job, Node, Topology
from services.recording.writer import RecordingWriter

START = 1_711_958_400_000
MINUTES = 10
END = START + MINUTES * 60_000
NODES = [f"v{number:03d}" for number in range(1, 9)]


def _stamps(times: Any) -> Any:
    return pa.array(times, pa.timestamp("ms", "UTC"))


def _names(values: Sequence[str | None]) -> Any:
    return pa.array(values, pa.string()).dictionary_encode()


def dcgm_batch() -> pa.RecordBatch:
    """Every 5 s, 4 GPUs of each node; each node is read a little later than the one before it."""
    random = np.random.default_rng(7)
    ticks = np.arange(START, END + 1, 5000)
    times = (ticks[:, None, None] + np.arange(len(NODES))[None, :, None] * 37 + np.zeros(4, np.int64)).ravel()
    nodes = [node for _ in ticks for node in NODES for _ in range(4)]
    rows = len(times)
    power = random.normal(390, 8, rows).astype(np.float32)
    return pa.RecordBatch.from_pydict(
        {
            "timestamp": _stamps(np.minimum(times, END)),
            "node": _names(nodes),
            "gpu": pa.array(np.tile(np.arange(4, dtype=np.uint8), rows // 4)),
            "DCGM_FI_DEV_POWER_USAGE": pa.array(power, mask=random.random(rows) < 0.01),
            "DCGM_FI_DEV_SM_CLOCK": pa.array(random.normal(1400, 5, rows).astype(np.float32)),
        }
    )


def bmc_batch() -> pa.RecordBatch:
    """Every minute, two sensors of each node."""
    ticks = np.arange(START, END + 1, 60_000)
    sensors = [("PSU0", "W"), ("Inlet", "Cel")]
    keys = [(node, sensor, unit) for _ in ticks for node in NODES for sensor, unit in sensors]
    return pa.RecordBatch.from_pydict(
        {
            "timestamp": _stamps(np.repeat(ticks, len(NODES) * len(sensors))),
            "node": _names([node for node, _, _ in keys]),
            "sensor": _names([sensor for _, sensor, _ in keys]),
            "reading": pa.array(np.linspace(0.0, 1.0, len(keys))),
            "unit": pa.array([unit for _, _, unit in keys]),
        }
    )


def steps_batch() -> pa.RecordBatch:
    """One job's steps every 1.7 s; the job as a whole has no node; a loss is NaN once, and null where not reported."""
    times = np.arange(START + 300, END, 1700)
    rows = len(times)
    loss = np.linspace(4, 2, rows)
    loss[rows // 2] = np.nan
    return pa.RecordBatch.from_pydict(
        {
            "timestamp": _stamps(times),
            "job_id": _names(["812"] * rows),
            "rank": pa.array(np.where(np.arange(rows) % 3 == 0, -1, 3).astype(np.int32)),
            "node": _names([None if row % 3 == 0 else "v001" for row in range(rows)]),
            "iteration": pa.array(np.arange(rows, dtype=np.int64)),
            "step_time_s": pa.array(np.full(rows, 1.7)),
            "loss": pa.array(loss, mask=np.arange(rows) % 5 == 0),
        }
    )


EVENTS = [
    Event(timestamp=START + 10_000, source="scheduler", job_id="812", severity="info", message="job 812 started"),
    Event(timestamp=START + 90_000, source="sel", node="v003", severity="critical", message="Power Supply PS1 | fault"),
    Event(timestamp=START + 90_000, source="kernel", node="v003", severity="warning", message="power brake"),
    Event(timestamp=END, source="scheduler", severity="info", message="the last line"),
]

JOBS = [
    Job(job_id="700", nodes=["v008"], start=START - 900_000, end=START - 60_000, state="COMPLETED"),
    Job(job_id="811", nodes=["v007"], start=START - 60_000, end=START + 120_000, state="FAILED", exit_code=1),
    Job(job_id="812", nodes=["v001", "v002"], start=START + 10_000, end=None, state="RUNNING"),
    Job(job_id="813", nodes=["v007"], start=START + 120_000, end=END + 60_000, state="TIMEOUT"),
]


def write_recording(out: Path) -> Path:
    """Write the recording into `out` and return it."""
    gpus = [Gpu(gpu=number, uuid=f"GPU-{number}", power_limit_w=400) for number in range(4)]
    topology = Topology(nodes=[Node(name=name, rack="r01", gpu_model="NVIDIA A100", gpus=gpus) for name in NODES])
    header = {
        "name": out.name,
        "title": "A small recording",
        "summary": "Every kind of stream, ten minutes.",
        "origin": "synthetic",
        "start": START,
        "end": END,
        "cluster": {"name": "vela"},
    }
    with RecordingWriter(out) as writer:
        writer.write("dcgm", dcgm_batch(), interval_s=5)
        writer.write("bmc", bmc_batch(), interval_s=60)
        writer.write("steps", steps_batch())
        writer.write_events(EVENTS)
        writer.write_jobs(JOBS)
        writer.finish(header, topology)
    return out


@pytest.fixture(scope="session")
def recording_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recording(tmp_path_factory.mktemp("recordings") / "small")
