"""Which readings show a brake: clock and power cut together, with or without the driver's word."""

from typing import Any, Final

import numpy as np

from detectors.contract import BoolArray, FloatArray, Instant, IntArray
from detectors.power_throttle.config import PowerThrottleConfig
from detectors.power_throttle.work import Work
from detectors.signals.throttle_bits import CLOCKS_SETTING, HW_POWER_BRAKE, SW_POWER_CAP, THERMAL

OTHERWISE: Final = CLOCKS_SETTING | SW_POWER_CAP | THERMAL
"""What else the driver may say holds a clock: then it is no brake, unless its own bit is set too."""
_HELD_SHARE: Final = 0.5
"""A brake holds all the time (DCGM: throttled until the cause is gone); half of it is what a first reading shows."""
SLOWED: Final = 0.9
"""What a power cap takes from one GPU and not from the next is within a tenth (A100: 1290 to 1410 MHz at 400 W)."""


class Brake:
    """Judges readings of `gpus`; what it finds is kept there."""

    def __init__(self, config: PowerThrottleConfig, gpus: Work) -> None:
        self._config, self._gpus = config, gpus

    def judge(self, now: Instant, new: BoolArray) -> None:
        """Note which of the `new` readings (count,) are of GPUs whose clock and power are cut."""
        gpus = self._gpus
        brake, held = self.stated()
        usual_clock, usual_power = gpus.expected(now)
        down, slowed = np.zeros(gpus.count, bool), SLOWED * usual_clock
        ask = np.flatnonzero(new & gpus.busy & (brake | held | ~(gpus.clock > slowed)))
        if len(ask):
            down[ask] = self._down(now, ask, brake[ask], held[ask], usual_clock[ask], usual_power[ask])
        back = ~gpus.busy | ~(gpus.clock < slowed)
        gpus.mark(new, down, ~brake & ~down & back)

    def _down(
        self,
        now: Instant,
        those: IntArray,
        brake: BoolArray,
        held: BoolArray,
        usual_clock: FloatArray,
        usual_power: FloatArray,
    ) -> BoolArray:
        """Return which of some GPUs at work are held down."""
        gpus = self._gpus
        slow = self._fell(those, usual_clock, usual_power, SLOWED, SLOWED)
        cut = slow & (gpus.known[those] | brake)
        if (cut & ~brake).any():  # what took the clocks of the peers too is no brake of this GPU's
            shared = np.log(usual_clock / gpus.clock.take(those)) - gpus.spread_of_job(those, now) < -np.log(SLOWED)
            cut &= brake | ~shared
        deep = self._fell(those, usual_clock, usual_power, self._config.clock_ratio, self._config.power_ratio)
        # Nobody to compare with: the brake's own bit, and power below what halved clocks can draw.
        alone = brake & np.isnan(usual_power) & np.isnan(usual_clock)
        alone &= gpus.power.take(those) <= self._config.power_ratio**2 * gpus.limit.take(those)
        return np.asarray(cut | (held & deep) | alone)

    def stated(self, those: Any = slice(None)) -> tuple[BoolArray, BoolArray]:
        """Return of which GPUs the driver says that they are braked, and which count time that nothing else explains.

        It says so by the brake's bit or the brake's own counter; where that one is known, what else it counts is no
        brake. A counter that has stood still since the clock fell counted what was before, of which the reasons are
        others.
        """
        gpus = self._gpus
        bits = np.maximum(gpus.reasons[those], 0)
        brake = (bits & HW_POWER_BRAKE) != 0
        for_power = gpus.throttled.share(those) >= _HELD_SHARE
        if not gpus.by_reason.reported and not np.count_nonzero(for_power):
            return brake, for_power
        before = np.where(gpus.run[those] > 0, gpus.since[those], gpus.at[those] - 1)
        for_power &= gpus.throttled.at[those] > before
        if gpus.by_reason.reported:
            by_brake, capped = (gpus.by_reason.share(those) >= _HELD_SHARE) & (gpus.by_reason.at[..., those] > before)
            brake |= by_brake
            for_power |= capped & np.isnan(gpus.throttled.rate[those]) & ~gpus.brake_counted(those)
        return brake, for_power & ((bits & OTHERWISE) == 0)

    def _fell(
        self, those: IntArray, usual_clock: FloatArray, usual_power: FloatArray, clock_ratio: float, power_ratio: float
    ) -> BoolArray:
        """Return whether clock and power both lie so far below what they should be, as far as either is known.

        A GPU that has waited for others has a low power level of its own: it is not asked to fall below `power_ratio`
        of that, but of what its limit allows at full load.
        """
        clock, power = self._gpus.clock.take(those), self._gpus.power.take(those)
        full = np.fmax(
            usual_power, np.where(np.isfinite(usual_power), power_ratio * self._gpus.limit.take(those), np.nan)
        )
        has_clock, has_power = np.isfinite(clock) & np.isfinite(usual_clock), np.isfinite(power) & np.isfinite(full)
        low_clock, low_power = clock <= clock_ratio * usual_clock, power <= power_ratio * full
        return np.asarray((low_clock | ~has_clock) & (low_power | ~has_power) & (has_clock | has_power))
