"""A GPU that is gone: off the bus, its firmware silent, or no more telemetry of it while its node's others go on.

XID 79, 119 and 120 (and the driver's line about the bus without a code) decide at once. Silence decides after as
many scrapes of the node without this GPU as cannot be an accident, given how often its readings get lost; scrapes are
counted by the node's other GPUs, so that a node whose collector stops loses none. Most GPUs of a node silent at once
are the collector's or the board's matter. A node that was drained or rebooted on purpose before the silence began
loses none either, nor does a GPU that never reported; at the start and the end of a job patience is doubled. What
follows on the other GPUs (XID 43, 45, 13, 31) is not looked at.

When it is wrong: a GPU that is taken out of the collection on purpose, with no word from the scheduler, is called
lost; one that is lost with its whole node silent is found when the node is back; on a node with a single GPU only
the XIDs can tell.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np

from detectors.case_book import CaseBook, OpenCase, in_words
from detectors.contract import Batch, DetectorConfig, DetectorSpec, Evidence, Finding, Instant, LogRecord
from detectors.fleet import Fleet
from detectors.gpu_lost.config import GpuLostConfig
from detectors.gpu_lost.roll_call import RollCall, telling
from detectors.gpus import WHOLE_NODE, GpuLayout, reported
from detectors.scheduling import Scheduler
from detectors.spec import load_spec
from detectors.state import pack, unpack
from detectors.xid import Xid, XidCatalogue
from detectors.xid_watch import XID_FIELD, XidEvent, XidWatch

_EDGES_KEPT_MS = 3_600_000


class GpuLost:
    """See the module; the thresholds are in detector.yaml."""

    spec: ClassVar[DetectorSpec] = load_spec(__package__ or "")
    config_type: ClassVar[type[DetectorConfig]] = GpuLostConfig

    def __init__(self, config: DetectorConfig, fleet: Fleet) -> None:
        if not isinstance(config, GpuLostConfig):
            raise TypeError(f"{type(config).__name__} is not a GpuLostConfig")
        self._config = config
        self._fleet = fleet
        self._layout = GpuLayout(fleet)
        self._catalogue = XidCatalogue(config.xid_overrides)
        self._xids = XidWatch(self._catalogue.codes("gpu_lost"), self._layout)
        self._calls = RollCall(config)
        self._scheduler = Scheduler(fleet)
        self._book = CaseBook(self.spec.name)
        self._jobs: dict[str, tuple[str, ...]] = {}
        self._edges: dict[str, Instant] = {}
        """When a job last started or ended on a node."""

    def logs(self, records: Sequence[LogRecord]) -> Sequence[Finding]:
        """Take the kernel's lines about XIDs and the scheduler's about nodes; the next point of the grid decides."""
        self._xids.take_lines(records)
        self._scheduler.take(records)
        return ()

    def observe(self, batch: Batch) -> Sequence[Finding]:
        """Take note of who reports."""
        if not len(batch.entities):
            return ()
        self._grow(int(batch.entities.max()) + 1)
        signs = [name for name in self.spec.fields["dcgm"] if name != XID_FIELD]
        for tick, here in batch.ticks():
            gpus, at = batch.entities[here], batch.at[tick, here]
            self._xids.take_gauge(gpus, at, reported(batch, XID_FIELD, tick, here))
            alive = telling(*(reported(batch, name, tick, here) for name in signs))
            if not alive.all():
                gpus, at = gpus[alive], at[alive]
            self._calls.take(gpus, at)
        return ()

    def _grow(self, count: int) -> None:
        self._calls.grow(count)
        self._xids.grow(count)

    def advance(self, now: Instant) -> Sequence[Finding]:
        """Decide: who is gone, and who is back."""
        self._layout.extend()
        self._grow(len(self._layout))
        self._calls.settle(self._layout)
        self._note_jobs(now)
        found: list[Finding] = []
        for event in self._xids.drain(now):
            found += self._told(now, event)
        for gpu in self._calls.silent(self._layout).tolist():
            found += self._silent(now, gpu)
        return [*found, *self._back(now)]

    def _note_jobs(self, now: Instant) -> None:
        running = self._fleet.jobs
        if running.keys() == self._jobs.keys():
            return
        for job_id in running.keys() ^ self._jobs.keys():
            for node in running[job_id].nodes if job_id in running else self._jobs[job_id]:
                self._edges[node] = now
        self._jobs = {job_id: job.nodes for job_id, job in running.items()}
        self._edges = {node: at for node, at in sorted(self._edges.items()) if now - at <= _EDGES_KEPT_MS}

    def _told(self, now: Instant, event: XidEvent) -> list[Finding]:
        held = self._held(event.node, event.gpu)
        if held is not None:
            held.last_at = max(held.last_at, event.at)
            return []
        if event.again:
            return []
        xid = self._catalogue.of(event.code)
        where = in_words(self._layout.named(event.node, event.gpu))
        said: dict[str, float | int | str] = {"xid_seen_in": event.seen_in, **xid.evidence()}
        if event.text:
            said["xid_text"] = event.text
        if event.address:
            said["pci_bus_id"] = event.address
        return self._fire(
            now, event.node, event.gpu, event.at, 1.0, f"{where}: XID {xid.code}, {xid.meaning}", said, xid
        )

    def _silent(self, now: Instant, gpu: int) -> list[Finding]:
        node = self._layout.names[self._layout.node[gpu]]
        held = self._held(node, gpu)
        if held is not None:
            held.memo["silent"] = True
            return []
        last = int(self._calls.last[gpu])
        # Drained before it fell silent is maintenance; drained because it fell silent is not.
        word = self._scheduler.on_purpose(node, now)
        if word is not None and word.at <= int(self._calls.missing_at[gpu]):
            return []
        edge = self._edges.get(node)
        near = edge is not None and abs(edge - last) <= self._config.job_edge_s * 1000
        patience = int(self._calls.patience(np.array([gpu]))[0])
        missed = int(self._calls.missed[gpu])
        if near and missed < 2 * patience:
            return []
        where = in_words(self._layout.named(node, gpu))
        said: dict[str, float | int | str] = {
            "missed_scrapes": missed,
            "missed_scrapes_allowed": patience,
            "silent_s": (now - last) / 1000,
        }
        summary = f"{where}: no telemetry for {missed} scrapes, while the node's other GPUs report"
        return self._fire(now, node, gpu, self._calls.began(gpu), 0.8, summary, said, None)

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
        said: Evidence,
        xid: Xid | None,
    ) -> list[Finding]:
        answering, known = self._calls.mates(self._layout, node, now)
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
            evidence={**said, **figures, **who},
            memo={"silent": xid is None},
        )

    def _back(self, now: Instant) -> list[Finding]:
        over: list[Finding] = []
        calls, config = self._calls, self._config
        for entry in self._book.cases():
            if entry.gpu == WHOLE_NODE:
                if now - entry.last_at >= config.quiet_s * 1000:
                    over.append(self._book.resolve(entry, now, "no further word of it"))
                continue
            gpu = entry.gpu
            answers = bool(calls.missed[gpu] == 0) and bool(calls.answered[gpu] >= config.back_readings)
            if not answers or calls.last[gpu] <= entry.last_at:
                continue
            since = int(calls.answers_at[gpu])
            returned = entry.memo["silent"] or bool(calls.returned_at[gpu] > entry.last_at)
            if not entry.memo["silent"]:
                since = max(int(calls.returned_at[gpu]), int(self._xids.cleared_at[gpu]))
            cleared = bool(self._xids.cleared_at[gpu] > entry.last_at)
            quiet = now - entry.last_at >= config.quiet_s * 1000
            if ((returned or cleared) and now - since >= config.back_s * 1000) or quiet:
                reason = "it reports again" if returned else "it was reset" if cleared else "it reports, nothing new"
                over.append(self._book.resolve(entry, now, reason, {"readings_since": int(calls.answered[gpu])}))
        return over

    def snapshot(self) -> bytes:
        """Return the whole state."""
        xids, arrays = self._xids.snapshot()
        document: dict[str, Any] = {
            "xids": xids,
            "book": self._book.snapshot(),
            "scheduler": self._scheduler.snapshot(),
            "jobs": list(self._jobs.items()),
            "edges": self._edges,
        }
        return pack(document, arrays | self._calls.arrays("call_"))

    @classmethod
    def restore(cls, config: DetectorConfig, fleet: Fleet, state: bytes) -> Self:
        """Return a detector that goes on exactly where `snapshot` was taken."""
        document, arrays = unpack(state)
        detector = cls(config, fleet)
        detector._layout.extend()
        detector._xids.load(document["xids"], arrays)
        detector._calls.load(arrays, "call_")
        detector._scheduler.load(document["scheduler"])
        detector._book.load(document["book"])
        detector._jobs = {job_id: tuple(nodes) for job_id, nodes in document["jobs"]}
        detector._edges = document["edges"]
        return detector
