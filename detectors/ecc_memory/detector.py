"""Errors of GPU memory: uncorrectable ones, storms of corrected ones, rows that wait for a remap or cannot have one.

An uncorrectable error is told by its XID (48, 94, 95, 140, ...), by the counter of double-bit errors, or by that of
rows remapped for uncorrectable errors; lines, gauge and counters of one event are one finding, which stays open until
the GPU is seen to be reset (a volatile counter falls, the pending remap or the XID gauge is gone). XID 63 and
64 record a remap, or its failure, for *either* reason: they make a finding when the counters bear it out, or when
there are none to ask; where they are reported and stay where they were, rows wore out by corrected errors and only
the pending or failed remap is raised. A
counter that is already at 7 when the telemetry begins is history; a gauge that is already set is a fault, for it still
asks for a reset. A storm is far above the GPU's own habit and the fleet's median, and comes in more than one burst,
or in a very big one.

When it is wrong: an error of which only XID 63 or 64 tells, on a GPU whose counters lag by more than minutes, is
missed; a GPU that has always had storms fires when the telemetry begins, for want of a habit to measure it by; an
uncorrectable error that needs a reset stays open when the reset leaves no trace in the telemetry.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np

from detectors.case_book import CaseBook, OpenCase, in_words
from detectors.contract import (
    Batch,
    DetectorConfig,
    DetectorSpec,
    Fault,
    Finding,
    FloatArray,
    Instant,
    IntArray,
    LogRecord,
)
from detectors.ecc_memory import evidence
from detectors.ecc_memory.config import EccMemoryConfig
from detectors.ecc_memory.readings import MemoryReadings
from detectors.ecc_memory.storm import SingleBitErrors
from detectors.fleet import Fleet
from detectors.gpus import WHOLE_NODE, GpuLayout, reported
from detectors.spec import load_spec
from detectors.state import pack, unpack
from detectors.xid import XidCatalogue
from detectors.xid_watch import XID_FIELD, XidEvent, XidWatch

_UNCORRECTABLE: Fault = "ecc_uncorrectable"
_STORM: Fault = "ecc_correctable_storm"
_LONGEST_WAIT_MS = 120_000
"""Two scrapes of a minute each."""
_GAUGES: tuple[tuple[Fault, str], ...] = (("row_remap_pending", "pending"), ("row_remap_failure", "failure"))


class EccMemory:
    """See the module; the thresholds are in detector.yaml."""

    spec: ClassVar[DetectorSpec] = load_spec(__package__ or "")
    config_type: ClassVar[type[DetectorConfig]] = EccMemoryConfig

    def __init__(self, config: DetectorConfig, fleet: Fleet) -> None:
        if not isinstance(config, EccMemoryConfig):
            raise TypeError(f"{type(config).__name__} is not an EccMemoryConfig")
        self._config = config
        self._layout = GpuLayout(fleet)
        self._catalogue = XidCatalogue(config.xid_overrides)
        watched = self._catalogue.codes("uncorrectable_memory", "remap_recorded", "correctable_memory")
        self._xids = XidWatch(watched, self._layout)
        self._memory = MemoryReadings()
        self._single = SingleBitErrors(config)
        self._book = CaseBook(self.spec.name)
        self._recorded: dict[int, XidEvent] = {}
        """GPUs with an XID 63 or 64 of which the counters have not said yet what it was for."""
        self._rate_xid: dict[int, Instant] = {}
        """When the driver itself last complained of a GPU's rate of corrected errors."""

    def logs(self, records: Sequence[LogRecord]) -> Sequence[Finding]:
        """Take the kernel's lines about XIDs; what follows from them is decided at the next point of the grid."""
        self._xids.take_lines(records)
        return ()

    def observe(self, batch: Batch) -> Sequence[Finding]:
        """Take readings."""
        if not len(batch.entities):
            return ()
        count = int(batch.entities.max()) + 1
        self._grow(count)
        for tick, here in batch.ticks():
            gpus, at = batch.entities[here], batch.at[tick, here]
            before = self._memory.at[gpus]
            errors = self._memory.take(batch, tick, here, gpus, at)
            if (more := errors > 0).any():
                self._single.take(gpus[more], at[more], before[more], errors[more])
            self._xids.take_gauge(gpus, at, reported(batch, XID_FIELD, tick, here))
        return ()

    def _grow(self, count: int) -> None:
        self._memory.grow(count)
        self._single.grow(count)
        self._xids.grow(count)

    def advance(self, now: Instant) -> Sequence[Finding]:
        """Decide: what is over, and what began."""
        self._layout.extend()
        self._grow(len(self._layout))
        found = self._uncorrectable(now)
        for fault, name in _GAUGES:
            found += self._gauge(now, fault, name)
        return [*found, *self._storms(now)]

    def _uncorrectable(self, now: Instant) -> list[Finding]:
        found: list[Finding] = []
        grown = self._memory.settle().tolist()
        for event in self._xids.drain(now):
            group = self._catalogue.of(event.code).group
            if group == "correctable_memory":
                self._complaint(event)
            elif group == "uncorrectable_memory" or event.gpu < 0:
                found += self._error(now, event.node, event.gpu, event)
            elif not event.again:
                self._recorded.setdefault(event.gpu, event)
        for gpu in grown:
            found += self._error(now, self._layout.names[self._layout.node[gpu]], gpu, self._recorded.get(gpu))
        self._memory.forget(np.array(grown, np.int64))
        found += self._wait_for_counters(now)
        return found + self._over(now)

    def _error(self, now: Instant, node: str, gpu: int, event: XidEvent | None) -> list[Finding]:
        """Raise an uncorrectable error, or note that an open one goes on."""
        memory = self._memory
        counted = gpu >= 0 and bool(memory.uncorrected_at[gpu] >= 0)
        last = max(event.at if event else -1, int(memory.uncorrected_last[gpu]) if counted else -1)
        if gpu >= 0:
            self._recorded.pop(gpu, None)
        held = self._book.get(_UNCORRECTABLE, self._layout.named(node, gpu))
        # A line whose address the topology doesn't know, and the gauge that tells of the same, are one event.
        whole = self._book.get(_UNCORRECTABLE, self._layout.named(node, WHOLE_NODE))
        if held is None and event is not None and event.again and whole is not None:
            held = whole
        xid = self._catalogue.of(event.code) if event is not None else None
        asks_reset = counted or (xid is not None and not xid.action[0].startswith(("RESTART_APP", "IGNORE")))
        if held is not None:
            held.last_at = max(held.last_at, last)
            held.memo["asks_reset"] = bool(held.memo["asks_reset"] or asks_reset)
            return []
        if event is not None and event.again and not counted:
            return []
        # The kernel's line has the time; the counters only say between which readings.
        timed = event is not None and (not counted or event.at >= int(memory.doubtful[gpu]))
        started_at = event.at if event is not None and timed else memory.onset(gpu)
        said = evidence.of_error(memory, gpu, event, xid)
        found = self._book.fire(
            now,
            _UNCORRECTABLE,
            self._layout.named(node, gpu),
            gpu=gpu,
            started_at=started_at,
            severity="page",
            score=1.0 if counted or (xid is not None and xid.group == "uncorrectable_memory") else 0.6,
            summary=evidence.words(in_words(self._layout.named(node, gpu)), said, xid),
            action=evidence.action(said, xid),
            evidence=said,
            memo={"asks_reset": asks_reset},
        )
        if (entry := self._book.get(_UNCORRECTABLE, self._layout.named(node, gpu))) is not None:
            entry.last_at = max(entry.last_at, last)
        return found

    def _wait_for_counters(self, now: Instant) -> list[Finding]:
        """Decide on remaps that were recorded: the counters that moved have spoken, so have those that did not."""
        found: list[Finding] = []
        for gpu, event in list(self._recorded.items()):
            if now - event.at < self._config.remap_wait_s * 1000:
                continue
            memory = self._memory
            counted = bool(np.isfinite(memory.double[gpu]) or np.isfinite(memory.lost_rows[gpu]))
            heard = memory.at[gpu] >= event.at
            if counted and not heard and now - event.at < _LONGEST_WAIT_MS:
                continue
            del self._recorded[gpu]
            if not (counted and heard):
                found += self._error(now, event.node, gpu, event)
        return found

    def _over(self, now: Instant) -> list[Finding]:
        over: list[Finding] = []
        for entry in self._book.cases(_UNCORRECTABLE):
            reset_at = -1
            if entry.gpu >= 0:
                reset_at = max(int(self._memory.reset_at[entry.gpu]), int(self._xids.cleared_at[entry.gpu]))
            lasting = entry.memo["asks_reset"] and entry.gpu >= 0
            if reset_at > entry.last_at:
                over.append(self._resolve(entry, now, "the GPU was reset"))
            elif not lasting and now - entry.last_at >= self._config.no_reset_quiet_s * 1000:
                over.append(self._resolve(entry, now, "no further error"))
        return over

    def _gauge(self, now: Instant, fault: Fault, name: str) -> list[Finding]:
        since: IntArray = getattr(self._memory, f"{name}_at")
        clear = getattr(self._memory, f"{name}_clear")
        is_set = np.flatnonzero(since >= 0)
        found: list[Finding] = []
        for gpu in is_set.tolist():
            node = self._layout.names[self._layout.node[gpu]]
            entry = self._book.get(fault, self._layout.named(node, gpu))
            if clear[gpu] >= self._config.clear_readings:
                since[gpu], clear[gpu] = -1, 0
                if entry is not None:
                    found.append(self._resolve(entry, now, "the gauge is 0 again"))
            elif entry is None:
                found += self._fire_gauge(now, fault, node, gpu, int(since[gpu]), is_set[is_set != gpu])
        return found

    def _fire_gauge(
        self, now: Instant, fault: Fault, node: str, gpu: int, at: Instant, others: IntArray
    ) -> list[Finding]:
        pending = fault == "row_remap_pending"
        where = in_words(self._layout.named(node, gpu))
        return self._book.fire(
            now,
            fault,
            self._layout.named(node, gpu),
            gpu=gpu,
            started_at=at,
            severity="ticket" if pending else "page",
            score=1.0,
            summary=f"{where}: a row remap waits for a reset" if pending else f"{where}: a row could not be remapped",
            action="reset the GPU as soon as its node is free"
            if pending
            else "drain the node and have the GPU replaced: its memory cannot be repaired any more",
            evidence=evidence.of_gauge(self._memory, gpu, others, at_start=bool(self._memory.first_at[gpu] == at)),
        )

    def _complaint(self, event: XidEvent) -> None:
        """Note that the driver itself complains of a GPU's rate of corrected errors."""
        if event.gpu >= 0:
            self._rate_xid[event.gpu] = event.at
            self._single.note(event.gpu, event.at)

    def _storms(self, now: Instant) -> list[Finding]:
        gpus = self._single.active(now)
        if not len(gpus):
            return []
        errors, spread = self._single.within(gpus, now)
        habit = self._single.habit(gpus, now)
        complained = now - np.array([self._rate_xid.get(gpu, -(2**40)) for gpu in gpus.tolist()], np.int64)
        told = complained <= self._config.storm_window_s * 1000
        enough = (errors >= self._config.storm_errors) & (spread >= self._config.storm_errors / 2)
        enough |= errors >= self._config.storm_burst_errors
        enough |= told & ((errors > 0) | np.isnan(self._memory.single[gpus]))
        storm = enough & (errors >= self._config.storm_habit_factor * habit)
        calm = self._single.lately(gpus, now) <= np.maximum(self._config.storm_errors / 12, 2 * habit)
        calm &= complained > self._config.storm_quiet_s * 1000
        storm &= ~calm
        everywhere = np.zeros(len(self._memory.single))
        everywhere[gpus] = errors
        reporting = np.isfinite(self._memory.single)
        if storm.any() and reporting.any():
            storm &= errors >= self._config.storm_peer_factor * float(np.median(everywhere[reporting]))
        found: list[Finding] = []
        for place in np.flatnonzero(self._single.calmed(gpus, calm, now)).tolist():
            found += self._storm_over(now, int(gpus[place]))
        for place in np.flatnonzero(storm & ~self._single.storming[gpus]).tolist():
            gpu = int(gpus[place])
            reporting[gpu] = False
            figures = (float(errors[place]), float(spread[place]), float(habit[place]))
            found += self._fire_storm(now, gpu, figures, everywhere[reporting])
            reporting[gpu] = bool(np.isfinite(self._memory.single[gpu]))
        return found

    def _storm_over(self, now: Instant, gpu: int) -> list[Finding]:
        self._single.over(gpu, now)
        self._rate_xid.pop(gpu, None)
        entry = self._book.get(_STORM, self._layout.named(self._layout.names[self._layout.node[gpu]], gpu))
        return [] if entry is None else [self._resolve(entry, now, "no more single-bit errors than usual")]

    def _fire_storm(
        self, now: Instant, gpu: int, figures: tuple[float, float, float], peers: FloatArray
    ) -> list[Finding]:
        errors, _, habit = figures
        node = self._layout.names[self._layout.node[gpu]]
        where, window_s = in_words(self._layout.named(node, gpu)), self._config.storm_window_s
        said = evidence.of_storm(self._memory, gpu, figures, peers, window_s)
        summary = f"{where}: {errors:.0f} single-bit memory errors in {window_s:.0f} s, usually {habit:.1f}"
        if gpu in self._rate_xid:
            said |= self._catalogue.of(92).evidence()
            summary += "; the driver complains of the rate, too (XID 92)"
        began = int(self._single.burst_at[gpu])
        self._single.storming[gpu] = True
        return self._book.fire(
            now,
            _STORM,
            self._layout.named(node, gpu),
            gpu=gpu,
            started_at=began if began >= 0 else now,
            severity="ticket",
            score=min(1.0, 0.5 + 0.1 * float(np.log2(max(errors / self._config.storm_errors, 1.0)))),
            summary=summary,
            action="watch for uncorrectable errors and a pending row remap; test the memory when the node is free",
            evidence=said,
        )

    def _resolve(self, entry: OpenCase, now: Instant, reason: str) -> Finding:
        said = self._memory.says(entry.gpu) if entry.gpu >= 0 else {}
        return self._book.resolve(entry, now, reason, said)

    def snapshot(self) -> bytes:
        """Return the whole state."""
        xids, arrays = self._xids.snapshot()
        document: dict[str, Any] = {
            "xids": xids,
            "book": self._book.snapshot(),
            "recorded": XidWatch.to_json(self._recorded.values()),
            "rate_xid": list(self._rate_xid.items()),
        }
        return pack(document, arrays | self._memory.arrays("memory_") | self._single.snapshot())

    @classmethod
    def restore(cls, config: DetectorConfig, fleet: Fleet, state: bytes) -> Self:
        """Return a detector that goes on exactly where `snapshot` was taken."""
        document, arrays = unpack(state)
        detector = cls(config, fleet)
        detector._layout.extend()
        detector._xids.load(document["xids"], arrays)
        detector._memory.load(arrays, "memory_")
        detector._single.load(arrays)
        detector._book.load(document["book"])
        detector._recorded = {event.gpu: event for event in XidWatch.from_json(document["recorded"])}
        detector._rate_xid = dict(document["rate_xid"])
        return detector
