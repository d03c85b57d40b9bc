"""The energy that GPUs say they have used: where it stands still, the readings beside it are old ones."""

from typing import Any, Final

import numpy as np

from detectors.contract import BoolArray, FloatArray, IntArray
from detectors.core.columns import Columns, column, keep_known

_LONG_MS: Final = 150_000
"""Two readings at 60 s scrapes: a mean over longer is of what was before as well."""


class Energy(Columns):
    """By GPU: `used` (mJ) as last read. A GPU that is on uses some from reading to reading."""

    used: FloatArray = column(np.nan)

    def stands(self, gpus: Any, used: FloatArray) -> BoolArray:
        """Take a reading of each of `gpus`, an index of n, NaN left out; return which repeat the one before, (n,)."""
        stands = np.asarray(used == self.used[gpus])
        keep_known(self.used, gpus, used)
        return stands


class Meter(Columns):
    """By GPU: `used` (mJ) as last read anew, and when that was (`at`, ms; -1 never)."""

    used: FloatArray = column(np.nan)
    at: IntArray = column(-1)

    def power(self, gpus: Any, at: IntArray, used: FloatArray) -> FloatArray:
        """Take a reading of each of `gpus`, an index of n, NaN left out, at `at` (n,).

        Return the mean power (W) of each since the one before: 0 where that is repeated, and NaN where there is none,
        or where it was long ago.
        """
        before, then = self.used[gpus], self.at[gpus]
        spent = at - then
        mean: FloatArray = (used - before) / spent
        anew = np.isfinite(used) & (mean != 0)
        if np.count_nonzero(anew) == len(anew):
            self.used[gpus], self.at[gpus] = used, at
        else:
            self.used[gpus], self.at[gpus] = np.where(anew, used, before), np.where(anew, at, then)
        if np.maximum.reduce(spent, initial=0) > _LONG_MS:
            mean[(spent > _LONG_MS) & anew] = np.nan
        return mean


class Draw(Columns):
    """By GPU: what it draws, by the energy that it has used where that is read (`metered`), else by its readings."""

    metered: BoolArray = column(False)
    BESIDE = ("meter",)

    def __init__(self) -> None:
        super().__init__()
        self.meter = Meter()

    def power(
        self, gpus: Any, at: IntArray, used: FloatArray, watts: FloatArray, *, strictly: bool = False
    ) -> FloatArray:
        """Return the power (W) of each of `gpus`, an index of n, since the reading before, by the energy `used` (mJ).

        A reading of power, `watts`, is a moment of a step, and may be the same one for minutes. It counts where no
        energy is read, or none that grows; NaN where the reading before is repeated. `strictly` any energy but 0 that
        is repeated is a copy, though none has grown yet.
        """
        mean = self.meter.power(gpus, at, used)
        grows = mean > 0
        if np.count_nonzero(grows) == len(grows):
            self.metered[gpus] = True
            return mean
        metered = self.metered[gpus] | grows
        self.metered[gpus] = metered
        copied = mean == 0
        copied &= metered | (used > 0) if strictly else metered
        return np.where(copied, np.nan, np.where(grows, mean, watts))
