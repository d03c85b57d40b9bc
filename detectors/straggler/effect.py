"""What a job lost: its pace of the last hour, and whether it is slower in some windows than it was before."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from detectors.contract import BoolArray, FloatArray, IntArray

KEPT: Final = 64
"""Windows that are remembered: as many as an entity's bits."""
STEP, TENSOR, MEMORY, POWER = range(4)
_NAMES: Final = ("step time", "tensor activity", "memory activity", "power")
_FEWEST: Final = 2
_BEFORE: Final = 10
"""Windows before that count: what was an hour ago may have been another fault's doing."""
_SURE: Final = 3.0
"""Standard errors: a thousandth by chance, of one that is already beyond chance itself."""
_LEAST_SCATTER: Final = 0.003


@dataclass(frozen=True)
class Effect:
    """A job's `figure` (its step time, or what its GPUs do) `before` and `now`, which slows it by `slower`.

    `seen` is the least loss, as a share, that could have been told from what the figure varies by.
    """

    figure: str
    before: float
    now: float
    slower: float
    seen: float

    @property
    def words(self) -> str:
        """As a summary says it."""
        if self.figure == _NAMES[STEP]:
            return f"steps are {100 * self.slower:.0f} % longer than before"
        return f"the job's {self.figure} is {self.now / self.before:.2f} of before"


class History:
    """By window, the newest first: step time (s), tensor and memory activity, power of a job; NaN is not known."""

    def __init__(self) -> None:
        self.values: FloatArray = np.full((4, KEPT), np.nan)
        self.steps: list[float] = []
        """Step times of the window that goes on, as the lowest rank reports them (-1: the job as a whole)."""
        self._lowest = 1 << 30

    def take(self, ranks: IntArray, step_s: FloatArray) -> None:
        """Take a step of some ranks: in a synchronous job it takes all of them equally long."""
        lowest = int(ranks.min())
        if lowest <= self._lowest:
            self._lowest = lowest
            self.steps += step_s[ranks == lowest].tolist()

    def end(self, activity: FloatArray) -> None:
        """End a window in which tensor and memory activity and power were `activity` (3,)."""
        self.values = np.roll(self.values, 1, axis=1)
        self.values[0, 0] = float(np.median(self.steps)) if self.steps else np.nan
        self.values[1:, 0] = activity
        self.steps.clear()

    def effect(self, odd: int, windows: int, culprit_share: float, lag: float) -> Effect | None:
        """Return what the job lost in the windows with a bit in `odd`, of the last `windows`, against those before.

        `culprit_share` of the job's mean is the culprit's own activity, which is exp(`lag`) of the others': they alone
        tell what the job lost. None where nothing is known of before; `slower` 0 where no loss is certain.
        """
        number = np.arange(KEPT)
        bits = np.array([(odd >> int(n)) & 1 for n in number], bool)
        during, before = bits, (number >= windows) & (number < windows + _BEFORE)
        if np.count_nonzero(np.isfinite(self.values[STEP, before])) >= _FEWEST:
            return self._compare(STEP, during, before, 0.0)
        own = np.log1p(culprit_share * np.expm1(lag))
        rows = [TENSOR, MEMORY] if np.isfinite(self.values[[TENSOR, MEMORY]]).any() else [POWER]
        scatter = [_scatter(np.log(self.values[row, before])) for row in rows]
        if not np.isfinite(scatter).any():
            return None
        return self._compare(rows[int(np.nanargmin(scatter))], during, before, own)

    def _compare(self, row: int, during: BoolArray, before: BoolArray, own: float) -> Effect | None:
        logs = np.log(self.values[row])
        now, was = logs[during & np.isfinite(logs)], logs[before & np.isfinite(logs)]
        if len(now) < _FEWEST or len(was) < _FEWEST:
            return None
        moved = float(np.median(now) - np.median(was)) - own
        slower = moved if row == STEP else -moved
        error = 1.2533 * max(_scatter(was), _LEAST_SCATTER) * np.sqrt(1 / len(now) + 1 / len(was))
        begun, lost = float(np.exp(np.median(was))), slower if slower >= _SURE * error else 0.0
        least = float(np.expm1(_SURE * error))
        return Effect(_NAMES[row], begun, begun * float(np.exp(moved)), float(np.expm1(lost)), least)

    def snapshot(self) -> tuple[dict[str, Any], NDArray[Any]]:
        """Return the state as JSON can say it, and the array."""
        return {"steps": self.steps, "lowest": self._lowest}, self.values

    @classmethod
    def restore(cls, told: Mapping[str, Any], values: NDArray[Any]) -> "History":
        """Return what `snapshot` was taken of."""
        history = cls()
        history.steps, history._lowest, history.values = list(told["steps"]), told["lowest"], values
        return history


def _scatter(values: FloatArray) -> float:
    known = values[np.isfinite(values)]
    if len(known) < _FEWEST:
        return float("nan")
    return 1.4826 * float(np.median(np.abs(known - np.median(known))))
