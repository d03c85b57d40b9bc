"""Errors of GPU memory: uncorrectable ones, storms of corrected ones, rows that wait for a remap or cannot have one.

Stated, and reported at once: an XID (48, 94, 95, 140, ...) in the kernel's log or in DCGM's field, a count of
double-bit errors or of rows remapped for uncorrectable errors that grows, the flags of pending and failed remaps, XID
63 and 64 (which are these two flags in words) and XID 92 (the driver's own word on the rate of corrected errors).
Lines, field and counters of one event are one finding; an uncorrectable error stays open until the GPU is seen to be
reset, or to have been away. A counter that is already at 7 when the telemetry begins is history; a flag that is already
set is a fault, for it still asks for a reset. XID 63 says that a row or, on Volta, a page was recorded for replacement:
a remap that waits for a reset, beside the uncorrectable error that it may come with, unless the flag, where it is read,
stays clear. Rows counted as given up for corrected errors are information: applications go on unaffected (NVIDIA, GPU
Memory Error Management), and it is the flag that asks for a reset.

Inferred: a storm of corrected errors, from evidence that its GPU's habit, its peers and chance do not explain
(`detectors.core.counting`), and by Delta's mean event more of them within some minutes than the GPU ever came back from
by itself. It slows nothing; it announces the row that will fail, hence a ticket. A GPU that has always corrected some,
or whose storm is back and no larger, is reported once, as information.

When it is wrong: errors that a GPU begins to have for good, and in number, are a storm until they are a habit; one that
pauses, and goes on for no longer than before, is no ticket after its pause; a storm that began before the telemetry is
taken for one; an uncorrectable error that needs a reset stays open when the reset leaves no trace in the telemetry.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import Field

from detectors.case_book import CaseBook, OpenCase, in_words
from detectors.contract import Batch, DetectorConfig, DetectorSpec, Fault, Finding, Instant, LogRecord, Severity
from detectors.core.counting import Bursts
from detectors.core.tails import Tails
from detectors.ecc_memory.readings import MemoryReadings
from detectors.ecc_memory.storms import STORM, Bouts, Storms, line_evidence
from detectors.engine.state import pack, unpack
from detectors.fleet.fleet import Fleet
from detectors.fleet.gpus import WHOLE_NODE, GpuLayout
from detectors.signals.xid import Xid, XidCatalogue
from detectors.signals.xid_watch import XidEvent, XidWatch
from detectors.spec import load_spec

_UNCORRECTABLE: Fault = "ecc_uncorrectable"
_ROWS = "rows"
_CLEAR_READINGS = 2
"""A flag that is 0 once may be the collector's blank of a GPU in reset."""
_QUIET_MS = 3_600_000
"""What asks for no reset (a contained error), or whose GPU cannot be watched, is over when it stays away for an
hour."""
_FLAGS: dict[Fault, tuple[str, Severity, str, str]] = {
    "row_remap_pending": (
        "pending", "ticket", "a row remap waits for a reset", "reset the GPU as soon as its node is free",
    ),
    "row_remap_failure": (
        "failure", "page", "a row could not be remapped",
        "drain the node and have the GPU replaced: its memory cannot be repaired any more",
    ),
}  # fmt: skip
_ACTIONS = {
    "restart_app": "restart the application; reset the GPU when the node is free",
    "replace": "drain the node and have the GPU replaced: it has no rows left to remap to",
}
_RESET = "drain the node and reset the GPU"


class EccMemoryConfig(DetectorConfig):
    """What can be set; the defaults, with unit and source of each, are in detector.yaml."""

    storm_errors: int = Field(ge=1)


class EccMemory:
    """See the module."""

    spec: ClassVar[DetectorSpec] = load_spec(__package__ or "")
    config_type: ClassVar[type[DetectorConfig]] = EccMemoryConfig

    def __init__(self, config: DetectorConfig, fleet: Fleet) -> None:
        if not isinstance(config, EccMemoryConfig):
            raise TypeError(f"{type(config).__name__} is not an EccMemoryConfig")
        self._config = config
        self._layout = GpuLayout(fleet)
        self._catalogue = XidCatalogue(config.xid_overrides)
        codes = self._catalogue.codes("uncorrectable_memory", "remap_recorded", "remap_failed", "correctable_memory")
        self._xids = XidWatch(codes, self._layout)
        self._memory = MemoryReadings()
        self.tails = Tails(config.calibration)
        self._single = Bursts("single-bit errors", self.tails, config.false_alarms_per_100_node_days).along("dcgm")
        self._book = CaseBook(self.spec.name)
        self._bouts = Bouts()
        self._storms = Storms(config.storm_errors, self._layout, self._memory, self._single, self._bouts, self._book)

    def logs(self, records: Sequence[LogRecord]) -> Sequence[Finding]:
        """Take the kernel's lines about XIDs; what follows from them is decided at the next point of the grid."""
        self._xids.take_lines(records)
        return ()

    def observe(self, batch: Batch) -> Sequence[Finding]:
        """Take readings."""
        self._grow(batch.reach)
        for tick, here in batch.ticks():
            self._memory.take(batch, tick, here, self._single.counter)
            self._xids.take(batch, tick, here)
        return ()

    def _grow(self, count: int) -> None:
        for part in (self._memory, self._single, self._bouts, self._xids):
            part.grow(count)

    def advance(self, now: Instant) -> Sequence[Finding]:
        """Decide: what is over, and what began."""
        self._layout.extend()
        self._grow(len(self._layout))
        found: list[Finding] = []
        recorded: list[XidEvent] = []
        for event in self._xids.drain(now):
            group = self._catalogue.of(event.code).group
            if group == "uncorrectable_memory":
                found += self._error(now, event.node, event.gpu, event)
            elif group == "correctable_memory":
                found += self._storms.complaint(now, event, self._catalogue.of(event.code))
            elif group == "remap_failed":
                found += self._remap(now, "row_remap_failure", event)
            else:
                recorded.append(event)
        grown = np.flatnonzero(self._memory.uncorrected_at >= 0)
        for gpu in grown.tolist():
            found += self._error(now, self._layout.names[self._layout.node[gpu]], gpu, None)
        self._memory.forget(grown)
        for event in recorded:
            found += self._remap(now, "row_remap_pending", event)
        found += self._worn(now)
        for fault in _FLAGS:
            found += self._flag(now, fault)
        return [*found, *self._over(now), *self._storms.advance(now)]

    def _error(self, now: Instant, node: str, gpu: int, event: XidEvent | None) -> list[Finding]:
        """Raise an uncorrectable error, or note that an open one goes on."""
        memory, where = self._memory, self._layout.named(node, gpu)
        counted = gpu >= 0 and bool(memory.uncorrected_at[gpu] >= 0)
        last = max(event.at if event else -1, int(memory.uncorrected_last[gpu]) if counted else -1)
        xid = self._catalogue.of(event.code) if event is not None else None
        held = self._book.get(_UNCORRECTABLE, where)
        if held is None and event is not None and event.again:
            # A line whose address the topology doesn't know, and the field that reports the same, are one event.
            held = self._book.get(_UNCORRECTABLE, self._layout.named(node, WHOLE_NODE))
        asks_reset = xid is None or xid.ours != "restart_app"
        if held is not None:
            held.last_at = max(held.last_at, last)
            held.memo["asks_reset"] = bool(held.memo["asks_reset"] or asks_reset)
            return []
        if event is not None and event.again and not counted:
            return []
        # The kernel's line has the time; the counters only say between which readings.
        timed = event is not None and (not counted or event.at >= int(memory.doubtful[gpu]))
        evidence = self._says(gpu, event, xid)
        if counted:
            evidence["new_uncorrectable_errors"] = float(memory.uncorrected[gpu])
        step = "replace" if evidence.get("row_remap_failure") == 1 else xid.ours if xid else "reset"
        quoted = f" ({xid.quoted})" if xid is not None and step == xid.ours else ""
        if xid is not None:
            what = f"uncorrectable memory error, XID {xid.code} ({xid.meaning})"
        else:
            count = float(memory.uncorrected[gpu])
            what = f"{count:.0f} uncorrectable memory error{'s' if count > 1 else ''} by its counters"
        found = self._book.fire(
            now,
            _UNCORRECTABLE,
            where,
            gpu=gpu,
            started_at=event.at if event is not None and timed else memory.onset(gpu),
            severity="page",
            score=1.0,
            summary=f"{in_words(where)}: {what}",
            action=_ACTIONS.get(step, _RESET) + quoted,
            evidence=evidence,
            memo={"asks_reset": asks_reset},
        )
        if (entry := self._book.get(_UNCORRECTABLE, where)) is not None:
            entry.last_at = max(entry.last_at, last)
        return found

    def _says(self, gpu: int, event: XidEvent | None, xid: Xid | None) -> dict[str, float | int | str]:
        evidence = self._memory.says(gpu, self._single.counter) if gpu >= 0 else {}
        return evidence | line_evidence(event, xid) if event is not None and xid is not None else evidence

    def _remap(self, now: Instant, fault: Fault, event: XidEvent) -> list[Finding]:
        """Raise what XID 63 or 64 says in words; 63 only where no flag says more."""
        where = self._layout.named(event.node, event.gpu)
        if event.again:
            return []
        if fault == "row_remap_pending":
            if event.gpu >= 0 and self._memory.pending_known[event.gpu]:
                return []
            if (error := self._book.get(_UNCORRECTABLE, where)) is not None:
                error.memo["asks_reset"] = True
        xid = self._catalogue.of(event.code)
        evidence = self._says(event.gpu, event, xid)
        if event.gpu >= 0 and not self._memory.failure_known[event.gpu] and fault == "row_remap_failure":
            evidence["row_remap_failure"] = "not reported"
        _, severity, words, action = _FLAGS[fault]
        return self._book.fire(
            now,
            fault,
            where,
            gpu=event.gpu,
            started_at=event.at,
            severity=severity,
            score=0.9,
            summary=f"{in_words(where)}: {words}, XID {xid.code} ({xid.meaning})",
            action=f"{action} ({xid.quoted})",
            evidence=evidence,
            memo={"by": "xid"},
        )

    def _worn(self, now: Instant) -> list[Finding]:
        """Note, as information, that rows are counted as given up for corrected errors, where there is no flag."""
        found: list[Finding] = []
        for gpu in np.flatnonzero((self._memory.worn > 0) & ~self._memory.pending_known).tolist():
            where = self._layout.entity(gpu)
            found += self._book.fire(
                now,
                "row_remap_pending",
                where,
                gpu=gpu,
                started_at=int(self._memory.at[gpu]),
                severity="info",
                score=0.1,
                summary=f"{in_words(where)}: {self._memory.worn[gpu]:.0f} more rows given up for corrected errors",
                action="none: the next reset replaces them",
                evidence=self._says(gpu, None, None) | {"row_remap_pending": "not reported"},
                aspect=_ROWS,
            )
        self._memory.worn[:] = 0.0
        return found

    def _flag(self, now: Instant, fault: Fault) -> list[Finding]:
        """Take a flag as it is set and cleared."""
        name, severity, words, action = _FLAGS[fault]
        since, clear = getattr(self._memory, f"{name}_at"), getattr(self._memory, f"{name}_clear")
        is_set = np.flatnonzero(since >= 0)
        found: list[Finding] = []
        for gpu in is_set.tolist():
            where = self._layout.entity(gpu)
            entry = self._book.get(fault, where)
            if clear[gpu] >= _CLEAR_READINGS:
                since[gpu], clear[gpu] = -1, 0
                if entry is not None:
                    found.append(self._resolve(entry, now, "the flag is 0 again"))
            elif entry is None:
                at_start = int(self._memory.first_at[gpu] == since[gpu])
                found += self._book.fire(
                    now,
                    fault,
                    where,
                    gpu=gpu,
                    started_at=int(since[gpu]),
                    severity=severity,
                    score=1.0,
                    summary=f"{in_words(where)}: {words}",
                    action=action,
                    evidence=self._says(gpu, None, None)
                    | {"other_gpus_with_the_same": len(is_set) - 1, "set_since_first_reading": at_start},
                    memo={"by": "flag"},
                )
            else:
                entry.memo["by"] = "flag"
        return found

    def _over(self, now: Instant) -> list[Finding]:
        """Resolve what a reset has ended, or what has no reset to wait for and stays away."""
        over: list[Finding] = []
        for entry in self._book.cases():
            if entry.fault == STORM or entry.memo.get("by") == "flag":
                continue
            reset_at = -1
            if entry.gpu >= 0:
                reset_at = max(int(self._memory.reset_at[entry.gpu]), int(self._xids.cleared_at[entry.gpu]))
            asks_reset = entry.memo.get("asks_reset", True) and entry.gpu >= 0
            if reset_at > entry.last_at:
                over.append(self._resolve(entry, now, "the GPU was reset"))
            elif not asks_reset and now - entry.last_at >= _QUIET_MS:
                over.append(self._resolve(entry, now, "no further error"))
        return over

    def _resolve(self, entry: OpenCase, now: Instant, reason: str) -> Finding:
        figures = self._memory.says(entry.gpu, self._single.counter) if entry.gpu >= 0 else {}
        return self._book.resolve(entry, now, reason, figures)

    def snapshot(self) -> bytes:
        """Return the whole state."""
        xids, arrays = self._xids.snapshot()
        document: dict[str, Any] = {
            "xids": xids,
            "book": self._book.snapshot(),
            "tails": self.tails.document(),
        }
        return pack(
            document,
            arrays | self._memory.arrays("memory_") | self._single.arrays("single_") | self._bouts.arrays("bouts_"),
        )

    @classmethod
    def restore(cls, config: DetectorConfig, fleet: Fleet, state: bytes) -> Self:
        """Return a detector that goes on exactly where `snapshot` was taken."""
        document, arrays = unpack(state)
        detector = cls(config.model_copy(update={"calibration": {}}), fleet)
        detector._layout.extend()
        detector._xids.load(document["xids"], arrays)
        detector._memory.load(arrays, "memory_")
        detector._single.load(arrays, "single_")
        detector._bouts.load(arrays, "bouts_")
        detector.tails.merge(document["tails"])
        detector._book.load(document["book"])
        return detector
