"""Which readings show a brake: clock and power cut together, with or without the driver's word."""

from typing import Any, Final

import numpy as np

from detectors.contract import BoolArray, FloatArray, Instant, IntArray
from detectors.power_throttle.config import PowerThrottleConfig
from detectors.power_throttle.work import OTHERWISE, Work
from detectors.signals.brakes import HALVED, NODE_LEFT, SLOWED
from detectors.signals.throttle_bits import HW_POWER_BRAKE, HW_SLOWDOWN, SW_POWER_CAP

_HELD_SHARE: Final = 0.5
"""A brake holds all the time (DCGM: throttled until the cause is gone); half of it is what a first reading shows."""
_FULL: Final = 0.97
"""Of its usual clock: two steps of 15 MHz, and what temperature takes."""
_HOLDS_MS: Final = 30_000
"""A GPU dips for twenty seconds now and then, and is well: half as long again without a word of the driver's."""
_NO_BLIP_MS: Final = 20_000
"""No blip lasts so long: where readings are far apart, the counter says it of one."""


class Brake:
    """Judges readings of `gpus`; what it finds is kept there."""

    def __init__(self, config: PowerThrottleConfig, gpus: Work) -> None:
        self._config, self._gpus = config, gpus

    def judge(self, now: Instant, new: BoolArray) -> None:
        """Note which of the `new` readings (count,) are of GPUs whose clock and power are cut.

        What takes the clocks of a whole job is its work, unless it halves them: the job is in a rack that lost a feed.
        """
        gpus = self._gpus
        brake, held = self.stated(now)
        usual_clock, usual_power = gpus.expected(now)
        down, slowed = np.zeros(gpus.count, bool), SLOWED * usual_clock
        ask = np.flatnonzero(new & gpus.busy & (brake | held | ~(gpus.clock > slowed)))
        if len(ask):
            down[ask] = self._down(now, ask, brake[ask], held[ask], usual_clock[ask], usual_power[ask])
            gpus.note_heat(ask[down[ask]])
        back = ~gpus.busy | ~(gpus.clock < slowed)
        free = ~brake & ~down & back
        # What holds power leaves the clock alone whenever the work draws less: it floats, and is not free for that.
        down |= gpus.busy & (gpus.run > 0) & (gpus.power <= NODE_LEFT * usual_power)
        gpus.mark(new, down, free & ~down)

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
            halved = self._fell(those, usual_clock, usual_power, HALVED, HALVED)
            cut &= brake | ~shared | halved
        deep = self._fell(those, usual_clock, usual_power, self._config.clock_ratio, self._config.power_ratio)
        # Nobody to compare with: the brake's own bit, and power below what halved clocks can draw.
        alone = brake & np.isnan(usual_power) & np.isnan(usual_clock)
        alone &= gpus.power.take(those) <= self._config.power_ratio**2 * gpus.limit.take(those)
        return np.asarray(cut | (held & deep) | alone)

    def stated(self, now: Instant, those: Any = slice(None)) -> tuple[BoolArray, BoolArray]:
        """Return of which GPUs the driver says that they are braked, and which count time that nothing else explains.

        It says so by the brake's bit or the brake's own counter; where that one is known, what else it counts is no
        brake, nor is what the counter of heat counts as well. A counter that has stood still since the clock fell
        counted what was before, of which the reasons are others. So it does by HW_SLOWDOWN on a clock that is halved,
        if no heat is stated: besides heat and the brake only its own draw trips it (DCGM dcgm_fields.h).
        """
        gpus = self._gpus
        bits = np.maximum(gpus.reasons[those], 0)
        brake = (bits & HW_POWER_BRAKE) != 0
        tripped = (bits & (HW_SLOWDOWN | OTHERWISE)) == HW_SLOWDOWN
        if np.count_nonzero(tripped):  # mostly none
            halved = gpus.clock[those] <= HALVED * gpus.expected(now)[0][those]
            brake |= tripped & halved & ~gpus.near_limit(those)
        for_power = (gpus.throttled.share(those) >= _HELD_SHARE) & ~(gpus.heated.share(those) >= _HELD_SHARE)
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

    def some_float(self, those: IntArray) -> bool:
        """Return whether two GPUs or more run at their full clock and draw far less than usual, all the same."""
        gpus, usual = self._gpus, self._gpus.usual
        full, power = gpus.clock[those] > _FULL * usual["clock"].level[those], usual["power"].level[those]
        return int(np.count_nonzero(full & (gpus.power[those] <= NODE_LEFT * power))) > 1

    def counted_long(self, those: IntArray) -> BoolArray:
        """Return which GPUs count more throttled time than any blip takes."""
        gpus = self._gpus
        counted_ms = gpus.throttled_share(those) * (gpus.at[those] - gpus.before[those])
        return gpus.throttled_in_ns(those) & (gpus.before[those] >= 0) & (counted_ms >= _NO_BLIP_MS)

    def capped(self, those: IntArray) -> BoolArray:
        """Return which GPUs the driver says are held by its power cap, and by nothing else, since their clock fell.

        A cap holds all the time; a GPU that works near its limit is at it now and then, whatever else holds its clock.
        """
        gpus = self._gpus
        return np.asarray(gpus.capped[those] >= np.maximum(_HELD_SHARE * gpus.run[those], 1))

    def unexplained(self, those: IntArray) -> BoolArray:
        """Return which GPUs the driver gives no reason for, but a cap now and then."""
        reasons = self._gpus.reasons[those]
        now_and_then = (reasons == SW_POWER_CAP) & ~self.capped(those)
        return np.asarray((reasons == 0) | now_and_then)

    def proven(
        self,
        now: Instant,
        those: IntArray,
        clock_ratio: float,
        power_ratio: float,
        *,
        uncooled: bool,
        capped: BoolArray | None = None,
        alike: bool = False,
    ) -> BoolArray:
        """Return which GPUs of a node have lost so much clock and power, at equal work, beyond what chance can bring.

        Of those that are `capped` from outside a tenth of both is enough. Of those that lost it with most of their job,
        `alike`, no comparison says how seldom that is. `uncooled`: their node has lost its fans, or is in warm air.
        """
        gpus, reasons = self._gpus, np.maximum(self._gpus.reasons[those], 0)
        far = (gpus.lost[those] >= -np.log(clock_ratio)) & (gpus.lost_power[those] >= -np.log(power_ratio))
        far &= (reasons & OTHERWISE) == 0
        if capped is not None:
            far |= capped & (np.minimum(gpus.lost[those], gpus.lost_power[those]) >= -np.log(SLOWED))
        lasting = gpus.at[those] - gpus.since[those] >= _HOLDS_MS - 1000  # less the jitter of scrapes
        if not (far & lasting).any():
            return np.zeros(len(those), bool)
        cooler = self.cooler(now, those, uncooled=uncooled)
        sure = far & lasting & cooler & ~gpus.was_hot(those) & gpus.works(those, now)
        return np.asarray(sure if alike else sure & gpus.improbable(those))

    def cooler(self, now: Instant, those: IntArray, *, uncooled: bool) -> BoolArray:
        """Return which GPUs of a node are no warmer than their peers, chip and memory.

        Less power is less heat: who is warmer than its peers on a quarter less of it is held down by its heat; in warm
        air, or without its fans, who is warmer than half of them.
        """
        gpus = self._gpus
        _, _, median, warmest = gpus.lacks(those, now)
        memory = gpus.among_peers(gpus.memory, gpus.comparable(now), 0.9)[those]
        return ~((gpus.temp[those] > (median if uncooled else warmest)) | (gpus.memory[those] > memory))
