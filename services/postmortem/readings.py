"""Signals of some entities out of a recording, in bins of time: (bins, entities), whatever the recording's size."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from detectors.contract import FloatArray, Instant, IntArray
from services.kit.entities import Entities
from services.postmortem.catalogue import Signal
from services.recording.reader import Recording, times_of
from services.recording.schema import STREAMS
from services.recording.stream_file import open_stream

Key = tuple[str, ...]


@dataclass(frozen=True)
class Grid:
    """Bins of `width` ms from `start` on; readings are taken from ``start <= at < end``."""

    start: Instant
    end: Instant
    width: int

    @property
    def size(self) -> int:
        """How many bins there are."""
        return -(-(self.end - self.start) // self.width)

    @property
    def at(self) -> IntArray:
        """The middle of each bin, ms; (bins,)."""
        return self.start + self.width // 2 + self.width * np.arange(self.size, dtype=np.int64)


@dataclass(frozen=True)
class Readings:
    """One signal: the entities' keys, and values and times (ms) of shape (bins, entities); NaN where nothing came."""

    signal: Signal
    grid: Grid
    keys: Sequence[Key]
    values: FloatArray
    at: FloatArray


def columns_of(recording: Recording, signals: Sequence[Signal]) -> dict[Signal, str]:
    """Return which column holds each signal, of those that the recording has."""
    found: dict[Signal, str] = {}
    for stream in {signal.stream for signal in signals} & set(recording.streams()):
        with open_stream(recording.path / STREAMS[stream].file) as file:
            names = file.schema_arrow.names
        for signal in signals:
            name = next((name for name in names if re.fullmatch(signal.column, name)), None)
            if signal.stream == stream and name is not None:
                found[signal] = name
    return {signal: found[signal] for signal in signals if signal in found}


def read(recording: Recording, columns: Mapping[Signal, str], grid: Grid) -> list[Readings]:
    """Return signals of one stream on `grid`: the mean of a bin, or how fast a counter grew up to its last reading."""
    if not columns:
        return []
    (stream,) = {signal.stream for signal in columns}
    names = [name for name in STREAMS[stream].key_names if name != "iteration"]
    entities = Entities(names)
    sheets = {signal: _Sheet(grid, signal.counter) for signal in columns}
    for batch in recording.batches(stream, grid.start, grid.end, columns=list(columns.values())):
        rows = entities.of(batch)
        times = times_of(batch)
        bins = (times - grid.start) // grid.width
        for signal, column in columns.items():
            cells = batch.column(column)
            known = cells.is_valid().to_numpy(zero_copy_only=False)
            values = cells.fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64)
            known &= np.isfinite(values)
            sheets[signal].add(bins[known], rows[known], values[known], times[known], len(entities.keys))
    keys = [tuple("" if part is None else str(part) for part in key) for key in entities.keys]
    return [Readings(signal, grid, keys, *sheets[signal].done(signal.scale, len(keys))) for signal in columns]


class _Sheet:
    """Adds up one signal; grows as entities are met."""

    def __init__(self, grid: Grid, counter: bool) -> None:
        self._grid, self._counter = grid, counter
        self._sum = np.zeros((grid.size, 0))
        self._count = np.zeros((grid.size, 0))
        self._at = np.full((grid.size, 0), np.nan)

    def add(self, bins: IntArray, entities: IntArray, values: FloatArray, times: IntArray, known: int) -> None:
        """Take rows in order of time."""
        more = max(0, known - self._sum.shape[1])
        if more:
            self._sum, self._count = (np.pad(part, ((0, 0), (0, more))) for part in (self._sum, self._count))
            self._at = np.pad(self._at, ((0, 0), (0, more)), constant_values=np.nan)
        if self._counter:
            self._sum[bins, entities] = values  # rows are in order of time: the last of a bin stays
            self._count[bins, entities] = 1
        else:
            np.add.at(self._sum, (bins, entities), values)
            np.add.at(self._count, (bins, entities), 1)
        self._at[bins, entities] = times

    def done(self, scale: float, entities: int) -> tuple[FloatArray, FloatArray]:
        """Return values and times, (bins, entities)."""
        if not self._sum.shape[1]:
            nothing = np.full((self._grid.size, entities), np.nan)
            return nothing, nothing.copy()
        self.add(*(np.zeros(0, np.int64),) * 2, np.zeros(0), np.zeros(0, np.int64), entities)
        with np.errstate(invalid="ignore", divide="ignore"):
            values = np.where(self._count > 0, self._sum / self._count, np.nan)
        return (_rates(values, self._at) if self._counter else values) * scale, self._at


def _rates(counts: FloatArray, at: FloatArray) -> FloatArray:
    """Return the growth a second from the reading before; NaN at the first one and where a counter began anew."""
    rates = np.full_like(counts, np.nan)
    for entity in range(counts.shape[1]):
        known = np.flatnonzero(np.isfinite(counts[:, entity]))
        if len(known) > 1:
            grown = np.diff(counts[known, entity])
            seconds = np.diff(at[known, entity]) / 1000
            rates[known[1:], entity] = np.where(grown >= 0, grown / np.maximum(seconds, 1e-3), np.nan)
    return rates
