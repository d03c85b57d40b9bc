"""What the GPUs of a cluster do at any time, from the runs of its jobs."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from services.synth.cluster.profile import ClusterProfile
from services.synth.jobs.job import LOOK_BACK_S, Run
from services.synth.physics.effects import Floats, Ints
from services.synth.physics.power import Activity

_EVALUATING = 0.8  # a GPU's share of computing in a forward-only phase, estimated
_FILLING = 0.12  # a pipeline fills up: the work done at a time grows over a step by so much either way of its mean,
# as the node power of a 512-GPU GPT-3 run (MLPerf Training 4.0, 8 stages) does between two dips


@dataclass(frozen=True)
class Moved:
    """What a run's ranks did with file systems in a window: arrays of shape (ticks, the run's nodes).

    ``batches``: how many batches were read; ``loaded``: which part of the checkpoint it started from was read;
    ``saved``: how many checkpoints were written.
    """

    batches: Floats
    loaded: Floats
    saved: Floats


class Workload:
    """What every GPU of a cluster does, from the runs of its jobs: those that are on the stage now."""

    def __init__(self, profile: ClusterProfile) -> None:
        self._runs: list[_Cumulative] = []
        self._gpus = profile.gpu_count

    @property
    def runs(self) -> list[Run]:
        """The runs on the stage; `running` gives places in this list."""
        return [entry.run for entry in self._runs]

    def add(self, run: Run) -> None:
        """Put a run on the stage."""
        self._runs.append(_Cumulative(run))

    def refresh(self) -> None:
        """Take note of what was laid out of the runs meanwhile."""
        for entry in self._runs:
            entry.refresh()

    def drop(self, run: Run) -> None:
        """Take a run off: nothing of the time before its end will be asked for any more."""
        self._runs = [entry for entry in self._runs if entry.run is not run]

    def activity(self, times: Floats, window: float) -> Activity:
        """Return what GPUs did in the ``window`` seconds before ``times`` (ticks, nodes); at most a few minutes."""
        if window > LOOK_BACK_S:
            raise ValueError(f"what was done is kept for {LOOK_BACK_S:g} s, not {window:g} s")
        resident, busy, collective, copying = np.zeros((4, len(times), self._gpus))
        intensity = np.ones((1, self._gpus)) if self._alike else np.ones((len(times), self._gpus))
        for entry in self._runs:
            run, training = entry.run, entry.run.spec.training
            at, spread, gpus = times[:, run.nodes], run.place, run.gpus
            if not _touches(run, times, window):
                continue
            computed = (entry.computed(at, spread) - entry.computed(at - window, spread)) / window
            active = entry.stepping(at) - entry.stepping(at - window) - entry.idle(at) + entry.idle(at - window)
            stepping = active[:, spread] / window
            waiting = np.clip(stepping - computed, 0.0, 1.0) if training.waits == "busy" else 0.0
            if run.evaluations:
                evaluated = (entry.evaluated(at) - entry.evaluated(at - window))[:, spread] / window
                computed = computed + _EVALUATING * evaluated
                waiting = waiting + (1 - _EVALUATING) * evaluated
            busy[:, gpus] += np.clip(computed, 0.0, 1.0)
            collective[:, gpus] += waiting
            copying[:, gpus] += (entry.copied(at) - entry.copied(at - window))[:, spread] / window
            resident[:, gpus] += (entry.held(at) - entry.held(at - window))[:, spread] / window
            if training.intensity != 1.0:
                on = (at >= run.spec.start) & (at - window < run.end)
                intensity[:, gpus] = np.where(on[:, spread], training.intensity, intensity[:, gpus])
        np.minimum(busy, 1.0, out=busy)
        return Activity(resident, busy, collective, copying, intensity)

    def moved(self, times: Floats, window: float) -> Iterator[tuple[Run, "Moved"]]:
        """Yield what the runs moved to and from file systems in the ``window`` seconds before ``times``."""
        for entry in self._runs:
            if not _touches(entry.run, times, window):
                continue
            now = times[:, entry.run.nodes]
            before = now - window
            batches = entry.batches(now) - entry.batches(before)
            loaded = entry.loaded(now) - entry.loaded(before)
            yield entry.run, Moved(batches, loaded, entry.saved(now) - entry.saved(before))

    @property
    def _alike(self) -> bool:
        return all(entry.run.spec.training.intensity == 1.0 for entry in self._runs)

    def running(self, times: Floats) -> Ints:
        """Return which run holds each GPU at ``times`` (ticks, nodes): its place in the list plus 1, or 0 for none."""
        holder = np.zeros((len(times), self._gpus), dtype=np.int64)
        for number, entry in enumerate(self._runs, start=1):
            run = entry.run
            at = times[:, run.nodes]
            held = ((at >= run.spec.start) & (at < run.end))[:, run.place]
            holder[:, run.gpus] = np.where(held, number, holder[:, run.gpus])
        return holder


def _touches(run: Run, times: Floats, window: float) -> bool:
    return bool(times[-1].max() >= run.spec.start and times[0].min() - window <= run.end)


class _Cumulative:
    """Seconds a run's ranks have spent on something up to a time; a window's share is a difference of two."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.refresh()

    def refresh(self) -> None:
        """Begin to count at the first step that the run still holds."""
        run = self.run
        kept = slice(run.kept_from, None)
        self._start, self._main, self._total = run.start[kept], run.main[kept], run.total[kept]
        zero = np.zeros((1, len(run.gpus)))
        self._computed = np.concatenate([zero, np.cumsum(run.compute, axis=0, dtype=np.float64)])
        self._stepped = np.concatenate([[0.0], np.cumsum(self._total)])
        self._volume, self._idle = run.volume[kept], run.idle[kept]
        self._read = np.concatenate([[0.0], np.cumsum(self._volume)])
        self._idled = np.concatenate([[0.0], np.cumsum(self._idle)])
        self._copies = _Pauses([run.loading, *run.checkpoints])
        self._saves = _Pauses(run.checkpoints, each=1.0)
        self._evaluations = _Pauses(run.evaluations)

    def computed(self, at: Floats, spread: Ints) -> Floats:
        """Seconds of computation by ``at`` (ticks, nodes), shape (ticks, ranks).

        Within a step, working and waiting alternate layer by layer, faster than any sensor sees: a rank is busy with
        the share of the step's main part that it needs itself. Ranks that sleep without work do it in one go.
        """
        if not len(self._start):
            return np.zeros((len(at), len(spread)))
        at = np.minimum(at, self.run.end)
        step = np.clip(np.searchsorted(self._start, at, side="right") - 1, 0, None)
        ranks = np.arange(len(self.run.gpus))[None, :]
        own = self.run.compute[step[:, spread], ranks]
        into = at - self._start[step]
        if self.run.spec.training.waits == "idle":  # bursts: first a rank waits for work, then it does it
            late = self.run.data_wait[step[:, spread], ranks]
            return np.asarray(self._computed[step[:, spread], ranks] + np.clip(into[:, spread] - late, 0.0, own))
        progress = np.clip(into / self._main[step], 0.0, 1.0)
        if self.run.spec.training.pipeline_stages > 1:
            progress += _FILLING * (progress**2 - progress)
        return np.asarray(self._computed[step[:, spread], ranks] + own * progress[:, spread])

    def stepping(self, at: Floats) -> Floats:
        """Seconds inside steps by ``at``."""
        if not len(self._start):
            return np.zeros_like(at)
        at = np.minimum(at, self.run.end)
        step = np.clip(np.searchsorted(self._start, at, side="right") - 1, 0, None)
        return np.asarray(self._stepped[step] + np.clip(at - self._start[step], 0.0, self._total[step]))

    def batches(self, at: Floats) -> Floats:
        """Count batches read by ``at``, from the first step that the run still holds; and the part of the next."""
        return self._with_steps(self._read, self._volume, at)

    def idle(self, at: Floats) -> Floats:
        """Seconds for which ranks had nothing to compute and no collective to wait in by ``at``."""
        return self._with_steps(self._idled, self._idle, at)

    def _with_steps(self, before: Floats, each: Floats, at: Floats) -> Floats:
        """Return what adds up to ``before`` (steps + 1) by each step and grows by ``each`` in the main part of it."""
        if not len(self._start):
            return np.zeros_like(at)
        at = np.minimum(at, self.run.end)
        step = np.clip(np.searchsorted(self._start, at, side="right") - 1, 0, None)
        progress = np.clip((at - self._start[step]) / self._main[step], 0.0, 1.0)
        return np.asarray(before[step] + each[step] * progress)

    def loaded(self, at: Floats) -> Floats:
        """Share of the first checkpoint that is read by ``at``."""
        begin, end = self.run.loading
        return np.clip((np.minimum(at, self.run.end) - begin) / max(end - begin, 1.0), 0.0, 1.0)

    def saved(self, at: Floats) -> Floats:
        """Checkpoints written by ``at``."""
        return self._saves.by(np.minimum(at, self.run.end))

    def copied(self, at: Floats) -> Floats:
        """Seconds in checkpoints, read or written, by ``at``."""
        return self._copies.by(np.minimum(at, self.run.end))

    def evaluated(self, at: Floats) -> Floats:
        """Seconds in evaluations by ``at``."""
        return self._evaluations.by(np.minimum(at, self.run.end))

    def held(self, at: Floats) -> Floats:
        """Seconds for which the job has held its GPUs by ``at``."""
        return np.clip(at, self.run.spec.start, self.run.end) - self.run.spec.start


class _Pauses:
    """How much of some stretches is over by a time."""

    def __init__(self, spans: list[tuple[float, float]], each: float | None = None) -> None:
        """Take (start, end) of each; it counts its length in seconds, or `each`."""
        self._edges = np.array([edge for span in spans for edge in span] or [0.0])
        counts = [[0.0, end - start if each is None else each] for start, end in spans]
        lengths = np.array(counts or [[0.0]]).ravel()
        self._over = np.cumsum(lengths)

    def by(self, at: Floats) -> Floats:
        return np.asarray(np.interp(at, self._edges, self._over))
