"""What a job lost: its pace of the last hour, and whether it is slower in some windows than it was before."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from detectors.contract import BoolArray, FloatArray, IntArray
from detectors.core.kept import Kept
from detectors.core.residuals import MAD_TO_SIGMA, MEDIAN_ERROR
from detectors.core.statistics import masked_median, median_of
from detectors.straggler.comparison import KEPT
from detectors.straggler.readings import WAITS_AT_WATTS, than_who_waits

STEP, TENSOR, MEMORY, POWER = range(4)
_NAMES: Final = ("step time", "tensor activity", "memory activity", "power")
_FEWEST: Final = 2
_BEFORE: Final = 10
"""Windows before that count: what was an hour ago may have been another fault's doing."""
_SURE: Final = 3.0
"""Standard errors: a thousandth by chance, of one that is already beyond chance itself."""
STATED: Final = 2.0
"""Of a cause that a device states, from that moment on: one in forty."""
_LEAST_SCATTER: Final = 0.003
_USUAL: Final = 10
"""One window in ten, by itself, in which a job is slower than before: checkpoints, evaluations and longer sequences
come one to six an hour in public logs. It counts as so many windows of the job's own past."""
_WARM_MS: Final = 1_800_000
"""A job that has run for longer has made its first steps before it was heard; loading takes some minutes."""
MOST_FELT: Final = float(np.log(KEPT + _USUAL))
"""The most that a job's loss may add to the evidence (logarithm)."""


@dataclass(frozen=True)
class Effect:
    """A job's `figure` (its step time, or what its GPUs do) `before` and `now`, which slows it by `slower`.

    `seen` is the least loss, as a share, that stands out of what the figure varies by; `chance` how often
    the job by itself loses as much as that, by its last hour.
    """

    figure: str
    before: float
    now: float
    slower: float
    seen: float
    chance: float

    @property
    def felt(self) -> float:
        """By how much the loss adds to the evidence, as a logarithm."""
        return -float(np.log(self.chance)) if self.slower > 0 else 0.0

    @property
    def words(self) -> str:
        """As a summary says it."""
        if self.figure == _NAMES[STEP]:
            return f"steps are {100 * self.slower:.0f} % longer than before"
        return f"the job's {self.figure} is {self.now / self.before:.2f} of before"


class History(Kept):
    """By window, the newest first: step time (s), tensor and memory activity, power of a job; NaN is not known.

    `steps` are the step times of the window that goes on, as the `lowest` rank reports them (-1: the job as a whole);
    the first `warm_up` of a job are no pace: they compile, and fill caches.
    """

    KEPT = ("values", "steps", "lowest", "warm_up")

    def __init__(self, warm_up: int = 0) -> None:
        self.values: FloatArray = np.full((4, KEPT), np.nan)
        self.steps: list[float] = []
        self.lowest, self.warm_up = 1 << 30, warm_up

    def begin_afresh(self, name: str) -> None:
        """Go on without what older versions did not keep: their jobs are warm."""
        if name != "warm_up":
            super().begin_afresh(name)
        self.warm_up = 0

    def take(self, ranks: IntArray, step_s: FloatArray, age_ms: int) -> None:
        """Take a step of some ranks, of a job of that age: in a synchronous job it takes all of them equally long."""
        lowest = int(ranks.min())
        if age_ms > _WARM_MS:
            self.warm_up = 0
        if lowest <= self.lowest:
            self.lowest = lowest
            steps = step_s[ranks == lowest].tolist()
            self.steps += steps[self.warm_up :]
            self.warm_up = max(self.warm_up - len(steps), 0)

    def end(self, activity: FloatArray) -> None:
        """End a window in which tensor and memory activity and power were `activity` (3,)."""
        self.values = np.roll(self.values, 1, axis=1)
        self.values[:, 0] = median_of(np.array(self.steps, float)), *activity
        self.steps.clear()

    @property
    def steps_known(self) -> bool:
        """Whether the job has lately reported how long its steps take."""
        return bool(np.isfinite(self.values[STEP]).any())

    def lengthened(self, windows: int) -> float:
        """Return by which share steps are longer than before, in the last whole `windows` and the one that goes on.

        Than in the last few windows before, or in the last ten, or in all, whichever is more: another fault may have
        been in these, or this one have grown slowly. Or than in the last one, where steps had become shorter up to it,
        as they do while caches fill. NaN where nothing is known of before.
        """
        steps = self.values[STEP]
        now, before = median_of(np.array([*self.steps, *steps[:windows]])), steps[windows + 1 :]
        was = [median_of(before[:count]) for count in (_FEWEST + 1, _BEFORE, KEPT)]
        was += before[:1].tolist() if (np.diff(before[: _FEWEST + 1]) > 0).all() else []
        return float(np.fmax.reduce([now / usual - 1 for usual in was]))

    def lost(self, windows: int, gap: int, steady: float) -> float:
        """Return by how much (logarithm) the job has been slower in the last `windows` than in those before the `gap`.

        By its steps, else by tensor activity. 0 where three windows of four have not lost a `steady` part of that; NaN
        where nothing is known of now or before.
        """
        row = STEP if np.isfinite(self.values[STEP, gap : gap + _BEFORE]).sum() >= _FEWEST else TENSOR
        logs = np.log(self.values[row]) * (1 if row == STEP else -1)
        longer = logs[:windows] - median_of(logs[gap : gap + _BEFORE])
        longer = longer[np.isfinite(longer)]
        if 2 * len(longer) < windows:
            return float("nan")
        loss = median_of(longer)
        return loss if np.quantile(longer, 0.25) >= steady * loss else 0.0

    def effect(
        self, odd: int, windows: int, own: float, sure: float = _SURE, *, own_power: float | None = None
    ) -> Effect | None:
        """Return what the job lost in the windows with a bit in `odd`, of the last `windows`, against those before.

        `own` is by how much (logarithm) the culprit's own activity moves the job's, and `own_power` its power, where
        that moves otherwise. None where nothing is known of before; `slower` 0 where no loss is certain, by `sure`
        standard errors. What memory shows, it shows as it is; of power a part is an estimate.
        """
        number = np.arange(KEPT)
        during = np.array([(odd >> int(n)) & 1 for n in number], bool)
        before = (number >= windows) & (number < windows + _BEFORE)
        if np.count_nonzero(np.isfinite(self.values[STEP, before])) >= _FEWEST:
            return self._compare(STEP, during, before, 0.0, sure)
        rows = [TENSOR, MEMORY] if np.isfinite(self.values[TENSOR]).any() else [MEMORY, POWER]
        # Of power about a half is drawn while waiting, too, and does not move.
        scatter = [_scatter(np.log(self.values[row, before])) * (2 if row == POWER else 1) for row in rows]
        if np.isnan(scatter).all():
            return None
        by = {row: own_power if row == POWER and own_power is not None else own for row in rows}
        first = rows[int(np.nanargmin(scatter))]
        if first == POWER and (shown := self._compare(MEMORY, during, before, own, sure)) is not None and shown.slower:
            return shown
        return self._compare(first, during, before, by[first], sure)

    def _compare(self, row: int, during: BoolArray, before: BoolArray, own: float, sure: float) -> Effect | None:
        logs = np.log(self.values[row])
        now, was = logs[during & np.isfinite(logs)], logs[before & np.isfinite(logs)]
        if min(len(now), len(was)) < _FEWEST:
            return None
        moved = median_of(now) - median_of(was) - own
        lost = moved if row == STEP else -moved
        error = MEDIAN_ERROR * max(_scatter(was), _LEAST_SCATTER) * np.sqrt(1 / len(now) + 1 / len(was))
        earlier = _earlier(logs, during, before)
        as_much = np.count_nonzero((earlier if row == STEP else -earlier) >= lost)
        chance = (1 + as_much) / (_USUAL + len(earlier))
        slower = np.array([lost if lost >= sure * error else 0.0, sure * error])
        longer, least = np.expm1(than_who_waits(slower, WAITS_AT_WATTS) if row == POWER else slower).tolist()
        begun = float(np.exp(median_of(was)))
        return Effect(_NAMES[row], begun, begun * float(np.exp(moved)), longer, least, chance)


class NodePaces(Kept):
    """The histories of single nodes: of those whose job nothing names, and who may have been taken for one with others.

    `nodes` are their numbers, ascending, and `values` those of `History`, (nodes, 4, windows).
    """

    KEPT = ("nodes", "values")

    def __init__(self) -> None:
        self.nodes: IntArray = np.empty(0, np.int64)
        self.values: FloatArray = np.empty((0, 4, KEPT))

    def end(self, nodes: IntArray, activity: FloatArray) -> None:
        """End a window in which these nodes, ascending, had an `activity` as `History` takes it, (3, n)."""
        values = np.full((len(nodes), 4, KEPT), np.nan)
        values[:, 1:, 0] = activity.T
        _, here, there = np.intersect1d(nodes, self.nodes, assume_unique=True, return_indices=True)
        values[here, :, 1:] = self.values[there, :, :-1]
        self.nodes, self.values = nodes, values

    def effect(self, node: int, odd: int, windows: int) -> Effect | None:
        """Return what a node's GPUs lost, as `History.effect` does; None where nothing is known of it."""
        at = int(np.searchsorted(self.nodes, node))
        if at == len(self.nodes) or self.nodes[at] != node:
            return None
        history = History()
        history.values = self.values[at]
        return history.effect(odd, windows, 0.0)


def _earlier(logs: FloatArray, during: BoolArray, before: BoolArray) -> FloatArray:
    """Return by how much a figure had moved likewise at each earlier time, after the windows that are in question."""
    last = int(np.flatnonzero(before).max())
    first = int(np.flatnonzero(during).max()) + 1
    number = np.arange(first, KEPT - last)
    if not len(number):
        return np.empty(0)
    now, was = (logs[np.flatnonzero(mask)[None, :] + number[:, None]] for mask in (during, before))
    moved = masked_median(now, np.isfinite(now)) - masked_median(was, np.isfinite(was))
    return np.asarray(moved[np.isfinite(moved)])


def _scatter(values: FloatArray) -> float:
    known = values[np.isfinite(values)]
    return MAD_TO_SIGMA * median_of(np.abs(known - median_of(known))) if len(known) >= _FEWEST else float("nan")
