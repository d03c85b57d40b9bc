"""The energy that GPUs say they have used: where it stands still, the readings beside it are old ones."""

from typing import Any

import numpy as np

from detectors.contract import BoolArray, FloatArray
from detectors.core.columns import Columns, column, keep_known


class Energy(Columns):
    """By GPU: `used` (mJ) as last read. A GPU that is on uses some from reading to reading."""

    used: FloatArray = column(np.nan)

    def stands(self, gpus: Any, used: FloatArray) -> BoolArray:
        """Take a reading of each of `gpus`, an index of n, NaN left out; return which repeat the one before, (n,)."""
        stands = np.asarray(used == self.used[gpus])
        keep_known(self.used, gpus, used)
        return stands
