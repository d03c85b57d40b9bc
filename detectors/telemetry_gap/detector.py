"""Readings stop or freeze although the thing itself is evidently alive: look at the collector, not at the machine.

A stream of a node (GPUs, NICs, BMC) or of a switch that misses more readings in a row than lost scrapes explain is a
gap if something shows that the node lives: another in-band stream of it, or steps of its job after the silence
began; for a switch its links that are up, or the job on its nodes. A GPU whose every reading is exactly the one
before, for a minute and for four times as long as it ever goes without a change, is frozen if its energy counter
stands still too or its job goes on; most GPUs of a node make the node. A switch is frozen if no port counts while
NICs on it move data.

Three or more that stop in the same instant are one collector: one finding, on the first of them by name, with
`affected` saying how many and the pod or rack they share; there its BMC, and no job that stopped, suffice as a sign
of life. One GPU that stops while the node's others go on is `gpu_lost`; a node with no sign of life is `node_down`.

It is wrong about a whole collector gone over idle nodes without BMCs (nothing is said), about a mount or a NIC that
is taken away for good, and it cannot tell a frozen NIC from an idle one, so it does not try.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import numpy as np

from detectors.contract import Batch, DetectorConfig, DetectorSpec, Entity, Finding, Instant, LogRecord, finding_id
from detectors.fleet import Fleet
from detectors.presence import Progress
from detectors.scheduling import Scheduler
from detectors.spec import load_spec
from detectors.state import pack, unpack
from detectors.telemetry_gap.cases import Case, Cases
from detectors.telemetry_gap.config import TelemetryGapConfig
from detectors.telemetry_gap.freeze import Freeze
from detectors.telemetry_gap.streams import LATE, OF_NODES, Streams


@dataclass(slots=True)
class _Open:
    """A finding that fired and is not over; `members` are the nodes or switches it stands for."""

    id: str
    what: str
    name: str
    gpu: int
    mode: str
    stream: str
    since: Instant
    usual_ms: float
    started_at: Instant
    members: list[str]
    back_at: Instant = -1

    @property
    def entity(self) -> Entity:
        if self.what == "switch":
            return {"switch": self.name}
        return {"node": self.name} if self.what == "node" else {"node": self.name, "gpu": self.gpu}


class TelemetryGap:
    """See the module; the thresholds are in detector.yaml."""

    spec: ClassVar[DetectorSpec] = load_spec(__package__ or "")
    config_type: ClassVar[type[DetectorConfig]] = TelemetryGapConfig

    def __init__(self, config: DetectorConfig, fleet: Fleet) -> None:
        if not isinstance(config, TelemetryGapConfig):
            raise TypeError(f"{type(config).__name__} is not a TelemetryGapConfig")
        self._config = config
        self._fleet = fleet
        self._streams = Streams(fleet)
        gauges = [name for name in self.spec.fields["dcgm"] if "ENERGY" not in name]
        self._freezes = {
            "dcgm": Freeze(config, "dcgm", gauges, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"),
            "switch": Freeze(config, "switch", self.spec.fields["switch"][1:], None),
            "nic": Freeze(config, "nic", self.spec.fields["nic"][1:], None),
        }
        self._progress = Progress(fleet)
        self._scheduler = Scheduler(fleet)
        self._cases = Cases(
            config, fleet, self._streams, self._freezes["dcgm"], self._freezes["switch"], self._freezes["nic"],
            self._progress, self._scheduler,
        )  # fmt: skip
        self._open: list[_Open] = []

    def logs(self, records: Sequence[LogRecord]) -> Sequence[Finding]:
        """Note what the scheduler says of nodes."""
        self._scheduler.take(records)
        return ()

    def observe(self, batch: Batch) -> Sequence[Finding]:
        """Note who is heard, and whose readings change; what follows is decided at the next point of the grid."""
        if batch.kind == "steps":
            self._progress.take(batch)
            return ()
        self._streams.take(batch)
        if batch.kind in self._freezes:
            self._freezes[batch.kind].take(batch)
        return ()

    def advance(self, now: Instant) -> Sequence[Finding]:
        """Decide: what is back, and what is missing."""
        self._progress.settle()
        self._streams.measure(now)
        over = self._close(now)
        # One after the other: a case that fires may cover the next.
        began = [self._fire(now, case) for case in self._cases.all(now) if not self._is_covered(case)]
        return [*over, *began]

    def _is_covered(self, case: Case) -> bool:
        """Return whether an open finding stands for a case, or may: then the case joins it."""
        kind = "switch" if case.what == "switch" else "node"
        for entry in self._open:
            if (entry.what == "switch") != (kind == "switch"):
                continue
            if case.name in entry.members and (entry.what != "gpu" or entry.gpu == case.gpu):
                return True
            span = 2 * self._config.together_intervals * max(case.usual_ms, entry.usual_ms)
            same = entry.mode == case.mode and abs(entry.since - case.since) <= span
            if same and len(entry.members) >= self._config.together_nodes:
                entry.members.append(case.name)
                return True
        return False

    def _fire(self, now: Instant, case: Case) -> Finding:
        grouped = len(case.beside) >= self._config.together_nodes
        members = sorted(case.beside) if grouped else [case.name]
        what = "node" if grouped and case.what == "gpu" else case.what
        entry = _Open(
            id="",
            what=what,
            name=members[0],
            gpu=case.gpu if what == "gpu" else -1,
            mode=case.mode,
            stream=case.stream,
            since=case.since,
            usual_ms=case.usual_ms,
            started_at=min(case.since + int(case.usual_ms), now),
            members=members,
        )
        entry.id = finding_id(f"{self.spec.name}/{case.mode}", entry.entity, entry.started_at)
        self._open.append(entry)
        shared = self._shared(members) if grouped else ""
        evidence: dict[str, float | int | str] = {
            "mode": case.mode,
            "stream": case.stream,
            "since_s": (now - case.since) / 1000,
            "usual_interval_s": case.usual_ms / 1000,
            "intervals_missed": case.missed,
            "alive_by": case.alive,
            "affected": len(members),
        }
        if shared:
            evidence["shared"] = shared
        whom = f"{len(members)} {'switches' if what == 'switch' else 'nodes'}, {members[0]} the first,"
        who = whom if grouped else " ".join(str(part) for part in entry.entity.values())
        did = "have stopped" if case.mode == "silent" else "repeat themselves"
        return Finding(
            id=entry.id,
            detector=self.spec.name,
            fault="telemetry_gap",
            entity=entry.entity,
            state="firing",
            started_at=entry.started_at,
            detected_at=now,
            severity="ticket",
            score=min(1.0, 0.7 + 0.02 * case.missed + (0.1 if "steps" in case.alive else 0.0)),
            summary=f"{case.stream} readings of {who} {did} for {(now - case.since) / 1000:.0f} s; "
            f"alive by {case.alive}",
            recommended_action="restart the collector; until then nothing is known of what it watches",
            evidence=evidence,
        )

    def _shared(self, nodes: list[str]) -> str:
        """Return the rack or pod that all of some nodes share."""
        for level in ("rack", "pod"):
            places = {str((self._fleet.nodes.get(node) or {}).get(level) or "") for node in nodes}
            if len(places) == 1 and places != {""}:
                return f"{level} {places.pop()}"
        return ""

    def _close(self, now: Instant) -> list[Finding]:
        over: list[Finding] = []
        for entry in list(self._open):
            back = np.mean([self._is_back(entry, member) for member in entry.members])
            if back < self._config.back_share:
                entry.back_at = -1
            elif entry.back_at < 0:
                entry.back_at = now
            if entry.back_at >= 0 and now - entry.back_at >= max(self._config.release_s * 1000, 2 * entry.usual_ms):
                self._open.remove(entry)
                over.append(self._end(now, entry))
        return over

    def _is_back(self, entry: _Open, member: str) -> bool:
        if entry.mode == "frozen":
            return self._moves(entry, member)
        # Once it is back, single scrapes that get lost do not begin the wait anew.
        late = LATE if entry.back_at < 0 else self._streams.of[entry.stream].patience
        if entry.what == "switch":
            switch = self._streams.switches.number(member)
            return bool(self._streams.switch_last[switch] > entry.since and self._streams.switch_missed[switch] < late)
        row, node = OF_NODES.index(entry.stream), self._streams.nodes.number(member)
        heard = self._streams.last[row, node] > entry.since + entry.usual_ms
        return bool(heard and self._streams.missed[row, node] < late)

    def _moves(self, entry: _Open, member: str) -> bool:
        freeze = self._freezes[entry.stream]
        if entry.what == "switch":
            those = self._streams.ports_of(self._streams.switches.number(member))
        else:
            those = self._streams.gpus_of(self._streams.nodes.number(member))
        keys = self._fleet.entities(entry.stream)
        if entry.what == "gpu":
            those = those[[int(keys[index][1]) == entry.gpu for index in those.tolist()]]
        those = those[(those < len(freeze)) & (freeze.since[those] >= 0)]
        fresh = (freeze.since[those] > entry.since) & (freeze.repeats[those] < self._config.freeze_readings)
        return bool(len(those) and fresh.mean() >= self._config.node_share)

    def _end(self, now: Instant, entry: _Open) -> Finding:
        name = " ".join(str(part) for part in entry.entity.values())
        return Finding(
            id=entry.id,
            detector=self.spec.name,
            fault="telemetry_gap",
            entity=entry.entity,
            state="resolved",
            started_at=entry.started_at,
            detected_at=now,
            severity="ticket",
            score=0.0,
            summary=f"{entry.stream} readings of {name} are back",
            recommended_action="none",
            evidence={"lasted_s": (entry.back_at - entry.started_at) / 1000, "affected": len(entry.members)},
        )

    def snapshot(self) -> bytes:
        """Return the whole state."""
        streams, arrays = self._streams.snapshot()
        jobs, steps = self._progress.snapshot()
        freezes: dict[str, Any] = {}
        for kind, freeze in self._freezes.items():
            freezes[kind], own = freeze.snapshot()
            arrays |= own
        document = {
            "streams": streams,
            "jobs": jobs,
            "freezes": freezes,
            "scheduler": self._scheduler.snapshot(),
            "open": [asdict(entry) for entry in self._open],
        }
        return pack(document, arrays | steps)

    @classmethod
    def restore(cls, config: DetectorConfig, fleet: Fleet, state: bytes) -> Self:
        """Return a detector that goes on exactly where `snapshot` was taken."""
        document, arrays = unpack(state)
        detector = cls(config, fleet)
        detector._streams.load(document["streams"], arrays)
        detector._progress.load(document["jobs"], arrays)
        for kind, freeze in detector._freezes.items():
            freeze.load(document["freezes"][kind], arrays)
        detector._scheduler.load(document["scheduler"])
        detector._open = [_Open(**entry) for entry in document["open"]]
        return detector
