"""GPU memory: bits corrected and not, rows remapped for good, waiting for a reset, or not remappable.

Corrected bits come in bursts on a few GPUs and hardly ever on the rest (Delta, SC'25: some 5 % of GPUs have any). What
DCGM calls volatile counts from 0 at a boot; remapped rows stay.
"""

from dataclasses import dataclass

import numpy as np

from services.synth.physics.effects import Effects, Floats

_SBE_PER_GPU_DAY = 0.012  # corrected single-bit errors of a healthy HBM stack, estimated


@dataclass
class GpuMemory:
    """Remapped rows of every GPU before the recording, shape (gpus,)."""

    effects: Effects
    correctable_rows: Floats
    uncorrectable_rows: Floats

    @classmethod
    def drawn(cls, effects: Effects, gpus: int, rng: np.random.Generator) -> "GpuMemory":
        """Draw what a fleet of some age shows."""
        correctable = (rng.random(gpus) < 0.015).astype(np.float64)
        return cls(effects, correctable, (rng.random(gpus) < 0.006).astype(np.float64))

    def corrected(self, times: Floats, window: float, rng: np.random.Generator) -> Floats:
        """Return the single-bit errors in the window before ``times`` (ticks, gpus)."""
        mean = np.full(times.shape, _SBE_PER_GPU_DAY * window / 86400)
        if self.effects.of("gpu.sbe_per_s"):
            mean += self.effects.added("gpu.sbe_per_s", times, window=window) * window
        return rng.poisson(mean).astype(np.float64)

    def uncorrected(self, times: Floats, before: Floats) -> Floats:
        """Return the double-bit errors between ``before`` and ``times``, each (ticks, gpus)."""
        total = np.zeros(times.shape)
        for effect in self.effects.of("gpu.dbe"):
            start, columns = effect.course.start, effect.columns
            total[:, columns] += effect.size * ((times[:, columns] >= start) & (before[:, columns] < start))
        return total

    def remapped(self, times: Floats, *, uncorrectable: bool) -> Floats:
        """Return the remapped rows by ``times`` (ticks, gpus), of one of the two causes."""
        base = self.uncorrectable_rows if uncorrectable else self.correctable_rows
        total = np.broadcast_to(base, times.shape).copy()
        for effect in self.effects.of("gpu.rows_remapped"):
            if bool(effect.detail["uncorrectable"]) == uncorrectable:
                total[:, effect.columns] += effect.size * (times[:, effect.columns] >= effect.course.start)
        return total
