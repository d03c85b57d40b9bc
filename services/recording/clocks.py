"""Clocks that disagree: how far those of logs are from the telemetry's, by events that both saw.

A reboot is a gap in a node's series and a line of its kernel or BMC; an XID is a line of the kernel and a reading of
DCGM; a GPU that fell off the bus (XID 79) ends its series. Each such pair bounds the offset; the offset that most pairs
allow is taken. The reference is the clock of the collector that read the GPUs, or, without telemetry, the kernel's.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from services.recording.instants import format_instant
from services.recording.model import Event
from services.recording.reader import Recording, times_of

_XID = re.compile(r"NVRM: Xid \([^)]{1,60}\): (\d{1,4})\b")
_KERNEL_BOOT = re.compile(r"Linux version \d")
_BMC_BOOT = re.compile(
    r"System Boot Initiated|Initiated by (?:power up|hard reset|warm reset)|system boot", re.IGNORECASE
)
_FIELD = "DCGM_FI_DEV_XID_ERRORS"
_LATE_MS = 60_000
"""DCGM reads every 30 s where nothing else is set, and an exporter may give the last reading for as long again."""
_SELF_TEST_MS = 10 * 60_000
"""So long may a node with eight GPUs test itself between the BMC's word of the start and the kernel's first line."""
_FARTHEST_MS = 14 * 3_600_000
"""What is further apart is not the same event: no zone is further from UTC."""
_NEAR_MS = 3_600_000
"""An offset that one event alone gives is believed up to here, or where it is one that zones have."""
_GAP = 5
"""Readings in a row that are missing: a reboot; fewer are lost scrapes."""
_MOST = 100
"""Sightings of one kind on a node that are compared."""


class Sighting(NamedTuple):
    """An event that a clock dates between two instants, ms."""

    what: str
    first: int
    last: int


@dataclass(frozen=True)
class Skew:
    """How far a clock is ahead of the reference: between `low` and `high` ms, by `events` that both saw."""

    recording: int
    """Its place among the recordings."""
    name: str
    source: str
    node: str | None
    low: int
    high: int
    events: int
    what: str
    at: int

    @property
    def seconds(self) -> float:
        """Return the likeliest offset: that of a zone, where it may be one."""
        known = self.zone is not None and self.low <= self.zone <= self.high
        return (self.zone or 0 if known else (self.low + self.high) / 2) / 1000

    @property
    def zone(self) -> int | None:
        """Return the offset of the zone that it may be, ms."""
        return _zone_near(self.low, self.high, self.what)

    def words(self, *, corrected: bool) -> str:
        """Return it in words."""
        spread, ahead = (self.high - self.low) / 2000, "ahead of" if self.seconds > 0 else "behind"
        shown = f"{abs(self.seconds):,.0f} s (+-{spread:,.0f} s) {ahead} the telemetry's"
        zone = ": a time zone? (--timezone of the importer)" if self.zone else ""
        saw = f"{self.events} event(s) that both saw, such as {self.what} at {format_instant(self.at)}"
        done = "its records were moved" if corrected else "left as it is (--align-clocks moves its records)"
        return f"clock of {self.source} of {self.node} in {self.name} is {shown}, by {saw}{zone}; {done}"


def clock_skews(recordings: Sequence[Recording]) -> list[Skew]:
    """Return the clocks of logs that disagree with the reference by more than the events leave open."""
    logs: dict[tuple[int, str, str], list[Sighting]] = defaultdict(list)
    for number, recording in enumerate(recordings):
        for event in recording.events():
            if event.node is not None and (seen := _of_line(event)) is not None:
                held = logs[number, event.source, event.node]
                if len(held) < _MOST:
                    held.append(seen)
    reference: dict[str, list[Sighting]] = defaultdict(list)
    nodes = {node for _, _, node in logs}
    for recording in recordings if nodes else ():
        if "dcgm" in recording.streams():
            for node, sighting in _of_telemetry(recording, nodes):
                reference[node].append(sighting)
    found = []
    for (number, source, node), sightings in sorted(logs.items()):
        known = reference[node] or next(
            (seen for (_, other, host), seen in logs.items() if other == "kernel" != source and host == node), []
        )
        best = _offset(sightings, known)
        if best is not None and not best[0] <= 0 <= best[1] and _credible(*best[:4]):
            name = recordings[number].manifest.name
            found.append(Skew(number, name, source, node, *best))
    return found


def _credible(low: int, high: int, events: int, what: str) -> bool:
    return events > 1 or abs(low + high) / 2 <= _NEAR_MS or _zone_near(low, high, what) is not None


def _zone_near(low: int, high: int, what: str) -> int | None:
    """Return the zone that an offset may be of, ms: quarters of an hour, whole hours where a reboot leaves minutes."""
    grid = 3_600_000 if what == "a reboot" else 900_000
    middle = (low + high) / 2
    nearest = round(middle / grid) * grid
    return nearest if abs(nearest) >= 1_800_000 and abs(middle - nearest) <= (high - low) / 2 + 60_000 else None


def shifts_of(skews: Sequence[Skew], recording: int) -> dict[tuple[str, str | None], int]:
    """Return by source and node what to take off the times of a recording's log records, ms."""
    return {(one.source, one.node): round(one.seconds * 1000) for one in skews if one.recording == recording}


def _of_line(event: Event) -> Sighting | None:
    xid = _XID.search(event.message) if event.source == "kernel" else None
    if xid is not None:
        return Sighting(f"XID {xid[1]}", event.timestamp, event.timestamp + 1000)
    if event.source == "kernel" and _KERNEL_BOOT.match(event.message):
        return Sighting("a reboot", event.timestamp, event.timestamp + 1000)
    if event.source == "sel" and _BMC_BOOT.search(event.message):
        return Sighting("a reboot", event.timestamp, event.timestamp + _SELF_TEST_MS)
    return None


def _of_telemetry(recording: Recording, nodes: set[str]) -> Iterator[tuple[str, Sighting]]:
    """Yield what the series of some nodes' GPUs show of reboots, XIDs and lost GPUs."""
    names = _columns_of(recording)
    wanted = pa.array(sorted(nodes))
    tables = []
    for batch in recording.batches("dcgm", columns=names):
        mine = batch.filter(pc.is_in(batch.column("node").cast(pa.string()), value_set=wanted))
        if mine.num_rows:
            tables.append(mine)
    by_node: dict[str, list[tuple[np.ndarray[tuple[int], np.dtype[np.int64]], ...]]] = defaultdict(list)
    for batch in tables:
        hosts = np.asarray(batch.column("node").cast(pa.string()).to_pylist())
        gpus = np.asarray(batch.column("gpu").to_numpy(zero_copy_only=False), np.int64)
        codes = np.zeros(batch.num_rows, np.int64)
        if names:
            codes = np.asarray(
                batch.column(_FIELD).fill_null(0).cast(pa.float64()).to_numpy(zero_copy_only=False)
            ).astype(np.int64)
        for node in np.unique(hosts):
            here = hosts == node
            by_node[str(node)].append((times_of(batch)[here], gpus[here], codes[here]))
    for node, parts in sorted(by_node.items()):
        times, gpus, codes = (np.concatenate([part[place] for part in parts]) for place in range(3))
        yield from ((node, sighting) for sighting in _of_node(times, gpus, codes))


def _columns_of(recording: Recording) -> list[str]:
    first = next(recording.batches("dcgm", max_rows=1), None)
    return [_FIELD] if first is not None and _FIELD in first.schema.names else []


Ints = np.ndarray[tuple[int], np.dtype[np.int64]]


def _of_node(times: Ints, gpus: Ints, codes: Ints) -> Iterator[Sighting]:
    moments = np.unique(times)
    every = int(np.median(np.diff(moments))) if len(moments) > 1 else 0
    for place in np.flatnonzero(np.diff(moments) > max(_GAP * every, _LATE_MS))[:_MOST]:
        yield Sighting("a reboot", int(moments[place]), int(moments[place + 1]))
    for gpu in np.unique(gpus):
        mine = gpus == gpu
        at, code = times[mine], codes[mine]
        for place in np.flatnonzero((np.diff(code) != 0) & (code[1:] > 0))[:_MOST]:
            yield Sighting(f"XID {code[place + 1]}", int(at[place]) - _LATE_MS, int(at[place + 1]))
        if moments[-1] - at[-1] > _GAP * every and len(at) > 1:
            yield Sighting("XID 79", int(at[-1]) - _LATE_MS, int(at[-1]) + every)


def _offset(ours: Sequence[Sighting], theirs: Sequence[Sighting]) -> tuple[int, int, int, str, int] | None:
    """Return the offsets that most pairs of the same event allow: low, high, events, and one of these with its time.

    None where no event was seen by both. Of several stretches that as many allow, the one nearest to none at all.
    """
    pairs = [
        (one.first - other.last, one.last - other.first, one, other)
        for one in ours
        for other in theirs
        if one.what == other.what and abs(one.first - other.first) <= _FARTHEST_MS
    ]
    best: tuple[int, int, int, int, str, int] | None = None
    for low in {pair[0] for pair in pairs}:
        fitting = [pair for pair in pairs if pair[0] <= low <= pair[1]]
        # One event may fit several of the other clock's: it holds as long as one of them does.
        reach: dict[Sighting, int] = {}
        for _, until, one, _ in fitting:
            reach[one] = max(until, reach.get(one, until))
        high, events = min(reach.values()), min(len(reach), len({pair[3] for pair in fitting}))
        away = 0 if low <= 0 <= high else min(abs(low), abs(high))
        candidate = (-events, away, low, high, fitting[0][2].what, fitting[0][2].first)
        best = candidate if best is None else min(best, candidate)
    return None if best is None else (best[2], best[3], -best[0], best[4], best[5])
