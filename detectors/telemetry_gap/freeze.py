"""Which entities repeat themselves: rows come, but every reading in them is the one before, for far too long.

An exporter that collects every 30 s and is scraped every 5 s repeats itself by design: so what counts is how long an
entity usually goes without a change, and that is learnt of itself.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray, Kind
from detectors.core.columns import Columns, column
from detectors.core.kept import Kept
from detectors.core.survivors import Survivors
from detectors.fleet.presence import NEVER, Attendance
from detectors.telemetry_gap.config import TelemetryGapConfig

_LEARNT = 5
"""So many changes make a habit."""
REPEATS: Final = 5
"""So many readings in a row that are copies: of scrapes more are lost by turns, but these came."""


class _Counts(Columns):
    """By entity: `changes` so far, `repeats` in a row; the meter's value, when it last moved and how often it did."""

    changes: IntArray = column(0)
    repeats: IntArray = column(0)
    meter: FloatArray = column(np.nan)
    meter_at: IntArray = column(NEVER)
    meter_moves: IntArray = column(0)


class Freeze(Kept):
    """The entities of a kind: when their readings last changed, and how often they usually do.

    `fields` are compared; `meter`, a counter that cannot stand still while the thing has power, is watched apart.
    """

    KEPT = ("_changed", "_counts", "_seen")

    def __init__(self, config: TelemetryGapConfig, kind: Kind, fields: Sequence[str], meter: str | None) -> None:
        self._config = config
        self._fields, self._meter = tuple(fields), meter
        self.kind = kind
        self._only_growth = kind == "nic"  # its counters say that data move; those that fall began anew with their node
        self._changed = Attendance(kind)
        self._counts = _Counts().along(kind)
        self._seen = np.empty((len(self._fields), 0))

    def __len__(self) -> int:
        return len(self._counts)

    def go_on_with(self, survivors: Survivors) -> None:
        """Forget what was last read of entities that are gone."""
        if (kept := survivors.of(self.kind)) is not None:
            self._seen = self._seen[:, kept[kept < self._seen.shape[1]]]

    def take(self, batch: Batch) -> None:
        """Take a batch, row after row of each entity."""
        if len(batch.entities):
            count = batch.reach
            self._counts.grow(count)
            self._changed.readings.grow(count)
            if more := len(self._counts) - self._seen.shape[1]:
                self._seen = np.concatenate([self._seen, np.full((len(self._fields), more), np.nan)], axis=1)
        for tick, here in batch.ticks():
            self._take_tick(batch, tick, here)

    def _take_tick(self, batch: Batch, tick: int, here: Any) -> None:
        at, counts = batch.at[tick, here], self._counts
        where = batch.index(here, len(counts))
        changed, reports = np.zeros(len(at), bool), np.zeros(len(at), bool)
        for name, last in zip(self._fields, self._seen, strict=True):
            if name not in batch.sound:
                continue  # nobody reports it
            value, seen = batch.values[name][tick, here], last[where]
            fine = batch.valid[name][tick, here] & np.isfinite(value)
            changed |= fine & (value > seen if self._only_growth else value != seen)
            reports |= fine
            last[where] = value if np.count_nonzero(fine) == len(fine) else np.where(fine, value, seen)
        moved, stood = np.zeros((2, len(counts)), bool)
        moved[where], stood[where] = changed, reports & ~changed
        self._changed.readings.heard(moved, at[changed])
        counts.changes += moved
        counts.repeats += stood
        counts.repeats[moved] = 0
        if self._meter is not None and self._meter in batch.sound:
            metered, valid = batch.values[self._meter][tick, here], batch.valid[self._meter][tick, here]
            ran = valid & np.isfinite(metered) & (metered != counts.meter[where])
            if np.count_nonzero(ran) < len(ran):
                where, metered, at = batch.entities[here][ran], metered[ran], at[ran]
            counts.meter[where], counts.meter_at[where] = metered, at
            counts.meter_moves[where] += 1

    def measure(self, now: Instant) -> None:
        """At a point of the grid: learn how often readings change."""
        self._changed.look(now)

    @property
    def since(self) -> IntArray:
        """When each entity's readings last changed (ms; -1 never)."""
        return self._changed.readings.last

    @property
    def repeats(self) -> IntArray:
        """How many readings in a row were the one before."""
        return self._counts.repeats

    def usual(self, entity: int) -> float:
        """Return how often an entity's readings usually change, ms."""
        return float(self._changed.usual[entity])

    def frozen(self, last: IntArray, part: float = 1.0) -> BoolArray:
        """Return which entities, last heard at `last`, have repeated themselves for too long, or for `part` of that."""
        config, counts = self._config, self._counts
        enough = (counts.changes > _LEARNT) & (counts.repeats >= part * REPEATS)
        if not np.count_nonzero(enough):
            return enough
        least = part * np.fmax(config.least_s * 1000, REPEATS * self._changed.usual)
        return np.asarray(enough & (last - self.since >= least))

    def moved_since(self, entities: IntArray, since: Instant) -> int:
        """Return how many of `entities` have changed after `since`."""
        return int((self.since[entities[entities < len(self)]] > since).sum())

    def last(self, field: str, entity: int) -> float:
        """Return the last reading of a field, NaN where there is none."""
        return float(self._seen[self._fields.index(field), entity])

    def meter_stands(self, entity: int) -> bool:
        """Return whether the meter, which used to run, has stood still as long as the readings."""
        return bool(self._counts.meter_moves[entity] > _LEARNT) and not self.meter_runs(entity)

    def meter_runs(self, entity: int) -> bool:
        """Return whether the meter has run on while the readings stood still."""
        slack = float(np.nan_to_num(self._changed.usual[entity]))
        return bool(self._counts.meter_at[entity] > self.since[entity] + slack)
