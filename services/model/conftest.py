"""Recordings of two nodes at work in one job, written column by column: healthy, or with a card whose clock falls."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from services.model.artefact import Model
from services.model.fit import fit
from services.recording.model import Gpu, Job, Label, Node, Topology
from services.recording.schema import TIMESTAMP, name_column
from services.recording.writer import RecordingWriter

START = 1_711_958_400_000  # 2024-04-01T08:00:00Z
NODES, GPUS, INTERVAL_MS, STEP_MS = 2, 8, 6000, 10_000


@dataclass(frozen=True)
class Slow:
    """One GPU's clock (and power, and the time of its rank) is off by `factor` for some minutes."""

    gpu: int = 11
    from_minute: int = 40
    minutes: int = 15
    factor: float = 0.6


def write_recording(out: Path, *, minutes: int, seed: int, slow: Slow | None = None) -> Path:
    """Write a recording; a checkpoint of half a minute every 20 minutes leaves all GPUs idle."""
    rng = np.random.default_rng(seed)
    count = NODES * GPUS
    habit = rng.normal(0, 1, count)
    with RecordingWriter(out) as writer:
        ticks = minutes * 60_000 // INTERVAL_MS
        at = np.repeat(START + np.arange(ticks) * INTERVAL_MS, count)
        gpu = np.tile(np.arange(count), ticks)
        pace = _pace(at, gpu, slow)
        busy = (at - START) % 1_200_000 >= 30_000
        noise = rng.normal(0, 1, (4, len(at)))
        columns = {
            "DCGM_FI_DEV_SM_CLOCK": np.round(1400 * pace + 5 * noise[0]),
            "DCGM_FI_DEV_GPU_TEMP": np.round(60 + habit[gpu] + noise[1]),
            "DCGM_FI_DEV_POWER_USAGE": np.where(busy, 370 * pace**2 + 6 * habit[gpu] + 8 * noise[2], 90.0),
            "DCGM_FI_DEV_GPU_UTIL": np.where(busy, 99.0, 0.0),
            "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": np.where(busy, 0.4 * pace + 0.01 * noise[3], 0.0),
            "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": np.zeros(len(at)),
        }
        writer.write(
            "dcgm",
            pa.RecordBatch.from_pydict(
                {
                    "timestamp": pa.array(at).cast(TIMESTAMP),
                    "node": name_column(gpu // GPUS, ["n1", "n2"]),
                    "gpu": pa.array((gpu % GPUS).astype(np.uint8)),
                    **{name: pa.array(column.astype(np.float32)) for name, column in columns.items()},
                }
            ),
            interval_s=INTERVAL_MS / 1000,
        )
        writer.write("steps", _steps(minutes, slow, rng))
        job = Job(job_id="812", nodes=["n1", "n2"], gpus_per_node=GPUS, start=START - 600_000, state="RUNNING")
        writer.write_jobs([job])
        if slow is not None:
            writer.write_labels([label_of(slow)])
        header = {
            "name": out.name,
            "title": "Two nodes at work",
            "summary": "For tests.",
            "origin": "captured",
            "source": {"document": "none"},
            "start": START,
            "end": START + minutes * 60_000,
            "cluster": {"name": "small"},
        }
        gpus = [Gpu(gpu=index) for index in range(GPUS)]
        nodes = [Node(name=name, gpu_model="NVIDIA A100-SXM4-80GB", gpus=gpus) for name in ("n1", "n2")]
        writer.finish(header, Topology(nodes=nodes))
    return out


def label_of(slow: Slow) -> Label:
    """Return the truth about a slow GPU."""
    onset = START + slow.from_minute * 60_000
    entity: dict[str, str | int] = {"node": f"n{1 + slow.gpu // GPUS}", "gpu": slow.gpu % GPUS}
    end = onset + slow.minutes * 60_000
    return Label(id="f1", fault="straggler", entity=entity, onset=onset, end=end, within_s=300, job_id="812")


def _pace(at: np.ndarray, gpu: np.ndarray, slow: Slow | None) -> np.ndarray:
    if slow is None:
        return np.ones(len(at))
    minute = (at - START) // 60_000
    here = (gpu == slow.gpu) & (minute >= slow.from_minute) & (minute < slow.from_minute + slow.minutes)
    return np.where(here, slow.factor, 1.0)


def _steps(minutes: int, slow: Slow | None, rng: np.random.Generator) -> pa.RecordBatch:
    count = NODES * GPUS
    steps = minutes * 60_000 // STEP_MS
    at = np.repeat(START + np.arange(1, steps + 1) * STEP_MS, count)
    rank = np.tile(np.arange(count), steps)
    compute = 8 / _pace(at, rank, slow) + rng.normal(0, 0.05, len(at))
    longest = np.repeat(compute.reshape(-1, count).max(axis=1), count)
    return pa.RecordBatch.from_pydict(
        {
            "timestamp": pa.array(at).cast(TIMESTAMP),
            "job_id": name_column(np.zeros(len(at), np.int64), ["812"]),
            "rank": pa.array(rank.astype(np.int32)),
            "node": name_column(rank // GPUS, ["n1", "n2"]),
            "iteration": pa.array(np.repeat(np.arange(steps), count)),
            "step_time_s": pa.array((longest + 0.5).astype(np.float32)),
            "compute_s": pa.array(compute.astype(np.float32)),
            "comm_wait_s": pa.array((longest - compute + 0.5).astype(np.float32)),
        }
    )


@pytest.fixture(scope="session")
def healthy_recordings(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Six clusters, for an hour and a half each, without a fault."""
    folder = tmp_path_factory.mktemp("healthy")
    return [write_recording(folder / f"healthy-{seed}", minutes=90, seed=seed) for seed in range(10, 16)]


@pytest.fixture(scope="session")
def slow_recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two hours in which GPU 3 of n2 is slow for a quarter of an hour."""
    return write_recording(tmp_path_factory.mktemp("slow") / "slow", minutes=120, seed=2, slow=Slow())


@pytest.fixture(scope="session")
def model(healthy_recordings: list[Path]) -> Model:
    """A model fitted on the healthy recordings."""
    return fit(healthy_recordings)
