"""Which cables are down, flap, err or carry nothing at one moment, and which of their ends to name."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from detectors.contract import Evidence, Fault, Instant, Severity
from detectors.core.evidence import odds_in_words, threshold
from detectors.fleet.cabling import End
from detectors.fleet.fleet import Fleet, Job
from detectors.fleet.tenancy import Tenancy
from detectors.link_fault.announced import Announced
from detectors.link_fault.cables import Cable, Cables
from detectors.link_fault.config import LinkFaultConfig
from detectors.link_fault.errors import LOOK_MS, Errors
from detectors.link_fault.lines import Lines, evidence_of
from detectors.link_fault.nodes import Nodes
from detectors.link_fault.rails import QUIET_MS, Rails
from detectors.link_fault.states import TOGETHER_MS, States
from detectors.link_fault.together import Together
from detectors.link_fault.urgency import ANNOUNCED, UNUSED, Urgency

_FRESH = 1.7
_LATELY_MS = 120_000
"""What has kept its link for longer does not flap now; errors so soon after a loss of link are its companions."""
FLAP_WINDOW_MS: Final = 1_800_000
"""Azure counts 5 losses in 24 h; three in half an hour are no accident (policy)."""
AGAIN_MS: Final = 900_000
"""What was lost before by so much may be in the next of its flaps, and is watched for longer before it is down."""
FLAP_HOLD_MS: Final = 240_000
"""Two losses within it are one flap; a resolve is due within five minutes."""
_CALM_MS = 180_000
"""Errors that stay away for so long, and for the minute of a look, are over."""
_CONFIRM_INTERVALS = 2.2
"""At slow cadences two readings are few, and a loss of half a minute fits between them: it takes the third after the
first, and jitter."""
_CONFIRM_ERRING_MS = 30_000
"""A link that erred may be about to flap: a retrain takes less."""
_CONFIRM_AGAIN_MS = 90_000
"""A link that was lost, came back and is lost again may be flapping: with the next loss it is, and not down."""
_CONFIRM_IDLE_MS = 120_000
"""Of a node that no job has: to move a cable takes one and a half, and nobody waits for it."""
_LOGGED_MS = 60_000
"""Where the kernel's lines are all there is of a port no reading confirms a loss: a link trains anew in less."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A fault of a cable at an end (or of many of one switch or node: an end without port), and why."""

    fault: Fault
    end: End
    mode: str
    since: Instant
    members: tuple[Cable, ...]
    severity: Severity
    score: float
    summary: str
    evidence: Evidence


class Judge:
    """Looks at all cables at one moment."""

    def __init__(
        self,
        config: LinkFaultConfig,
        fleet: Fleet,
        cables: Cables,
        states: dict[str, States],
        errors: dict[str, Errors],
        rails: Rails,
        lines: Lines,
        announced: Announced,
        nodes: Nodes,
        together: Together,
        tenancy: Tenancy,
    ) -> None:
        self._config, self._fleet, self._cables, self._states = config, fleet, cables, states
        self._errors, self._rails, self._lines, self._nodes = errors, rails, lines, nodes
        self._announced, self._together, self._tenancy = announced, together, tenancy
        self._ports, self._lives = together.ports, together.lives
        self._urgency = Urgency(fleet, announced, together, lines, tenancy)

    def is_fresh(self, states: States, port: int, now: Instant) -> bool:
        """Return whether a port was heard when it should have been."""
        heard = states.heard
        return not now - heard.last[port] > _FRESH * heard.usual[port]

    def flaps(self, now: Instant, closed: Mapping[End, Instant]) -> Iterator[Verdict]:
        """Yield the cables that lose their link again and again; `closed` says when a flap of one was over, by end."""
        since, times = now - FLAP_WINDOW_MS, self._config.flap_downs
        suspects = {
            self._cables.of(kind, int(port))
            for kind, states in self._states.items()
            for port in np.flatnonzero(2 * states.downs(since) >= times)
        }
        logged = [end for end in self._lines.flapping(since, times) if end[0] == "nic" or self._cables.knows(end)]
        suspects |= {self._cables.with_end(end) for end in logged}
        for cable in sorted(suspects, key=lambda cable: cable.ends):
            last = max(self.losses(cable), default=-1)
            if now - max(last, self.last_down(cable)) > _LATELY_MS:
                continue
            counted = max(since, closed.get(cable.ends[0], -1))
            if cable.node is not None:
                counted = max(counted, self._nodes.settled_since(cable.node))
            downs = {end: int(states.downs(counted)[port]) for end, states, port in self._ports(cable)}
            for end in cable.ends:
                lines = self._lines.downs(end, counted)
                if lines:
                    downs[end] = max(len(lines), downs.get(end, 0))
            most = max(downs.values(), default=0)
            seen = max(most, self._distinct(cable, counted))
            if seen < times or not self._lives(cable, self.last_down(cable), now):
                continue
            first = min((at for at in self.losses(cable) if at > counted), default=now)
            end = self._name(cable, [end for end, count in downs.items() if count >= min(times, most)])
            severity = self._urgency.of_flap(cable, first, now)
            unused = UNUSED * (severity == "info" and not self._announced.covers(cable.ends, first))
            yield Verdict(
                "link_flap", end, "flap", first, (cable,), severity, min(1.0, 0.75 + 0.05 * (seen - times)),
                f"{_in_words(end)} lost its link {seen} times in {(now - first) / 60_000:.0f} min{unused}",
                self._evidence(cable, counted, now) | {"downs": seen, "in_s": (now - first) / 1000},
            )  # fmt: skip

    def last_down(self, cable: Cable) -> Instant:
        """Return when a cable last lost its link, or was without, by any of its ends; -1 never."""
        read = [states.last_down(port) for _, states, port in self._ports(cable)]
        return max(read + self._logged(cable), default=-1)

    def losses(self, cable: Cable) -> list[Instant]:
        """Return when a cable lost its link, by any of its ends, as far back as is kept; in no order."""
        return [at for _, states, port in self._ports(cable) for at in states.losses(port)] + self._logged(cable)

    def _distinct(self, cable: Cable, since: Instant) -> int:
        """Return how often a cable lost its link after `since` by all ends: a brief loss may be read at one only."""
        apart_ms = max((states.together_ms(port) for _, states, port in self._ports(cable)), default=TOGETHER_MS)
        losses = np.sort([at for at in self.losses(cable) if at > since])
        return int(np.count_nonzero(np.diff(losses) > apart_ms)) + min(len(losses), 1)

    def _logged(self, cable: Cable) -> list[Instant]:
        return [at for end in cable.ends for at in self._lines.downs(end, -1)]

    def downs(
        self, now: Instant, erred: Collection[End], flapped: Collection[End], found: Collection[End]
    ) -> Iterator[Verdict]:
        """Yield the cables that are down and stay so, or the switch or node that they share.

        `erred` and `flapped` lately did, by end; a finding stands for those `found`, by their first ends.
        """
        suspects = {self._cables.of(kind, int(port)) for kind, states in self._states.items() for port in states.down()}
        for cable in sorted(suspects, key=lambda cable: cable.ends):
            if cable.ends[0] in found:
                continue
            low = [(end, states, port) for end, states, port in self._ports(cable) if states.down_since[port] >= 0]
            since = min(int(states.down_since[port]) for _, states, port in low)
            since = max(since, *(states.up_between(port) for _, states, port in low))
            # A line is written at once, and read may be what it is about an interval or two later.
            line = self._line(cable, since - round(max(states.late_ms(port) for _, states, port in low)))
            if self._lost_before(cable, _first(since, line)):
                since = max(since, up := self._up_at(cable))
                line = line if line is not None and line[0] > up else None
            if not self._confirmed(now, cable, low, since, line, erred, flapped):
                continue
            if self._is_back(cable, low) or not any(self.is_fresh(states, port, now) for _, states, port in low):
                continue
            started = _first(since, line)
            # Who reads its own port as down a minute after the line lives, by that reading alone.
            own = any(end[0] == "nic" and states.heard.last[port] - started >= _LOGGED_MS for end, states, port in low)
            if not self._lives(cable, started if own else since, now):
                continue
            shared, members = self._together.of(cable, since, now)
            severity, why = self._urgency.of_loss(cable, since, line is not None, now)
            evidence = self._evidence(cable, since, now) | dict(evidence_of(line))
            if shared is not None:
                all_of_it = len(self._cables.at(shared))
                held = f"{len(members)} of its {all_of_it} cables lost their link"
                planned = self._announced.covers([shared] if shared[0] == "switch" else cable.ends, since)
                severity = "info" if planned else "page"
                if shared[0] == "nic":
                    severity = self._urgency.of(cable, since, now)
                    held += ", and nobody gathers what the node itself reports"
                yield Verdict(
                    "link_down", shared, "down", since, members, severity, 0.95,
                    f"{shared[1]}: {held}{ANNOUNCED * planned}",
                    evidence | {"cables_down": len(members), "cables": all_of_it},
                )  # fmt: skip
                continue
            end = self._name(cable, [end for end, _, _ in low])
            score = min(1.0, 0.8 + 0.1 * (len(low) > 1) + 0.1 * (line is not None))
            summary = f"{_in_words(end)} has no link for {(now - started) / 1000:.0f} s{why}"
            yield Verdict("link_down", end, "down", started, (cable,), severity, score, summary, evidence)

    def logged_downs(self, now: Instant) -> Iterator[Verdict]:
        """Yield NICs that are down by the kernel's lines alone, and that the topology or a job of several nodes has."""
        for end, since in sorted(self._lines.lost()):
            cable = self._cables.with_end(end)
            if end[0] != "nic" or self._ports(cable):
                continue
            again = any(since - AGAIN_MS < at < since for at in self._lines.downs(end, -1))
            job = self._fleet.job_of(end[1])
            # A port that nobody uses has such a line at a boot, too, before its node has a job.
            used = cable.laid or (job is not None and len(job.nodes) > 1 and job.start < since)
            lasts = now - since >= (_CONFIRM_AGAIN_MS if again else _LOGGED_MS)
            if not used or not lasts or not self._lives(cable, since, now):
                continue
            summary = f"{_in_words(end)} has no link for {(now - since) / 1000:.0f} s, by the kernel's log alone"
            evidence = self._evidence(cable, since, now) | dict(evidence_of(self._line(cable, since - 1)))
            severity = self._urgency.of(cable, since, now)
            yield Verdict("link_down", end, "down", since, (cable,), severity, 0.75, summary, evidence)

    def _confirmed(
        self, now: Instant, cable: Cable, low: list[tuple[End, States, int]], since: Instant,
        line: tuple[Instant, str] | None, erred: Collection[End], flapped: Collection[End],
    ) -> bool:  # fmt: skip
        """Return whether a loss of link was seen to last, from the first reading or line that shows it to the latest.

        What was not read since may be over: a link that is down for 18 s is down at two readings of 15 s.
        """
        usual = max(float(np.nan_to_num(states.heard.usual[port])) for _, states, port in low)
        confirm = max(self._config.confirm_s * 1000, _CONFIRM_INTERVALS * usual)
        first = _first(since, line)
        again = cable.ends[0] in flapped or self._lost_before(cable, first)
        if again or cable.ends[0] in erred:
            readings = max(int(states.low[port]) for _, states, port in low)
            return readings >= 2 and now - since >= max(_CONFIRM_AGAIN_MS if again else _CONFIRM_ERRING_MS, confirm)
        jobless = cable.node is not None and self._fleet.is_idle(cable.node)
        ended = jobless and self._tenancy.job(str(cable.node), first) is not None
        if idle := jobless and not ended:
            confirm = max(confirm, _CONFIRM_IDLE_MS)
        readings = sum(int(states.low[port]) for _, states, port in low)
        latest = max(int(states.heard.last[port]) for _, states, port in low)
        logged = sum(len(self._lines.downs(end, first - 1)) for end in cable.ends)
        # It was lost once, and no line says that it came back, however slow the readings are; or its job has ended.
        sure = (line is not None and logged == 1) or ended
        lasts = readings >= 2 or (line is not None and latest - first >= _LOGGED_MS)
        if sure and lasts and not idle and confirm > _LOGGED_MS:
            return now - first >= _LOGGED_MS
        return readings + (line is not None) >= 2 and latest - first >= confirm

    def _is_back(self, cable: Cable, low: list[tuple[End, States, int]]) -> bool:
        """Return whether a line says that a link is up, and each reading without may be older: a collector's copy."""
        late = min(states.down_since[port] - states.late_ms(port) for _, states, port in low)
        up = max(max(self._lines.up_at(end), self._lines.some_back(end[1], round(late))) for end in cable.ends)
        return up >= 0 and all(up > states.heard.last[port] - states.old_ms(port) for _, states, port in low)

    def _lost_before(self, cable: Cable, since: Instant) -> bool:
        """Return whether a cable that is down since then may be in the next of its flaps."""
        return any(since - AGAIN_MS < at < since - TOGETHER_MS for at in self.losses(cable))

    def _up_at(self, cable: Cable) -> Instant:
        """Return when any end of a cable that loses its link again and again was last up; -1 never."""
        read = [states.up_at(port) for _, states, port in self._ports(cable)]
        return max([*read, *(self._lines.up_at(end) for end in cable.ends)])

    def look(self, now: Instant) -> None:
        """Look at the errors of the ports that it is time for; those that come with a loss of link are the loss's."""
        for kind, errors in self._errors.items():
            due = errors.due()
            if not len(due):
                continue
            grew = (errors.counted.grown[:, due] > 0).any(axis=0)
            excused = np.zeros(len(due), bool)
            for place in np.flatnonzero(grew).tolist():
                cable = self._cables.of(kind, int(due[place]))
                excused[place] = any(now - at <= LOOK_MS + _LATELY_MS for at in self.losses(cable))
            errors.look(due, excused)

    def erring(self, now: Instant) -> Iterator[Verdict]:
        """Yield the cables with errors at a rate, named by the port that sees them: the NIC, else the worse."""
        ports = sum(len(errors) for errors in self._errors.values())
        if not ports:
            return
        nodes = max(len(self._nodes), len(self._fleet.nodes), 1)
        wealth = threshold(self._config.false_alarms_per_100_node_days, ports, nodes, LOOK_MS / 1000)
        found: dict[Cable, list[tuple[float, End, int, dict[str, float]]]] = {}
        for kind, errors in self._errors.items():
            for port, figures in errors.failing(wealth).items():
                cable = self._cables.of(kind, port)
                end = next(end for end in cable.ends if self._cables.index(end) == port and end[0] == kind)
                weight = max(value for name, value in figures.items() if name in errors.counters)
                found.setdefault(cable, []).append((weight, end, port, figures))
        for cable, seen_by in sorted(found.items(), key=lambda entry: entry[0].ends):
            # What has lost its link may be flapping, and err until the next time.
            if self.losses(cable) and now - self.last_down(cable) <= FLAP_HOLD_MS:
                continue
            weight, end, port, figures = min(seen_by, key=lambda entry: (entry[1][0] != "nic", -entry[0], entry[1]))
            errors = self._errors[end[0]]
            if now - errors.odd[port] > 2 * LOOK_MS or not self._lives(cable, now - LOOK_MS, now):
                continue
            started = max(errors.began(port, now), int(self._states[end[0]].heard_since[port]))
            worst = next(name for name, value in figures.items() if value == weight)
            summary = f"{_in_words(end)}: {weight:.0f} {worst} in {(now - started) / 60_000:.0f} min"
            evidence: Evidence = self._evidence(cable, started, now) | figures
            if errors.evidence.wealth[port] >= wealth:
                chance = odds_in_words(float(errors.evidence.wealth[port]), ports, LOOK_MS / 1000)
                evidence = {**evidence, "by_chance": chance}
            yield Verdict("link_errors", end, "errors", min(started, now), (cable,), "ticket", 0.8, summary, evidence)

    def errs(self, cable: Cable, now: Instant) -> bool:
        """Return whether an end of a cable has counted unusual errors lately."""
        return any(now - self._errors[end[0]].odd[port] <= _CALM_MS for end, _, port in self._ports(cable))

    def begin_anew(self, cable: Cable) -> None:
        """Forget the evidence of a cable's errors: what has come to an end is not found again by it."""
        for end, _, port in self._ports(cable):
            self._errors[end[0]].evidence.forget([port])

    def silent_rails(self, now: Instant) -> Iterator[Verdict]:
        """Yield NICs of a job that carry nothing, or report nothing, while their siblings go on."""
        states = self._states["nic"]
        if not len(states):
            return
        last, usual = states.heard.last, states.heard.usual
        quiet = set(self._rails.quiet(last, usual).tolist())
        missing = set(states.missing(now, self._config.false_alarms_per_100_node_days).tolist())
        for nic in sorted(quiet | missing, key=lambda nic: self._cables.of("nic", nic).ends):
            cable = self._cables.of("nic", nic)
            end = next(end for end in cable.ends if end[0] == "nic")
            siblings = [other for other in self._cables.nics_of(end[1]) if other != nic]
            gone = nic in missing
            since = int(last[nic]) if gone else int(self._rails.moved[nic])
            recent = now - since <= 3_600_000
            if not siblings or not recent or states.state[nic] == 0 or not self._lives(cable, since, now):
                continue
            if gone:
                if not all(self.is_fresh(states, other, now) and last[other] > since for other in siblings):
                    continue
                what = "is not reported any more while the node's other NICs are"
            else:
                job = self._has_all_of(end[1])
                if job is None or job.start > since - 60_000 or not self.is_fresh(states, nic, now):
                    continue
                if not self._rails.is_one(nic, siblings):
                    continue
                if not self._others_move(end, siblings, job.nodes, since, now):
                    continue
                what = f"carries nothing for {(now - since) / 1000:.0f} s while its siblings do"
            evidence = self._evidence(cable, since, now) | {
                "traffic_before_gb_s": float(self._rails.level[nic]) / 1e6,
                "siblings": len(siblings),
            }
            mode = "missing" if gone else "quiet"
            yield Verdict("link_down", end, mode, since, (cable,), "page", 0.75, f"{_in_words(end)} {what}", evidence)

    def _has_all_of(self, node: str) -> Job | None:
        """Return the job that has a whole node: of several that share it each has NICs of its own."""
        job = self._fleet.job_of(node)
        shared = sum(node in other.nodes for other in self._fleet.jobs.values()) > 1
        return None if job is None or shared or node in job.gpus else job

    def _others_move(self, end: End, siblings: list[int], nodes: tuple[str, ...], since: Instant, now: Instant) -> bool:
        """Return whether the siblings on the node, and most NICs of the rail on the job's nodes, go on moving data."""
        steady = now - QUIET_MS
        late = max(now - QUIET_MS // 2, since)
        if len(self._rails.moves(siblings, steady, late)) < len(siblings):
            return False
        alike = [self._cables.index(("nic", node, end[2])) for node in nodes if node != end[1]]
        known = [nic for nic in alike if nic is not None]
        return not known or len(self._rails.moves(known, steady, late)) >= 0.5 * len(known)

    def _line(self, cable: Cable, since: Instant) -> tuple[Instant, str] | None:
        return next((line for end in cable.ends if (line := self._lines.down_line(end, since)) is not None), None)

    def _name(self, cable: Cable, showing: list[End]) -> End:
        """Return the end to name: a node's NIC if it reports its link, else the first of the ends that show it."""
        for end, states, port in self._ports(cable):
            if end[0] == "nic" and states.state[port] >= 0:
                return end
        return min(showing)

    def _evidence(self, cable: Cable, since: Instant, now: Instant) -> dict[str, float | int | str]:
        evidence: dict[str, float | int | str] = {"cable": " - ".join(_in_words(end) for end in cable.ends)}
        for end, states, port in self._ports(cable):
            side = "nic" if end[0] == "nic" else f"port_{end[1]}"
            evidence[f"{side}_up"] = int(states.state[port])
            evidence[f"{side}_downs"] = int(states.downs(since - 1)[port])
            if states.used[port] >= 0:
                evidence[f"{side}_used_s_ago"] = (now - int(states.used[port])) / 1000
        job = self._fleet.job_of(cable.node) if cable.node is not None else None
        if job is not None:
            evidence["job_id"] = job.job_id
        return evidence


def _first(since: Instant, line: tuple[Instant, str] | None) -> Instant:
    """Return since when a cable is down, by its ends and by the line on it, if there is one."""
    return since if line is None else min(since, line[0])


def _in_words(end: End) -> str:
    return f"{end[1]} {end[2]}"
