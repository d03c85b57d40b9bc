"""GPUs at work: their last readings, their usual clock and power, their peers, and the evidence that a clock is lost.

What is usual of a GPU is learnt while it works and nothing holds it down; another job is another habit. Its peers are
the GPUs of its job if they are enough to speak of, else all of its model at work. A loss of clock is a residual: by how
much more a GPU has lost than the least affected quarter of its peers, so that a workload that takes the clocks
of all down says nothing of anyone. Residuals are looked at as means over 10 s, and add up as evidence
(`detectors.core.evidence`) by how seldom such residuals occur in this cluster (`detectors.core.tails`).
"""

from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, BoolArray, DetectorConfig, FloatArray, Instant, IntArray, index_of
from detectors.core.columns import Columns, column
from detectors.core.evidence import Evidence, odds_in_words, threshold
from detectors.core.residuals import Groups, Habit
from detectors.core.statistics import clamp, known_or, masked_median
from detectors.core.tails import Tails
from detectors.fleet.fleet import Fleet
from detectors.fleet.gpus import GpuLayout, reported
from detectors.signals.brakes import IDLE_POWER
from detectors.signals.throttle_bits import GPU_IDLE, HW_POWER_BRAKE, THERMAL, ThrottledTime, TimeByReason, bits_of

STALE_MS: Final = 90_000
"""Three times the collection interval of dcgm-exporter's defaults, and more than one scrape of 60 s."""
IDLE_UTILISATION: Final = 10.0
"""Below so many percent a GPU is not at work, whatever its clocks do: a kernel that is resident reads near 100."""
FEWEST_PEERS: Final = 4
"""With fewer the least affected quarter of the peers is one outlier's word."""
_FEW_NODES: Final = 4
"""Of more, a node's own GPUs are too few to be the median."""
_KEEPS: Final = 0.95
"""Of its peers' clock: half of the loss that `SLOWED` is."""
_MEMORY_S: Final = 300.0
"""What is usual is a mean of five minutes: many steps, and a checkpoint changes little."""
_KNOWN_S: Final = 30.0
"""From half a minute on there are several steps in the mean; before that the peers say what is usual."""
_DOUBTED: Final = 0.05
"""A GPU under suspicion is learnt from so much more slowly: what stays for hours becomes its habit."""
_LOOK_MS: Final = 10_000
_STEP: Final = 0.02
"""The SM clock moves in steps of 15 MHz, 1 % of it, and a mean within one of them: residuals are counted in two."""
_INDEPENDENT: Final = 0.5
"""What a look counts, as it repeats the last in part: by 0.1 to 0.45 in recordings of others (see `Echo`)."""
_LEAST: Final = 1e-6
"""Of MHz and W: a clock or a power of 0 is none."""
_DEGREES: Final = (5.0, 150.0)
"""A chip at work reads something between these; anything else is a misreading."""
_SIGNAL: Final = "loss of clock"


class GpusAtWork(Columns):
    """Columns over all GPUs.

    `at` time of the last reading (ms; -1 none yet), `taken` of the last that was judged; `power` W, `clock` MHz,
    `temp`, `memory` degrees, `activity` 0 to 1 (tensor pipes, else the engine, else utilisation), `counted` time,
    `counted_of` the same of two reasons, `reasons` bits (-1 not reported); `busy`; `job` the start of its job (-1
    none); `held` a finding on it is open, so that nothing is learnt from it; `run` judged readings in a row that were
    held down, `since` the first of them, `before` the reading before it, `free_since` the first of the latest that were
    free (-1: is not). Of the last look, at readings up to `looked_at`: `lost`, the logarithm of how far its clock was
    below usual; of the look to come: `sums` of what is in `USUAL`, at work, over `seen` readings each.
    """

    axis = "dcgm"
    USUAL: ClassVar[tuple[str, ...]] = ("clock",)
    """What is learnt of each GPU; its clock first."""
    MATES: ClassVar[bool] = True
    """Whether the GPUs of a job that is on one node are each other's peers; else all of their model are."""

    at: IntArray = column(-1)
    taken: IntArray = column(-1)
    power: FloatArray = column(np.nan)
    clock: FloatArray = column(np.nan)
    temp: FloatArray = column(np.nan)
    memory: FloatArray = column(np.nan)
    activity: FloatArray = column(np.nan)
    counted: FloatArray = column(np.nan)
    counted_of: FloatArray = column(np.nan, 2)
    reasons: IntArray = column(-1)
    busy: BoolArray = column(False)
    job: IntArray = column(-1)
    held: BoolArray = column(False)
    run: IntArray = column(0)
    since: IntArray = column(-1)
    before: IntArray = column(-1)
    free_since: IntArray = column(-1)
    lost: FloatArray = column(np.nan)
    looked_at: IntArray = column(-1)
    sums: FloatArray = column(0.0, 1)
    seen: NDArray[np.int32] = column(0, 1, dtype=np.int32)

    def __init__(
        self, config: DetectorConfig, fleet: Fleet, counter: str, by_reason: tuple[str, str], *, own_past: bool = True
    ) -> None:
        """Begin with nothing; `counter` is the field of the throttled time that matters, `by_reason` two of its parts.

        A residual is how much clock a GPU has lost of its own past; without `own_past`, what it lacks of its peers':
        for what comes so slowly that it becomes a habit. Alone it is compared with its own past.
        """
        super().__init__()
        self._budget = config.false_alarms_per_100_node_days
        self._fleet, self._field, self._fields_by_reason, self._own_past = fleet, counter, by_reason, own_past
        self.layout = GpuLayout(fleet)
        self.throttled = ThrottledTime()
        self.by_reason = TimeByReason()
        self.usual = {name: Habit(_MEMORY_S) for name in self.USUAL}
        self.evidence = Evidence()
        self.tails = Tails(config.calibration)
        self.model: IntArray = np.empty(0, np.int64)
        self.limit: FloatArray = np.empty(0)
        self._models: dict[str, int] = {}
        self._of_job: IntArray = np.empty(0, np.int64)
        self._groups: tuple[Groups, ...] = ()
        """The GPUs by job, and by model."""
        self._few: BoolArray = np.empty(0, bool)
        self._on_one = self._few
        self._jobs: tuple[Any, ...] = ()
        self._looked: Instant = -1

    def _parts(self) -> list[Columns]:
        return [self.throttled, self.by_reason, *self.usual.values(), self.evidence]

    def take(self, batch: Batch) -> None:
        """Take a batch: of each GPU the latest reading counts at the next point of the grid."""
        self.extend(batch.reach)
        for tick, here in batch.ticks():
            self._take_tick(batch, tick, here)

    def _take_tick(self, batch: Batch, tick: int, here: Any) -> None:
        def of(name: str, *bounds: float) -> FloatArray:
            return reported(batch, name, tick, here, *bounds)

        util = of("DCGM_FI_DEV_GPU_UTIL")
        activity = util / 100
        for name in ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"):
            if name in batch.sound:
                better = of(name)
                activity = np.where(np.isnan(better), activity, better)
        reasons = bits_of(of("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"))
        unstated = reasons < 0
        columns = {
            "clock": of("DCGM_FI_DEV_SM_CLOCK", _LEAST),
            "power": of("DCGM_FI_DEV_POWER_USAGE", _LEAST),
            "temp": of("DCGM_FI_DEV_GPU_TEMP", *_DEGREES),
            "memory": of("DCGM_FI_DEV_MEMORY_TEMP", *_DEGREES),
            "activity": activity,
            "counted": of(self._field),
            "reasons": reasons,
            "busy": ~(util < IDLE_UTILISATION) & (unstated | ((reasons & GPU_IDLE) == 0)),
            "at": batch.at[tick, here],
        }
        gpus, silent = batch.index(here, self.count), unstated
        # Of MIG instances nobody reads utilisation: then power says whether they are at work, unless a reason does.
        if np.count_nonzero(unsaid := np.isnan(util) & (reasons <= 0)):
            columns["busy"] &= ~(unsaid & (columns["power"] < IDLE_POWER * self.limit[gpus]))
        speak: Any = slice(None)
        for name in ("clock", "power", "temp") if np.count_nonzero(unstated) else ():
            silent &= np.isnan(columns[name])
        if np.count_nonzero(silent):
            speak = ~silent
            gpus = batch.entities[here][speak]
        for name, values in columns.items():
            getattr(self, name)[gpus] = values[speak]
        self.by_reason.reported |= not batch.sound.keys().isdisjoint(self._fields_by_reason)
        for row, name in zip(self.counted_of, self._fields_by_reason, strict=True) if self.by_reason.reported else ():
            row[gpus] = of(name)[speak]

    def extend(self, count: int) -> None:
        """Take note of GPUs that were not known before."""
        if count <= self.count:
            return
        self.layout.extend()
        count = len(self.layout)
        self.grow(count)
        for part in self._parts():
            part.grow(count)
        self._describe()
        self._jobs = ()

    def _describe(self) -> None:
        """Take model and power limit (W) of the GPUs that were not known before from the topology."""
        layout, start = self.layout, len(self.model)
        models, limits = [], []
        for node, gpu in zip(layout.node[start:].tolist(), layout.gpu[start:].tolist(), strict=True):
            facts = self._fleet.nodes.get(layout.names[node], {})
            models.append(self._models.setdefault(layout.model_of(layout.names[node]), len(self._models)))
            limit = next((one.get("power_limit_w") for one in facts.get("gpus", ()) if one.get("gpu") == gpu), None)
            limits.append(np.nan if limit is None else float(limit))
        self.model = np.concatenate([self.model, np.array(models, np.int64)])
        self.limit = np.concatenate([self.limit, np.array(limits)])

    def _note_jobs(self) -> None:
        """Take note of jobs that came and went: on another job a GPU has another habit, but on one inferred now."""
        jobs = tuple(self._fleet.jobs)
        if self._jobs == (*jobs, self.count):
            return
        self._jobs = (*jobs, self.count)
        self._of_job, (self._few, self._on_one) = np.full(self.count, -1, np.int64), np.zeros((2, self.count), bool)
        start, inferred = np.full(self.count, -1, np.int64), np.zeros(self.count, bool)
        ordered = sorted(self._fleet.jobs.values(), key=lambda job: (job.start, job.job_id))
        for number, job in enumerate(ordered):  # the latest to start, where several have a GPU
            mine = self.layout.of_job(job)
            self._of_job[mine] = number if self.MATES or len(job.nodes) > 1 else -1
            self._few[mine], start[mine], inferred[mine] = 1 < len(job.nodes) <= _FEW_NODES, job.start, job.inferred
            self._on_one[mine] = len(job.nodes) == 1
        self._groups = tuple(Groups(group, int(group.max(initial=-1)) + 1) for group in (self._of_job, self.model))
        other = (start != self.job) & ~self.held & ~(inferred & (self.job < 0))
        for habit in self.usual.values():
            habit.forget(other)
        self.job = start

    def fresh(self, now: Instant) -> BoolArray:
        """Return which GPUs reported lately."""
        return (self.at >= 0) & (now - self.at <= STALE_MS)

    def settle(self) -> BoolArray:
        """Return which GPUs have a reading that was not judged yet, after taking note of what their counters say."""
        self._note_jobs()
        new = self.at > self.taken
        self.throttled.take(new, self.at, self.counted)
        self.by_reason.take(new, self.at, self.counted_of)
        return new

    def throttled_share(self, gpus: Any = slice(None)) -> FloatArray:
        """Return for which part of the time GPUs were held down, 0 to 1; NaN where no counter reports it.

        By the counter of all of it, else by that of the two reasons which held them longer.
        """
        share = self.throttled.share(gpus)
        if not self.by_reason.reported:
            return share
        return np.where(np.isfinite(share), share, np.fmax(*self.by_reason.share(gpus)))

    def throttled_in_ns(self, gpus: IntArray) -> BoolArray:
        """Return of which GPUs the unit is known that `throttled_share` was counted in."""
        return np.asarray(self.throttled.in_ns | ~np.isfinite(self.throttled.rate[gpus]))

    @property
    def known(self) -> BoolArray:
        """Whether each GPU's own past suffices to say what is usual of it."""
        return self.usual["clock"].learnt_s >= _KNOWN_S

    def peers_of(self, gpu: int, now: Instant) -> IntArray:
        """Return the peers of a GPU: at work, not held down, on other nodes, of its job or else of its model."""
        alike = self.comparable(now) & (self.model == self.model[gpu]) & (self.layout.node != self.layout.node[gpu])
        mates = alike & (self._of_job == self._of_job[gpu]) & (self._of_job[gpu] >= 0)
        return np.flatnonzero(mates if np.count_nonzero(mates) >= FEWEST_PEERS else alike)

    def comparable(self, now: Instant) -> BoolArray:
        """Return which GPUs are at work and free, as far as anybody says."""
        stated = (np.maximum(self.reasons, 0) & (HW_POWER_BRAKE | THERMAL)) != 0
        return np.asarray(self.fresh(now) & self.busy & (self.run == 0) & ~self.held & ~stated)

    def among_peers(self, values: FloatArray, those: BoolArray, share: float) -> FloatArray:
        """Return for every GPU what `share` of `those` of its job (or model) do not exceed; NaN: too few."""
        found, own = np.full(self.count, np.nan), np.where(those, values, np.nan)
        for groups in self._groups:
            quantiles, sizes = groups.quantiles(own, share)
            quantiles[sizes < FEWEST_PEERS] = np.nan
            peers = np.append(quantiles, np.nan).take(groups.group)  # the last is that of no group, -1
            np.copyto(found, peers, where=np.isnan(found))
            if not np.count_nonzero(np.isnan(found) & self.busy):  # nobody at work is left to ask all of its model
                break
        return found

    def spread_of_job(self, gpus: IntArray, now: Instant) -> FloatArray:
        """Return by how much (logarithm) the least affected quarter of the peers of GPUs has lost clock; 0 without."""
        lost = np.log(self.usual["clock"].level / self.clock)
        all_of = self.among_peers(lost, self.fresh(now) & self.busy & self.known, 0.25)
        return known_or(all_of[gpus], 0.0)

    def mark(self, new: BoolArray, down: BoolArray, free: BoolArray) -> None:
        """Note which GPUs, with `new` readings judged now, are held down and which are free; gather their means.

        All (count,).
        """
        moved = np.flatnonzero(new & (down | (self.run > 0)))  # mostly few
        if len(moved):
            begins = moved[self.run[moved] == 0]
            self.since[begins], self.before[begins] = self.at[begins], self.taken[begins]
            self.run[moved] = np.minimum(self.run[moved] + 1, 2**31) * down[moved]
        moved = np.flatnonzero(new & (free != (self.free_since >= 0)))
        self.free_since[moved] = np.where(free[moved], self.at[moved], -1)
        useful = new & self.busy
        for name, total, seen in zip(self.usual, self.sums, self.seen, strict=True):
            value = getattr(self, name)
            known = useful & np.isfinite(value)
            np.add(total, value, out=total, where=known)
            np.add(seen, known, out=seen)
        np.copyto(self.taken, self.at)

    def look(self, now: Instant) -> None:
        """Every 10 s: turn the means into residuals, and these into evidence; then learn what is usual."""
        if self._looked >= 0 and now - self._looked < _LOOK_MS:
            return
        self._looked = now
        with np.errstate(invalid="ignore"):
            means = self.sums / self.seen  # NaN where nothing was
        those = np.flatnonzero(self.known & (self.seen[0] > 0))
        if len(those):
            self._judge(now, those, index_of(those, self.count), means)
        self._learn(np.logical_or.reduce(self.seen), means)
        self.sums[:], self.seen[:] = 0.0, 0

    def _judge(self, now: Instant, those: IntArray, where: Any, means: FloatArray) -> None:
        """Judge `those` GPUs (n,), of which `where` is another index, by the means (USUAL, count) of all."""
        usual, clock = np.log(self.usual["clock"].level[where]), np.log(means[0][where])
        lost = usual - clock
        self.lost[where] = lost
        relative, own = np.full(self.count, np.nan), lost if self._own_past else -clock
        relative[where] = own
        # Where scrapes are far apart, a look may be of one node: the others as they were last seen.
        others = now - self.looked_at <= STALE_MS
        others[where] = False
        if np.count_nonzero(others):
            relative[others] = self.lost[others] if self._own_past else -np.log(self.clock[others])
        least = self.among_peers(relative, np.isfinite(relative), 0.25)[where]
        residual = np.where(np.isfinite(least), own - least, lost) / _STEP
        tail = self.tails[_SIGNAL]
        self.evidence.look(those, tail.odds(residual), now, weight=_INDEPENDENT)
        # All that nothing holds down is usual, however odd: who is learnt from only while not odd seems ever odder.
        tail.learn(residual[(self.run[where] == 0) & ~self.held[where]], _INDEPENDENT)

    def _learn(self, looked: BoolArray, means: FloatArray) -> None:
        last = np.where(self.looked_at >= 0, self.looked_at, self.at)
        spent = np.maximum(clamp(self.at - last, 0, STALE_MS) / 1000, 1.0)
        spent[self.run > 0] *= _DOUBTED
        np.copyto(self.looked_at, self.at, where=looked)
        if np.count_nonzero(self.held):
            means[:, self.held] = np.nan
        for mean, habit in zip(means, self.usual.values(), strict=True):
            habit.learn_all(mean, spent)

    def lacks(self, gpus: IntArray, now: Instant) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Return the median clock, power and temperature of GPUs' free peers, and the ninth decile of the latter.

        In a job of few nodes these are the GPUs of the other nodes, as what befalls a node befalls half of it; the
        decile is that of all of its GPUs that keep their clock.
        """
        those, signals = self.comparable(now), np.array([self.clock, self.power, self.temp])
        clock, power, temp = (self.among_peers(signal, those, 0.5)[gpus] for signal in signals)
        warmest = self.among_peers(self.temp, those, 0.9)[gpus]
        few = np.flatnonzero(self._few[gpus])
        of_job, of_node = self._of_job[gpus[few]], self.layout.node[gpus[few]]
        for number, node in np.unique(np.array([of_job, of_node]), axis=1).T.tolist():
            own = few[(of_job == number) & (of_node == node)]
            job = np.flatnonzero(those & (self._of_job == number))
            others = signals[:, job[self.layout.node[job] != node]]
            if others.shape[1] >= FEWEST_PEERS:
                clock[own], power[own], temp[own] = medians = masked_median(others, np.isfinite(others))
                kept = self.temp[job[self.clock[job] >= _KEEPS * medians[0]]]
                warmest[own] = np.quantile(kept[np.isfinite(kept)], 0.9) if np.isfinite(kept).any() else np.nan
        return clock, power, temp, warmest

    def temp_elsewhere(self, gpus: IntArray, now: Instant) -> FloatArray:
        """Return for GPUs of jobs of one node the median temperature of their model's free ones elsewhere; else NaN."""
        found, those = np.full(len(gpus), np.nan), self.comparable(now) & np.isfinite(self.temp)
        mine, models = np.where(self._on_one[gpus], self.layout.node[gpus], -1), self.model[gpus]
        for node, model in {pair for pair in zip(mine.tolist(), models.tolist(), strict=True) if pair[0] >= 0}:
            others = self.temp[those & (self.model == model) & (self.layout.node != node)]
            if len(others) >= FEWEST_PEERS:
                found[(mine == node) & (models == model)] = np.median(others)
        return found

    def improbable(self, gpus: IntArray) -> BoolArray:
        """Return of which GPUs the loss of clock is beyond what chance brings within the budget."""
        nodes = max(len(self.layout.names), 1)
        return self.evidence.wealth[gpus] >= threshold(self._budget, self.count, nodes, _LOOK_MS / 1000)

    def by_chance(self, gpus: IntArray) -> str:
        """Return how often chance brings so much evidence as these GPUs' median."""
        return odds_in_words(float(np.median(self.evidence.wealth[gpus])), self.count, _LOOK_MS / 1000)

    def snapshot(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the state as JSON can say it, and arrays."""
        arrays = self.arrays("gpu_") | self.evidence.arrays("evidence_")
        arrays |= self.throttled.snapshot("throttled_") | self.by_reason.snapshot("by_reason_")
        for name, habit in self.usual.items():
            arrays |= habit.arrays(f"usual_{name}_")
        return {"tails": self.tails.document(), "looked": self._looked}, arrays

    def restore(self, numbers: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Take what `snapshot` returned."""
        self.load(arrays, "gpu_")
        self.throttled.restore(arrays, "throttled_")
        self.by_reason.restore(arrays, "by_reason_")
        self.by_reason.reported |= bool(np.isfinite(self.counted_of).any())
        self.by_reason.grow(self.count)
        self.evidence.load(arrays, "evidence_")
        for name, habit in self.usual.items():
            habit.load(arrays, f"usual_{name}_")
        self.tails = Tails()
        self.tails.merge(numbers["tails"])
        self._looked = numbers["looked"]
        if self.count:
            self.layout.extend()
            self._describe()
