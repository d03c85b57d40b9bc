"""How many errors every port of a kind counted, by minute over ten minutes, and how fast; arrays by entity index."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, FloatArray, Instant, IntArray, Kind
from detectors.link_fault.config import LinkFaultConfig
from detectors.statistics import median_of

MINUTE_MS: Final = 60_000
MINUTES: Final = 10
_COLLECTED_MS = 30_000
"""A counter that stood still for longer did not grow in all that time: exporters collect at least so often."""
_CALM, _CALM_MINUTES = 0.1, 4
"""A port is well when it counted less than a tenth of the bar in the last minutes, the present one included."""
AFTER_DOWN_MS: Final = 120_000
"""Errors so soon after a loss of link are its companions."""
_PLAUSIBLE = 1e18
_COLUMNS = ("minute", "grew", "grown", "value", "moved", "fast", "rate")


@dataclass(frozen=True, slots=True)
class Bar:
    """A counter and what of it is a fault: `fast` a second, or `slow` in ten minutes."""

    counter: str
    fast: float
    slow: float


def bars(config: LinkFaultConfig, kind: Kind) -> tuple[Bar, ...]:
    """Return the counters of a kind with their bars."""
    if kind == "nic":
        return (
            Bar("symbol_error", config.symbol_errors_per_s, config.symbol_errors),
            Bar("port_rcv_errors", config.receive_errors_per_s, config.receive_errors),
            Bar("link_error_recovery", np.inf, config.recoveries),
            Bar("local_link_integrity_errors", np.inf, config.integrity_errors),
        )
    return (
        Bar("SAI_PORT_STAT_IF_IN_FEC_NOT_CORRECTABLE_FRAMES", config.uncorrectable_per_s, config.uncorrectable),
        Bar("SAI_PORT_STAT_IF_IN_ERRORS", config.input_errors_per_s, config.input_errors),
    )


class Errors:
    """Columns over ports, by counter: growth by minute, and readings in a row above the fast bar."""

    def __init__(self, config: LinkFaultConfig, kind: Kind) -> None:
        self.kind = kind
        self.bars = bars(config, kind)
        self._config = config
        count = len(self.bars)
        self._minute = np.empty((0, MINUTES), np.int32)
        self._grew = np.empty(0, np.int64)
        self._grown = np.empty((count, 0, MINUTES), np.float32)
        self._value = np.empty((count, 0))
        self._moved = np.empty((count, 0), np.int64)
        self._fast = np.empty((count, 0), np.int8)
        self._rate = np.empty((count, 0), np.float32)

    def grow(self, ports: int) -> None:
        """Make room for ports that were not known before."""
        more = ports - len(self._minute)
        if more <= 0:
            return
        count = len(self.bars)
        self._grew = np.concatenate([self._grew, np.full(more, -1, np.int64)])
        self._minute = np.concatenate([self._minute, np.full((more, MINUTES), -1, np.int32)])
        self._grown = np.concatenate([self._grown, np.zeros((count, more, MINUTES), np.float32)], axis=1)
        self._value = np.concatenate([self._value, np.full((count, more), np.nan)], axis=1)
        self._moved = np.concatenate([self._moved, np.full((count, more), -1, np.int64)], axis=1)
        self._fast = np.concatenate([self._fast, np.zeros((count, more), np.int8)], axis=1)
        self._rate = np.concatenate([self._rate, np.zeros((count, more), np.float32)], axis=1)

    def take(self, batch: Batch) -> None:
        """Take a batch, row after row of each port."""
        if len(batch.entities):
            self.grow(int(batch.entities.max()) + 1)
        for tick, here in batch.ticks():
            self._take_tick(batch, tick, here)

    def _take_tick(self, batch: Batch, tick: int, here: Any) -> None:
        ports, at = batch.entities[here], batch.at[tick, here]
        minute = (at // MINUTE_MS).astype(np.int32)
        place = minute % MINUTES
        turned = self._minute[ports, place] != minute
        if np.count_nonzero(turned):
            self._minute[ports[turned], place[turned]] = minute[turned]
            self._grown[:, ports[turned], place[turned]] = 0
        told = [number for number, bar in enumerate(self.bars) if bar.counter in batch.values]
        if not told:
            return
        value = np.array([batch.values[self.bars[number].counter][tick, here] for number in told])
        fine = np.array([batch.valid[self.bars[number].counter][tick, here] for number in told])
        fine &= np.abs(value) < _PLAUSIBLE
        rows = np.array(told)[:, None]
        before = self._value[rows, ports]
        growth = np.where(fine, value - before, np.nan)
        self._value[rows, ports] = np.where(fine, value, before)
        if np.count_nonzero(growth != 0):  # it counted, or there is nothing to compare with
            for row, number in enumerate(told):
                first = fine[row] & ~(growth[row] >= 0)  # the first reading, or the first after a reset
                self._moved[number, ports[first]] = at[first]
                self._count(number, ports, at, place, growth[row], self.bars[number])
        if np.count_nonzero(self._fast):
            # A collector's cached copy does not grow, and takes nothing back.
            still = (growth == 0) & (at - self._moved[rows, ports] > 1.2 * _COLLECTED_MS)
            self._fast[rows, ports] *= ~still

    def _count(self, number: int, ports: IntArray, at: IntArray, place: IntArray, growth: FloatArray, bar: Bar) -> None:
        """Count what grew."""
        grew = growth > 0
        if not np.count_nonzero(grew):
            return
        those, when, more = ports[grew], at[grew], growth[grew]
        self._grown[number, those, place[grew]] += np.minimum(more, 1e12).astype(np.float32)
        usual = np.maximum(_COLLECTED_MS, when - self.last(those))
        elapsed = np.maximum(np.minimum(when - self._moved[number, those], usual), 1)
        rate = more / elapsed * 1000
        self._rate[number, those] = np.minimum(rate, 1e12)
        high = rate >= bar.fast
        self._fast[number, those] = np.where(high, np.minimum(self._fast[number, those] + 1, 100), 0)
        self._moved[number, those] = when
        self._grew[those] = when

    def last(self, ports: IntArray) -> IntArray:
        """Return when the errors of ports were last counted on, by any counter (ms)."""
        return np.asarray(self._moved[:, ports].max(axis=0))

    def sums(self, ports: IntArray, now: Instant) -> tuple[FloatArray, IntArray]:
        """Return the growth of every counter of `ports` in the last minutes, and in how many of these it grew."""
        recent = self._minute[ports] > now // MINUTE_MS - MINUTES
        grown = np.where(recent, self._grown[:, ports], 0.0)
        return np.asarray(grown.sum(axis=2), np.float64), np.asarray((grown > 0).sum(axis=2), np.int64)

    def failing(self, now: Instant) -> dict[int, dict[str, float]]:
        """Return the ports whose errors are a fault, with the counters that say so and what they counted."""
        erring = np.flatnonzero(self._grew > now - MINUTES * MINUTE_MS)
        if not len(erring):
            return {}
        total, minutes = self.sums(erring, now)
        found: dict[int, dict[str, float]] = {}
        for number, bar in enumerate(self.bars):
            fast = self._fast[number, erring] >= self._config.fast_readings
            slow = (total[number] >= bar.slow) & (minutes[number] >= self._config.error_minutes)
            if not (fast | slow).any():
                continue
            usual = self._median(number, erring, total[number])
            for place in np.flatnonzero((fast | slow) & (total[number] > self._config.peer_factor * usual)).tolist():
                port = int(erring[place])
                if self.is_calm(port, now):
                    continue
                told = found.setdefault(port, {})
                told[f"{bar.counter}_10min"] = float(total[number, place])
                told[f"{bar.counter}_per_s"] = float(self._rate[number, port])
                told[f"{bar.counter}_10min_median"] = usual
        return found

    def _median(self, number: int, erring: IntArray, total: FloatArray) -> float:
        """Return the median growth of a counter over all ports that report it; those not `erring` have none."""
        known = np.isfinite(self._value[number])
        every = np.zeros(len(known))
        every[erring] = total
        return float(np.nan_to_num(median_of(every[known])))

    def first_minute(self, port: int, now: Instant) -> Instant:
        """Return the beginning of the first of the last ten minutes in which a port counted errors (ms)."""
        grew = (self._grown[:, port] > 0).any(axis=0) & (self._minute[port] > now // MINUTE_MS - MINUTES)
        return int(self._minute[port][grew].min()) * MINUTE_MS if grew.any() else now

    def is_calm(self, port: int, now: Instant, losses: Iterable[Instant] = ()) -> bool:
        """Return whether a port has hardly counted an error in the last minutes, of what would be a fault.

        What came with `losses` of link (ms), or soon after one, does not count.
        """
        recent = self._minute[port] > now // MINUTE_MS - _CALM_MINUTES
        for at in losses:
            with_it = (self._minute[port] >= at // MINUTE_MS) & (
                self._minute[port] <= (at + AFTER_DOWN_MS) // MINUTE_MS
            )
            recent &= ~with_it
        total = (self._grown[:, port] * recent).sum(axis=1)
        return all(total[number] < _CALM * bar.slow for number, bar in enumerate(self.bars))

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """Return the state as arrays."""
        return {f"{self.kind}_errors_{name}": getattr(self, f"_{name}") for name in _COLUMNS}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take what `snapshot` returned."""
        for name in _COLUMNS:
            setattr(self, f"_{name}", arrays[f"{self.kind}_errors_{name}"])
