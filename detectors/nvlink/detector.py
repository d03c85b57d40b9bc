"""NVLink faults: error counters that grow, XIDs 74 and 144 to 150, fatal lines of the switches, lost bandwidth.

Stated, and reported at once: fatal lines of switches and fabric manager, XIDs, links that were retrained again and
again, or with errors beside it, and CRC errors at a rate that DCGM calls a failure. Inferred, by evidence within the
budget of false alarms: errors far more often than this GPU's habit and its peers' (`detectors.core.counting`;
corrected, so a ticket: the link will fail; replays, or a CRC error a second and more: fewer cost nothing), and traffic
below 0.85 of its peers' in the job, of its own before, and for what its memory does (`detectors.core.shares`), which
is the effect on the work. What several GPUs of a node show at once is between them: one finding on the node, as for
the switches and the fabric manager. Errors on a node that has just lost a GPU are its victims'. GPUs that report no
NVLink fields have no NVLink.

When it is wrong: a job that moves its traffic from one GPU to others in the middle of its life looks like lost
bandwidth; a link that was bad before its job began, and counts nothing, is not seen, nor one that slows all of a ring
alike; an XID 74 alone stays open for three hours when the reset leaves no trace in the telemetry.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import Field

from detectors.case_book import CaseBook, OpenCase, in_words
from detectors.contract import Batch, DetectorConfig, DetectorSpec, Finding, Instant, LogRecord, Severity
from detectors.core import counting, shares
from detectors.core.evidence import odds_in_words
from detectors.core.survivors import Survivors
from detectors.core.tails import Tails
from detectors.engine.state import pack, unpack
from detectors.fleet.fleet import Fleet
from detectors.fleet.gpus import WHOLE_NODE, GpuLayout, reported
from detectors.nvlink.carried import Carried
from detectors.nvlink.errors import LinkErrors
from detectors.nvlink.lines import details, fabric_line
from detectors.signals.effort import effort
from detectors.signals.energy import Energy
from detectors.signals.xid import XidCatalogue, is_fatal
from detectors.signals.xid_watch import KERNEL, XidEvent, XidWatch
from detectors.spec import load_spec

_SENT, _RECEIVED = "DCGM_FI_PROF_NVLINK_TX_BYTES", "DCGM_FI_PROF_NVLINK_RX_BYTES"
_BOTH, _ENERGY = "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
_UTILISATION, _MEMORY, _COPIES = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_DEV_MEM_COPY_UTIL"
_LONGEST_PENDING_LINES = 1000
_MB = 1e6
_LEAST_MB_S = 1000.0
"""Where peers carry less than 1 GB/s there is no traffic worth comparing. The
unit of the counter on dcgm-exporter's default list is not stated; it is taken for MB (`carried`)."""
_TAKES_PART = 0.05
"""All GPUs of a collective move alike; a link that is lost leaves the others (17 of 18), and without any NCCL stops."""
_BUSY = 50.0
_COALESCE_MS = 2000
"""Lines of one event come within a second or two; what else they name is waited for."""
_GRID_MS = 5000
"""A call off the grid is the last one: nothing is waited for any more."""
_LOST_GPU_MS = 120_000
"""A GPU that falls off the bus takes its partners' links down; those errors are its victims'."""
_SEVERAL = 2
_QUIET_MS, _RETURNED_QUIET_MS, _RETURN_MS = 240_000, 600_000, 3_600_000
"""Links err in bouts: four minutes apart they are one, as long as a resolve within five minutes allows. Errors that are
back within the hour are the same trouble, and must stay away for ten minutes then."""
_WELL_LOOKS = 4
_STICKY_MS = 10_800_000
"""NVSentinel merges XID 74 within 3 h; a line alone, with no counter beside it, is over then unless a reset is seen."""


class NvlinkConfig(DetectorConfig):
    """What can be set; the defaults, with unit and source of each, are in detector.yaml."""

    traffic_left: float = Field(gt=0, lt=1)


@dataclass(slots=True)
class _Sign:
    """A reason to raise a finding on a GPU (or `WHOLE_NODE`): since when, seen when, of which kind, in which words."""

    node: str
    gpu: int
    onset: Instant
    seen_at: Instant
    kind: str
    """``line``, ``xid``, ``counters`` or ``traffic``."""
    code: int = 0
    text: str = ""
    seen_in: str = ""


class Nvlink:
    """See the module."""

    spec: ClassVar[DetectorSpec] = load_spec(__package__ or "")
    config_type: ClassVar[type[DetectorConfig]] = NvlinkConfig

    def __init__(self, config: DetectorConfig, fleet: Fleet) -> None:
        if not isinstance(config, NvlinkConfig):
            raise TypeError(f"{type(config).__name__} is not an NvlinkConfig")
        self._fleet = fleet
        self._layout = GpuLayout(fleet)
        self._catalogue = XidCatalogue(config.xid_overrides)
        watched = self._catalogue.codes("nvlink", "nvlink_leveled", "gpu_lost")
        self._xids = XidWatch(watched, self._layout)
        self.tails = Tails(config.calibration)
        budget = config.false_alarms_per_100_node_days / 2
        self._errors = LinkErrors(self.tails, budget)
        self._traffic = shares.Shares(
            self.tails["NVLink traffic"], budget, ratio=config.traffic_left, least=_LEAST_MB_S, peaks=False,
            takes_part=_TAKES_PART,
        ).along("dcgm")  # fmt: skip
        self._carried, self._energy = Carried(), Energy().along("dcgm")
        self._book = CaseBook(self.spec.name, _RETURN_MS)
        self._lines: list[tuple[Instant, str, str, str, int]] = []
        self._waiting: list[_Sign] = []
        self._lost_gpu: dict[str, Instant] = {}

    def logs(self, records: Sequence[LogRecord]) -> Sequence[Finding]:
        """Take lines of the kernel and the fabric manager; what follows is decided at the next point of the grid."""
        self._xids.take_lines(records)
        for record in records:
            line = fabric_line(record)
            if line is not None and record.node is not None and len(self._lines) < _LONGEST_PENDING_LINES:
                self._lines.append((record.at, record.node, line.text, line.address or "", line.code or 0))
        return ()

    def observe(self, batch: Batch) -> Sequence[Finding]:
        """Take readings."""
        self._grow(batch.reach)
        for tick, here in batch.ticks():
            self._errors.take(batch, tick, here)
            self._xids.take(batch, tick, here)
            sent, received = reported(batch, _SENT, tick, here), reported(batch, _RECEIVED, tick, here)
            moved = np.where(np.isnan(both := sent + received), np.fmax(sent, received), both) / _MB
            gpus, at = batch.entities[here], batch.at[tick, here]
            moved = self._carried.beside(gpus, at, reported(batch, _BOTH, tick, here), moved)
            idle = reported(batch, _UTILISATION, tick, here) < _BUSY
            where = batch.index(here, len(self._traffic))
            stale = self._energy.stands(where, reported(batch, _ENERGY, tick, here))
            memory = reported(batch, _MEMORY, tick, here)
            # A GPU at work whose memory is not used at all: its profiling counters are paused, and read zero.
            paused = memory == 0
            # None at all is little, too: links that are down carry nothing.
            moved = np.where(idle | stale | paused, np.nan, np.maximum(moved, 1.0))
            copies = reported(batch, _COPIES, tick, here) / 100
            busy = np.where(np.isnan(memory), copies, memory)
            self._traffic.take(where, moved, effort(batch, tick, here, busy))
        return ()

    def go_on_with(self, survivors: Survivors) -> None:
        """Give the GPUs of what waits, and of what is open, new numbers."""
        self._waiting = [sign for sign in self._waiting if sign.node not in survivors.names("machine")]
        for sign in self._waiting:
            sign.gpu = survivors.number("dcgm", sign.gpu)
        for case in self._book.cases():
            numbers = (survivors.number("dcgm", gpu) for gpu in case.memo["gpus"])
            case.memo["gpus"] = [gpu for gpu in numbers if gpu != WHOLE_NODE]

    def _grow(self, count: int) -> None:
        for part in (self._errors, self._traffic, self._carried, self._energy, self._xids):
            part.grow(count)

    def advance(self, now: Instant) -> Sequence[Finding]:
        """Decide: what is over, and what began."""
        self._layout.extend()
        self._grow(len(self._layout))
        self._gather(now)
        self._lost_gpu = {node: at for node, at in self._lost_gpu.items() if now - at <= _LOST_GPU_MS}
        found: list[Finding] = []
        ripe: dict[str, list[_Sign]] = {}
        for sign in self._waiting:
            ripe.setdefault(sign.node, []).append(sign)
        self._waiting = []
        for node, signs in sorted(ripe.items()):
            if now - min(sign.seen_at for sign in signs) < _COALESCE_MS and now % _GRID_MS == 0:
                self._waiting += signs
            else:
                found += self._judge(now, node, signs)
        return [*found, *self._over(now)]

    def _gather(self, now: Instant) -> None:
        """Collect the signs since the last call."""
        events = self._xids.drain(now)
        written = {(event.node, event.gpu, event.code) for event in events if event.seen_in == KERNEL}
        for event in events:
            group = self._catalogue.of(event.code).group
            # The gauge shows no level: of a code that a line has, too, the line's level counts.
            heard = event.seen_in != KERNEL and (event.again or (event.node, event.gpu, event.code) in written)
            if group == "gpu_lost":
                self._lost_gpu[event.node] = max(event.at, self._lost_gpu.get(event.node, event.at))
            elif group == "nvlink" or (is_fatal(event.text) and not heard):
                self._waiting.append(self._of_event(event))
        for at, node, text, address, code in self._lines:
            gpu = self._layout.at_address(node, address) if address else None
            self._waiting.append(_Sign(node, WHOLE_NODE if gpu is None else gpu, at, at, "line", code, text))
        self._lines = []
        layout, traffic = self._layout, self._traffic
        held = np.zeros(len(layout), bool)
        for entry in self._book.cases():
            held[layout.members(entry.node) if entry.gpu == WHOLE_NODE else entry.gpu] = True
        gpus, onsets = self._errors.signs(now, len(layout.names), held)
        for gpu, onset in zip(gpus.tolist(), onsets.tolist(), strict=True):
            self._waiting.append(_Sign(layout.names[layout.node[gpu]], gpu, onset, now - _COALESCE_MS, "counters"))
        if traffic.due(now):
            traffic.look(now, layout.jobs(), layout.gpu, layout.node, held)
            for gpu in traffic.beyond_chance().tolist():
                job = self._fleet.job_of(layout.names[layout.node[gpu]], int(layout.gpu[gpu]))
                if job is None or job.inferred:
                    continue  # whether its peers do the same work is a guess, and so is when it began
                onset = int(traffic.evidence.since[gpu]) - shares.LOOK_MS
                self._waiting.append(_Sign(layout.names[layout.node[gpu]], gpu, onset, now - _COALESCE_MS, "traffic"))

    @staticmethod
    def _of_event(event: XidEvent) -> _Sign:
        gpu = event.gpu if event.gpu >= 0 else WHOLE_NODE
        return _Sign(event.node, gpu, event.at, event.at, "xid", event.code, event.text, event.seen_in)

    def _judge(self, now: Instant, node: str, signs: list[_Sign]) -> list[Finding]:
        whole = self._book.get("nvlink_fault", self._layout.named(node, WHOLE_NODE))
        held = {entry.gpu for entry in self._entries(node)}
        if whole is None and node in self._lost_gpu:
            signs = [sign for sign in signs if sign.gpu == WHOLE_NODE or sign.gpu in held]
        if not signs:
            return []
        gpus = sorted({sign.gpu for sign in signs if sign.gpu != WHOLE_NODE})
        several = len({*gpus} | {gpu for gpu in held if gpu != WHOLE_NODE}) >= _SEVERAL
        if whole is not None or several or any(sign.gpu == WHOLE_NODE for sign in signs):
            return self._raise(now, node, WHOLE_NODE, signs)
        return [finding for gpu in gpus for finding in self._raise(now, node, gpu, [s for s in signs if s.gpu == gpu])]

    def _raise(self, now: Instant, node: str, gpu: int, signs: list[_Sign]) -> list[Finding]:
        """Raise a finding, or note that an open one goes on; one on a node takes over those on its GPUs."""
        found: list[Finding] = []
        entry = self._book.get("nvlink_fault", self._layout.named(node, gpu))
        if entry is None:
            found = self._fire(now, node, gpu, signs)
            entry = self._book.get("nvlink_fault", self._layout.named(node, gpu))
            if entry is not None and gpu == WHOLE_NODE:
                for part in self._entries(node):
                    if part.gpu != WHOLE_NODE:
                        entry.memo["kinds"] = sorted({*entry.memo["kinds"], *part.memo["kinds"]})
                        found.append(self._book.resolve(part, now, "now part of the finding on its node"))
        if entry is not None:
            entry.last_at = max(entry.last_at, *(sign.seen_at for sign in signs), entry.started_at)
            entry.memo["kinds"] = sorted({*entry.memo["kinds"], *(sign.kind for sign in signs)})
            members = {*entry.memo["gpus"], *(sign.gpu for sign in signs if sign.gpu != WHOLE_NODE)}
            entry.memo["gpus"] = sorted(members)
        return found

    def _fire(self, now: Instant, node: str, gpu: int, signs: list[_Sign]) -> list[Finding]:
        signs = sorted(signs, key=lambda sign: (_WEIGHT[sign.kind], sign.onset, sign.gpu, sign.text))
        first = signs[0]
        entity = self._layout.named(node, gpu)
        where = in_words(entity)
        gpus = sorted({sign.gpu for sign in signs if sign.gpu != WHOLE_NODE})
        evidence: dict[str, float | int | str] = {"told_by": ", ".join(sorted({sign.kind for sign in signs}))}
        action = "drain the node, look at nvidia-smi nvlink -s and -e, reset the GPUs"
        if gpu == WHOLE_NODE:
            evidence["gpus_affected"] = len(gpus)
            action = (
                "drain the node: a switch or the fabric between its GPUs is at fault; restart it, then run diagnostics"
            )
        if gpus:
            evidence |= self._errors.says(gpus[0]) | self._carries(gpus[0])
        if first.text:
            evidence["line"] = first.text
        severity: Severity = "page"
        if first.kind == "xid":
            xid = self._catalogue.of(first.code)
            evidence |= xid.evidence() | details(first.text) | {"xid_seen_in": first.seen_in}
            action += f" ({xid.quoted})"
            summary = f"{where}: XID {xid.code}, {xid.meaning}"
        elif first.kind == "line":
            evidence |= {"sxid": first.code} if first.code else {}
            summary = f"{where}: fatal error of the NVLink fabric: {first.text}"
        elif first.kind == "counters":
            errors, bursts = self._errors, self._errors.bursts
            a_second = 1000 / counting.LOOK_MS
            summary = (
                f"{where}: NVLink errors, {bursts.now[first.gpu] * a_second:.1f} a second, usually "
                f"{bursts.level[first.gpu] * a_second:.2f}; {errors.retrained[first.gpu]:.0f} times retrained"
            )
            if not errors.retrained[first.gpu] and errors.fatal[first.gpu] < _SEVERAL:
                severity = "ticket"
                wealth = float(bursts.evidence.wealth[first.gpu])
                evidence["by_chance"] = odds_in_words(wealth, bursts.watched, counting.LOOK_MS / 1000)
        else:
            severity, traffic = "ticket", self._traffic
            left = traffic.now[first.gpu] / traffic.usual[first.gpu]
            beside = traffic.now[first.gpu] / traffic.peers[first.gpu]
            summary = f"{where}: carries {left:.2f} of its NVLink traffic of before, {beside:.2f} of its peers'"
            wealth = float(traffic.evidence.wealth[first.gpu])
            evidence["by_chance"] = odds_in_words(wealth, traffic.watched, shares.LOOK_MS / 1000)
        return self._book.fire(
            now,
            "nvlink_fault",
            entity,
            gpu=gpu,
            started_at=min(sign.onset for sign in signs),
            severity=severity,
            score={"line": 1.0, "xid": 1.0, "counters": 0.9, "traffic": 0.7}[first.kind],
            summary=summary,
            action=action,
            evidence=evidence,
            memo={"kinds": [], "gpus": [], "again": self._book.returned(now, "nvlink_fault", entity)},
        )

    def _carries(self, gpu: int) -> dict[str, float | int | str]:
        """Return what a GPU's links carried in the last look, its own before, its peers'; in MB/s, or so it is
        taken.
        """
        traffic = self._traffic
        figures = {
            "nvlink_mb_per_s": traffic.now[gpu],
            "nvlink_mb_per_s_before": traffic.usual[gpu],
            "nvlink_mb_per_s_peers": traffic.peers[gpu],
        }
        return {name: float(value) for name, value in figures.items() if np.isfinite(value)}

    def _entries(self, node: str) -> list[OpenCase]:
        return [entry for entry in self._book.cases() if entry.node == node]

    def _over(self, now: Instant) -> list[Finding]:
        over: list[Finding] = []
        for entry in self._book.cases():
            members = np.array(entry.memo["gpus"], np.int64)
            if not len(members):
                members = self._layout.members(entry.node)
            reason = self._reason_over(now, entry, members) if len(members) else None
            if reason is None and now - entry.last_at >= _STICKY_MS:
                reason = "no further word of it"
            if reason is not None:
                figures = self._errors.says(entry.gpu) if entry.gpu != WHOLE_NODE else {}
                over.append(self._book.resolve(entry, now, reason, figures))
                self._errors.begin_anew(members)
                self._traffic.evidence.forget(members)
        return over

    def _reason_over(self, now: Instant, entry: OpenCase, members: Any) -> str | None:
        """Return why a finding is over: a reset, or all that can be seen to be well again is; None if it isn't."""
        kinds, errors = entry.memo["kinds"], self._errors
        if not bool((errors.at[members] > entry.last_at).all()):
            return None
        error_at = int(errors.error_at(members).max())
        reset = np.maximum(errors.reset_at[members], self._xids.cleared_at[members])
        if bool((reset > max(entry.last_at, error_at)).any()):
            return "it was reset, and no error since"
        counted, carried = "counters" in kinds, "traffic" in kinds
        quiet_ms = _RETURNED_QUIET_MS if entry.memo["again"] else _QUIET_MS
        if counted and now - max(entry.last_at, error_at) < quiet_ms:
            return None
        if carried:
            traffic = self._traffic
            fine = traffic.well[members] >= _WELL_LOOKS
            idle = (traffic.job[members] == 0) | (now - traffic.judged_at[members] >= _RETURN_MS)
            if not bool((fine | (idle & (now - entry.last_at >= _QUIET_MS))).all()):
                return None
        if not counted and not carried:
            return None
        return "no further error" if counted else "it carries its share of the traffic again, or its job is over"

    def snapshot(self) -> bytes:
        """Return the whole state."""
        xids, arrays = self._xids.snapshot()
        document: dict[str, Any] = {
            "xids": xids,
            "book": self._book.snapshot(),
            "lines": [list(line) for line in self._lines],
            "waiting": [asdict(sign) for sign in self._waiting],
            "lost_gpu": self._lost_gpu,
            "tails": self.tails.document(),
        }
        arrays |= self._errors.arrays("errors_") | self._traffic.arrays("traffic_") | self._carried.arrays("carried_")
        arrays |= self._energy.arrays("energy_")
        return pack(document, arrays)

    @classmethod
    def restore(cls, config: DetectorConfig, fleet: Fleet, state: bytes) -> Self:
        """Return a detector that goes on exactly where `snapshot` was taken."""
        document, arrays = unpack(state)
        detector = cls(config.model_copy(update={"calibration": {}}), fleet)
        detector._layout.extend()
        detector._xids.load(document["xids"], arrays)
        detector._errors.load(arrays, "errors_")
        detector._traffic.load(arrays, "traffic_")
        detector._carried.load(arrays, "carried_")
        detector._energy.load(arrays, "energy_")
        detector.tails.merge(document["tails"])
        detector._book.load(document["book"])
        detector._lines = [(at, node, text, address, code) for at, node, text, address, code in document["lines"]]
        detector._waiting = [_Sign(**sign) for sign in document["waiting"]]
        detector._lost_gpu = document["lost_gpu"]
        return detector


_WEIGHT = {"line": 0, "xid": 1, "counters": 2, "traffic": 3}
"""Which sign a finding is worded by, where there are several."""
