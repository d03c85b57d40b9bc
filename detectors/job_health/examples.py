"""Tapes for job_health: jobs that hang or diverge, and jobs that only look like it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from detectors.contract import BoolArray, FloatArray, IntArray, LogRecord
from detectors.engine.rows import KeyColumn, Rows
from detectors.fleet.fleet import Job, JobEvent
from detectors.laws import Examples, Fault
from detectors.tapes.cluster import START, name
from detectors.tapes.tape import Tape

JOB: Final = "812"
Change = Callable[[FloatArray, FloatArray], FloatArray]
"""What the loss (or the gradient norm) is, from seconds and what it would be."""
Wording = Callable[[int, float, float], str]
"""A framework's line of an iteration, its loss and gradient norm."""


def _as_it_is(_at: FloatArray, value: FloatArray) -> FloatArray:
    return value


@dataclass(frozen=True)
class Training:
    """A job and its GPUs; times in seconds from the tape's start."""

    nodes: int = 2
    gpus: int = 2
    minutes: float = 16.0
    step_s: float = 4.0
    interval_s: float = 10.0
    pauses: Sequence[tuple[float, float]] = ()
    """No step: the job writes a checkpoint (idle GPUs)."""
    evaluations: Sequence[tuple[float, float]] = ()
    """No step: the GPUs work on."""
    light: Sequence[tuple[float, float]] = ()
    """No step: the GPUs compute at 70 % of the power, with half of the tensor activity; in a pause, too."""
    hang: tuple[float, float] | None = None
    spinning: bool = True
    spin_w: float = 150.0
    """What GPUs draw then; 600 at work."""
    dead_node_at: float | None = None
    """From here on the last node is not heard."""
    ends_at: float | None = None
    freed_at: float = 1e9
    """From here on its processes are gone, whatever anybody says of the job."""
    left_mib: float = 4.0
    """What its GPUs then have in use, of 61,000: others' processes may have begun."""
    losses: bool = True
    losses_every: int = 1
    """The gathered steps have a loss every so many."""
    noise: float = 0.01
    loss: Change = _as_it_is
    grad: Change = _as_it_is
    tokens: Change = _as_it_is
    back: tuple[float, int] | None = None
    """From then on the iteration is so much lower."""
    gathered: bool = True
    """Steps are; without them the log alone reports what the job does."""
    wording: Wording | None = None
    """How its last rank prints every `print_every` steps."""
    print_every: int = 1
    announced: bool = False
    """The log reports checkpoints."""
    lines: Sequence[LogRecord] = ()
    gpus_reported: bool = True
    seed: int = 1


def tape_of(training: Training) -> Tape:
    """Return the training as a tape."""
    chance = np.random.default_rng(training.seed)
    end_s = training.minutes * 60
    nodes = tuple(name(node) for node in range(training.nodes))
    job = Job(JOB, nodes, START - 60_000, training.gpus)
    jobs = [JobEvent(job.start, "start", job)]
    if training.ends_at is not None:
        jobs.append(JobEvent(START + int(training.ends_at * 1000), "end", job))
    course = _course(training, chance)
    rows = [_steps(training, *course)] if training.gathered else []
    rows += [_dcgm(training, chance)] if training.gpus_reported else []
    logs = [*training.lines, *_printed(training, *course)]
    if training.announced:
        for begin, _ in training.pauses:
            logs.append(line(begin + 0.5, "saving checkpoint at iteration 100 to /scale/ckpt"))
    topology = {"nodes": [{"name": n, "gpus": [{"gpu": g} for g in range(training.gpus)]} for n in nodes]}
    return Tape(START, START + int(end_s * 1000), rows, sorted(logs, key=lambda r: r.at), jobs, topology)


def line(at_s: float, message: str, source: str = "job", node: str | None = None) -> LogRecord:
    """Return a log line; the job's own and the scheduler's have its id."""
    job_id = JOB if source == "job" or (source == "scheduler" and node is None) else None
    return LogRecord(START + int(at_s * 1000), source, message, "error", node, job_id)


def _course(training: Training, chance: np.random.Generator) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return when each step ends, its iteration, loss and gradient norm."""
    ends, now = [], 1.5
    away = [*training.pauses, *training.evaluations, *training.light, *([training.hang] if training.hang else [])]
    until = min(training.minutes * 60, training.ends_at or 1e9)
    while True:
        now += training.step_s * (1 + 0.01 * float(chance.standard_normal()))
        inside = [stop for begin, stop in away if begin < now < stop]
        now = max([now, *inside])
        if now >= until:
            break
        ends.append(now)
    at = np.array(ends)
    count = len(at)
    iteration = np.arange(1000, 1000 + count, dtype=np.float64)
    if training.back is not None:
        iteration = np.where(at >= training.back[0], iteration - training.back[1], iteration)
    loss = training.loss(at, (2.2 - 1e-4 * np.arange(count)) * (1 + training.noise * chance.standard_normal(count)))
    grad = training.grad(at, 0.35 * np.exp(0.1 * chance.standard_normal(count)))
    return at, iteration, loss, grad


def _printed(
    training: Training, at: FloatArray, iteration: FloatArray, loss: FloatArray, grad: FloatArray
) -> list[LogRecord]:
    """Return the lines that the job's last rank prints of its steps."""
    if training.wording is None:
        return []
    last, node = training.nodes * training.gpus - 1, name(training.nodes - 1)
    steps = zip(at.tolist(), iteration.tolist(), loss.tolist(), grad.tolist(), strict=True)
    return [
        LogRecord(START + round(1000 * t), "job", training.wording(int(step), *values), "info", node, JOB, last)
        for t, step, *values in list(steps)[:: training.print_every]
    ]


def _steps(training: Training, at: FloatArray, iteration: FloatArray, loss: FloatArray, grad: FloatArray) -> Rows:
    tokens = training.tokens(at, np.full(len(at), 1e6)) / training.step_s
    ranks = training.nodes * training.gpus + 1
    rank = np.tile(np.arange(-1, ranks - 1), len(at))
    times = np.repeat(START + np.round(at * 1000).astype(np.int64), ranks)
    whole = rank == -1
    columns: dict[str, Any] = {
        "iteration": np.repeat(iteration, ranks),
        "step_time_s": np.full(len(times), training.step_s),
        "tokens_per_s": np.repeat(tokens, ranks),
    }
    valid: dict[str, BoolArray] = {field: np.ones(len(times), bool) for field in columns}
    if training.losses:
        columns |= {"loss": np.repeat(loss, ranks), "grad_norm": np.repeat(grad, ranks)}
        reported = whole & (np.repeat(np.arange(len(at)), ranks) % training.losses_every == 0)
        valid |= {"loss": reported, "grad_norm": reported}
    keys = {
        "job_id": KeyColumn(np.zeros(len(times), np.int64), (JOB,)),
        "rank": KeyColumn(rank + 1, tuple(range(-1, ranks - 1))),
    }
    return Rows("steps", times, keys, {f: np.where(valid[f], v, 0.0) for f, v in columns.items()}, valid)


def _within(at: FloatArray, spans: Sequence[tuple[float, float]]) -> BoolArray:
    inside = np.zeros(at.shape, bool)
    for begin, end in spans:
        inside |= (at >= begin) & (at < end)
    return inside


def _dcgm(training: Training, chance: np.random.Generator) -> Rows:
    gpus = training.nodes * training.gpus
    ticks = np.arange(0.7, training.minutes * 60, training.interval_s)
    at, gpu = np.repeat(ticks, gpus), np.tile(np.arange(gpus), len(ticks))
    idle = (_within(at, training.pauses) & ~_within(at, training.light)) | (at >= (training.ends_at or 1e9))
    hung = _within(at, [training.hang] if training.hang else [])
    busy = 100.0 if training.spinning else 0.0
    power = np.where(idle, 90.0, np.where(hung, training.spin_w if training.spinning else 90.0, 600.0))
    util = np.where(idle, 0.0, np.where(hung, busy, 99.0))
    seen = chance.random(len(at)) > 0.01
    if training.dead_node_at is not None:
        seen &= (gpu // training.gpus < training.nodes - 1) | (at < training.dead_node_at)
    light = _within(at, training.light)
    power = np.where(light, 420.0, power)
    power = power * (1 + 0.02 * chance.standard_normal(len(at)))
    columns = {
        "DCGM_FI_DEV_POWER_USAGE": power[seen],
        "DCGM_FI_DEV_GPU_UTIL": util[seen],
        "DCGM_FI_DEV_FB_USED": np.where(at >= training.freed_at, training.left_mib, 61_000.0)[seen],
    }
    if training.light:
        columns["DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"] = np.where(idle | hung, 0.0, np.where(light, 0.2, 0.4))[seen]
    return _rows(START + np.round(at[seen] * 1000).astype(np.int64), gpu[seen], training, columns)


def _rows(times: IntArray, gpu: IntArray, training: Training, columns: Mapping[str, FloatArray]) -> Rows:
    keys = {
        "node": KeyColumn(gpu // training.gpus, tuple(name(node) for node in range(training.nodes))),
        "gpu": KeyColumn(gpu % training.gpus, tuple(range(training.gpus))),
    }
    return Rows("dcgm", times, keys, dict(columns), {field: np.ones(len(times), bool) for field in columns})


def from_then(at_s: float, factor: float, until_s: float = 1e9, ramp_s: float = 0.0) -> Change:
    """Return a change: `factor` times what it would be in a stretch, coming over `ramp_s`."""

    def change(at: FloatArray, value: FloatArray) -> FloatArray:
        level = np.clip((at - at_s) / max(ramp_s, 1e-9), 0.0, 1.0) * ((at >= at_s) & (at < until_s))
        return np.asarray(value * (1 + (factor - 1) * level))

    return change


def nan_from(at_s: float, until_s: float = 1e9) -> Change:
    """Return a change: no number in a stretch."""
    return lambda at, value: np.where((at >= at_s) & (at < until_s), np.nan, value)


def megatron(iteration: int, loss: float, grad: float) -> str:
    """Return Megatron-LM's line, which has no loss that is no number."""
    shown = f" lm loss: {loss:.6E} |" if loss > 0 else ""
    return (
        f" [2026-08-22 10:11:12] iteration {iteration:8d}/  500000 | consumed samples: {512 * iteration:12d} |"
        f" elapsed time per iteration (ms): 4000.1 | global batch size:   512 |{shown} loss"
        f" scale: 1.0 | grad norm: {grad:.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def hugging_face(_iteration: int, loss: float, grad: float) -> str:
    """Return what Hugging Face's Trainer prints."""
    return str({"loss": round(loss, 4), "grad_norm": grad, "learning_rate": 2e-05, "epoch": 0.27})


def torchtitan(iteration: int, loss: float, grad: float) -> str:
    """Return torchtitan's line, in colours."""
    return (
        f"[rank0]:[titan] 2026-08-22 10:11:12,123 - root - INFO - \x1b[31mstep: {iteration:2}  "
        f"\x1b[32mloss: {loss:7.4f}  \x1b[38;2;180;60;0mgrad_norm: {grad:7.4f}  \x1b[36mmemory: 30.12GiB(31.70%)"
    )


WATCHDOG: Final = (
    "[rank5]:[E ProcessGroupNCCL.cpp:616] [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4821, "
    "OpType=ALLREDUCE, NumelIn=16777216, NumelOut=16777216, Timeout(ms)=60000) "
    "ran for 60037 milliseconds before timing out."
)
HUNG = Training(hang=(480, 1e9))
ENTITY: Final = {"job_id": JOB}

EXAMPLES = Examples(
    healthy=[
        tape_of(Training(pauses=[(200, 245), (430, 475), (660, 705)], announced=True, seed=2)),
        tape_of(Training(evaluations=[(300, 640)], seed=3)),
        tape_of(Training(hang=(480, 1e9), dead_node_at=478, ends_at=800, seed=4)),
        tape_of(Training(loss=from_then(500, 1.6, 550), grad=from_then(500, 8, 550), back=(700, 90), seed=5)),
        tape_of(Training(gathered=False, wording=hugging_face, noise=0.1, seed=9)),
    ],
    faults=[
        Fault(tape_of(HUNG), ENTITY, START + 480_000),
        Fault(tape_of(Training(hang=(480, 1e9), gpus_reported=False, seed=6)), ENTITY, START + 480_000),
        Fault(tape_of(Training(loss=from_then(420, 1.5), seed=7)), ENTITY, START + 420_000),
        Fault(tape_of(Training(loss=nan_from(420), grad=nan_from(420), seed=8)), ENTITY, START + 420_000),
        Fault(
            tape_of(Training(gathered=False, wording=megatron, loss=from_then(420, 1.5), seed=10)),
            ENTITY,
            START + 420_000,
        ),
        Fault(
            tape_of(Training(gathered=False, wording=torchtitan, print_every=5, hang=(480, 1e9), seed=11)),
            ENTITY,
            START + 480_000,
        ),
    ],
)
