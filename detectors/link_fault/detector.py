"""Faults of a cable: its link is down, goes down again and again, or errs; named once, at one of its two ends.

Down: a port that was up reports down for a third of a minute, in two readings (the other end, the kernel and the
switch's log count as readings too); for half a minute where the cable erred lately, or was lost and back a while ago
and no log speaks of it.
Flap: three losses of link in a quarter of an hour, by the state, by `link_downed` or by a log, whichever saw most;
while it flaps it is not also down, and errors within four minutes of a loss are the loss's. Errors: uncorrectable
FEC, symbol, receive errors or link recoveries above published bars, fast or in three different minutes of ten, and far
above the median port. A NIC that carries nothing, or reports nothing, while its siblings and its rail go on, is down
whatever its state says.

A host's cable is named at the NIC if that reports its link, else at the switch port; between switches the end that
shows it, the first by name if both do. Three or more cables of a switch that go down at once, and at least half of
it, are the switch. Where the node is silent, booting, drained or down, its ports are too, and nothing is said. A port
that was never up is not in use.

It is wrong about flaps that stay down longer than the confirmation (first `link_down`, then `link_flap`), about
nodes that are switched off where no in-band stream and no topology tells, and about a cable whose errors all ports
share (a bad firmware).
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

from detectors.contract import Batch, DetectorConfig, DetectorSpec, Entity, Finding, Instant, LogRecord, finding_id
from detectors.fleet import Fleet
from detectors.link_fault.cables import Cable, Cables, End, entity_of
from detectors.link_fault.config import LinkFaultConfig
from detectors.link_fault.errors import Errors
from detectors.link_fault.lines import Lines
from detectors.link_fault.nodes import Nodes
from detectors.link_fault.rails import Rails
from detectors.link_fault.states import States
from detectors.link_fault.verdicts import Judge, Verdict
from detectors.presence import Presence, Roster
from detectors.scheduling import Scheduler
from detectors.spec import load_spec
from detectors.state import pack, unpack

_ACTIONS = {
    "link_down": "look at cable and transceiver at both ends, swap with a known good one; keep jobs off the node if "
    "they cannot do without the rail",
    "link_flap": "take the port out of use, reseat or replace the transceiver or cable: a flap stalls every collective",
    "link_errors": "clean and reseat the transceiver, compare its light levels with its peers', replace the cable",
}


@dataclass(slots=True)
class _Open:
    """A finding that is not over; `members` are first ends of its cables, `fine_at` since when all is well (-1)."""

    id: str
    fault: str
    end: list[str]
    mode: str
    since: Instant
    started_at: Instant
    members: list[list[str]]
    fine_at: Instant = -1

    @property
    def entity(self) -> Entity:
        kind, owner, port = self.end
        return entity_of((kind, owner, port)) if port else {"switch": owner}


class LinkFault:
    """See the module; the thresholds are in detector.yaml."""

    spec: ClassVar[DetectorSpec] = load_spec(__package__ or "")
    config_type: ClassVar[type[DetectorConfig]] = LinkFaultConfig

    def __init__(self, config: DetectorConfig, fleet: Fleet) -> None:
        if not isinstance(config, LinkFaultConfig):
            raise TypeError(f"{type(config).__name__} is not a LinkFaultConfig")
        self._config = config
        self._cables = Cables(fleet)
        self._roster = Roster(fleet)
        self._states = {"nic": States("nic"), "switch": States("switch")}
        self._errors = {"nic": Errors(config, "nic"), "switch": Errors(config, "switch")}
        self._rails = Rails(config)
        self._gpus = Presence("dcgm")
        self._lines = Lines()
        self._scheduler = Scheduler(fleet)
        streams = [self._gpus, self._states["nic"].presence]
        self._nodes = Nodes(config, self._roster, streams, self._scheduler)
        self._judge = Judge(
            config, fleet, self._cables, self._states, self._errors, self._rails, self._lines, self._nodes
        )
        self._open: list[_Open] = []
        self._flapped: dict[End, Instant] = {}
        self._erred: dict[End, Instant] = {}

    def logs(self, records: Sequence[LogRecord]) -> Sequence[Finding]:
        """Note what kernels say of links, and the scheduler of nodes."""
        self._lines.take(records)
        self._scheduler.take(records)
        return ()

    def observe(self, batch: Batch) -> Sequence[Finding]:
        """Take readings; what follows from them is decided at the next point of the grid."""
        if batch.kind == "dcgm":
            self._gpus.take(batch)
            return ()
        self._states[batch.kind].take(batch)
        self._errors[batch.kind].take(batch)
        self._cables.sync(batch.kind, len(self._states[batch.kind]))
        if batch.kind == "nic":
            self._rails.take(batch)
        return ()

    def advance(self, now: Instant) -> Sequence[Finding]:
        """Decide: what is well again, and what is not."""
        self._nodes.measure()
        window = self._config.flap_window_s * 1000
        self._flapped = {end: at for end, at in self._flapped.items() if now - at <= window}
        self._erred = {end: at for end, at in self._erred.items() if now - at <= window}
        found = self._close(now)
        for verdict in self._verdicts(now):
            found += self._take_up(now, verdict)
        return found

    def _verdicts(self, now: Instant) -> Iterator[Verdict]:
        yield from self._judge.flaps(now, self._flapped)
        yield from self._judge.downs(now, self._erring_lately())
        yield from self._judge.erring(now)
        yield from self._judge.silent_rails(now)

    def _erring_lately(self) -> set[End]:
        """Return the first ends of the cables that err, or did in the time in which losses of link are a flap."""
        open_ones = (entry for entry in self._open if entry.fault == "link_errors")
        return {(kind, owner, port) for entry in open_ones for kind, owner, port in entry.members} | self._erred.keys()

    def _take_up(self, now: Instant, verdict: Verdict) -> list[Finding]:
        """Return the finding of a verdict, unless an open one stands for it already."""
        ends = [list(cable.ends[0]) for cable in verdict.members]
        on_it = [entry for entry in self._open if any(end in entry.members for end in ends)]
        if any(entry.fault in {verdict.fault, "link_flap"} for entry in on_it):
            return []
        if verdict.fault == "link_errors" and on_it:
            return []
        if verdict.fault == "link_down" and self._joins(verdict, ends):
            return []
        if verdict.fault == "link_flap":
            over = [self._end(now, entry, "it flaps") for entry in on_it if entry.fault == "link_down"]
            return [*over, self._fire(now, verdict, ends)]
        return [self._fire(now, verdict, ends)]

    def _joins(self, verdict: Verdict, ends: list[list[str]]) -> bool:
        """Return whether a cable that is down belongs to a switch that already is: then it is counted there."""
        switches = {switch for cable in verdict.members for switch in cable.switches}
        for entry in self._open:
            near = abs(entry.since - verdict.since) <= 2 * self._config.together_s * 1000
            if not entry.end[2] and entry.end[1] in switches and near:
                entry.members += ends
                return True
        return False

    def _fire(self, now: Instant, verdict: Verdict, ends: list[list[str]]) -> Finding:
        started_at = min(verdict.since, now)
        entry = _Open("", verdict.fault, list(verdict.end), verdict.mode, verdict.since, started_at, ends)
        entry.id = finding_id(f"{self.spec.name}/{verdict.fault}", entry.entity, started_at)
        self._open.append(entry)
        return Finding(
            id=entry.id,
            detector=self.spec.name,
            fault=verdict.fault,
            entity=entry.entity,
            state="firing",
            started_at=started_at,
            detected_at=now,
            severity="ticket" if verdict.fault == "link_errors" else "page",
            score=verdict.score,
            summary=verdict.summary,
            recommended_action=_ACTIONS[verdict.fault],
            evidence=verdict.evidence,
        )

    def _close(self, now: Instant) -> list[Finding]:
        over: list[Finding] = []
        for entry in list(self._open):
            cables = [self._cables.with_end((kind, owner, port)) for kind, owner, port in entry.members]
            well = sum(self._is_well(entry, cable, now) for cable in cables)
            if well < 0.9 * len(cables):
                entry.fine_at = -1
            elif entry.fine_at < 0:
                entry.fine_at = now
            held = 0.0 if entry.fault == "link_errors" else self._config.release_s * 1000
            if entry.fine_at >= 0 and now - entry.fine_at >= held:
                over.append(self._end(now, entry, "the link is well again"))
        return over

    def _is_well(self, entry: _Open, cable: Cable, now: Instant) -> bool:
        ports = self._judge.ports(cable)
        fresh = [(end, states, port) for end, states, port in ports if self._judge.is_fresh(states, port, now)]
        if not fresh or any(states.state[port] == 0 for _, states, port in fresh):
            return False
        if entry.fault == "link_flap":
            quiet = self._config.flap_hold_s - self._config.release_s
            return now - self._judge.last_down(cable) >= quiet * 1000
        if entry.fault == "link_errors":
            losses = self._judge.losses(cable)
            return all(self._errors[end[0]].is_calm(port, now, losses) for end, _, port in ports)  # silent ones, too
        mine: End = (entry.end[0], entry.end[1], entry.end[2])
        nic = self._cables.index(mine) if entry.mode in {"quiet", "missing"} else None
        if nic is None:
            return True
        last = self._rails.moved[nic] if entry.mode == "quiet" else self._states["nic"].presence.last[nic]
        return bool(last > max(entry.since, now - 30_000))

    def _end(self, now: Instant, entry: _Open, reason: str) -> Finding:
        self._open.remove(entry)
        if entry.fault != "link_down":
            over = self._flapped if entry.fault == "link_flap" else self._erred
            for kind, owner, port in entry.members:
                over[kind, owner, port] = now
        name = " ".join(str(part) for part in entry.entity.values())
        return Finding(
            id=entry.id,
            detector=self.spec.name,
            fault=entry.fault,
            entity=entry.entity,
            state="resolved",
            started_at=entry.started_at,
            detected_at=now,
            severity="ticket" if entry.fault == "link_errors" else "page",
            score=0.0,
            summary=f"{entry.fault} of {name} is over: {reason}",
            recommended_action="none",
            evidence={"lasted_s": (now - entry.started_at) / 1000},
        )

    def snapshot(self) -> bytes:
        """Return the whole state."""
        gpus, arrays = self._gpus.snapshot()
        arrays |= self._rails.snapshot() | self._nodes.snapshot()
        states: dict[str, Any] = {}
        for kind in ("nic", "switch"):
            states[kind], own = self._states[kind].snapshot()
            arrays |= own | self._errors[kind].snapshot()
        document = {
            "gpus": gpus,
            "states": states,
            "nodes": self._roster.names,
            "lines": self._lines.snapshot(),
            "scheduler": self._scheduler.snapshot(),
            "flapped": [[list(end), at] for end, at in self._flapped.items()],
            "erred": [[list(end), at] for end, at in self._erred.items()],
            "open": [asdict(entry) for entry in self._open],
        }
        return pack(document, arrays)

    @classmethod
    def restore(cls, config: DetectorConfig, fleet: Fleet, state: bytes) -> Self:
        """Return a detector that goes on exactly where `snapshot` was taken."""
        document, arrays = unpack(state)
        detector = cls(config, fleet)
        for node in document["nodes"]:
            detector._roster.number(node)
        detector._gpus.load(document["gpus"], arrays)
        for kind in ("nic", "switch"):
            detector._states[kind].load(document["states"][kind], arrays)
            detector._errors[kind].load(arrays)
            detector._cables.sync(kind, len(detector._states[kind]))
        detector._rails.load(arrays)
        detector._nodes.load(arrays)
        detector._lines.load(document["lines"])
        detector._scheduler.load(document["scheduler"])
        detector._flapped = {(kind, owner, port): at for (kind, owner, port), at in document["flapped"]}
        detector._erred = {(kind, owner, port): at for (kind, owner, port), at in document["erred"]}
        detector._open = [_Open(**entry) for entry in document["open"]]
        return detector
