"""NVLink faults: error counters that grow, XIDs 74 and 144 to 150, fatal lines of the switches, lost bandwidth.

Fatal lines and XIDs decide at once, as do a retrained link, repeated replays and DCGM's 100 CRC errors a second;
a lower rate decides when it goes on reading after reading. Lost bandwidth is the share of its job's NVLink traffic
that a GPU carries, far below its own share so far while the others' shares stay (below its node's GPUs, in a job too
young for that), in four half minutes of five. What several GPUs of a node show at once is between them: one finding on
the node, as for the switches and the fabric manager. Errors on a node that has just lost a GPU are its victims'.
GPUs that report no NVLink fields have no NVLink.

When it is wrong: a job that moves its traffic from one GPU to others in the middle of its life looks like lost
bandwidth; a link that was bad before the telemetry began, and counts nothing, is not seen; an XID 74 alone stays
open for three hours when the reset leaves no trace in the telemetry.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import numpy as np

from detectors.case_book import CaseBook, OpenCase, in_words
from detectors.contract import Batch, DetectorConfig, DetectorSpec, Finding, Instant, LogRecord
from detectors.fleet import Fleet
from detectors.gpus import WHOLE_NODE, GpuLayout, reported
from detectors.nvlink.config import NvlinkConfig
from detectors.nvlink.counters import LinkErrors
from detectors.nvlink.lines import details, fabric_line, is_fatal
from detectors.nvlink.traffic import Traffic
from detectors.spec import load_spec
from detectors.state import pack, unpack
from detectors.xid import XidCatalogue
from detectors.xid_watch import XID_FIELD, XidEvent, XidWatch

_SENT, _RECEIVED = "DCGM_FI_PROF_NVLINK_TX_BYTES", "DCGM_FI_PROF_NVLINK_RX_BYTES"
_UTILISATION, _MEMORY = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_DRAM_ACTIVE"
_LONGEST_PENDING_LINES = 1000


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
    """See the module; the thresholds are in detector.yaml."""

    spec: ClassVar[DetectorSpec] = load_spec(__package__ or "")
    config_type: ClassVar[type[DetectorConfig]] = NvlinkConfig

    def __init__(self, config: DetectorConfig, fleet: Fleet) -> None:
        if not isinstance(config, NvlinkConfig):
            raise TypeError(f"{type(config).__name__} is not an NvlinkConfig")
        self._config = config
        self._layout = GpuLayout(fleet)
        self._catalogue = XidCatalogue(config.xid_overrides)
        watched = self._catalogue.codes("nvlink", "nvlink_leveled", "gpu_lost")
        self._xids = XidWatch(watched, self._layout)
        self._errors = LinkErrors(config)
        self._traffic = Traffic(config, fleet)
        self._book = CaseBook(self.spec.name)
        self._lines: list[tuple[Instant, str, str, str, int]] = []
        self._waiting: list[_Sign] = []
        self._lost_gpu: dict[str, Instant] = {}
        self._ended: dict[str, Instant] = {}
        """When a finding on an entity was last over; for the time in which a return is the same trouble."""

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
        if not len(batch.entities):
            return ()
        self._grow(int(batch.entities.max()) + 1)
        for tick, here in batch.ticks():
            gpus, at = batch.entities[here], batch.at[tick, here]
            self._errors.take(batch, tick, here, gpus, at)
            self._xids.take_gauge(gpus, at, reported(batch, XID_FIELD, tick, here))
            sent, received = reported(batch, _SENT, tick, here), reported(batch, _RECEIVED, tick, here)
            busy, work = reported(batch, _UTILISATION, tick, here), reported(batch, _MEMORY, tick, here)
            self._traffic.take(gpus, sent, received, busy, work)
        return ()

    def _grow(self, count: int) -> None:
        self._errors.grow(count)
        self._traffic.grow(count)
        self._xids.grow(count)

    def advance(self, now: Instant) -> Sequence[Finding]:
        """Decide: what is over, and what began."""
        self._layout.extend()
        self._grow(len(self._layout))
        self._traffic.settle(now, self._layout)
        self._gather(now)
        self._lost_gpu = {node: at for node, at in self._lost_gpu.items() if now - at <= self._config.lost_gpu_s * 1000}
        recurs_ms = self._config.recurrence_s * 1000
        self._ended = {where: at for where, at in self._ended.items() if now - at <= recurs_ms}
        found: list[Finding] = []
        ripe: dict[str, list[_Sign]] = {}
        for sign in self._waiting:
            ripe.setdefault(sign.node, []).append(sign)
        self._waiting = []
        for node, signs in sorted(ripe.items()):
            if now - min(sign.seen_at for sign in signs) < self._config.coalesce_s * 1000:
                self._waiting += signs
            else:
                found += self._judge(now, node, signs)
        return [*found, *self._over(now)]

    def _gather(self, now: Instant) -> None:
        """Collect the signs since the last call."""
        for event in self._xids.drain(now):
            group = self._catalogue.of(event.code).group
            if group == "gpu_lost":
                self._lost_gpu[event.node] = max(event.at, self._lost_gpu.get(event.node, event.at))
            elif group == "nvlink" or is_fatal(event.text):
                self._waiting.append(self._of_event(event))
        for at, node, text, address, code in self._lines:
            gpu = self._layout.at_address(node, address) if address else None
            self._waiting.append(_Sign(node, WHOLE_NODE if gpu is None else gpu, at, at, "line", code, text))
        self._lines = []
        for kind, (gpus, onsets) in (("counters", self._errors.bad()), ("traffic", self._traffic.lost())):
            for gpu, onset in zip(gpus.tolist(), onsets.tolist(), strict=True):
                node = self._layout.names[self._layout.node[gpu]]
                # A GPU of a job that waits for others was looked at when its slot was over: nothing more will come.
                seen_at = int(self._errors.error_at[gpu]) if kind == "counters" else now - 10**9
                self._waiting.append(_Sign(node, gpu, onset, seen_at, kind))

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
        several = len({*gpus} | {gpu for gpu in held if gpu != WHOLE_NODE}) >= self._config.node_gpus
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
        where = in_words(self._layout.named(node, gpu))
        gpus = sorted({sign.gpu for sign in signs if sign.gpu != WHOLE_NODE})
        said: dict[str, float | int | str] = {"told_by": ", ".join(sorted({sign.kind for sign in signs}))}
        action = "drain the node, look at nvidia-smi nvlink -s and -e, reset the GPUs"
        if gpu == WHOLE_NODE:
            said["gpus_affected"] = len(gpus)
            action = (
                "drain the node: a switch or the fabric between its GPUs is at fault; restart it, then run diagnostics"
            )
        if gpus:
            said |= self._errors.says(gpus[0]) | self._traffic.says(gpus[0])
        if first.text:
            said["line"] = first.text
        if first.kind == "xid":
            xid = self._catalogue.of(first.code)
            said |= xid.evidence() | details(first.text) | {"xid_seen_in": first.seen_in}
            action += f" (XID {xid.code}: {xid.action[0]}, by {xid.action[1]})"
            summary = f"{where}: XID {xid.code}, {xid.meaning}"
        elif first.kind == "line":
            said |= {"sxid": first.code} if first.code else {}
            summary = f"{where}: fatal error of the NVLink fabric: {first.text}"
        elif first.kind == "counters":
            rate = float(self._errors.rate[first.gpu])
            summary = (
                f"{where}: NVLink errors, {rate:.1f} CRC errors/s, {self._errors.retries[first.gpu]:.0f} replays and "
            )
            summary += f"{self._errors.recovered[first.gpu]:.0f} recoveries of late"
        else:
            summary = f"{where}: NVLink traffic far below its usual share of the job's"
        return self._book.fire(
            now,
            "nvlink_fault",
            self._layout.named(node, gpu),
            gpu=gpu,
            started_at=min(sign.onset for sign in signs),
            severity="ticket" if first.kind == "traffic" else "page",
            score={"line": 1.0, "xid": 1.0, "counters": 0.9, "traffic": 0.7}[first.kind],
            summary=summary,
            action=action,
            evidence=said,
            memo={"kinds": [], "gpus": [], "again": where in self._ended},
        )

    def _entries(self, node: str) -> list[OpenCase]:
        return [entry for entry in self._book.cases() if entry.node == node]

    def _over(self, now: Instant) -> list[Finding]:
        over: list[Finding] = []
        for entry in self._book.cases():
            members = np.array(entry.memo["gpus"], np.int64)
            if not len(members):
                members = self._layout.members(entry.node)
            reason = self._reason_over(now, entry, members) if len(members) else None
            if reason is None and now - entry.last_at >= self._config.sticky_s * 1000:
                reason = "no further word of it"
            if reason is not None:
                self._ended[in_words(self._layout.named(entry.node, entry.gpu))] = now
                said = self._errors.says(entry.gpu) if entry.gpu != WHOLE_NODE else {}
                over.append(self._book.resolve(entry, now, reason, said))
                self._errors.forget(members)
                self._traffic.forget(members)
        return over

    def _reason_over(self, now: Instant, entry: OpenCase, members: Any) -> str | None:
        """Return why a finding is over: a reset, or all that can be seen to be well again is; None if it isn't."""
        kinds, errors = entry.memo["kinds"], self._errors
        if not bool((errors.at[members] > entry.last_at).all()):
            return None
        error_at = int(errors.error_at[members].max())
        reset = np.maximum(errors.reset_at[members], self._xids.cleared_at[members])
        if bool((reset > max(entry.last_at, error_at)).any()):
            return "it was reset, and no error since"
        counted, carried = "counters" in kinds, "traffic" in kinds
        quiet_s = self._config.recurrence_quiet_s if entry.memo["again"] else self._config.quiet_s
        if counted and (now - entry.last_at < quiet_s * 1000 or self._erring(members, now, quiet_s)):
            return None
        if carried:
            fine = self._traffic.fine[members] >= self._config.traffic_low_slots
            idle = (self._traffic.job[members] == 0) & (now - entry.last_at >= self._config.quiet_s * 1000)
            if not bool((fine | idle).all()):
                return None
        if not counted and not carried:
            return None
        return "no further error" if counted else "it carries its share of the traffic again, or its job is over"

    def _erring(self, members: Any, now: Instant, quiet_s: float) -> bool:
        """Return whether some of `members` still count errors at a rate that matters."""
        errors = self._errors
        lately = now - errors.error_at[members] < quiet_s * 1000
        often = (errors.slow[members] != 0) | (errors.rate[members] >= self._config.crc_slow_per_s)
        retried = now - errors.retry_at[members] < quiet_s * 1000
        return bool((lately & (often | retried)).any())

    def snapshot(self) -> bytes:
        """Return the whole state."""
        xids, arrays = self._xids.snapshot()
        document: dict[str, Any] = {
            "xids": xids,
            "book": self._book.snapshot(),
            "lines": [list(line) for line in self._lines],
            "waiting": [asdict(sign) for sign in self._waiting],
            "lost_gpu": self._lost_gpu,
            "ended": self._ended,
        }
        return pack(document, arrays | self._errors.arrays("errors_") | self._traffic.arrays("traffic_"))

    @classmethod
    def restore(cls, config: DetectorConfig, fleet: Fleet, state: bytes) -> Self:
        """Return a detector that goes on exactly where `snapshot` was taken."""
        document, arrays = unpack(state)
        detector = cls(config, fleet)
        detector._layout.extend()
        detector._xids.load(document["xids"], arrays)
        detector._errors.load(arrays, "errors_")
        detector._traffic.load(arrays, "traffic_")
        detector._book.load(document["book"])
        detector._lines = [(at, node, text, address, code) for at, node, text, address, code in document["lines"]]
        detector._waiting = [_Sign(**sign) for sign in document["waiting"]]
        detector._lost_gpu, detector._ended = document["lost_gpu"], document["ended"]
        return detector


_WEIGHT = {"line": 0, "xid": 1, "counters": 2, "traffic": 3}
"""Which sign a finding is worded by, where there are several."""
