"""A synchronous job: every rank computes, the slowest sets the step, the others wait in collectives.

A run is laid out step by step, a stretch ahead of the telemetry that is made from it; what its ranks did in steps long
past is forgotten, so that a job of weeks takes no more memory than one of an hour.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from services.synth.cluster.world import World
from services.synth.jobs.data_loading import DataLoading
from services.synth.jobs.pace import End, Fate, Speeds
from services.synth.physics.effects import Effects, Floats, Ints
from services.synth.physics.power import PowerModel
from services.synth.physics.scatter import Scatter
from services.synth.randomness import generator
from services.synth.story.scenario import JobSpec

LOOK_BACK_S = 300.0
"""Telemetry looks back over its own interval; what ended longer ago is not needed."""

_AFTER_CHECKPOINT = 1.25  # the first step after a checkpoint finds cold caches
_LONG_STEP = (1.5, 3.4)  # times the usual, where a world has long steps
_PAUSE_NOISE = 0.08  # checkpoint to checkpoint, relative deviation
_LOSS_NOISE, _NORM_NOISE = 0.004, 0.06  # batch to batch, relative deviation
_CLEAN_UP_S = 6.0  # from the last iteration to the job's end
_PER_STEP = ("start", "main", "total", "idle", "volume", "loss", "grad_norm")


@dataclass
class Run:
    """A job's life. Times are seconds since the recording's start.

    A step starts at ``start``, its ranks have computed by ``start + main``, and it ends after ``total`` seconds;
    ``idle`` of them, on average, a rank waits for data; ``volume`` is how much is read for it, relative to a batch;
    ``loss`` and ``grad_norm`` are the job's: all of shape (steps,). ``compute`` and ``data_wait`` have shape (steps,
    ranks) and begin with step number ``kept_from``. ``place`` (ranks,) is each rank's node, as a place in ``nodes``.
    ``checkpoints`` and ``evaluations`` are the (start, end) of pauses. ``end`` is what is known of it so far.
    """

    spec: JobSpec
    nodes: list[int]
    gpus: Ints
    place: Ints
    loading: tuple[float, float]
    end: float
    ended: End | None = None
    first_iteration: int = 1
    skipped: int = 0
    """Steps that it had done before the first that is laid out."""
    start: Floats = field(default_factory=lambda: np.empty(0))
    main: Floats = field(default_factory=lambda: np.empty(0))
    total: Floats = field(default_factory=lambda: np.empty(0))
    idle: Floats = field(default_factory=lambda: np.empty(0))
    volume: Floats = field(default_factory=lambda: np.empty(0))
    loss: Floats = field(default_factory=lambda: np.empty(0))
    grad_norm: Floats = field(default_factory=lambda: np.empty(0))
    compute: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), np.float32))
    data_wait: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), np.float32))
    kept_from: int = 0
    checkpoints: list[tuple[float, float]] = field(default_factory=list)
    evaluations: list[tuple[float, float]] = field(default_factory=list)

    @property
    def iterations(self) -> Ints:
        """The iteration number of each step."""
        return np.asarray(self.first_iteration + np.arange(len(self.start)))

    @property
    def warm(self) -> float:
        """When the first steps, which are slow, are over."""
        done = max(0, len(self.spec.training.warm_up) - self.skipped)
        return float(self.start[done]) if done < len(self.start) else self.end

    @property
    def state(self) -> str:
        """Its state at the end of what is known, as in jobs.jsonl."""
        return "RUNNING" if self.ended is None else self.ended.state

    def forget(self, before: float) -> None:
        """Drop what ranks did in steps that ended before a time."""
        done = int(np.searchsorted(self.start + self.total, before, side="left"))
        gone = min(max(done - self.kept_from, 0), len(self.compute))
        self.compute, self.data_wait = self.compute[gone:], self.data_wait[gone:]
        self.kept_from += gone


class Layout:
    """Lays a job's steps out as far as it is asked to."""

    def __init__(self, spec: JobSpec, world: World, power: PowerModel, effects: Effects, seed: int) -> None:
        training = self._training = spec.training
        self._noise = world.profile.noise
        nodes = world.nodes(spec.nodes)
        parts = [world.gpus(node) if spec.gpus is None else _some(world, node, spec.gpus) for node in nodes]
        gpus = np.concatenate(parts)
        place = np.repeat(np.arange(len(nodes)), [len(part) for part in parts])
        self._rng, self._loss_rng = generator(seed, f"job {spec.id}"), generator(seed, f"loss {spec.id}")
        conditions = world.profile.conditions
        self._scatter = Scatter(self._rng, conditions, training.usual_step_s, "work.rank_tail")
        self._long_rng = conditions.generator(f"long steps {spec.id}", seed)
        self._long_share = min(0.2, conditions.number("work.long_steps_per_h") * training.usual_step_s / 3600)
        mount = world.profile.mount_of(training.reads_from)
        target = world.profile.mount_of(training.checkpoints_to)
        self._fate = Fate(effects, spec.id, np.array(nodes), mount.mount, target.mount)
        self._speeds = Speeds.of(power, effects, gpus, training.clock_bound, self._fate.work)
        self._own = self._own_work(len(gpus))
        self._reading = DataLoading(training, mount, len(gpus), len(nodes))
        horizon = world.duration_s
        ends = [End(spec.end, spec.state)] if spec.end is not None and spec.end <= horizon else []
        struck = self._fate.first_end(spec.start)
        ends += [struck] if struck is not None and struck.at <= horizon else []
        ended = min(ends, key=lambda end: end.at, default=None)
        ready = spec.start + training.launch_s
        loaded = ready + training.load_s * self._fate.checkpoint.worst(ready)
        self._now, self._cold, self._done = loaded, 1.0, 0
        self._skip_to(-LOOK_BACK_S)
        self.run = Run(
            spec=spec,
            nodes=nodes,
            gpus=gpus,
            place=place,
            loading=(ready, loaded),
            end=horizon if ended is None else ended.at,
            ended=ended,
            first_iteration=training.first_iteration + self._done,
            skipped=self._done,
            compute=np.empty((0, len(gpus)), np.float32),
            data_wait=np.empty((0, len(gpus)), np.float32),
        )
        self._last = training.last_iteration - training.first_iteration + 1
        """So many steps there are."""

    def _own_work(self, ranks: int) -> Floats:
        """Return each rank's computation of a step at full clock: ranks differ for good, the last stage most."""
        training = self._training
        own = training.compute_s * (1 + training.rank_spread * self._rng.standard_normal(ranks))
        stage = np.arange(ranks) * training.pipeline_stages // ranks
        own[stage == training.pipeline_stages - 1] *= training.last_stage_factor
        return np.asarray(own)

    def _skip_to(self, begin: float) -> None:
        """Pass over the steps of a job that was on long before the recording."""
        training = self._training
        if self._now < begin:
            usual = training.usual_step_s + training.checkpoint_s / training.checkpoint_every
            self._done = int((begin - self._now) / usual)
            self._now += self._done * usual

    def advance(self, until: float) -> None:
        """Lay out all steps that begin by a time (seconds) and before the job's end."""
        rows: dict[str, list[float]] = {name: [] for name in _PER_STEP}
        computes: list[NDArray[np.float32]] = []
        waits: list[NDArray[np.float32]] = []
        run, last = self.run, self._last
        while self._now < run.end and self._now <= until and self._done < last:
            compute, wait, step = self._step()
            for name, value in zip(_PER_STEP, step, strict=True):
                rows[name].append(value)
            computes.append(compute.astype(np.float32))
            waits.append(wait.astype(np.float32))
            self._done += 1
            self._now, self._cold = step[0] + step[2], 1.0
            self._pause()
        if self._done >= last and self._now + _CLEAN_UP_S < run.end:
            run.end = self._now + _CLEAN_UP_S
            run.ended = End(run.end, "COMPLETED")
        if computes:
            for name, values in rows.items():
                setattr(run, name, np.concatenate([getattr(run, name), values]))
            run.compute = np.concatenate([run.compute, np.stack(computes)])
            run.data_wait = np.concatenate([run.data_wait, np.stack(waits)])

    def _step(self) -> tuple[Floats, Floats, tuple[float, ...]]:
        """Return the next step: the ranks' computation and waits, and its values in the order of `_PER_STEP`."""
        training, rng, now, done = self._training, self._rng, self._now, self._done
        slower = self._cold * (1 + training.drift_per_hour * max(0.0, now - self.run.spec.start) / 3600)
        if done < len(training.warm_up):
            slower *= training.warm_up[done]
        if training.step_variation:
            slower *= float(np.exp(training.step_variation * rng.standard_normal()))
        work = (
            self._own
            * (1 + self._noise * training.jitter * self._scatter.normal("ranks", (1, len(self._own)))[0])
            * slower
        )
        slow_data = self._fate.data_wait.at(now)[self.run.place]
        wait = self._reading.wait(done, training.compute_s * slower, slow_data, rng)
        held_up = self._held_up()
        wait[held_up[0]] += held_up[1]
        compute = self._speeds.elapsed(now + float(wait.mean()), np.maximum(work, 0.05 * self._own))
        main = float((wait + compute).max())
        talk = training.collective_s * float(np.exp(self._noise * training.collective_jitter * rng.standard_normal()))
        talk += held_up[2]
        end = self._fate.resumed(now, now + main + talk * self._fate.collective.worst(now + main))
        noise = self._loss_rng.standard_normal(2)
        of_loss, of_norm = self._fate.loss(end)
        trend = training.loss - training.loss_per_1000_steps * done / 1000
        loss = trend * (1 + _LOSS_NOISE * noise[0]) * of_loss
        norm = training.grad_norm * np.exp(_NORM_NOISE * noise[1]) * of_norm
        volume = self._reading.volume(done)
        return compute, wait, (now, main, end - now, float(wait.mean()), volume, float(loss), float(norm))

    def _held_up(self) -> tuple[int, float, float]:
        """Return a rank, how long its data keep it waiting, and how long all wait in the collective: now and then."""
        if not self._long_share or self._long_rng.random() >= self._long_share:
            return 0, 0.0, 0.0
        extra = float(self._long_rng.uniform(*_LONG_STEP) - 1) * self._training.usual_step_s
        rank = int(self._long_rng.integers(len(self._own)))
        return (rank, extra, 0.0) if self._long_rng.random() < 0.5 else (0, 0.0, extra)

    def _pause(self) -> None:
        """Evaluate or write a checkpoint, if that is due after the step that is done now."""
        training, rng, run = self._training, self._rng, self.run
        iteration = training.first_iteration + self._done - 1
        if training.evaluate_every is not None and iteration % training.evaluate_every == 0:
            length = training.evaluate_s * float(np.exp(_PAUSE_NOISE * rng.standard_normal()))
            run.evaluations.append((self._now, self._now + length))
            self._now += length
        if training.checkpoint_s > 0 and iteration % training.checkpoint_every == 0:
            length = training.checkpoint_s * float(np.exp(_PAUSE_NOISE * rng.standard_normal()))
            length *= self._fate.checkpoint.worst(self._now)
            run.checkpoints.append((self._now, self._now + length))
            self._now, self._cold = self._now + length, _AFTER_CHECKPOINT


def _some(world: World, node: int, gpus: list[int]) -> Ints:
    """Return the columns of some of a node's GPUs; as many as there are, where the node has fewer."""
    count = world.profile.node.gpus
    return np.array(sorted({node * count + gpu % count for gpu in gpus}))
