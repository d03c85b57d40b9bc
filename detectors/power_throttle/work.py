"""GPUs at work, with what they usually draw and do: a brake takes power, and GPUs that wait draw and do less."""

from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, BoolArray, DetectorConfig, FloatArray, Instant, IntArray
from detectors.core.columns import Columns, column
from detectors.core.statistics import known_or
from detectors.fleet.fleet import Fleet
from detectors.fleet.gpus import reported
from detectors.signals.gpus_at_work import GpusAtWork
from detectors.signals.heat_limits import HeatLimits
from detectors.signals.throttle_bits import CLOCKS_SETTING, SW_POWER_CAP, THERMAL, ThrottledTime

OTHERWISE: Final = CLOCKS_SETTING | SW_POWER_CAP | THERMAL
"""What else than a brake the driver may say holds a clock: then it is none, unless its own bit is set too."""

_HEAT: Final = "DCGM_FI_DEV_THERMAL_VIOLATION"
_COOLS_MS: Final = 120_000
"""What heat held down is free again within a minute and a half of cooling, as scrapes of 30 s see it."""
_EQUAL_WORK: Final = 0.8
"""At least so much of the activity of its peers, or of its own, is work as before: the activity of a GPU that waits for
others falls in the proportion of the wait, while its clock stays."""


class Work(GpusAtWork):
    """Of the last look, too: `lost_power`, the logarithm of how far it was below usual, and `worked`, its activity.

    `heated` is the time that heat held it down, by its counter, of which `heat` is the last reading; `hot_at` when it
    was last held down and as warm as it may be; `otherwise`, whether another reason was stated since its clock fell;
    `capped`, in how many readings since then the software power cap was, and nothing else.
    """

    USUAL: ClassVar[tuple[str, ...]] = ("clock", "power", "activity")
    MATES: ClassVar[bool] = False  # what brakes a node brakes all of a job that has no other

    sums: FloatArray = column(0.0, 3)
    seen: NDArray[np.int32] = column(0, 3, dtype=np.int32)
    lost_power: FloatArray = column(np.nan)
    worked: FloatArray = column(np.nan)
    heat: FloatArray = column(np.nan)
    hot_at: IntArray = column(-1)
    otherwise: BoolArray = column(False)
    capped: IntArray = column(0)

    def __init__(self, config: DetectorConfig, fleet: Fleet, counter: str, by_reason: tuple[str, str]) -> None:
        """Begin with nothing; see `GpusAtWork`."""
        super().__init__(config, fleet, counter, by_reason)
        self.heated = ThrottledTime()
        self._heat_limits = HeatLimits(self.layout)

    def _parts(self) -> list[Columns]:
        return [*super()._parts(), self.heated]

    def _take_tick(self, batch: Batch, tick: int, here: Any) -> None:
        super()._take_tick(batch, tick, here)
        if _HEAT in batch.sound:
            self.heat[batch.entities[here]] = reported(batch, _HEAT, tick, here)

    def _describe(self) -> None:
        super()._describe()
        self._heat_limits.extend()

    def note_heat(self, those: IntArray) -> None:
        """Take note of which GPUs that are held down now are as warm as they may be, chip or memory."""
        hot = those[self.near_limit(those)]
        self.hot_at[hot] = self.at[hot]

    def near_limit(self, gpus: Any) -> BoolArray:
        """Return which GPUs are as warm as they may be, chip or memory."""
        return self._heat_limits.reached(gpus, self.temp[gpus], self.memory[gpus])

    def was_hot(self, gpus: IntArray) -> BoolArray:
        """Return which GPUs heat has held down of late: they are not free again the moment that they are cooler."""
        return np.asarray((self.hot_at[gpus] >= 0) & (self.at[gpus] - self.hot_at[gpus] <= _COOLS_MS))

    def settle(self) -> BoolArray:
        """Return which GPUs have a reading that was not judged yet, after taking note of what their counters say."""
        new = super().settle()
        self.heated.take(new, self.at, self.heat)
        stated = (np.maximum(self.reasons, 0) & OTHERWISE) != 0  # bits come and go
        self.otherwise = np.where(new, (self.otherwise & (self.run > 0)) | stated, self.otherwise)
        return new

    def mark(self, new: BoolArray, down: BoolArray, free: BoolArray) -> None:
        """Note which GPUs are held down, and of how many readings the driver says that the software cap does it."""
        super().mark(new, down, free)
        stated = (np.maximum(self.reasons, 0) & OTHERWISE) == SW_POWER_CAP
        self.capped = np.where(self.run > 0, self.capped + (new & down & stated), 0)

    def snapshot(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the state as JSON can say it, and arrays."""
        numbers, arrays = super().snapshot()
        return numbers, arrays | self.heated.snapshot("heated_")

    def restore(self, numbers: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Take what `snapshot` returned; older versions kept nothing of heat."""
        super().restore(numbers, arrays)
        if "heated_fastest" in arrays:
            self.heated.restore(arrays, "heated_")
        self.heated.grow(self.count)

    def brake_counted(self, gpus: Any = slice(None)) -> BoolArray:
        """Return of which GPUs the brake's own counter says for how long they were braked of late."""
        return np.asarray(np.isfinite(self.by_reason.rate[0, gpus]))

    def expected(self, now: Instant) -> tuple[FloatArray, FloatArray]:
        """Return the clock and power that GPUs should have: their own at work; else, of who is at work, its peers'."""
        known = self.known
        clock = np.where(known, self.usual["clock"].level, np.nan)
        power = np.where(known, self.usual["power"].level, np.nan)
        ask = self.busy & ~known
        if np.count_nonzero(ask):
            those = self.comparable(now)
            clock[ask] = self.among_peers(self.clock, those, 0.75)[ask]
            power[ask] = self.among_peers(self.power, those, 0.75)[ask]
        return clock, power

    def watts(self, gpus: IntArray) -> FloatArray:
        """Return what GPUs drew in the mean of the last look, W: steps have pauses."""
        return np.asarray(self.usual["power"].level[gpus] * np.exp(-self.lost_power[gpus]))

    def works(self, gpus: IntArray, now: Instant) -> BoolArray:
        """Return which GPUs worked at the last look as their peers do now, or as they used to themselves."""
        peers = self.among_peers(self.worked, self.fresh(now) & self.busy, 0.5)[gpus]
        own = self.usual["activity"].level[gpus]
        least = _EQUAL_WORK * np.fmin(np.where(np.isfinite(peers), peers, own), own)
        return ~(self.worked[gpus] < least)

    def _judge(self, now: Instant, those: IntArray, where: Any, means: FloatArray) -> None:
        self.lost_power[where] = known_or(np.log(self.usual["power"].level[where] / means[1][where]), 0.0)
        self.worked[where] = known_or(means[2][where], 0.0)
        super()._judge(now, those, where, means)
