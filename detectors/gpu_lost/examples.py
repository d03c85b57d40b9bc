"""Tapes for the laws and the tests: GPUs that are gone, and GPUs that are only not heard for a while."""

from collections.abc import Sequence

import numpy as np

from detectors.contract import BoolArray, FloatArray, LogRecord
from detectors.fleet.fleet import Job, JobEvent
from detectors.laws import Examples, Fault
from detectors.tapes.gpus import START, Cluster, bus, instant, kernel, name, xid_line
from detectors.tapes.tape import Tape

XID, TEMPERATURE, POWER = "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE"
UTIL = "DCGM_FI_DEV_GPU_UTIL"
CLUSTER = Cluster(minutes=6)


def readings(cluster: Cluster = CLUSTER) -> dict[str, FloatArray]:
    """Return what GPUs at work report."""
    chance = cluster.chance("readings")
    shape = (cluster.ticks, cluster.nodes * cluster.gpus)
    return {
        XID: cluster.steady(0),
        TEMPERATURE: 60 + chance.integers(0, 5, shape).astype(float),
        POWER: 380 + chance.normal(0, 5, shape),
    }


def absent(cluster: Cluster, gaps: Sequence[tuple[int, int | None, float, float]]) -> BoolArray:
    """Return which readings never come: (node, GPU or all of it, from second, until second)."""
    gone = np.zeros((cluster.ticks, cluster.nodes * cluster.gpus), bool)
    for node, gpu, begin_s, end_s in gaps:
        place = cluster.of(node, gpu)
        gone[:, place] |= (cluster.at_s[:, place] >= begin_s) & (cluster.at_s[:, place] < end_s)
    return gone


def off_the_bus(at_s: float, node: int, gpu: int, others: Sequence[int] = ()) -> list[LogRecord]:
    """Return the kernel's lines about a GPU that falls off the bus, and about what that did to others."""
    lines = [
        xid_line(at_s, node, gpu, 79, "GPU has fallen off the bus."),
        kernel(at_s + 0.01, node, f"NVRM: GPU 0000:{bus(gpu)}:00.0: GPU has fallen off the bus."),
    ]
    return lines + [xid_line(at_s + 0.3, node, other, 45, "Ch 00000008") for other in others]


def scheduler(at_s: float, message: str) -> LogRecord:
    """Return a line of the scheduler's log."""
    return LogRecord(int(instant(at_s)), "scheduler", message)


def _stated_and_silent() -> Tape:
    gone = absent(CLUSTER, [(1, 2, 151, 9999)])
    return CLUSTER.tape(readings(), gone=gone, logs=off_the_bus(150, 1, 2, others=(0, 1, 3)))


def _only_silent() -> Tape:
    return CLUSTER.tape(readings(), gone=absent(CLUSTER, [(0, 3, 120, 240)]))


def _stated_without_a_code() -> Tape:
    line = kernel(90, 2, f"NVRM: GPU 0000:{bus(1)}:00.0: GPU has fallen off the bus.")
    return CLUSTER.tape(readings(), gone=absent(CLUSTER, [(2, 1, 90, 9999)]), logs=[line])


def _firmware() -> Tape:
    text = "Timeout after 6s of waiting for RPC response from GPU2 GSP! Expected function 103 (GSP_RM_ALLOC)."
    return CLUSTER.tape(readings(), logs=[xid_line(at_s, 0, 2, 119, text) for at_s in (100, 106, 112, 280)])


def _collector_outages() -> Tape:
    """Lose single readings, scrapes of whole nodes, and a minute of everything."""
    cluster = Cluster(minutes=6, missing=0.1, missing_gpu=0.05, seed=3)
    gone = absent(cluster, [(0, None, 60, 140), (1, None, 200, 9999)]) | ((cluster.at_s >= 150) & (cluster.at_s < 190))
    columns = readings(cluster)
    columns[XID][:, 5] = 79  # of last week
    return cluster.tape(columns, gone=gone, logs=[xid_line(80, 2, 1, 43), xid_line(81, 2, 2, 31)])


def _maintenance() -> Tape:
    """Drain a node and reset its GPUs one after the other, reboot another, and end and start a job on a third."""
    gone = absent(CLUSTER, [(0, gpu, 100 + 30 * gpu, 160 + 30 * gpu) for gpu in range(4)])
    gone |= absent(CLUSTER, [(1, None, 120, 9999), (2, 1, 199, 221)])
    lines = [
        scheduler(80, "slurmctld: update_node: node v001 state set to DRAIN"),
        scheduler(118, "slurmctld: reboot request for node v002"),
    ]
    old = Job("812", ("v001", "v002", "v003"), START - 3_600_000, 4)
    new = Job("813", ("v003",), int(instant(205)), 4)
    jobs = [
        JobEvent(old.start, "start", old),
        JobEvent(int(instant(200)), "end", old),
        JobEvent(new.start, "start", new),
    ]
    return CLUSTER.tape(readings(), gone=gone, logs=lines, jobs=jobs)


EXAMPLES = Examples(
    healthy=[CLUSTER.tape(readings()), _collector_outages(), _maintenance()],
    faults=[
        Fault(_stated_and_silent(), {"node": name(1), "gpu": 2}, START + 150_000),
        Fault(_only_silent(), {"node": name(0), "gpu": 3}, START + 120_000),
        Fault(_stated_without_a_code(), {"node": name(2), "gpu": 1}, START + 90_000),
        Fault(_firmware(), {"node": name(0), "gpu": 2}, START + 100_000),
    ],
)
