"""Tapes for the laws and the tests: jobs with one slow GPU or node, and jobs in which something only looks like it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from detectors.contract import FloatArray, LogRecord
from detectors.engine.rows import KeyColumn, Rows
from detectors.fleet.fleet import Job, JobEvent
from detectors.laws import Examples, Fault
from detectors.signals.brakes import IDLE_POWER
from detectors.straggler.readings import WAITS_AT_WATTS
from detectors.tapes.gpus import START, Cluster, instant, name
from detectors.tapes.tape import Tape

CLOCK, REASONS = "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"
UTIL, LIMIT, TEMP = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "DCGM_FI_DEV_GPU_TEMP"
TENSOR, DRAM, POWER = "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_DEV_POWER_USAGE"
SM, ENERGY = "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
JOB = "812"
_IDLES = 0.3
"""Of its power at work a GPU that spins draws half, an idle one a fifth."""


@dataclass(frozen=True)
class Slow:
    """Some ranks compute `factor` times as long from one second to another; with `ramp_s`, more and more so."""

    ranks: Sequence[int]
    since_s: float = -1e9
    until_s: float = 1e9
    factor: float = 1.4
    ramp_s: float = 0.0


@dataclass(frozen=True)
class Training:
    """A synchronous job; times in seconds from the tape's start."""

    nodes: int = 3
    gpus: int = 4
    minutes: float = 6.0
    compute_s: float = 4.0
    collective_s: float = 0.5
    jitter: float = 0.008
    lengths: float = 0.0
    """How much all ranks' work varies together from step to step, relative."""
    spread: float = 0.01
    """How much ranks differ for good, relative."""
    slow: Sequence[Slow] = ()
    slow_data: Sequence[Slow] = ()
    """Waits for data instead, as long as the factor times a second."""
    uniform: Sequence[tuple[float, float, float]] = ()
    """(since, until, factor): all ranks compute longer."""
    checkpoints: Sequence[float] = ()
    starts_s: float = -3600.0
    ends_s: float | None = None
    last_stage: float = 1.0
    """How much longer the last of two (of one node: four) stages computes."""
    columns: Sequence[str] = ("step_time_s", "compute_s", "comm_wait_s", "data_wait_s")
    every: int = 1
    """Of so many steps ranks report one."""
    only_whole: bool = False
    """Only the job as a whole is reported."""
    one_a_node: bool = False
    """Only the first rank of each node reports."""
    missing: float = 0.01
    interval_s: float = 15.0
    felt: str = ""
    """What a slow rank's GPU reads like: "clock", "memory", "host" (its node's GPUs idle), "work" (it was given more),
    "chip" (its power alone shows it); nothing, where empty."""
    dcgm: Mapping[str, Callable[[FloatArray, FloatArray], FloatArray]] = field(default_factory=dict)
    """By field: from (seconds, values), each (ticks, GPUs), what is reported instead."""
    logs: Sequence[LogRecord] = ()
    topology_known: bool = True
    seed: int = 1


def tape_of(training: Training) -> Tape:
    """Return the job as a tape of steps and GPU readings."""
    cluster = Cluster(training.nodes, training.gpus, training.minutes, training.interval_s, seed=training.seed)
    cluster = replace(cluster, topology_known=training.topology_known)
    names = tuple(name(node) for node in range(training.nodes))
    job = Job(JOB, names, int(instant(training.starts_s)), training.gpus)
    jobs = [JobEvent(job.start, "start", job)]
    if training.ends_s is not None:
        jobs.append(JobEvent(int(instant(training.ends_s)), "end", job))
    whole = cluster.tape(_readings(training, cluster), jobs=jobs, logs=training.logs)
    return replace(whole, rows=[_steps(training), *whole.rows])


def with_speeds(
    training: Training, node: str, speeds: Sequence[tuple[float, float]], errors_per_s: float = 0.0
) -> Tape:
    """Return the job, and its nodes' NICs: they read a speed of 400 Gb/s, but one node's another from times on (s), and
    counts errors all the time.
    """
    tape, nodes = tape_of(training), training.nodes
    ticks = np.arange(2.0, training.minutes * 60, training.interval_s)
    at_s, number = np.repeat(ticks, nodes), np.tile(np.arange(nodes), len(ticks))
    since, gbps = np.array(speeds).T
    own = gbps[np.searchsorted(since, at_s, side="right") - 1]
    names = tuple(name(one) for one in range(nodes))
    speed = np.where(number == names.index(node), own, 400.0)
    keys = {
        "node": KeyColumn(number, names),
        "nic": KeyColumn(np.zeros(len(at_s), np.int64), ("mlx5_0",)),
    }
    values = {"speed_gbps": speed, "symbol_error": np.where(number == names.index(node), errors_per_s * at_s, 0.0)}
    rows = Rows("nic", instant(at_s), keys, values, {field_: np.ones(len(at_s), bool) for field_ in values})
    return replace(tape, rows=[*tape.rows, rows])


def _readings(training: Training, cluster: Cluster) -> dict[str, FloatArray]:
    shape = (cluster.ticks, training.nodes * training.gpus)
    clock = 1410.0 - 15.0 * cluster.chance("clock").integers(0, 3, shape).astype(np.float64)
    values: dict[str, FloatArray] = {CLOCK: clock, REASONS: cluster.steady(0), UTIL: cluster.steady(100)}
    if training.felt:
        values |= _felt(training, cluster, clock)
    values["DCGM_FI_DEV_PCIE_LINK_GEN"], values["DCGM_FI_DEV_PCIE_LINK_WIDTH"] = cluster.steady(4), cluster.steady(16)
    for field_, change in training.dcgm.items():
        values[field_] = change(cluster.at_s, values.get(field_, cluster.steady(0)))
    return values


def _felt(training: Training, cluster: Cluster, clock: FloatArray) -> dict[str, FloatArray]:
    """Return what a synchronous job's GPUs read while the slow ones compute and the others wait.

    Activities are means since the reading before.
    """
    longer = np.ones(clock.shape)
    for slow in training.slow:
        strength = np.vectorize(lambda now, slow=slow: _strength(slow, now))
        ranks = list(slow.ranks)
        since_before = (strength(cluster.at_s[:, ranks] - training.interval_s * part) for part in (0, 0.25, 0.5, 0.75))
        longer[:, ranks] *= 1 + (slow.factor - 1) * np.mean(list(since_before), axis=0)
    step = np.maximum(longer.max(axis=1, keepdims=True), 1.0)
    for since, until, factor in training.uniform:
        step = np.where((cluster.at_s >= since) & (cluster.at_s < until), step * factor, step)
    own = 1 + 0.02 * cluster.chance("own").standard_normal(clock.shape[1])
    noise = [1 + 0.01 * cluster.chance(word).standard_normal(clock.shape) for word in ("tensor", "dram", "power")]
    slower = longer if training.felt == "clock" else 1.0
    more = longer if training.felt == "work" else 1.0
    starved = longer if training.felt == "host" else 1.0
    power = 300 * noise[2] / slower * np.sqrt(more / step)  # who has more to do waits less
    power *= 1 - _IDLES * (1 - 1 / starved)
    if training.felt == "chip":  # the energy of a step is the same to it, however long that takes
        power *= (1 + IDLE_POWER * (longer - 1)) / (1 + WAITS_AT_WATTS * (longer - 1))
    return {
        ENERGY: 1000 * training.interval_s * np.cumsum(power, axis=0),
        CLOCK: clock / slower,
        UTIL: 100 / longer if training.felt == "host" else np.full(clock.shape, 100.0),
        TENSOR: 0.4 * own * noise[0] * slower * more / step,
        DRAM: 0.35 * own * noise[1] * (1.0 if training.felt in ("host", "chip") else longer) / step,
        POWER: power,
    }


def _steps(training: Training) -> Rows:
    chance = np.random.default_rng([training.seed, 7])
    ranks = training.nodes * training.gpus
    own = training.compute_s * (1 + training.spread * np.clip(chance.standard_normal(ranks), -2, 2))
    stages = 4 if training.nodes == 1 else 2
    own[ranks - ranks // stages :] *= training.last_stage
    now = max(0.3, training.starts_s + 20)
    stop = training.minutes * 60 if training.ends_s is None else training.ends_s
    pauses = list(training.checkpoints)
    rows: list[tuple[Any, ...]] = []
    fresh = 0
    while True:
        work = own * (1 + training.jitter * chance.standard_normal(ranks))
        work *= np.exp(training.lengths * chance.standard_normal())
        if training.starts_s >= 0:
            work *= 1 + 4 * 0.3**fresh
        for since, until, factor in training.uniform:
            work *= factor if since <= now < until else 1.0
        for slow in training.slow:
            work[list(slow.ranks)] *= 1 + (slow.factor - 1) * _strength(slow, now)
        data = 0.02 + np.zeros(ranks)
        for slow in training.slow_data:
            data[list(slow.ranks)] += slow.factor * _strength(slow, now)
        total = float((work + data).max()) + training.collective_s * float(chance.uniform(0.95, 1.05))
        now += total
        if now >= stop:
            break
        at = now + np.minimum(chance.exponential(0.002, ranks), 0.02)
        if fresh % training.every == 0:
            rows.append((at, np.full(ranks, total), work, total - work - data, data))
        fresh += 1
        if pauses and now >= pauses[0]:
            now += 25 + 0 * pauses.pop(0)
    at, *columns = (np.array(column).ravel() for column in zip(*rows, strict=True))
    rank = np.tile(np.arange(ranks), len(rows))
    values = dict(zip(("step_time_s", "compute_s", "comm_wait_s", "data_wait_s"), columns, strict=True))
    heard = chance.random(len(at)) >= training.missing
    if training.one_a_node:
        heard &= rank % training.gpus == 0
    if training.only_whole:
        heard, rank = rank == 0, np.full(len(rank), -1)
    order = np.flatnonzero(heard)[np.argsort(at[heard], kind="stable")]
    known = {field_: values[field_][order] for field_ in training.columns}
    numbers = (-1, *range(ranks))
    keys = {"job_id": KeyColumn(np.zeros(len(order), np.int64), (JOB,)), "rank": KeyColumn(rank[order] + 1, numbers)}
    return Rows("steps", instant(at[order]), keys, known, {field_: np.isfinite(v) for field_, v in known.items()})


def _strength(slow: Slow, now: float) -> float:
    if not slow.since_s <= now < slow.until_s:
        return 0.0
    return min(1.0, (now - slow.since_s) / slow.ramp_s) if slow.ramp_s else 1.0


def from_to(value: float, since_s: float, until_s: float, gpus: Sequence[int]) -> Any:
    """Return a change of a DCGM field: some GPUs (columns) read a value for a stretch."""

    def change(at_s: FloatArray, values: FloatArray) -> FloatArray:
        chosen = np.isin(np.arange(values.shape[1]), gpus)[None, :]
        return np.where((at_s >= since_s) & (at_s < until_s) & chosen, value, values)

    return change


CULPRIT = 6
"""The rank that is slow: GPU 2 of the second node."""
PLAIN = Training()
ONSET_S = 120.0
SUDDEN = replace(PLAIN, slow=[Slow([CULPRIT], ONSET_S)])
NODE = replace(PLAIN, slow=[Slow([4, 5, 6, 7], ONSET_S, factor=1.3)], seed=2)
FROM_START = replace(PLAIN, slow=[Slow([CULPRIT], factor=2.5)], starts_s=10.0, compute_s=2.0, seed=3)
BRAKED = replace(
    SUDDEN, dcgm={REASONS: from_to(0x88, ONSET_S, 1e9, [CULPRIT]), CLOCK: from_to(600, ONSET_S, 1e9, [CULPRIT])}
)
LOWERED = from_to(250, ONSET_S, 1e9, [CULPRIT])
CAPPED = replace(
    SUDDEN,
    dcgm={
        REASONS: from_to(0x04, ONSET_S, 1e9, [CULPRIT]),
        LIMIT: lambda at_s, values: LOWERED(at_s, np.full(values.shape, 400.0)),
    },
)
UNRANKED = replace(PLAIN, only_whole=True)

EXAMPLES = Examples(
    healthy=[
        tape_of(replace(PLAIN, lengths=0.15, checkpoints=[100, 220])),
        tape_of(replace(PLAIN, last_stage=1.3, starts_s=5.0, seed=4)),
        tape_of(replace(PLAIN, nodes=2, last_stage=1.6, starts_s=5.0, seed=5)),
        tape_of(replace(PLAIN, uniform=[(120, 250, 1.5)], seed=6)),
        tape_of(replace(PLAIN, slow_data=[Slow([CULPRIT], 120, 300, factor=3.0)], seed=7)),
        tape_of(replace(PLAIN, slow=[Slow([n], 60 + 25 * n, 75 + 25 * n, 1.8) for n in range(12)], seed=8)),
        tape_of(BRAKED),
        tape_of(replace(UNRANKED, slow=[Slow([CULPRIT], ONSET_S)], seed=9)),
        with_speeds(replace(PLAIN, seed=10), name(1), [(0.0, 400.0), (ONSET_S, 200.0)]),
    ],
    faults=[
        Fault(tape_of(SUDDEN), {"node": name(1), "gpu": 2}, START + int(ONSET_S * 1000)),
        Fault(tape_of(CAPPED), {"node": name(1), "gpu": 2}, START + int(ONSET_S * 1000)),
        Fault(tape_of(NODE), {"node": name(1)}, START + int(ONSET_S * 1000)),
        Fault(tape_of(FROM_START), {"node": name(1), "gpu": 2}, START + 10_000),
    ],
)
