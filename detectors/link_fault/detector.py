"""Faults of a cable: its link is down, goes down again and again, or errs; named once, at one of its two ends.

Down: a port that was up reports down, at readings 19 s apart or more, of ports that are read every 10 s or slower
three intervals (the other end, the kernel and the switch's log count, too; a line of the only loss and two readings,
or one a minute after it, are enough after a minute, as is a job that ended since); for half a minute where the cable
erred lately, for one and a half where it was lost and back a while ago, for two on a node that no job has. Of
severity info where nobody has used the port, and the topology does not expect it to be up, where work on its switch
was announced, or where no job has its node, whose kernel logged no loss, until one does. Flap: three losses of link
in half an hour, by the state, by `link_downed` or by a log, whichever saw most; while it flaps it is not also down,
until one of its losses lasts for a minute and a half, with no end up meanwhile; errors within minutes of a loss are
the loss's. Errors (uncorrectable frames, symbols, receive errors, link recoveries; corrected frames are no fault):
ten a second at once, a quarter of that where it lasts for more than a minute, fewer where that is improbable here by
the port's own habit and its peers (`errors`). A NIC that carries nothing, or reports nothing, while its siblings and
its rail go on, is down whatever its state says.

A host's cable is named at the NIC if that reports its link, else at the switch port; between switches the end that
shows it, the first by name if both do. Three or more cables of a switch that go down at once, and at least half of it,
are the switch; all cables of a node that nobody gathers, and that has two or more, are the node. Where the node is
silent, booting, drained or down, its ports are too, and nothing is reported. A port that was never up is not in use.

It is wrong about flaps that stay down longer than the confirmation (first `link_down`, then `link_flap`), about nodes
that are switched off where no in-band stream and no topology shows it, about few errors a minute that were there from
the start, about a cable whose errors all ports share (a bad firmware), and about what fails by itself within two
hours of work that was announced on its switch (information).
"""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

from detectors.base import BaseDetector
from detectors.case_book import OpenCase
from detectors.contract import Batch, DetectorConfig, DetectorSpec, Entity, Fault, Finding, Instant, LogRecord
from detectors.core.survivors import Survivors
from detectors.fleet.cabling import End
from detectors.fleet.fleet import Fleet
from detectors.fleet.presence import Attendance, Roster
from detectors.fleet.scheduling import Scheduler
from detectors.fleet.tenancy import Tenancy
from detectors.link_fault.announced import Announced
from detectors.link_fault.cables import Cable, Cables, entity_of
from detectors.link_fault.config import LinkFaultConfig
from detectors.link_fault.errors import Errors
from detectors.link_fault.lines import Lines
from detectors.link_fault.nodes import Nodes
from detectors.link_fault.rails import Rails
from detectors.link_fault.states import States
from detectors.link_fault.together import Together
from detectors.link_fault.verdicts import AGAIN_MS, FLAP_HOLD_MS, FLAP_WINDOW_MS, Judge, Verdict
from detectors.spec import load_spec

_ACTIONS: Final = {
    "link_down": "look at cable and transceiver at both ends, swap with a known good one; keep jobs off the node if "
    "they cannot do without the rail",
    "link_flap": "take the port out of use, reseat or replace the transceiver or cable: a flap stalls every collective",
    "link_errors": "clean and reseat the transceiver, compare its light levels with its peers', replace the cable",
}
_MOVED_MS: Final = 30_000
_RELEASE_MS: Final = 60_000
"""A link that comes up for less is still the same fault (policy)."""


class LinkFault(BaseDetector):
    """See the module; the settings are in detector.yaml."""

    spec: ClassVar[DetectorSpec] = load_spec(__package__ or "")
    config_type: ClassVar[type[DetectorConfig]] = LinkFaultConfig

    KEPT = (
        "_roster", "_states", "_errors", "_rails", "_gpus", "_lines", "_announced", "_scheduler", "_nodes", "_flapped",
        "_erred", "_tenancy",
    )  # fmt: skip
    _config: LinkFaultConfig

    def __init__(self, config: DetectorConfig, fleet: Fleet) -> None:
        super().__init__(config, fleet)
        config = self._config
        self._cables = Cables(fleet)
        self._roster = Roster(fleet)
        self._states = {"nic": States("nic", self.tails), "switch": States("switch", self.tails)}
        self._errors = {"nic": Errors(config, "nic", self.tails), "switch": Errors(config, "switch", self.tails)}
        self._rails = Rails()
        self._gpus = Attendance("dcgm")
        self._lines = Lines(fleet)
        self._announced = Announced()
        self._scheduler, self._tenancy = Scheduler(fleet), Tenancy(fleet)
        self._nodes = Nodes(self._roster, self._gpus, self._states["nic"], self._scheduler)
        self._together = Together(self._cables, self._states, self._nodes)
        self._judge = Judge(
            config,
            fleet,
            self._cables,
            self._states,
            self._errors,
            self._rails,
            self._lines,
            self._announced,
            self._nodes,
            self._together,
            self._tenancy,
        )
        # A case's memo: the `end` it names, its `mode`, the first ends of its cables (`members`), and since when all is
        # well (`fine_at`, -1).
        self._flapped, self._erred = Ended(), Ended()

    def begin_afresh(self, name: str) -> None:
        """Go on with the state of a version that did not note which jobs had ended."""
        if name != "_tenancy":
            super().begin_afresh(name)

    def logs(self, records: Sequence[LogRecord]) -> Sequence[Finding]:
        """Note what kernels say of links, and the scheduler of nodes."""
        self._lines.take(records)
        self._announced.take(records)
        self._scheduler.take(records)
        return ()

    def observe(self, batch: Batch) -> Sequence[Finding]:
        """Take readings; what follows from them is decided at the next point of the grid."""
        if batch.kind == "dcgm":
            self._gpus.readings.take(batch)
            return ()
        self._states[batch.kind].take(batch)
        self._errors[batch.kind].take(batch)
        self._cables.sync(batch.kind, len(self._states[batch.kind]))
        if batch.kind == "nic":
            self._rails.take(batch)
        return ()

    def advance(self, now: Instant) -> Sequence[Finding]:
        """Decide: what is well again, and what is not."""
        self._tenancy.note(now)
        self._gpus.look(now)
        for states in self._states.values():
            states.look(now)
        self._nodes.measure()
        self._judge.look(now)
        self._flapped.forget(now - FLAP_WINDOW_MS)
        self._erred.forget(now - AGAIN_MS)
        found = self._close(now)
        for verdict in self._verdicts(now):
            found += self._take_up(now, verdict)
        return found

    def go_on_with(self, survivors: Survivors) -> None:
        """Let findings that stand for several cables stand for the rest of them."""
        gone = survivors.names("machine")
        for case in self._book.cases():
            case.memo["members"] = [end for end in case.memo["members"] if end[1] not in gone]

    def _verdicts(self, now: Instant) -> Iterator[Verdict]:
        yield from self._judge.flaps(now, self._flapped.at)
        lately = {end for end, at in self._flapped.at.items() if at >= now - AGAIN_MS}
        flapped = self._members("link_flap") | lately
        erred = self._members("link_errors") | self._erred.at.keys()
        urgent = self._members("link_down", page=True)
        yield from self._judge.downs(now, erred, flapped, urgent)
        yield from self._judge.logged_downs(now)
        yield from self._judge.erring(now)
        yield from self._judge.silent_rails(now)

    def _members(self, fault: Fault, *, page: bool = False) -> set[End]:
        """Return the first ends of the cables that open findings of a fault stand for; `page`: urgent ones only."""
        cases = (case for case in self._book.cases(fault) if case.severity == "page" or not page)
        members = (end for case in cases for end in case.memo["members"])
        return {(kind, owner, port) for kind, owner, port in members}

    def _take_up(self, now: Instant, verdict: Verdict) -> list[Finding]:
        """Return the finding of a verdict, unless an open one stands for it already."""
        ends = [list(cable.ends[0]) for cable in verdict.members]
        on_it = [case for case in self._book.cases() if any(end in case.memo["members"] for end in ends)]
        if verdict.fault in {"link_flap", "link_down"} and verdict.severity == "page":
            unused = [case for case in on_it if case.fault == verdict.fault and case.severity == "info"]
            if unused:
                ended = [self._end(now, case, "somebody uses it now") for case in unused]
                return [*ended, *self._fire(now, verdict, ends)]
        if any(case.fault == verdict.fault for case in on_it) or (verdict.fault == "link_errors" and on_it):
            return []
        flapping = [case for case in on_it if case.fault == "link_flap"]
        if flapping and (verdict.mode != "down" or verdict.severity == "info"):
            return []
        if verdict.fault == "link_down" and self._joins(verdict, ends):
            return []
        if verdict.fault == "link_flap":
            over, reason = [case for case in on_it if case.fault == "link_down"], "it flaps"
        else:
            over, reason = flapping, "it stays down"
        return [*(self._end(now, case, reason) for case in over), *self._fire(now, verdict, ends)]

    def _joins(self, verdict: Verdict, ends: list[list[str]]) -> bool:
        """Return whether a cable that is down belongs to a switch or node that already is: then it is counted there."""
        owners = {(kind, owner, "") for cable in verdict.members for kind, owner, _ in cable.ends}
        for case in self._book.cases("link_down"):
            near = abs(case.started_at - verdict.since) <= 40_000
            if tuple(case.memo["end"]) in owners and near:
                case.memo["members"] += ends
                return True
        return False

    def _fire(self, now: Instant, verdict: Verdict, ends: list[list[str]]) -> list[Finding]:
        kind, owner, port = verdict.end
        entity: Entity = entity_of(verdict.end) if port else {"switch" if kind == "switch" else "node": owner}
        return self._book.fire(
            now,
            verdict.fault,
            entity,
            started_at=min(verdict.since, now),
            severity=verdict.severity,
            score=verdict.score,
            summary=verdict.summary,
            action=_ACTIONS[verdict.fault],
            evidence=verdict.evidence,
            memo={"end": list(verdict.end), "mode": verdict.mode, "members": ends, "fine_at": -1},
        )

    def _close(self, now: Instant) -> list[Finding]:
        over: list[Finding] = []
        for case in self._book.cases():
            cables = [self._cables.with_end((kind, owner, port)) for kind, owner, port in case.memo["members"]]
            well = sum(self._is_well(case, cable, now) for cable in cables)
            if well < 0.9 * len(cables):
                case.memo["fine_at"] = -1
            elif case.memo["fine_at"] < 0:
                case.memo["fine_at"] = now
            held = 0 if case.fault == "link_errors" else _RELEASE_MS
            if case.memo["fine_at"] >= 0 and now - case.memo["fine_at"] >= held:
                over.append(self._end(now, case, "the link is well again"))
        return over

    def _is_well(self, case: OpenCase, cable: Cable, now: Instant) -> bool:
        ports = self._together.ports(cable)
        calm = now - self._judge.last_down(cable) >= FLAP_HOLD_MS - _RELEASE_MS
        if not ports:  # its kernel's lines are all that is known
            return calm if case.fault == "link_flap" else self._lines.logged_up(cable.ends[0], case.started_at)
        fresh = [(end, states, port) for end, states, port in ports if self._judge.is_fresh(states, port, now)]
        if not fresh or any(states.state[port] == 0 for _, states, port in fresh):
            return False
        if case.fault != "link_down":
            return calm if case.fault == "link_flap" else not self._judge.errs(cable, now)
        kind, owner, port = case.memo["end"]
        nic = self._cables.index((kind, owner, port)) if case.memo["mode"] in {"quiet", "missing"} else None
        if nic is None:
            return True
        last = self._rails.moved[nic] if case.memo["mode"] == "quiet" else self._states["nic"].heard.last[nic]
        return bool(last > max(case.started_at, now - _MOVED_MS))

    def _end(self, now: Instant, case: OpenCase, reason: str) -> Finding:
        if case.fault != "link_down":
            over = self._flapped if case.fault == "link_flap" else self._erred
            for kind, owner, port in case.memo["members"]:
                over.at[kind, owner, port] = now
        if case.fault == "link_errors":
            for kind, owner, port in case.memo["members"]:
                self._judge.begin_anew(self._cables.with_end((kind, owner, port)))
        return self._book.resolve(case, now, reason)

    def restored(self) -> None:
        """Find again which cable every port has."""
        for kind, states in self._states.items():
            self._cables.sync(kind, len(states))


class Ended:
    """By end of a cable: when its fault was over (`at`)."""

    def __init__(self) -> None:
        self.at: dict[End, Instant] = {}

    def forget(self, before: float) -> None:
        """Drop what was over before a time."""
        self.at = {end: at for end, at in self.at.items() if at >= before}

    def snapshot(self) -> list[Any]:
        """Return the state as JSON can say it."""
        return [[list(end), at] for end, at in self.at.items()]

    def load(self, document: list[Any]) -> None:
        """Take what `snapshot` returned."""
        self.at = {(kind, owner, port): at for (kind, owner, port), at in document}
