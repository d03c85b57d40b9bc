"""XIDs as they happen: the kernel's lines, the changes of DCGM's gauge, dcgm-exporter's counters, each event once.

The gauge holds the last code for ever: its first reading, and a code that stays, are no news; a change is. An exporter
may not show the field before there is a code: where a GPU reported for `SAME_MS` without it, its first code is news,
too. dcgm-exporter's own counters, where they are switched on, have a series for each code that begins with the first:
`_TOTAL` counts since the exporter's start, `_COUNT` those in a window (5 min by default), of which a fall is no news.
All come a scrape after the kernel's line, so the same code of the same GPU within `SAME_MS` is the same event.
What is taken between two points of the grid is handed out by `drain`, in order of event time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, FloatArray, Instant, IntArray, LogRecord
from detectors.core.columns import Columns, column
from detectors.core.kept import Kept
from detectors.core.survivors import Survivors
from detectors.fleet.gpus import GpuLayout, reported
from detectors.signals.xid import is_fatal, parse_line

XID_FIELD = "DCGM_FI_DEV_XID_ERRORS"
SAME_MS = 90_000
"""A scrape every minute, and dcgm-exporter's own collection every 30 s."""
KERNEL, GAUGE = "kernel log", XID_FIELD
TOTAL, WINDOW = "DCGM_EXP_XID_ERRORS_TOTAL", "DCGM_EXP_XID_ERRORS_COUNT"
"""dcgm-exporter's counters; a recording has a column of each for every code, with the code behind the name."""


@dataclass(frozen=True, slots=True)
class XidEvent:
    """An XID of a GPU; `gpu` is its index in the fleet, -1 where the topology doesn't know its address."""

    at: Instant
    node: str
    gpu: int
    code: int
    seen_in: str
    text: str = ""
    address: str = ""
    again: bool = False
    """The same code of the same GPU, seen before within `SAME_MS`."""


class _Gauge(Columns):
    """The gauge's last reading of every GPU, when it was, and when it last fell back to 0; -1: never.

    Until there is one, `at` is the GPU's last reading without it, and `without_since` the first. `heard_at`: when the
    GPU reported last, whatever it was, and `heard_since` since when it has without a gap of `SAME_MS`.
    """

    axis = "dcgm"
    code: NDArray[np.int32] = column(-1, dtype=np.int32)
    at: IntArray = column(-1)
    cleared_at: IntArray = column(-1)
    without_since: IntArray = column(-1)
    heard_at: IntArray = column(-1)
    heard_since: IntArray = column(-1)


class XidWatch(Kept):
    """Takes log lines and readings; hands out the events with one of `codes`."""

    KEPT = ("noted", "_gauge")

    def __init__(self, codes: Iterable[int], layout: GpuLayout) -> None:
        self._codes = frozenset(codes)
        self._layout = layout
        self._gauge = _Gauge()
        self._counters = {
            f"{metric}_{code}": (metric, code) for metric in (TOTAL, WINDOW) for code in sorted(self._codes)
        }
        self._counted: dict[tuple[int, str], tuple[float, Instant]] = {}
        """By GPU and counter, of the few that have any: what it stood at, and when it was read last."""
        self._pending: dict[tuple[str, str, int, str, bool], XidEvent] = {}
        self._recent: dict[tuple[str, int, int], Instant] = {}

    @property
    def cleared_at(self) -> IntArray:
        """Return when each GPU's gauge last fell back to 0, as a reload of the driver makes it; -1: never."""
        return self._gauge.cleared_at

    def grow(self, count: int) -> None:
        """Make room for GPUs that were not known before."""
        self._gauge.grow(count)

    def take(self, batch: Batch, tick: int, here: Any) -> None:
        """Take one tick of readings of GPUs that there is room for: the gauge and the counters."""
        at, gauge, where = batch.at[tick, here], self._gauge, batch.index(here, len(self._gauge))
        self.take_gauge(where, at, reported(batch, XID_FIELD, tick, here))
        reports = not self._counters.keys().isdisjoint(batch.sound)  # mostly nobody does
        for name in [name for name in batch.sound if name in self._counters] if reports else ():
            values = reported(batch, name, tick, here)
            for place in np.flatnonzero(values >= 1).tolist():
                self._count(int(batch.entities[here][place]), name, int(at[place]), float(values[place]))
        before = gauge.heard_at[where]
        latest = np.maximum.reduce(at, initial=0)
        least = np.minimum.reduce(before, initial=latest)
        if least < 0 or latest - least > SAME_MS:  # else nobody's gap can be so long
            began = (before < 0) | (at - before > SAME_MS)
            gauge.heard_since[batch.entities[here][began]] = at[began]
        gauge.heard_at[where] = at

    def _count(self, gpu: int, name: str, at: Instant, value: float) -> None:
        """Take a counter that is not 0."""
        before, since = int(self._gauge.heard_at[gpu]), int(self._gauge.heard_since[gpu])
        metric, code = self._counters[name]
        stood, read = self._counted.get((gpu, name), (0.0, since))
        listened = since >= 0 and at - before <= SAME_MS
        gone = at - read > SAME_MS
        if (gpu, name) not in self._counted:
            news = listened and at - since >= SAME_MS
        elif metric == WINDOW:
            news = value > stood or (gone and listened and since <= read)
        else:
            # Two exporters of a GPU count from different starts: one alone is back from less, and was gone meanwhile.
            news = value > stood or (gone and value < stood)
            value = value if gone else max(value, stood)
        self._counted[gpu, name] = value, at
        if news:
            self._add(XidEvent(max((before + at) // 2, at - SAME_MS), "", gpu, code, metric))

    def take_lines(self, records: Sequence[LogRecord]) -> None:
        """Take log lines, in order of time."""
        for record in records:
            if record.source != "kernel" or record.node is None or (line := parse_line(record.message)) is None:
                continue
            if line.code in self._codes:
                self._add(XidEvent(record.at, record.node, -1, line.code, KERNEL, line.text[:200], line.address))

    def take_gauge(self, where: Any, at: IntArray, value: FloatArray) -> None:
        """Take readings of the gauge, at most one a GPU; NaN: not reported. `where` is an index of the GPUs."""
        gauge = self._gauge
        known = value < 2**31
        if np.count_nonzero(known) < len(known):
            gpus = np.arange(len(gauge))[where]
            never = gpus[~known & (gauge.code[gpus] < 0)]
            if len(never):
                when = at[~known & (gauge.code[gpus] < 0)]
                began = (gauge.without_since[never] < 0) | (when - gauge.at[never] > SAME_MS)
                gauge.without_since[never] = np.where(began, when, gauge.without_since[never])
                gauge.at[never] = when
            where, at, value = gpus[known], at[known], value[known]
        if not len(value):
            return
        if np.maximum.reduce(value) > 0 or np.count_nonzero(gauge.code):  # else all read 0, as ever
            self._compare(where, at, value.astype(np.int32))
        gauge.at[where] = at

    def _compare(self, where: Any, at: IntArray, code: NDArray[np.int32]) -> None:
        gauge = self._gauge
        differs = code != gauge.code[where]
        if not np.count_nonzero(differs):
            return
        those, when, now = np.arange(len(gauge))[where][differs], at[differs], code[differs]
        before, since, without = gauge.code[those], gauge.at[those], gauge.without_since[those]
        unheard = (before < 0) & (without >= 0) & (now != 0)
        unheard &= (when - without >= SAME_MS) & (when - since <= SAME_MS)
        changed = (before >= 0) | unheard
        self._change(those[changed], when[changed], now[changed], since[changed])
        gauge.code[those] = now

    def _change(self, gpus: IntArray, at: IntArray, code: NDArray[np.int32], since: IntArray) -> None:
        cleared = code == 0
        self._gauge.cleared_at[gpus[cleared]] = at[cleared]
        for gpu, when, number, before in zip(gpus.tolist(), at.tolist(), code.tolist(), since.tolist(), strict=True):
            if number in self._codes:
                # The layout may not know the GPU yet; its node is looked up when the event is handed out.
                self._add(XidEvent(max((before + when) // 2, when - SAME_MS), "", gpu, number, GAUGE))

    def _add(self, event: XidEvent) -> None:
        # NVLink 5 says the same code at two levels within a second: neither hides the other.
        key = (event.node, event.address or str(event.gpu), event.code, event.seen_in, is_fatal(event.text))
        held = self._pending.get(key)
        if held is None or event.at < held.at:
            self._pending[key] = event

    def drain(self, now: Instant) -> list[XidEvent]:
        """Return the events since the last call, in order of time, and forget them."""
        if not self._pending:
            return []
        found = [self._placed(event) for event in self._pending.values()]
        self._pending = {}
        self._recent = {key: at for key, at in self._recent.items() if now - at <= SAME_MS}
        events: list[XidEvent] = []
        for event in sorted(found, key=_order):
            keys = [(event.node, event.gpu, event.code)]
            if event.seen_in != KERNEL:
                keys.append((event.node, -1, event.code))  # the kernel's line may have had an address that is not known
            again = any(key in self._recent for key in keys)
            self._recent[keys[0]] = max(now, self._recent.get(keys[0], now))
            events.append(replace(event, again=again))
        return events

    def _placed(self, event: XidEvent) -> XidEvent:
        if event.seen_in != KERNEL:
            return replace(event, node=self._layout.names[self._layout.node[event.gpu]])
        gpu = self._layout.at_address(event.node, event.address)
        return event if gpu is None else replace(event, gpu=gpu)

    @property
    def noted(self) -> dict[str, Any]:
        """The events that wait for `drain`, those drained lately, and the counters, as JSON can say them."""
        recent = [[*key, at] for key, at in self._recent.items()]
        counted = [[*key, *stood] for key, stood in self._counted.items()]
        return {"pending": self.to_json(self._pending.values()), "recent": recent, "counted": counted}

    @noted.setter
    def noted(self, document: dict[str, Any]) -> None:
        self._pending = {}
        for event in self.from_json(document["pending"]):
            self._add(event)
        self._recent = {(node, gpu, code): at for node, gpu, code, at in document["recent"]}
        # A state that an older version kept has none.
        self._counted = {(gpu, name): (value, at) for gpu, name, value, at in document.get("counted", ())}

    def snapshot(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the state as JSON can say it, and arrays."""
        return self.noted, self._gauge.arrays("xid_")

    def load(self, document: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Take what `snapshot` returned."""
        self.noted = document
        self._gauge.load(arrays, "xid_")

    def go_on_with(self, survivors: Survivors) -> None:
        """Give the GPUs of what waits, and of what was drained lately, new numbers."""
        waiting = [event for event in self._pending.values() if event.node not in survivors.names("machine")]
        self._pending = {}
        for event in waiting:
            gpu = survivors.number("dcgm", event.gpu)
            if (gpu < 0) == (event.gpu < 0):
                self._add(replace(event, gpu=gpu))
        counted = ((survivors.number("dcgm", gpu), name, stood) for (gpu, name), stood in self._counted.items())
        self._counted = {(gpu, name): stood for gpu, name, stood in counted if gpu >= 0}
        recent = (
            (node, gpu, survivors.number("dcgm", gpu), code, at) for (node, gpu, code), at in self._recent.items()
        )
        self._recent = {(node, new, code): at for node, old, new, code, at in recent if (new < 0) == (old < 0)}

    @staticmethod
    def to_json(events: Iterable[XidEvent]) -> list[list[Any]]:
        """Return events as JSON can say them."""
        return [list(astuple(event)) for event in events]

    @staticmethod
    def from_json(events: Iterable[Iterable[Any]]) -> list[XidEvent]:
        """Return what `to_json` was given."""
        return [XidEvent(*fields) for fields in events]


def _order(event: XidEvent) -> tuple[Any, ...]:
    return event.at, event.node, event.gpu, event.code, event.seen_in
