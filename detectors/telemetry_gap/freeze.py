"""Which entities repeat themselves: rows come, but every reading in them is the one before, for far too long.

An exporter that collects every 30 s and is scraped every 5 s repeats itself by design: so what counts is how long an
entity usually goes without a change, and that is learnt of itself.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray, Kind
from detectors.presence import Presence
from detectors.telemetry_gap.config import TelemetryGapConfig

_LEARNT = 5
"""So many changes make a habit."""


class Freeze:
    """Columns over the entities of a kind: when their readings last changed, and how often they usually do.

    `fields` are compared; `meter`, a counter that cannot stand still while the thing has power, is watched apart.
    """

    def __init__(self, config: TelemetryGapConfig, kind: Kind, fields: Sequence[str], meter: str | None) -> None:
        self._config = config
        self._fields, self._meter = tuple(fields), meter
        self.kind = kind
        self._changes = Presence(kind)
        self._seen = np.empty((len(self._fields), 0))
        self._count = np.empty(0, np.int64)
        self._repeats = np.empty(0, np.int64)
        self._metered = np.empty(0)
        self._meter_moved = np.empty(0, np.int64)
        self._meter_moves = np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self._count)

    def grow(self, count: int) -> None:
        """Make room for entities that were not known before."""
        more = count - len(self)
        if more <= 0:
            return
        self._changes.grow(count)
        self._seen = np.concatenate([self._seen, np.full((len(self._fields), more), np.nan)], axis=1)
        self._metered = np.concatenate([self._metered, np.full(more, np.nan)])
        self._meter_moved = np.concatenate([self._meter_moved, np.full(more, -1, np.int64)])
        for name in ("_count", "_repeats", "_meter_moves"):
            setattr(self, name, np.concatenate([getattr(self, name), np.zeros(more, np.int64)]))

    def take(self, batch: Batch) -> None:
        """Take a batch, row after row of each entity."""
        if len(batch.entities):
            self.grow(int(batch.entities.max()) + 1)
        for tick, here in batch.ticks():
            self._take_tick(batch, tick, here)

    def _take_tick(self, batch: Batch, tick: int, here: Any) -> None:
        those, at = batch.entities[here], batch.at[tick, here]
        columns = [_column(batch, name, tick, here) for name in self._fields]
        value, fine = np.array([value for value, _ in columns]), np.array([fine for _, fine in columns])
        fine &= np.isfinite(value)
        seen = self._seen[:, those]
        differs = fine & (value != seen)
        self._seen[:, those] = np.where(differs, value, seen)
        changed, told = np.logical_or.reduce(differs), np.logical_or.reduce(fine)
        moved = those[changed]
        self._changes.heard(moved, at[changed])
        self._count[moved] += 1
        self._repeats[moved] = 0
        same = those[told & ~changed]
        self._repeats[same] += 1
        if self._meter is not None:
            metered, valid = _column(batch, self._meter, tick, here)
            ran = valid & np.isfinite(metered) & (metered != self._metered[those])
            entities = those[ran]
            self._metered[entities], self._meter_moved[entities] = metered[ran], at[ran]
            self._meter_moves[entities] += 1

    @property
    def since(self) -> IntArray:
        """When each entity's readings last changed (ms; -1 never)."""
        return self._changes.last

    @property
    def repeats(self) -> IntArray:
        """How many readings in a row were the one before."""
        return self._repeats

    def usual(self, entity: int) -> float:
        """Return how often an entity's readings usually change, ms."""
        return float(self._changes.usual[entity])

    def frozen(self, last: IntArray) -> BoolArray:
        """Return which entities, last heard at `last`, have repeated themselves for too long."""
        held = last - self.since
        least = np.fmax(self._config.freeze_s * 1000, self._config.freeze_habits * self._changes.usual)
        return np.asarray((self._count > _LEARNT) & (self._repeats >= self._config.freeze_readings) & (held >= least))

    def moved_since(self, entities: IntArray, since: Instant) -> int:
        """Return how many of `entities` have changed after `since`."""
        return int((self.since[entities[entities < len(self)]] > since).sum())

    def meter_stands(self, entity: int) -> bool:
        """Return whether the meter, which used to run, has stood still as long as the readings."""
        runs = self._meter_moves[entity] > _LEARNT
        return bool(runs and self._meter_moved[entity] <= self.since[entity] + self._slack(entity))

    def meter_runs(self, entity: int) -> bool:
        """Return whether the meter has run on while the readings stood still."""
        return bool(self._meter_moved[entity] > self.since[entity] + self._slack(entity))

    def _slack(self, entity: int) -> float:
        return float(np.nan_to_num(self._changes.usual[entity]))

    def snapshot(self) -> tuple[list[int], dict[str, NDArray[Any]]]:
        """Return the state as numbers and arrays."""
        numbers, own = self._changes.snapshot()
        arrays: dict[str, NDArray[Any]] = {f"change_{name}": array for name, array in own.items()}
        names = ("seen", "count", "repeats", "metered", "meter_moved", "meter_moves")
        return numbers, arrays | {f"{self.kind}_freeze_{name}": getattr(self, f"_{name}") for name in names}

    def load(self, numbers: list[int], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take what `snapshot` returned."""
        own = {f"{self.kind}_{name}": arrays[f"change_{self.kind}_{name}"] for name in ("last", "usual")}
        self._changes.load(numbers, own)
        for name in ("seen", "count", "repeats", "metered", "meter_moved", "meter_moves"):
            setattr(self, f"_{name}", arrays[f"{self.kind}_freeze_{name}"])


def _column(batch: Batch, name: str, tick: int, here: Any) -> tuple[FloatArray, BoolArray]:
    if name not in batch.values:
        shape = batch.entities[here].shape
        return np.full(shape, np.nan), np.zeros(shape, bool)
    return batch.values[name][tick, here], batch.valid[name][tick, here]
