"""Samples of series to rows of hindcast's streams: series.yaml read backwards, what is not in it passed over."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from services.gateway.numbers import Ints, Numbers
from services.gateway.protobuf import MalformedError
from services.gateway.remembered import BAD, PASSED, TAKEN, Remembered
from services.gateway.remote_write import Pairs, Request
from services.gateway.symbols import Symbols
from services.recording.importers.parts.series.amd_series import folded
from services.recording.importers.parts.series.census import Census, Key, instance_host
from services.recording.importers.parts.series.known_series import stream_of
from services.recording.schema import STREAMS, TIMESTAMP, name_column

_EARLIEST_MS, LATEST_MS = 1 << 35, (1 << 42) - 1
"""1971 to 2109: other times are no times of samples."""
_STALE = np.uint64(0x7FF0000000000002)
_SHARE = 16
"""Of so many remembered series one makes room at a time: who is silent longest is looked for seldom."""
_EXACT = 2.0**53
_KEYS: Mapping[str, tuple[str, ...]] = {"bmc": ("node", "sensor", "unit"), "steps": ("job_id", "rank", "node")}
"""What an entity's key holds where that is not the stream's key columns."""

UNKNOWN, REPLAYED, NOWHERE, STALE = "unknown metric", "replayed", "no entity", "stale"
"""Why samples are passed over: nothing is wrong with them, but they have no place here."""


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


class SampleRows:
    """Remembers of every series where it belongs; one thread at a time.

    Beyond `series_most` series, or as many texts, those that were silent longest are evicted, and learnt again when
    they come. What they say of machines (the name of a host, which of two sensors of a name is the first) is kept for
    as many; beyond that it goes where no remembered series is of the machine.
    """

    def __init__(self, cluster: str, series_most: int = 1_000_000) -> None:
        self._cluster = cluster
        self._most = series_most
        self.symbols = Symbols(series_most)
        self._series = Remembered()
        self._census = Census()
        self._hosts: dict[str, str] = {}
        self._renamed: set[str] = set()
        self._columns: Numbers[tuple[str, str]] = Numbers()
        self._entities: Numbers[tuple[str, Key]] = Numbers()

    @property
    def series(self) -> int:
        """Return how many series are remembered."""
        return len(self._series)

    def make_room(self) -> int:
        """Return how many series were evicted; to be called before each request is read."""
        before = len(self._series)
        if before > self._most:
            self._evict(before - self._most + self._most // _SHARE)
        if self.symbols.full:
            while not self.symbols.keep(self._series.keys("v2")):
                self._evict(self._most // _SHARE + 1)
        return before - len(self._series)

    def _evict(self, count: int) -> None:
        self._series.remove(self._series.silent_longest(count))
        self._entities.keep(self._series.uses("entity", len(self._entities.keys)))
        self._columns.keep(self._series.uses("column", len(self._columns.keys)))
        if self._census.held > self._most:
            self._census.keep(self._entities.of.keys())
        if len(self._hosts) > self._most:
            self._hosts = {host: self._hosts[host] for host in self._series.hosts_of(self._hosts)}

    def rows(self, request: Request, latest_ms: int = LATEST_MS) -> Rows:
        """Return the rows that a request's samples make, those of one time and entity in one row.

        Samples of after `latest_ms` are bad: they would wait for their time to come.
        """
        slots = self._numbers(request)
        owner = slots[request.owner]
        table = self._series.places[owner]
        kind = table["kind"]
        stale = request.values.view(np.uint64) == _STALE
        timely = (request.times >= _EARLIEST_MS) & (request.times <= latest_ms)
        taken = (kind == TAKEN) & ~stale & timely
        outcomes: Counter[str] = Counter({"taken": int(taken.sum()), STALE: int(((kind == TAKEN) & stale).sum())})
        for slot, count in _counted(owner[kind == PASSED]):
            outcomes[self._series.why[slot]] += count
        bad = self._bad(request, slots, (kind == BAD) | ((kind == TAKEN) & ~stale & ~timely))
        table = table[taken]
        with np.errstate(over="ignore"):
            values = (request.values[taken] - table["offset"]) / table["scale"]
        batches = self._batches(
            table["column"].astype(np.int64), table["entity"].astype(np.int64), request.times[taken], values
        )
        outcomes["bad"] = sum(one.samples for one in bad)
        return Rows(batches, +outcomes, bad)

    def _numbers(self, request: Request) -> Ints:
        found = self._known(request)
        if self._renamed:  # series of those hosts are known by their address: they are looked at again
            self._series.remove(self._series.of_hosts(self._renamed))
            found = self._known(request)
            self._renamed.clear()
        return found

    def _known(self, request: Request) -> Ints:
        found = self._series.find(request.protocol, request.keys)
        for number in np.flatnonzero(found < 0).tolist():
            found[number] = self._learn(request, number)
        return found

    def _bad(self, request: Request, slots: Ints, samples: NDArray[np.bool_]) -> list[Bad]:
        found = []
        for series, count in _counted(request.owner[samples]):
            why = self._series.why[int(slots[series])] or "the time of a sample is before 1971, or too far ahead"
            try:
                labels = request.labels(series)
            except MalformedError:
                labels = []
            found.append(Bad(labels, why, count))
        # A series that breaks the rules is reported even where it brings no samples.
        reported = {series for series, _ in _counted(request.owner[samples])}
        silent = set(np.flatnonzero(self._series.places["kind"][slots] == BAD).tolist()) - reported
        return found + [Bad([], self._series.why[int(slots[series])], 0) for series in sorted(silent)]

    def _learn(self, request: Request, number: int) -> int:
        """Find out where a series belongs and return its number."""
        add = partial(self._series.add, request.protocol, request.keys[number])
        try:
            pairs = request.labels(number)
        except MalformedError as error:
            return add(BAD, str(error))
        labels = dict(pairs)
        metric = labels.pop("__name__", "")
        wrong = _wrong(metric, labels, len(pairs))
        if wrong:
            return add(BAD, wrong)
        host = instance_host(labels)
        if metric == "node_uname_info":
            self._meet(host, labels.get("nodename", ""))
        why = self._not_ours(metric, labels)
        if why:
            return add(PASSED, why)
        cluster = labels.get("cluster", self._cluster)
        if cluster != self._cluster:
            why = f"a series has the label cluster={cluster!r}, and this gateway takes {self._cluster!r}"
            return add(BAD, f"{why} (HINDCAST_GATEWAY_CLUSTER)")
        if host in self._hosts and not labels.get("node"):
            labels["node"] = self._hosts[host]
        place = self._census.look(metric, labels)
        if isinstance(place, str):
            return add(PASSED, NOWHERE, host=host)
        reading = place.reading
        column = self._columns.number((reading.stream, reading.column))
        entity = self._entities.number((reading.stream, place.key))
        return add(TAKEN, place=(column, entity, reading.scale, reading.offset), host=host)

    def _not_ours(self, metric: str, labels: Mapping[str, str]) -> str:
        if labels.get("replay", "live") != "live":
            return REPLAYED
        return UNKNOWN if stream_of(metric) is None else ""

    def _meet(self, host: str, name: str) -> None:
        """Take note of a host's name, as node_exporter has it; other exporters on it may have its address only."""
        if host and name and self._hosts.get(host) != name:
            self._hosts[host] = name
            self._renamed.add(host)

    def _batches(
        self, columns: Ints, entities: Ints, times: Ints, values: NDArray[np.float64]
    ) -> dict[str, pa.RecordBatch]:
        streams: dict[str, list[int]] = {}
        for column in np.unique(columns).tolist():
            streams.setdefault(self._columns.keys[column][0], []).append(column)
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
        keys = [self._entities.keys[member][1] for member in members.tolist()]
        entity = codes % len(members)
        made: dict[str, Any] = {"timestamp": pa.array(codes // len(members) + first).cast(TIMESTAMP)}
        for part, name in enumerate(_KEYS.get(stream, STREAMS[stream].key_names)):
            made[name] = _key_column(name, [key[part] for key in keys], entity)
        for column in np.unique(columns).tolist():
            mine = np.flatnonzero(columns == column)[::-1]
            cells, there = np.zeros(len(codes)), np.zeros(len(codes), np.bool_)
            cells[row[mine]] = values[mine]
            there[row[mine]] = True
            name = self._columns.keys[column][1]
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
