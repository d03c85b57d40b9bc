"""Silent slow chips: GPUs that take longer for the same work at the same clock, and show it by their power alone.

A chip that skips cycles, or waits for its memory, reports its full clock and is as busy as those that spin while they
wait for it. But the energy of a step is the same to it, however long the step takes, while the others spend more as
they spin: where a job has lost a tenth of its pace, its power has fallen by more than theirs. Chips of a model differ
in how much of their power is for work, so that any slowdown of a job spreads them: who is to blame stands far outside
of what the others are spread by, alone, by a part of the job's loss that spinning explains.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from detectors.contract import FloatArray, IntArray
from detectors.core.columns import Columns, column
from detectors.core.residuals import MAD_TO_SIGMA, Groups
from detectors.core.statistics import masked_median, median_of
from detectors.fleet.fleet import Job
from detectors.straggler.job_pace import History
from detectors.straggler.readings import FULL
from detectors.straggler.windows import BUSY, CLOCK, POWER, SPENT, UTIL

SINCE: Final = 8
"""Windows since the job is slower: so many means of minutes show a twentieth of a GPU's power from its noise."""
_GAP, _BEFORE = 1, 9
_KEPT: Final = SINCE + _GAP + _BEFORE
_FEWEST: Final = 8
"""GPUs of one model in a job: of fewer nobody knows by how much they are spread."""
_OUTSIDE: Final = 6.0
"""Robust deviations, of all GPUs of a cluster less than once in a thousand years, as far as they are normal."""
_SPREAD: Final = 0.003
"""Of power, at least: what means of eight minutes resolve."""
_LEAST, _MOST = 0.15, 0.7
"""Of the job's loss: who spins draws half of its power at work, who idles a fifth, as far as GPUs' own loads are known;
eleven silent chips in recordings of two others lie at 0.23 to 0.62 of it."""
_ALONE: Final = 0.6
"""The next one's, to its own: two that stand outside have something in common that is not a chip's."""
_SAME_CLOCK, _AS_BUSY = 0.015, 0.02
"""Clocks move in steps of 15 MHz, a hundredth, and utilisation in hundredths."""
_SAME_WORK: Final = 0.25
"""Of the job's loss: who does less has less to do."""
_STEADY: Final = 0.6
"""Of the loss, in three windows of four: a pause now and then is no slower pace."""


@dataclass(frozen=True, slots=True)
class Silent:
    """A GPU (index) that is to blame for what its job lost: its power beside its peers' lies below its `level` before
    that by what it has `spared` (logarithms), so many `deviations` of theirs.
    """

    gpu: int
    level: float
    spared: float
    deviations: float


class SilentChips(Columns):
    """By GPU: its `power` beside the median of its job's GPUs of its model in the last windows, the newest first
    (logarithms).
    """

    axis = "dcgm"
    power: NDArray[np.float16] = column(np.nan, _KEPT, dtype=np.float16)

    def take(self, who: IntArray, came: IntArray, peers: Groups, x: FloatArray) -> None:
        """Take a window's logarithms `x` (8, n) of GPUs `who` (n,), and forget what those did who `came` to a job."""
        drawn = np.where(np.isnan(x[SPENT]), x[POWER], x[SPENT])
        middle = peers.medians(drawn[None])[0][0, peers.group]
        self.power[:, came] = np.nan
        self.power[1:] = self.power[:-1].copy()
        self.power[0] = np.nan
        self.power[0, who] = drawn - middle

    def blamed(
        self, jobs: Sequence[Job], histories: Mapping[str, History], who: IntArray, peers: Groups, x: FloatArray,
        moved: Callable[[IntArray], FloatArray], job: IntArray, share: float,
    ) -> list[tuple[Job, Silent]]:  # fmt: skip
        """Return the silent chips of the jobs that have lost a `share` of their pace for eight windows.

        `x` (8, n) is what `who` (n,) reads now, `job` (n,) the place of each one's among the `jobs`; `moved` returns by
        how much more work some do of late than before.
        """
        found = []
        for place, one in enumerate(jobs):
            loss = histories[one.job_id].lost(SINCE, SINCE + _GAP, _STEADY)
            if not loss >= np.log1p(share):
                continue
            mine = np.flatnonzero(job == place)
            for group in np.unique(peers.group[mine]).tolist():
                among = mine[peers.group[mine] == group]
                silent = self._outside(who[among], x[:, among], moved(who[among]), loss)
                if silent is not None:
                    found.append((one, silent))
        return found

    def _outside(self, who: IntArray, x: FloatArray, more: FloatArray, loss: float) -> Silent | None:
        power = self.power[:, who].T.astype(np.float64)
        now, level = (masked_median(part, np.isfinite(part)) for part in (power[:, :SINCE], power[:, SINCE + _GAP :]))
        spared = level - now
        known = np.flatnonzero(np.isfinite(spared))
        if len(known) < _FEWEST:
            return None
        usual = float(np.median(spared[known]))
        spread = max(MAD_TO_SIGMA * float(np.median(np.abs(spared[known] - usual))), _SPREAD)
        first, second = known[np.argsort(-spared[known])[:2]].tolist()
        size = float(spared[first]) - usual
        middle = np.array([median_of(row) for row in x])
        beside = x[:, first] - middle
        alike = abs(beside[CLOCK]) <= _SAME_CLOCK and abs(more[first]) <= _SAME_WORK * loss
        alike &= not np.fmin(beside[BUSY], beside[UTIL]) < -_AS_BUSY
        alike &= bool(np.fmax(middle[BUSY], middle[UTIL]) >= np.log(FULL))
        outside = size >= _OUTSIDE * spread and _LEAST * loss <= size <= _MOST * loss
        if not alike or not outside or float(spared[second]) - usual > _ALONE * size:
            return None
        return Silent(int(who[first]), float(level[first]), size, size / spread)

    def is_low(self, gpu: int, level: float, spared: float) -> bool:
        """Return whether a GPU's power is still below its `level` by half of what it `spared`, in the last windows."""
        return median_of(self.power[:3, gpu].astype(np.float64)) <= level - spared / 2
