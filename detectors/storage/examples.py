"""Tapes for storage: mounts that are slow in several ways, and mounts that only have work to do."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from detectors.contract import FloatArray, LogRecord
from detectors.engine.rows import KeyColumn, Rows
from detectors.fleet.fleet import Job, JobEvent
from detectors.laws import Examples, Fault
from detectors.tapes.cluster import START, name
from detectors.tapes.tape import Tape

JOB: Final = "812"
MOUNTS: Final = ("/scale", "/nfs")
_BASE_MS = ((1.2, 1.8), (3.5, 5.0))
_GB = 1e9


@dataclass(frozen=True)
class Slow:
    """A stretch in which requests to a mount take longer; times in seconds from the tape's start."""

    mount: int
    at_s: float
    until_s: float = 1e9
    factor: float = 4.0
    nodes: Sequence[int] | None = None
    """Only of these clients."""


@dataclass(frozen=True)
class Site:
    """Two mounts and a job that reads from one of them; times in seconds from the tape's start."""

    nodes: int = 5
    minutes: float = 16.0
    interval_s: float = 15.0
    step_s: float = 5.0
    reads_from: int = 0
    read_gb_s: float = 0.5
    capacity_gb_s: Sequence[float] = (10.0, 1.0)
    begins_s: float = 0.0
    """When the job begins to read; before, nobody does."""
    checkpoints: Sequence[tuple[float, float]] = ()
    """Stretches in which the job writes to the first mount at 80 % of what it can take."""
    loads: Sequence[tuple[float, float]] = ()
    """Stretches in which the job reads at 85 % of what the first mount can give."""
    slow: Sequence[Slow] = ()
    wait_share: float = 0.01
    """Of a step, while storage is as usual; slow storage multiplies it."""
    starving_share: float | None = None
    """Instead, as long as the job reads."""
    mounts: int = 2
    link_gbps: float | None = None
    """Of all links of a node, where the topology has it."""
    counters: bool = True
    missing: float = 0.02
    seed: int = 1


def tape_of(site: Site) -> Tape:
    """Return the site as a tape."""
    chance = np.random.default_rng(site.seed)
    nodes = tuple(name(node) for node in range(site.nodes))
    job = Job(JOB, nodes, START - 60_000, 8)
    topology: dict[str, Any] = {
        "nodes": [{"name": node, "nics": [{"nic": "mlx5_0", "gbps": site.link_gbps}]} for node in nodes],
        "mounts": [{"mount": mount, "kind": kind} for mount, kind in zip(MOUNTS, ("gpfs", "nfs"), strict=True)],
    }
    rows = [_storage(site, chance), _steps(site, chance)]
    return Tape(START, START + int(site.minutes * 60_000), rows, (), [JobEvent(job.start, "start", job)], topology)


def _during(at: FloatArray, spans: Sequence[tuple[float, float]]) -> FloatArray:
    inside = np.zeros(at.shape)
    for begin, end in spans:
        inside = np.where((at >= begin) & (at < end), 1.0, inside)
    return inside


def _storage(site: Site, chance: np.random.Generator) -> Rows:
    ticks = np.arange(3.0, site.minutes * 60, site.interval_s)
    shape = (len(ticks), site.nodes, site.mounts)
    at = ticks[:, None, None] + 0.3 * np.arange(site.nodes)[None, :, None] + np.zeros(shape)
    node, mount = (np.broadcast_to(index, shape) for index in np.ogrid[: shape[0], : shape[1], : shape[2]][1:])
    reads = site.read_gb_s * _GB * ((mount == site.reads_from) & (at >= site.begins_s))
    reads = np.where(mount == 0, reads + 0.85 * site.capacity_gb_s[0] * _GB * _during(at, site.loads), reads)
    writes = np.where(mount == 0, 0.8 * site.capacity_gb_s[0] * _GB * _during(at, site.checkpoints), 0.0)
    capacity = np.array(site.capacity_gb_s)[mount] * _GB
    columns: dict[str, FloatArray] = {}
    for way, (what, rate) in enumerate((("read", reads), ("write", writes))):
        moved = np.cumsum(rate / site.nodes * site.interval_s + 1000 * chance.poisson(5, shape), axis=0)
        latency = np.array(_BASE_MS)[mount, way] / (1 - np.minimum(rate / capacity, 0.95))
        for slow in site.slow:
            hit = (mount == slow.mount) & (at >= slow.at_s) & (at < slow.until_s)
            if slow.nodes is not None:
                hit = hit & np.isin(node, slow.nodes)
            latency = np.where(hit, latency * slow.factor, latency)
        columns[f"{what}_bytes"] = np.floor(1e12 + moved)
        columns[f"{what}_latency_ms"] = latency * np.exp(0.12 * chance.standard_normal(shape))
    columns["waiters"] = np.floor(columns["read_latency_ms"] / 10)
    if not site.counters:
        del columns["read_bytes"], columns["write_bytes"]
    order = np.argsort(at.ravel(), kind="stable")
    order = order[chance.random(len(order)) >= site.missing]
    keys = {
        "node": KeyColumn(node.ravel()[order], tuple(name(number) for number in range(site.nodes))),
        "mount": KeyColumn(mount.ravel()[order], MOUNTS[: site.mounts]),
    }
    times = START + np.round(at.ravel()[order] * 1000).astype(np.int64)
    valid = {field: np.ones(len(order), bool) for field in columns}
    return Rows("storage", times, keys, {field: column.ravel()[order] for field, column in columns.items()}, valid)


def _steps(site: Site, chance: np.random.Generator) -> Rows:
    ends = np.arange(max(site.begins_s, 0.0) + site.step_s, site.minutes * 60, site.step_s)
    share = np.full(len(ends), site.wait_share if site.starving_share is None else site.starving_share)
    for slow in site.slow:
        if slow.mount == site.reads_from and slow.nodes is None:
            share = np.where((ends >= slow.at_s) & (ends < slow.until_s), np.minimum(share * slow.factor, 0.9), share)
    at, rank = np.repeat(ends, site.nodes), np.tile(np.arange(site.nodes), len(ends))
    shares = np.repeat(share, site.nodes)
    for slow in site.slow:
        if slow.mount == site.reads_from and slow.nodes is not None:
            hit = (at >= slow.at_s) & (at < slow.until_s) & np.isin(rank, slow.nodes)
            shares = np.where(hit, np.minimum(shares * slow.factor, 0.9), shares)
    wait = shares * site.step_s * np.exp(0.2 * chance.standard_normal(len(at)))
    keys = {
        "job_id": KeyColumn(np.zeros(len(at), np.int64), (JOB,)),
        "rank": KeyColumn(rank, tuple(range(site.nodes))),
    }
    columns = {"data_wait_s": wait, "step_time_s": np.full(len(at), site.step_s)}
    valid = {field: np.ones(len(at), bool) for field in columns}
    return Rows("steps", START + np.round(at * 1000).astype(np.int64), keys, columns, valid)


def with_gpus(
    tape: Tape,
    waits: Callable[[FloatArray], Any],
    *,
    spins: bool = False,
    clock: Callable[[FloatArray], Any] = np.ones_like,
) -> Tape:
    """Return a tape with readings of two GPUs a node, every 15 s, that wait for a share of the time at each second.

    Meanwhile they idle, or spin. Their `clock`, a share of 1980 MHz at each second, lowers what they draw.
    """
    nodes = tuple(str(node["name"]) for node in tape.topology["nodes"])
    at_s = np.arange(3.0, (tape.end - START) / 1000, 15)
    at, node, gpu = (part.ravel() for part in np.meshgrid(at_s, np.arange(len(nodes)), np.arange(2), indexing="ij"))
    noise = np.random.default_rng(11).standard_normal((2, len(at)))
    share = waits(at)
    values = {
        "DCGM_FI_DEV_GPU_UTIL": np.clip(np.round(95 * (1 - share * (not spins)) + noise[0]), 0, 100),
        "DCGM_FI_DEV_POWER_USAGE": 400 * (1 - (0.5 if spins else 0.7) * share) * clock(at) ** 2 + 8 * noise[1],
        "DCGM_FI_DEV_SM_CLOCK": 1980 * clock(at),
    }
    keys = {"node": KeyColumn(node, nodes), "gpu": KeyColumn(gpu, (0, 1))}
    valid = {field: np.ones(len(at), bool) for field in values}
    rows = Rows("dcgm", START + np.round(at * 1000).astype(np.int64), keys, values, valid)
    return replace(tape, rows=[*tape.rows, rows])


SERVERS: Final = Site(slow=[Slow(0, 480, 720)])
POOL: Final = Site(nodes=12, slow=[Slow(0, 480, 800, 5.0, nodes=[2, 5, 7, 9])], seed=5)
NFS: Final = Site(reads_from=1, read_gb_s=0.9, begins_s=420, starving_share=0.4, seed=2)

SILENT: Final = replace(tape_of(SERVERS), rows=tape_of(SERVERS).rows[:1])
"""A job that reports no steps, on a mount that is slow."""

KERNELS: Final = replace(
    tape_of(replace(SERVERS, wait_share=0.0, seed=7)),
    topology={**tape_of(SERVERS).topology, "mounts": [{"mount": "/scale", "kind": "nfs"}]},
    logs=[
        LogRecord(START + at, "kernel", "[9391.1] nfs: server fs1 not responding, still trying", "warning", name(node))
        for at, node in ((540_000, 1), (555_000, 3))
    ],
)
"""A job waits no longer than it did; the kernels of two of its nodes do."""

EXAMPLES = Examples(
    healthy=[
        tape_of(Site(checkpoints=[(400, 445), (700, 745)], loads=[(500, 600)], seed=3)),
        tape_of(Site(slow=[Slow(0, 480, 800, 8.0, nodes=[3])], seed=4)),
        tape_of(Site(nodes=12, slow=[Slow(0, 480, 800, 8.0, nodes=[3, 4])], seed=6)),
    ],
    faults=[
        Fault(tape_of(SERVERS), {"mount": "/scale"}, START + 480_000),
        Fault(tape_of(NFS), {"mount": "/nfs"}, START + 420_000),
        Fault(tape_of(POOL), {"mount": "/scale"}, START + 480_000),
        Fault(KERNELS, {"mount": "/scale"}, START + 480_000),
        Fault(
            with_gpus(SILENT, lambda at_s: 0.4 * ((at_s >= 480) & (at_s < 720))), {"mount": "/scale"}, START + 480_000
        ),
    ],
)
