"""Samples of series to rows of hindcast's streams: series.yaml read backwards, what is not in it passed over."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from services.gateway.protobuf import MalformedError
from services.gateway.remote_write import Ints, Pairs, Protocol, Request, Symbols
from services.recording.importers.parts.amd_series import folded
from services.recording.importers.parts.census import Census, Key
from services.recording.importers.parts.known_series import stream_of
from services.recording.schema import STREAMS, TIMESTAMP, name_column

_EARLIEST_MS, LATEST_MS = 1 << 35, (1 << 42) - 1
"""1971 to 2109: other times are no times of samples."""
_STALE = np.uint64(0x7FF0000000000002)
_SERIES_MOST = 1_000_000
"""Series remembered: 800 GPUs with 60 series each are 50,000. Beyond it all is forgotten and learnt again."""
_EXACT = 2.0**53
_HOST = re.compile(r":\d+$")
_KEYS: Mapping[str, tuple[str, ...]] = {"bmc": ("node", "sensor", "unit"), "steps": ("job_id", "rank", "node")}
"""What an entity's key holds where that is not the stream's key columns."""

UNKNOWN, REPLAYED, NOWHERE, STALE = "unknown metric", "replayed", "no entity", "stale"
"""Why samples are passed over: nothing is wrong with them, but they have no place here."""
_TAKEN, _PASSED, _BAD = 0, 1, 2


@dataclass(frozen=True)
class Bad:
    """A series that breaks the protocol's rules, and `samples` of it that were not taken."""

    labels: Pairs
    reason: str
    samples: int


@dataclass
class Rows:
    """What a request comes to: a batch by stream, how many samples by outcome, and what is wrong."""

    batches: dict[str, pa.RecordBatch]
    outcomes: Counter[str]
    bad: list[Bad]


_SLOT = np.dtype([("kind", "i1"), ("column", "i4"), ("entity", "i4"), ("scale", "f8"), ("offset", "f8")])


class _Slots:
    """What is known of each series that was seen, by its number."""

    def __init__(self) -> None:
        self.why: list[str] = []
        """Why a series is passed over or bad."""
        self.table = np.zeros(1024, _SLOT)

    def add(self, kind: int, why: str = "", place: tuple[int, int, float, float] = (-1, -1, 1.0, 0.0)) -> int:
        """Add a series and return its number."""
        number = len(self.why)
        if number == len(self.table):
            self.table = np.concatenate([self.table, np.zeros(number, _SLOT)])
        self.table[number] = (kind, *place)
        self.why.append(why)
        return number


class Places:
    """Remembers of every series where it belongs; one thread at a time."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self.symbols = Symbols()
        self._hosts: dict[str, str] = {}
        self._forget()

    def _forget(self) -> None:
        self._census = Census()
        self._known: dict[Protocol, dict[bytes, int]] = {"v1": {}, "v2": {}}
        self._slots = _Slots()
        self._columns: dict[tuple[str, str], int] = {}
        self._entities: dict[tuple[str, Key], int] = {}
        self._columns_of: list[tuple[str, str]] = []
        self._entity_of: list[tuple[str, Key]] = []

    @property
    def series(self) -> int:
        """Return how many series are remembered."""
        return sum(map(len, self._known.values()))

    def make_room(self) -> None:
        """Forget everything if it has become too much; to be called between requests only."""
        if self.symbols.full or len(self._slots.why) > _SERIES_MOST:
            self.symbols.forget()
            self._forget()

    def rows(self, request: Request, latest_ms: int = LATEST_MS) -> Rows:
        """Return the rows that a request's samples make, those of one time and entity in one row.

        Samples of after `latest_ms` are bad: they would wait for their time to come.
        """
        slots = self._numbers(request)
        owner = slots[request.owner]
        table = self._slots.table[owner]
        kind = table["kind"]
        stale = request.values.view(np.uint64) == _STALE
        timely = (request.times >= _EARLIEST_MS) & (request.times <= latest_ms)
        taken = (kind == _TAKEN) & ~stale & timely
        outcomes: Counter[str] = Counter({"taken": int(taken.sum()), STALE: int(((kind == _TAKEN) & stale).sum())})
        for slot, count in _counted(owner[kind == _PASSED]):
            outcomes[self._slots.why[slot]] += count
        bad = self._bad(request, slots, (kind == _BAD) | ((kind == _TAKEN) & ~stale & ~timely))
        table = table[taken]
        with np.errstate(over="ignore"):
            values = (request.values[taken] - table["offset"]) / table["scale"]
        batches = self._batches(
            table["column"].astype(np.int64), table["entity"].astype(np.int64), request.times[taken], values
        )
        outcomes["bad"] = sum(one.samples for one in bad)
        return Rows(batches, +outcomes, bad)

    def _numbers(self, request: Request) -> Ints:
        known = self._known[request.protocol]
        found = np.fromiter((known.get(key, -1) for key in request.keys), np.int64, len(request.keys))
        for number in np.flatnonzero(found < 0).tolist():
            found[number] = known[request.keys[number]] = self._learn(request, number)
        return found

    def _bad(self, request: Request, slots: Ints, samples: NDArray[np.bool_]) -> list[Bad]:
        found = []
        for series, count in _counted(request.owner[samples]):
            why = self._slots.why[int(slots[series])] or "the time of a sample is before 1971, or too far ahead"
            try:
                labels = request.labels(series)
            except MalformedError:
                labels = []
            found.append(Bad(labels, why, count))
        # A series that breaks the rules is said to do so even where it brings no samples.
        said = {series for series, _ in _counted(request.owner[samples])}
        silent = set(np.flatnonzero(self._slots.table["kind"][slots] == _BAD).tolist()) - said
        return found + [Bad([], self._slots.why[int(slots[series])], 0) for series in sorted(silent)]

    def _learn(self, request: Request, number: int) -> int:
        """Find out where a series belongs and return its number."""
        try:
            pairs = request.labels(number)
        except MalformedError as error:
            return self._slots.add(_BAD, str(error))
        labels = dict(pairs)
        metric = labels.pop("__name__", "")
        wrong = _wrong(metric, labels, len(pairs))
        if wrong:
            return self._slots.add(_BAD, wrong)
        if metric == "node_uname_info":
            self._meet(labels)
        why = self._not_ours(metric, labels)
        if why:
            return self._slots.add(_PASSED, why)
        cluster = labels.get("cluster", self._cluster)
        if cluster != self._cluster:
            why = f"a series has the label cluster={cluster!r}, and this gateway takes {self._cluster!r}"
            return self._slots.add(_BAD, f"{why} (HINDCAST_GATEWAY_CLUSTER)")
        place = self._census.place(metric, self._named(labels))
        if isinstance(place, str):
            return self._slots.add(_PASSED, NOWHERE)
        reading = place.reading
        column = self._columns.setdefault((reading.stream, reading.column), len(self._columns_of))
        if column == len(self._columns_of):
            self._columns_of.append((reading.stream, reading.column))
        entity = self._entities.setdefault((reading.stream, place.key), len(self._entity_of))
        if entity == len(self._entity_of):
            self._entity_of.append((reading.stream, place.key))
        return self._slots.add(_TAKEN, place=(column, entity, reading.scale, reading.offset))

    def _not_ours(self, metric: str, labels: Mapping[str, str]) -> str:
        if labels.get("replay", "live") != "live":
            return REPLAYED
        return UNKNOWN if stream_of(metric) is None else ""

    def _meet(self, labels: Mapping[str, str]) -> None:
        """Take note of a host's name, as node_exporter tells it; other exporters on it may say its address only."""
        host, name = _HOST.sub("", labels.get("instance", "")).strip("[]"), labels.get("nodename", "")
        if host and name and self._hosts.get(host) != name:
            self._hosts[host] = name
            # Series of that host may be known under its address: they are looked at again.
            for known in self._known.values():
                known.clear()

    def _named(self, labels: dict[str, str]) -> dict[str, str]:
        host = _HOST.sub("", labels.get("instance", "")).strip("[]")
        if host in self._hosts and not labels.get("node"):
            return labels | {"node": self._hosts[host]}
        return labels

    def _batches(
        self, columns: Ints, entities: Ints, times: Ints, values: NDArray[np.float64]
    ) -> dict[str, pa.RecordBatch]:
        streams: dict[str, list[int]] = {}
        for column in np.unique(columns).tolist():
            streams.setdefault(self._columns_of[column][0], []).append(column)
        found: dict[str, pa.RecordBatch] = {}
        for stream in STREAMS:
            if stream in streams:
                here = np.isin(columns, streams[stream]) if len(streams) > 1 else np.ones(len(columns), np.bool_)
                found[stream] = self._batch(stream, columns[here], entities[here], times[here], values[here])
        return found

    def _batch(
        self, stream: str, columns: Ints, entities: Ints, times: Ints, values: NDArray[np.float64]
    ) -> pa.RecordBatch:
        """Return the rows of one stream by time; where a cell has two readings, the first counts."""
        members, local = np.unique(entities, return_inverse=True)
        first = int(times.min())
        codes, row = np.unique((times - first) * len(members) + local, return_inverse=True)
        keys = [self._entity_of[member][1] for member in members.tolist()]
        entity = codes % len(members)
        made: dict[str, Any] = {"timestamp": pa.array(codes // len(members) + first).cast(TIMESTAMP)}
        for part, name in enumerate(_KEYS.get(stream, STREAMS[stream].key_names)):
            made[name] = _key_column(name, [key[part] for key in keys], entity)
        for column in np.unique(columns).tolist():
            mine = np.flatnonzero(columns == column)[::-1]
            cells, there = np.zeros(len(codes)), np.zeros(len(codes), np.bool_)
            cells[row[mine]] = values[mine]
            there[row[mine]] = True
            name = self._columns_of[column][1]
            if name == "iteration":
                there &= np.abs(cells) < _EXACT
                made[name] = pa.array(np.where(there, cells, 0).astype(np.int64), mask=~there)
            else:
                made[name] = pa.array(cells, mask=~there)
        batch = pa.RecordBatch.from_pydict(made)
        return folded(batch) if stream == "dcgm" else batch


def _wrong(metric: str, labels: Mapping[str, str], count: int) -> str:
    """Return what is wrong with a series of `count` labels, its name among them."""
    if not metric:
        return "a series has no name (label __name__)"
    return "a series has a label twice, or one without a name" if len(labels) + 1 != count or "" in labels else ""


def _key_column(name: str, parts: Sequence[str | int], entity: Ints) -> Any:
    if name in ("gpu", "rank"):
        return pa.array(np.array(parts, np.uint8 if name == "gpu" else np.int32)[entity])
    names = list(dict.fromkeys(map(str, parts)))
    number = {text: index for index, text in enumerate(names)}
    codes = np.array([number[str(part)] for part in parts], np.int64)[entity]
    # A whole job's steps have no node.
    return name_column(codes, names, codes == number.get("", -1))


def _counted(numbers: Ints) -> list[tuple[int, int]]:
    found, counts = np.unique(numbers, return_counts=True)
    return list(zip(found.tolist(), counts.tolist(), strict=True))
