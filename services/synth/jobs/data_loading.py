"""How long the ranks of a job wait for the data of their next step: what a file system gives, and what hides it.

Batches are read ahead while the step before computes; a rank waits for what takes longer. Concurrent access makes what
a job gets vary from step to step, and a file system without caches large enough takes hundreds of steps to settle
(arXiv 2407.05467, section 2.1.3: NFS at 1 GB/s, steps of 6 to 9 s and more than 300 iterations to settle, against 4.8
to 5.2 s at once).
"""

import numpy as np

from services.synth.cluster.profile import MountProfile
from services.synth.physics.effects import Floats
from services.synth.story.scenario import Training

_SPREAD = 0.35  # of a batch's latency, rank to rank and step to step, relative
_CONTINUES = 0.8  # correlation of what a job gets in a step with the step before
_RANK_SPREAD = 0.02  # of a read that is bound by bandwidth: all ranks get about the same
_LATE_RATE, _LATE_S = 0.004, 0.8  # now and then a rank's next batch is late: share of steps, mean delay


class DataLoading:
    """The data of one job, step by step; ``ranks`` of them on ``nodes`` nodes."""

    def __init__(self, training: Training, mount: MountProfile, ranks: int, nodes: int) -> None:
        volume_gb = training.read_mb_per_step / 1000 * (ranks / nodes if mount.local else ranks)
        self._training, self._mount, self._ranks = training, mount, ranks
        self._read_s = volume_gb / mount.read_gb_s
        self._luck = 0.0

    def volume(self, step: int) -> float:
        """Return how much is read for a step, relative to one batch: what no cache holds yet is read again."""
        mount = self._mount
        settled = min(1.0, step / mount.settle_steps) if mount.settle_steps else 1.0
        return 1.0 + (mount.cold_factor - 1.0) * (1.0 - settled)

    def wait(self, step: int, hidden_s: float, factor: Floats, rng: np.random.Generator) -> Floats:
        """Return the ranks' waits before their step number ``step``, seconds, shape (ranks,).

        ``hidden_s`` is how long they computed meanwhile; ``factor`` (ranks,) is how much longer reading takes them.
        """
        wait = self._training.data_wait_s * np.exp(_SPREAD * rng.standard_normal(self._ranks)) * factor
        if rng.random() < _LATE_RATE:
            wait[rng.integers(self._ranks)] += rng.exponential(_LATE_S)
        self._luck = _CONTINUES * self._luck + np.sqrt(1 - _CONTINUES**2) * float(rng.standard_normal())
        if self._read_s > 0:
            read = self._read_s * np.exp(self._mount.contention * self._luck) * self.volume(step) * factor
            if float(read.max()) > hidden_s:
                uneven = 1 + _RANK_SPREAD * rng.standard_normal(self._ranks)
                wait += np.maximum(read * uneven - hidden_s, 0.0)
        return wait
