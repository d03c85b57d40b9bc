"""GPUs that another process shares with a job: memory in use steps up on one of them alone, in the middle of the job.

Who computes on a job's GPU beside it takes its time. A framework gets its memory at the start of the job and keeps it
(PyTorch's caching allocator), on all ranks alike; what comes later, on one GPU alone, is somebody else's: what an
earlier job left behind, or somebody who has come in by ssh.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, BoolArray, IntArray
from detectors.core.columns import Columns, column, put
from detectors.core.residuals import Groups

_USED: Final = "DCGM_FI_DEV_FB_USED"
_LEAST_MIB: Final = 1024.0
"""A CUDA context takes 300 to 500 MiB; who computes has data, too."""
_MATES: Final = 0.25
"""Of what came: mates whose memory in use grows as well have been given more by their job."""
_LEFT: Final = 0.5
"""Of what came, if so much is given back it has gone again."""


class SharedGpus(Columns):
    """By GPU, in MiB: the memory in `use` now and when the window `before` ended, and by how much it `grew` at once on
    it alone; 0 where it did not.
    """

    axis = "dcgm"
    use: NDArray[np.float32] = column(np.nan, dtype=np.float32)
    before: NDArray[np.float32] = column(np.nan, dtype=np.float32)
    grew: NDArray[np.float32] = column(0.0, dtype=np.float32)

    def read(self, batch: Batch) -> None:
        """Take readings."""
        if _USED not in batch.sound:
            return
        for tick, here in batch.ticks():
            used = batch.sound[_USED][tick][here]
            put(self.use, batch.index(here, len(self)), used, np.isfinite(used))

    def close(self, who: IntArray, came: BoolArray, mates: Groups) -> None:
        """End the window of those at work, (n,), of whom some `came` to another job, beside their `mates`."""
        use, grew = self.use[who].astype(np.float64), self.grew[who]
        more = use - self.before[who]
        usual, of = (each[0][mates.group] for each in mates.medians(np.abs(more)[None]))
        alone = (more >= _LEAST_MIB) & (usual <= _MATES * more) & (of > 1)
        gone = came | (more <= -_LEFT * grew)
        self.grew[who] = np.where(gone, 0.0, np.where(alone, more, grew))
        self.before[who] = use
