"""A GPU that is gone: off the bus, its firmware silent, or no more telemetry of it while its node's others go on.

XID 79, 119 and 120 (and the driver's line about the bus without a code) decide at once, as do the others for which
NVIDIA's catalogue asks for a reset, for support or for a look at the power cable (46, 54, 62, 109 ...). Silence decides
when a GPU that was at work is missing from its node's scrapes for longer than one collection of dcgm-exporter, and than
readings of single GPUs are ever lost here; rows without a reading, or full of zeros, are silence. Scrapes are counted
by the node's other GPUs, so that a node whose collector stops loses none. Most GPUs of a node silent at once are the
collector's or the board's matter. A GPU without work may be reset or split (MIG), and after a silence of the whole node
(a restart of the exporter, a reload of the driver) GPUs come back one by one: those are reported after five minutes. A
node that was drained or rebooted on purpose before loses none, nor does a GPU that never reported. What follows on
the other GPUs (XID 43, 45, 13, 31) is not looked at.

When it is wrong: a GPU that is taken out of the collection on purpose, with no word from the scheduler, is called
lost; one that is lost with its whole node silent is found when the node is back; on a node with a single GPU only
the XIDs can show it.
"""

from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np

from detectors.base import BaseDetector
from detectors.case_book import OpenCase, in_words
from detectors.contract import Batch, DetectorConfig, DetectorSpec, Evidence, Finding, Instant, LogRecord
from detectors.fleet.fleet import Fleet
from detectors.fleet.gpus import WHOLE_NODE, GpuLayout
from detectors.fleet.lapses import Lapses
from detectors.fleet.scheduling import Scheduler
from detectors.fleet.tenancy import Tenancy
from detectors.gpu_lost.config import GpuLostConfig
from detectors.gpu_lost.roll_call import UNSURE_MS, RollCall
from detectors.signals.xid import Xid, XidCatalogue
from detectors.signals.xid_watch import XidEvent, XidWatch
from detectors.spec import load_spec

_BACK_READINGS, _BACK_MS = 3, 60_000
"""A GPU is back after so many readings, and so long: one that comes and goes within a minute is one event."""

_QUIET_MS: Final = 1_800_000
"""Physics: the driver repeats XID 119 every few minutes while it lasts (3 in gpud's dmesg of one); ten times that."""


class GpuLost(BaseDetector):
    """See the module; the thresholds are in detector.yaml."""

    spec: ClassVar[DetectorSpec] = load_spec(__package__ or "")
    config_type: ClassVar[type[DetectorConfig]] = GpuLostConfig

    KEPT = ("_xids", "_calls", "_scheduler", "_tenancy")
    _config: GpuLostConfig

    def __init__(self, config: DetectorConfig, fleet: Fleet) -> None:
        super().__init__(config, fleet)
        # In a case's memo: `silent`, whether the GPU fell silent.
        self._layout = GpuLayout(fleet)
        self._catalogue = XidCatalogue(self._config.xid_overrides)
        self._xids = XidWatch(self._catalogue.codes("gpu_lost"), self._layout)
        self._calls = RollCall(self._config, self._layout, Lapses(self.tails["readings of single GPUs lost"]))
        self._scheduler = Scheduler(fleet)
        self._tenancy = Tenancy(fleet)

    def logs(self, records: Sequence[LogRecord]) -> Sequence[Finding]:
        """Take the kernel's lines about XIDs and the scheduler's about nodes; the next point of the grid decides."""
        self._xids.take_lines(records)
        self._scheduler.take(records)
        return ()

    def observe(self, batch: Batch) -> Sequence[Finding]:
        """Take note of who reports."""
        if not len(batch.entities):
            return ()
        self._grow(batch.reach)
        for tick, here in batch.ticks():
            self._xids.take(batch, tick, here)
            self._calls.take(batch, tick, here)
        return ()

    def _grow(self, count: int) -> None:
        self._calls.grow(count)
        self._xids.grow(count)

    def advance(self, now: Instant) -> Sequence[Finding]:
        """Decide: who is gone, and who is back."""
        self._layout.extend()
        self._grow(len(self._layout))
        self._tenancy.note(now)
        lost = [case.gpu for case in self._book.cases() if case.gpu != WHOLE_NODE]
        self._calls.settle(now, np.array(lost, np.int64))
        found: list[Finding] = []
        for event in self._xids.drain(now):
            found += self._stated(now, event)
        for gpu in self._calls.silent(self._config.false_alarms_per_100_node_days).tolist():
            found += self._silent(now, gpu)
        return [*found, *self._back(now)]

    def _stated(self, now: Instant, event: XidEvent) -> list[Finding]:
        held = self._held(event.node, event.gpu)
        if held is not None:
            held.last_at = max(held.last_at, event.at)
            return []
        if event.again:
            return []
        xid = self._catalogue.of(event.code)
        where = in_words(self._layout.named(event.node, event.gpu))
        evidence: dict[str, float | int | str] = {"xid_seen_in": event.seen_in, **xid.evidence()}
        if event.text:
            evidence["xid_text"] = event.text
        if event.address:
            evidence["pci_bus_id"] = event.address
        return self._fire(
            now, event.node, event.gpu, event.at, 1.0, f"{where}: XID {xid.code}, {xid.meaning}", evidence, xid
        )

    def _silent(self, now: Instant, gpu: int) -> list[Finding]:
        node = self._layout.names[self._layout.node[gpu]]
        held = self._held(node, gpu)
        if held is not None:
            held.memo["silent"] = True
            return []
        began = self._calls.began(gpu)
        # Drained before it fell silent is maintenance; drained because it fell silent is not.
        word = self._scheduler.on_purpose(node, now)
        if word is not None and word.at <= began:
            return []
        missing_ms = float(self._calls.missing_ms([gpu])[0])
        if missing_ms < UNSURE_MS and not self._at_work(node, gpu):
            return []
        scrapes = int(self._calls.missed[gpu])
        where = in_words(self._layout.named(node, gpu))
        evidence: dict[str, float | int | str] = {
            "missed_scrapes": scrapes,
            "silent_s": (now - int(self._calls.last[gpu])) / 1000,
        }
        summary = f"{where}: no telemetry for {scrapes} scrapes, while the node's other GPUs report"
        return self._fire(now, node, gpu, began, 0.8, summary, evidence, None)

    def _at_work(self, node: str, gpu: int) -> bool:
        """Return whether a silent GPU was busy when it last reported, or had a job, or its node had one till then."""
        if self._calls.worked[gpu] or self._fleet.job_of(node, int(self._layout.gpu[gpu])) is not None:
            return True
        alone = self._fleet.job_of(node) is None
        return alone and self._tenancy.job(node, int(self._calls.last[gpu])) is not None

    def _held(self, node: str, gpu: int) -> OpenCase | None:
        """Return the open finding on a GPU; or on its node, where the kernel's line could not be placed."""
        return self._book.get("gpu_lost", self._layout.named(node, gpu)) or self._book.get(
            "gpu_lost", self._layout.named(node, WHOLE_NODE)
        )

    def _fire(
        self,
        now: Instant,
        node: str,
        gpu: int,
        started_at: Instant,
        score: float,
        summary: str,
        evidence: Evidence,
        xid: Xid | None,
    ) -> list[Finding]:
        answering, known = self._calls.mates(node, now)
        figures = {"node_gpus_reporting": answering, "node_gpus_known": known}
        if known and answering == 0:
            figures["node_silent"] = 1
        job = self._fleet.job_of(node, int(self._layout.gpu[gpu]) if gpu >= 0 else None)
        who = {"job_id": job.job_id} if job is not None else {}
        action = "drain the node and restart it with a power cycle; if the GPU does not come back, reseat or replace it"
        if xid is not None:
            action += f" (XID {xid.code}: {xid.action[0]}, by {xid.action[1]})"
        return self._book.fire(
            now,
            "gpu_lost",
            self._layout.named(node, gpu),
            gpu=gpu,
            started_at=started_at,
            severity="page",
            score=score,
            summary=summary,
            action=action,
            evidence={**evidence, **figures, **who},
            memo={"silent": xid is None},
        )

    def _back(self, now: Instant) -> list[Finding]:
        over: list[Finding] = []
        calls = self._calls
        for entry in self._book.cases():
            quiet = now - entry.last_at >= _QUIET_MS
            if entry.gpu == WHOLE_NODE:
                if quiet:
                    over.append(self._book.resolve(entry, now, "no further word of it"))
                continue
            gpu = entry.gpu
            answers = bool(calls.missed[gpu] == 0) and bool(calls.answered[gpu] >= _BACK_READINGS)
            if not answers or calls.last[gpu] <= entry.last_at:
                continue
            since = int(calls.answers_at[gpu])
            returned = entry.memo["silent"] or bool(calls.returned_at[gpu] > entry.last_at)
            if not entry.memo["silent"]:
                since = max(int(calls.returned_at[gpu]), int(self._xids.cleared_at[gpu]))
            cleared = bool(self._xids.cleared_at[gpu] > entry.last_at)
            if ((returned or cleared) and now - since >= _BACK_MS) or quiet:
                reason = "it reports again" if returned else "it was reset" if cleared else "it reports, nothing new"
                over.append(self._book.resolve(entry, now, reason, {"readings_since": int(calls.answered[gpu])}))
        return over

    def restored(self) -> None:
        """Find again where every GPU is."""
        self._layout.extend()
