"""How every port of a kind is doing: rates of pauses, marks, drops and waits, and for how long they are out of place.

Rows that repeat themselves are a collector's cached copies: a counter has a rate when it moved, or stood still while
another one of its row moved, or for longer than collectors take.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from detectors.congestion.config import CongestionConfig
from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray, Kind
from detectors.statistics import CounterRate, clamp, known_or, median_of

_HOLD_MS = 30_000
_SMOOTH_S, _HABIT_S = 30.0, 600.0
_COOLING = 0.5
"""A calm second takes back half of a hot one: hot most of the time is enough, a burst in every three minutes is not."""
_CAP = 1.2
_LONGEST_S = 90.0
_SILENT_MS = 300_000
_PACKET_BYTES = 4096
"""The largest RoCE payload, which bulk traffic fills."""
_SAME_TRAFFIC = 2.0
_PLAUSIBLE = 1e18
_SIGNAL_COLUMNS = ("rate", "smooth", "_habit")
_PORT_COLUMNS = ("_at", "_scored", "_learnt", "level", "hot_readings", "first_hot", "_traffic", "_usual_traffic")
_COLUMNS = ("_mask", *_SIGNAL_COLUMNS, *_PORT_COLUMNS)
_MAD_TO_SIGMA = 1.4826

Signals = Mapping[str, tuple[Sequence[str], float]]
"""Signal: the counters that are added up for it, and its floor, a second."""


class Flows:
    """Columns over ports, by signal: `smooth` rates (1/s); and `level`, for how many seconds a port has been hot."""

    def __init__(
        self, config: CongestionConfig, kind: Kind, signals: Signals, judged: Sequence[str], traffic: Sequence[str]
    ) -> None:
        self._config = config
        self.kind = kind
        self.signals = dict(signals)
        self.names = list(signals)
        self.floors = np.array([floor for _, floor in signals.values()])
        self._judged = np.array([name in judged for name in self.names])
        # The last is no signal: counters of traffic, by which a row shows that it is no copy of the one before.
        self._fields = [*(fields for fields, _ in signals.values()), traffic]
        count = len(self.names)
        self._counter = CounterRate.empty(0, _HOLD_MS, count + 1)
        self._mask = np.empty((count + 1, 0), np.int64)
        self.rate = np.empty((count, 0))
        self.smooth = np.empty((count, 0))
        self._habit = np.empty((count, 0))
        self._at = np.empty(0, np.int64)
        self._scored: IntArray = np.empty(0, np.int64)
        self._learnt = np.empty(0)
        self._traffic = np.empty(0)
        self._usual_traffic = np.empty(0)
        self.level = np.empty(0)
        self.hot_readings = np.empty(0, np.int64)
        self.first_hot: IntArray = np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self._at)

    def grow(self, count: int) -> None:
        """Make room for ports that were not known before."""
        more = count - len(self)
        if more <= 0:
            return
        rows = len(self.names)
        self._counter.grow(count)
        self._mask = np.concatenate([self._mask, np.zeros((rows + 1, more), np.int64)], axis=1)
        for name in _SIGNAL_COLUMNS:
            fresh = np.full((rows, more), np.nan)
            setattr(self, name, np.concatenate([getattr(self, name), fresh], axis=1))
        for name in ("_learnt", "level", "_traffic", "_usual_traffic"):
            setattr(self, name, np.concatenate([getattr(self, name), np.zeros(more)]))
        for name in ("_at", "_scored", "first_hot"):
            setattr(self, name, np.concatenate([getattr(self, name), np.full(more, -1, np.int64)]))
        self.hot_readings = np.concatenate([self.hot_readings, np.zeros(more, np.int64)])

    def take(self, batch: Batch) -> None:
        """Take a batch, row after row of each port."""
        if len(batch.entities):
            self.grow(int(batch.entities.max()) + 1)
        reported = {name for name, valid in batch.valid.items() if np.count_nonzero(valid)}
        counters = [[(bit, name) for bit, name in enumerate(fields) if name in reported] for fields in self._fields]
        for tick, here in batch.ticks():
            total, mask = _added(batch, counters, tick, here)
            self._take_tick(batch.entities[here], batch.at[tick, here], total, mask)

    def _take_tick(self, ports: IntArray, at: IntArray, total: FloatArray, mask: IntArray) -> None:
        """Take one row of each of `ports`. In a row that is no copy, a counter that stands still has the rate 0."""
        counter, count, reports = self._counter, len(self.names), mask != 0
        if np.count_nonzero(other := mask != self._mask[:, ports]):
            # Other counters than before: their sum has no growth yet.
            counter.at[:, ports] = np.where(other, -1, counter.at[:, ports])
            self._mask[:, ports] = mask
        same = (total == counter.value[:, ports]) & (counter.at[:, ports] >= 0) & reports
        news = (reports & ~same).any(axis=0)
        rate = counter.update(ports, at, total, reports) * 1000
        known = np.isfinite(rate)
        traffic = known[count]
        self._traffic[ports[traffic]] = rate[count, traffic]
        quiet = same[:count] & news
        counter.at[:count, ports] = np.where(quiet, at, counter.at[:count, ports])
        told = known[:count] | quiet
        self.rate[:, ports] = np.where(quiet, 0.0, np.where(told, rate[:count], self.rate[:, ports]))
        spoke = told.any(axis=0)
        self._at[ports[spoke]] = at[spoke]

    def score(self, now: Instant, group: IntArray, switch: IntArray) -> None:
        """At a point of the grid: compare every new reading with its peers and its habit.

        `group` and `switch` (ports,) say which ports are of one kind, and on which switch each is.
        """
        silent = (self._at >= 0) & (now - self._at > _SILENT_MS)
        self.level[silent] = 0.0
        fresh = self._at > self._scored
        if not np.count_nonzero(fresh):
            return
        hot = self._hot(now, group, switch)
        spent = np.where(self._scored >= 0, np.minimum((self._at - self._scored) / 1000, _LONGEST_S), 0.0)
        spent = np.where(fresh, spent, 0.0)
        change = np.where(hot, spent, -_COOLING * spent)
        self.level = clamp(self.level + change, 0.0, _CAP * self._config.sustain_s)
        self.hot_readings = np.where(
            self.level > 0, self.hot_readings + (hot & fresh), np.where(fresh, 0, self.hot_readings)
        )
        begins = hot & fresh & (self.hot_readings == 1)
        self.first_hot[begins] = self._at[begins]
        calm = fresh & ~hot & (self.level <= 0)
        self._learn(fresh, calm, spent)
        self._scored[fresh] = self._at[fresh]

    def _learn(self, fresh: BoolArray, calm: BoolArray, spent: FloatArray) -> None:
        known = np.isfinite(self.rate)
        for column, horizon, those in ((self.smooth, _SMOOTH_S, fresh), (self._habit, _HABIT_S, calm)):
            share = np.minimum(spent / horizon, 1.0)
            blank = np.isnan(column) & known & those
            column[blank] = self.rate[blank]
            moves = known & those & ~blank
            step = share * (self.rate - column)
            column[moves] += step[moves]
        share = np.minimum(spent / _HABIT_S, 1.0)
        first = calm & (self._learnt <= 0)
        self._usual_traffic[first] = self._traffic[first]
        self._usual_traffic[calm] += (share * (self._traffic - self._usual_traffic))[calm]
        self._learnt[calm] += spent[calm]

    def _hot(self, now: Instant, group: IntArray, switch: IntArray) -> BoolArray:
        """Return which ports' last rates are out of place in some signal, (ports,)."""
        hot = np.zeros(len(self), bool)

        standing_out = self.rate >= self.floors[:, None]
        high = np.logical_or.reduce(standing_out[self._judged])
        if not np.count_nonzero(high):
            return hot
        judged = np.flatnonzero(self._judged).tolist()
        recent = (self._at >= 0) & (now - self._at <= _SILENT_MS)
        places = sorted({(int(group[port]), int(switch[port])) for port in high.nonzero()[0]})
        for kind, place in places:
            alike = recent & (group == kind)
            own = high & (group == kind) & (switch == place)
            others = alike & (switch != place)
            mostly = (alike & ~others).sum() > self._config.own_switch_share * alike.sum()
            peers = others if mostly else alike
            if peers.sum() < self._config.peer_minimum:
                peers = recent & (switch != place)
            for number in judged:
                if not np.count_nonzero(own & standing_out[number]):
                    continue
                told = own & self._out_of_place(number, own, peers, alike=bool((group[peers] == kind).all()))
                if self.kind == "switch" and self.names[number] == "wait":
                    told &= self._uneven(number, alike & (switch == place))
                hot |= told
        return hot

    def _floor(self, number: int, marked_share: float) -> FloatArray:
        """Return the least rate of a signal that stands out, (ports,): for marks also a share of the traffic."""
        floor = np.full(len(self), self.floors[number])
        if self.names[number] == "mark":
            packets = self._traffic / _PACKET_BYTES
            floor = np.maximum(floor, marked_share * packets)
        return floor

    def _out_of_place(self, number: int, own: BoolArray, peers: BoolArray, *, alike: bool) -> BoolArray:
        """Return which ports have a rate far above their peers', or (where these are not `alike`: only) their habit.

        Only those of `own` are asked for.
        """
        rate, floor, config = self.rate[number], self.floors[number], self._config
        values = rate[peers]
        values = values[np.isfinite(values)]
        above = rate >= self._floor(number, config.marked_share_unusual)
        if not np.count_nonzero(above & own):
            return np.asarray(above & own)
        ratio = config.habit_ratio
        known_habit = self._learnt >= config.habit_minimum_s
        habit = known_or(self._habit[number], 0.0)
        # Marks grow steeply with the load: a habit of other hours says nothing of a job that has just begun.
        same_traffic = self._traffic <= _SAME_TRAFFIC * np.maximum(self._usual_traffic, 1.0)
        unusual = known_habit & same_traffic & (rate >= ratio * habit)
        if len(values) < config.peer_minimum:
            return np.asarray(above & unusual)
        middle = median_of(values)
        spread = median_of(np.abs(values - middle))
        far = rate - middle >= config.peer_deviations * max(_MAD_TO_SIGMA * spread, floor / config.peer_deviations)
        stands_out = (
            alike & far & (rate >= self._floor(number, config.marked_share)) & (rate >= config.peer_ratio * middle)
        )
        stands_out &= ~(known_habit & (rate < ratio / 3 * habit))
        return np.asarray(above & (stands_out | (unusual & (rate >= ratio / 3 * middle))))

    def _uneven(self, number: int, siblings: BoolArray) -> BoolArray:
        """Return which ports have a rate far above that of their `siblings`: ports of their kind on their own switch.

        Where all of a switch's uplinks wait alike it is given more than they carry: that is load. What goes wrong
        behind one of them, or on it, makes that one wait.
        """
        values = self.rate[number][siblings]
        values = values[np.isfinite(values)]
        if len(values) < self._config.peer_minimum:
            return np.ones(len(self), bool)
        return np.asarray(self.rate[number] >= self._config.sibling_ratio * median_of(values))

    def sustained(self, share: float = 1.0) -> BoolArray:
        """Return which ports have been hot for long, or for a share of that."""
        enough = self.hot_readings >= self._config.sustain_readings * share
        return np.asarray((self.level >= share * self._config.sustain_s) & enough)

    def strength(self, port: int) -> dict[str, float]:
        """Return a port's signals in units of their floors."""
        told = known_or(self.smooth[:, port], 0.0) / self.floors
        return dict(zip(self.names, told.tolist(), strict=True))

    def median(self, name: str) -> float:
        """Return the median rate of a signal over all ports, 1/s."""
        values = self.smooth[self.names.index(name)]
        return float(np.nan_to_num(median_of(values)))

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """Return the state as arrays."""
        arrays: dict[str, NDArray[Any]] = {f"{self.kind}{name}": getattr(self, name) for name in _COLUMNS}
        return arrays | {f"{self.kind}_counted_at": self._counter.at, f"{self.kind}_counted": self._counter.value}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take what `snapshot` returned."""
        for name in _COLUMNS:
            setattr(self, name, arrays[f"{self.kind}{name}"])
        self._counter = CounterRate(arrays[f"{self.kind}_counted_at"], arrays[f"{self.kind}_counted"], _HOLD_MS)


def _added(
    batch: Batch, signals: Sequence[Sequence[tuple[int, str]]], tick: int, here: Any
) -> tuple[FloatArray, IntArray]:
    """Return by signal the sum of the counters that were reported, and which these were, as bits; (signals, n)."""
    shape = (len(signals), *batch.entities[here].shape)
    total, mask = np.zeros(shape), np.zeros(shape, np.int64)
    told = [(number, bit, name) for number, fields in enumerate(signals) for bit, name in fields]
    if told:
        value = np.array([batch.values[name][tick, here] for _, _, name in told])
        valid = np.array([batch.valid[name][tick, here] for _, _, name in told])
        valid &= np.abs(value) < _PLAUSIBLE
        value[~valid] = 0.0
        bits = valid * np.array([[1 << bit] for _, bit, _ in told])
        begins = [place for place, entry in enumerate(told) if not place or entry[0] != told[place - 1][0]]
        rows = [told[place][0] for place in begins]
        total[rows], mask[rows] = np.add.reduceat(value, begins), np.bitwise_or.reduceat(bits, begins)
    return total, mask


KEPT_HOT: Final = 0.5
"""A port takes part in a congestion from half of what is sustained on."""
