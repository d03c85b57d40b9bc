"""Whether file systems look, to clients and to jobs, as their load and their ills make them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.recording.validate import validate_recording
from services.synth.conftest import GPUS, NODES, Telemetry, Write
from services.synth.jobs.test_jobs import USUAL, job, steps
from services.synth.make import make_recording
from services.synth.physics.effects import Floats
from services.synth.physics.storage import capacity_left

GPFS = {"mount": "/fs", "kind": "lustre", "read_gb_s": 2.0, "write_gb_s": 1.0, "servers": 4}
NFS = {"mount": "/nfs", "kind": "nfs", "read_gb_s": 0.1, "write_gb_s": 0.1, "contention": 0.1, "settle_steps": 60}
BUFFER = {"mount": "/bb", "kind": "nvme", "read_gb_s": 5.0, "write_gb_s": 2.0, "local": True, "drains_to": "/fs"}
SLOW = {"kind": "storage_slow", "mount": "/fs", "at": "+00:05:00", "until": "+00:10:00"}
DURING = (330.0, 600.0)


def made(write: Write, tmp_path: Path, *mounts: dict[str, Any], **scenario: Any) -> Telemetry:
    path = write(
        {"happenings": [], "distractors": [], "jobs": [job()]} | scenario,
        {"storage": list(mounts or (GPFS,)), "mount": "/fs", "mount_kind": "lustre", "storage_interval_s": 15},
    )
    out = make_recording(path, tmp_path / "out" / "tiny-brake")
    assert validate_recording(out) == []
    return Telemetry(out)


def clients(telemetry: Telemetry, name: str, begin: float, end: float, mount: str = "/fs") -> Floats:
    seconds = telemetry.seconds("storage")
    pick = (seconds >= begin) & (seconds < end) & (np.array(telemetry.column("storage", "mount")) == mount)
    return np.asarray(telemetry.column("storage", name)[pick], dtype=np.float64)


def gained(telemetry: Telemetry, name: str, begin: float, end: float, mount: str = "/fs") -> float:
    """What all nodes' counters gained between two times."""
    nodes = np.array(telemetry.column("storage", "node"))
    seconds, mounts = telemetry.seconds("storage"), np.array(telemetry.column("storage", "mount"))
    total = 0.0
    for node in set(nodes):
        pick = (nodes == node) & (mounts == mount) & (seconds >= begin) & (seconds < end)
        total += float(np.ptp(telemetry.column("storage", name)[pick]))
    return total


def test_counters_count_what_jobs_read_and_write(write: Write, tmp_path: Path) -> None:
    telemetry = made(write, tmp_path, jobs=[job(training={"read_mb_per_step": 40, "checkpoint_gb": 0.5})])
    (first, *_) = [label for label in telemetry.recording.labels() if "checkpoint" in label.id]
    begin = (first.onset - telemetry.recording.manifest.start) / 1000
    written = gained(telemetry, "write_bytes", begin - 20, begin + 60)
    assert written == pytest.approx(0.5e9 * NODES * GPUS, rel=0.02)
    span = (60.0, 180.0)
    read = gained(telemetry, "read_bytes", *span)
    done = len(steps(telemetry, "step_time_s", span[0], span[1]))
    assert read == pytest.approx(40e6 * NODES * GPUS * done, rel=0.2)
    assert gained(telemetry, "read_ops", *span) == pytest.approx(read / 2**20, rel=0.1)
    for name in ("read_bytes", "write_bytes", "read_ops", "write_ops"):
        nodes = np.array(telemetry.column("storage", "node"))
        assert (np.diff(telemetry.column("storage", name)[nodes == "t02"]) >= 0).all()
    assert set(np.array(telemetry.column("storage", "node"))) == {f"t{n:02d}" for n in range(1, NODES + 1)}
    assert telemetry.recording.manifest.streams["storage"].interval_s == 15


def test_latency_rises_with_the_load_of_a_checkpoint_and_falls_again(write: Write, tmp_path: Path) -> None:
    telemetry = made(write, tmp_path, jobs=[job(training={"checkpoint_gb": 2.6})])
    (first, *_) = [label for label in telemetry.recording.labels() if "checkpoint" in label.id]
    begin = (first.onset - telemetry.recording.manifest.start) / 1000
    quiet = np.median(clients(telemetry, "write_latency_ms", *USUAL))
    assert clients(telemetry, "write_latency_ms", begin, begin + 35).max() > 3 * quiet
    assert np.median(clients(telemetry, "write_latency_ms", begin + 45, begin + 90)) == pytest.approx(quiet, rel=0.3)
    assert clients(telemetry, "waiters", begin, begin + 35).max() > clients(telemetry, "waiters", *USUAL).max()


@pytest.mark.parametrize(
    ("what", "slower", "waits"),
    [
        ({"what": "servers", "size": 30, "share": 0.25}, 4.0, 5.0),
        ({"what": "metadata", "size": 30}, 2.0, 4.0),
        ({"what": "load", "size": 0.9}, 5.0, 5.0),
    ],
)
def test_a_slow_mount_shows_on_every_client_and_in_every_ranks_wait(
    write: Write, tmp_path: Path, what: dict[str, Any], slower: float, waits: float
) -> None:
    truth = {"truth": {"id": "f1", "fault": "storage_slow", "within_s": 120, "incident": "i", "root": True}}
    telemetry = made(write, tmp_path, happenings=[SLOW | what | truth])
    before, during = (clients(telemetry, "read_latency_ms", *span) for span in ((60.0, 290.0), DURING))
    assert np.median(during) > slower * np.median(before)
    wait = steps(telemetry, "data_wait_s", *DURING).mean() / np.median(steps(telemetry, "data_wait_s", *USUAL))
    assert wait > waits
    checkpoints = [label.end - label.onset for label in telemetry.recording.labels() if "checkpoint" in label.id]
    starts = [label.onset for label in telemetry.recording.labels() if "checkpoint" in label.id]
    at = np.array(starts) - telemetry.recording.manifest.start
    assert max(np.array(checkpoints)[at > 300_000]) > 2 * max(np.array(checkpoints)[at < 280_000])
    (label,) = [label for label in telemetry.recording.labels() if not label.distractor]
    assert label.entity == {"mount": "/fs"}
    complaints = [event for event in telemetry.recording.events() if "ptlrpc_expire_one_request" in event.message]
    assert complaints
    assert all(event.source == "kernel" for event in complaints)


def test_another_mounts_ills_are_nobodys_but_its_users(write: Write, tmp_path: Path) -> None:
    reader, other = job(id="1", nodes=["t01"]), job(id="2", nodes=["t03"], training={"reads_from": "/bb"})
    slow = [SLOW | {"what": "servers", "size": 50}]
    telemetry = made(write, tmp_path, GPFS, BUFFER, jobs=[reader, other], happenings=slow)
    grew = [
        steps(telemetry, "data_wait_s", *DURING, number).mean() / steps(telemetry, "data_wait_s", *USUAL, number).mean()
        for number in ("1", "2")
    ]
    assert grew[0] > 10
    assert grew[1] < 3


def test_a_reader_of_more_than_a_mount_has_waits_and_settles_slowly(write: Write, tmp_path: Path) -> None:
    """NFS: reads take longer than the computation that should hide them, at first far longer, and vary."""
    volume = {"reads_from": "/nfs", "read_mb_per_step": 80, "checkpoint_every": 1000}
    telemetry = made(write, tmp_path, GPFS, NFS | {"cold_factor": 1.6}, jobs=[job(training=volume)])
    fine = made(write, tmp_path / "fine", jobs=[job(training={"read_mb_per_step": 80, "checkpoint_every": 1000})])
    early, late = steps(telemetry, "step_time_s", 80, 200), steps(telemetry, "step_time_s", 450, 600)
    good = steps(fine, "step_time_s", 80, 600)
    assert early.mean() > 1.2 * late.mean() > 1.3 * good.mean()
    assert late.std() / late.mean() > 3 * good.std() / good.mean()
    assert np.median(clients(telemetry, "read_latency_ms", 450, 600, "/nfs")) > 5 * np.median(
        clients(telemetry, "read_latency_ms", 0, 30, "/nfs")
    )
    # While their data comes, GPUs do nothing.
    assert telemetry.dcgm("DCGM_FI_DEV_GPU_UTIL", 100, 200).mean() < 75
    assert fine.dcgm("DCGM_FI_DEV_GPU_UTIL", 100, 200).mean() > 95


def test_a_burst_buffer_takes_a_checkpoint_at_once_and_drains(write: Write, tmp_path: Path) -> None:
    drain = BUFFER | {"drain_gb_s": 0.05}
    training = {"checkpoints_to": "/bb", "checkpoint_gb": 2.0}
    telemetry = made(write, tmp_path, GPFS, drain, jobs=[job(training=training)])
    (first, *_) = [label for label in telemetry.recording.labels() if "checkpoint" in label.id]
    begin = (first.onset - telemetry.recording.manifest.start) / 1000
    volume = 2.0e9 * NODES * GPUS
    assert gained(telemetry, "write_bytes", begin - 20, begin + 50, "/bb") == pytest.approx(volume, rel=0.02)
    drained = gained(telemetry, "write_bytes", begin - 20, begin + 160)
    assert drained == pytest.approx(volume, rel=0.05)
    assert gained(telemetry, "write_bytes", begin - 20, begin + 50) < 0.9 * drained
    assert gained(telemetry, "read_bytes", begin - 20, begin + 160, "/bb") == pytest.approx(volume, rel=0.05)


def test_what_is_left_of_a_mount_falls_with_the_share_and_the_slowness() -> None:
    assert capacity_left(0.5, 1.0) == 1.0
    assert capacity_left(0.25, 16.0) == pytest.approx(0.75 + 0.25 / 4)
    assert capacity_left(1.0, 100.0) == pytest.approx(0.1)
