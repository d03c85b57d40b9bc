"""The scatter of readings: white where there is no world; in a world neither white nor Gaussian, as real readings are.

What is high stays high for a while, and calm and restless stretches take turns.

Half of the variance is white; half is an Ornstein-Uhlenbeck process that lasts `noise.lasts_s`. The whole is multiplied
by a lognormal factor that itself comes and goes, ten times as slowly, each entity for itself, of sigma `noise.tail`,
or `work.rank_tail` where it is no reading that scatters but a rank's computation.
"""

import numpy as np

from services.synth.cluster.worlds import Conditions
from services.synth.physics.effects import Floats

_SLOWER = 10.0


class Scatter:
    """Draws from a generator, for readings that are `step_s` apart; must be asked in order of time."""

    def __init__(
        self, rng: np.random.Generator, conditions: Conditions, step_s: float, tail: str = "noise.tail"
    ) -> None:
        self.rng = rng
        self._lasts_s, self._tail = conditions.number("noise.lasts_s"), conditions.number(tail)
        self._step_s = step_s
        self._state: dict[str, Floats] = {}

    def normal(self, what: str, shape: tuple[int, ...]) -> Floats:
        """Return scatter of about unit deviation, shape (ticks, entities), that goes on from what was asked before."""
        white = self.rng.standard_normal(shape)
        if not self._lasts_s:
            return white
        lasting = self._process(what, shape, self._lasts_s)
        return np.asarray((white + lasting) * np.sqrt(0.5) * self.swell(what, shape))

    def swell(self, what: str, shape: tuple[int, ...]) -> Floats:
        """Return a factor of mean 1 that comes and goes: lognormal; 1 where there is no world."""
        if not self._tail:
            return np.ones(shape)
        restless = self._process(f"restlessness of {what}", shape, _SLOWER * max(self._lasts_s, self._step_s))
        return np.asarray(np.exp(self._tail * np.clip(restless, -3, 3) - self._tail**2 / 2))

    def _process(self, what: str, shape: tuple[int, ...], lasts_s: float) -> Floats:
        """Return an Ornstein-Uhlenbeck process of unit deviation along the first axis."""
        from scipy.signal import lfilter  # takes two seconds, for recordings of worlds alone

        keep = float(np.exp(-self._step_s / lasts_s))
        before = self._state.get(what)
        if before is None:
            before = self.rng.standard_normal(shape[1:])
        fresh = np.sqrt(1 - keep**2) * self.rng.standard_normal(shape)
        found, _ = lfilter([1.0], [1.0, -keep], fresh, axis=0, zi=keep * before[None])
        self._state[what] = found[-1].copy()
        return np.asarray(found)
