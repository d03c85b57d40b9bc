"""Which cables are down, flap, err or carry nothing at one moment, and which of their ends to name."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from detectors.contract import Evidence, Fault, Instant
from detectors.fleet import Fleet
from detectors.link_fault.cables import Cable, Cables, End
from detectors.link_fault.config import LinkFaultConfig
from detectors.link_fault.errors import Errors
from detectors.link_fault.lines import Lines, evidence_of
from detectors.link_fault.nodes import Nodes
from detectors.link_fault.rails import Rails
from detectors.link_fault.states import States
from detectors.statistics import known_or

_FRESH = 1.7
_LATELY_MS = 120_000
"""What has kept its link for longer does not flap now."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A fault of a cable at an end (or of many on one switch: an end without port), and why."""

    fault: Fault
    end: End
    mode: str
    since: Instant
    members: tuple[Cable, ...]
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
        nodes: Nodes,
    ) -> None:
        self._config, self._fleet, self._cables, self._states = config, fleet, cables, states
        self._errors, self._rails, self._lines, self._nodes = errors, rails, lines, nodes

    def ports(self, cable: Cable) -> list[tuple[End, States, int]]:
        """Return the ends of a cable that have reported."""
        found = [(end, self._cables.index(end)) for end in cable.ends]
        return [(end, self._states[end[0]], index) for end, index in found if index is not None]

    def is_fresh(self, states: States, port: int, now: Instant) -> bool:
        """Return whether a port was heard when it should have been."""
        presence = states.presence
        return not now - presence.last[port] > _FRESH * presence.usual[port]

    def flaps(self, now: Instant, closed: Mapping[End, Instant]) -> Iterator[Verdict]:
        """Yield the cables that lose their link again and again; `closed` says when a flap of one was over, by end."""
        since, times = now - int(self._config.flap_window_s * 1000), self._config.flap_downs
        suspects = {
            self._cables.of(kind, int(port))
            for kind, states in self._states.items()
            for port in np.flatnonzero(states.downs(since) >= times)
        }
        told_of = [end for end in self._lines.flapping(since, times) if end[0] == "nic" or self._cables.knows(end)]
        suspects |= {self._cables.with_end(end) for end in told_of}
        for cable in sorted(suspects, key=lambda cable: cable.ends):
            if now - self.last_down(cable) > _LATELY_MS:
                continue
            counted = max(since, closed.get(cable.ends[0], -1))
            if cable.node is not None:
                counted = max(counted, self._nodes.settled_since(cable.node))
            downs = {end: int(states.downs(counted)[port]) for end, states, port in self.ports(cable)}
            starts = [_first(states, port, counted) for _, states, port in self.ports(cable)]
            for end in cable.ends:
                told = self._lines.downs(end, counted)
                if told:
                    downs[end] = max(len(told), downs.get(end, 0))
                    starts.append(told[0])
            if not downs or max(downs.values()) < times:
                continue
            first = min((at for at in starts if at >= 0), default=now)
            if not self._lives(cable, self.last_down(cable), now):
                continue
            most = max(downs.values())
            end = self._name(cable, [end for end, count in downs.items() if count >= times])
            minutes = (now - first) / 60_000
            yield Verdict(
                "link_flap", end, "flap", first, (cable,), min(1.0, 0.75 + 0.05 * (most - times)),
                f"{_said(end)} lost its link {most} times in {minutes:.0f} min",
                self._evidence(cable, counted) | {"downs": most, "in_s": (now - first) / 1000},
            )  # fmt: skip

    def last_down(self, cable: Cable) -> Instant:
        """Return when a cable last lost its link, or was without, by any of its ends; -1 never."""
        return max([states.last_down(port) for _, states, port in self.ports(cable)] + self._told(cable), default=-1)

    def losses(self, cable: Cable) -> list[Instant]:
        """Return when a cable lost its link, by any of its ends, as far back as is kept; in no order."""
        return [at for _, states, port in self.ports(cable) for at in states.losses(port)] + self._told(cable)

    def _told(self, cable: Cable) -> list[Instant]:
        return [at for end in cable.ends for at in self._lines.downs(end, -1)]

    def downs(self, now: Instant, erred: Collection[End]) -> Iterator[Verdict]:
        """Yield the cables that are down and stay so, or the switch that they share; `erred` lately did, by end."""
        suspects = {self._cables.of(kind, int(port)) for kind, states in self._states.items() for port in states.down()}
        for cable in sorted(suspects, key=lambda cable: cable.ends):
            low = [(end, states, port) for end, states, port in self.ports(cable) if states.down_since[port] >= 0]
            since = min(int(states.down_since[port]) for _, states, port in low)
            line = self._line(cable, since - int(self._config.together_s * 1000))
            readings = sum(int(states.low[port]) for _, states, port in low) + (line is not None)
            # Errors, and losses before, announce a flap: what retrains may take its time.
            again = cable.ends[0] in erred or (line is None and self._lost_before(cable, since))
            if again:  # the readings of one end: a flap can be seen by both
                readings = max(int(states.low[port]) for _, states, port in low)
            confirm_s = self._config.confirm_again_s if again else self._config.confirm_s
            if now - since < confirm_s * 1000 or readings < self._config.confirm_readings:
                continue
            if all(self._lines.said_up(end, int(states.presence.last[port])) for end, states, port in low):
                continue
            if not any(self.is_fresh(states, port, now) for _, states, port in low):
                continue
            if not self._lives(cable, since, now):
                continue
            switch, members = self._shared(cable, since, now)
            started = min(since, line[0]) if line is not None else since
            evidence = self._evidence(cable, since) | dict(evidence_of(line))
            if switch:
                held = f"{len(members)} of its {len(self._cables.at(switch))} cables lost their link"
                told = {"cables_down": len(members), "cables": len(self._cables.at(switch))}
                end = ("switch", switch, "")
                yield Verdict("link_down", end, "down", since, members, 0.95, f"{switch}: {held}", evidence | told)
                continue
            end = self._name(cable, [end for end, _, _ in low])
            score = min(1.0, 0.8 + 0.1 * (len(low) > 1) + 0.1 * (line is not None))
            summary = f"{_said(end)} has no link for {(now - started) / 1000:.0f} s"
            yield Verdict("link_down", end, "down", started, (cable,), score, summary, evidence)

    def _lost_before(self, cable: Cable, since: Instant) -> bool:
        """Return whether a cable that is down since then may be in the next of its flaps."""
        window, apart = self._config.flap_window_s * 1000, self._config.together_s * 1000
        return any(since - window < at < since - apart for at in self.losses(cable))

    def _shared(self, cable: Cable, since: Instant, now: Instant) -> tuple[str, tuple[Cable, ...]]:
        """Return the switch most of whose cables went down with this one, and those; ("", ()) if there is none."""
        best: tuple[float, str, tuple[Cable, ...]] = (0.0, "", ())
        for switch in sorted(cable.switches):
            used = [other for other in self._cables.at(switch) if self._was_up(other)]
            gone = tuple(other for other in used if self._went_down(other, since, now))
            share = len(gone) / max(len(used), 1)
            if len(gone) >= self._config.switch_links and share >= self._config.switch_share and share > best[0]:
                best = share, switch, gone
        return best[1], best[2]

    def _was_up(self, cable: Cable) -> bool:
        return any(states.state[port] == 1 or states.down_since[port] >= 0 for _, states, port in self.ports(cable))

    def _went_down(self, cable: Cable, at: Instant, now: Instant) -> bool:
        since = [int(states.down_since[port]) for _, states, port in self.ports(cable) if states.down_since[port] >= 0]
        near = any(abs(one - at) <= self._config.together_s * 1000 for one in since)
        return near and self._lives(cable, min(since), now)

    def erring(self, now: Instant) -> Iterator[Verdict]:
        """Yield the cables with errors at a rate, named by the port that sees them: the NIC, else the worse."""
        found: dict[Cable, list[tuple[float, End, dict[str, float]]]] = {}
        for kind, errors in self._errors.items():
            for port, told in errors.failing(now).items():
                cable = self._cables.of(kind, port)
                end = next(end for end in cable.ends if self._cables.index(end) == port and end[0] == kind)
                weight = max(value for name, value in told.items() if name.endswith("_10min"))
                found.setdefault(cable, []).append((weight, end, told))
        for cable, told_by in sorted(found.items(), key=lambda entry: entry[0].ends):
            losses = self.losses(cable)
            # What has lost its link may be flapping, and err until the next time.
            if losses and now - self.last_down(cable) <= self._config.flap_hold_s * 1000:
                continue
            erring = [told for told in told_by if not self._is_calm(told[1], now, losses)]
            if not erring:
                continue
            if not self._lives(cable, now - 60_000, now):
                continue
            _, end, told = min(erring, key=lambda entry: (entry[1][0] != "nic", -entry[0], entry[1]))
            states, port = next((states, port) for one, states, port in self.ports(cable) if one == end)
            started = max(now - 600_000, int(states.heard_since[port]))
            worst = max((name for name in told if name.endswith("_10min")), key=lambda name: told[name])
            counted = f"{told[worst]:.0f} {worst.removesuffix('_10min')} in ten minutes"
            first = self._errors[end[0]].first_minute(port, now)
            evidence = self._evidence(cable, now - 600_000) | told
            yield Verdict(
                "link_errors", end, "errors", max(first, started), (cable,), 0.8, f"{_said(end)}: {counted}", evidence
            )

    def _is_calm(self, end: End, now: Instant, losses: list[Instant]) -> bool:
        port = self._cables.index(end)
        return port is not None and self._errors[end[0]].is_calm(port, now, losses)

    def silent_rails(self, now: Instant) -> Iterator[Verdict]:
        """Yield NICs of a job that carry nothing, or report nothing, while their siblings go on."""
        states = self._states["nic"]
        last, usual = states.presence.last[: len(states)], states.presence.usual[: len(states)]
        quiet = set(self._rails.quiet(last, usual).tolist())
        patience = states.presence.patience + 1
        missing = set(np.flatnonzero((last >= 0) & (now - last > patience * known_or(usual, np.inf))).tolist())
        for nic in sorted(quiet | missing, key=lambda nic: self._cables.of("nic", nic).ends):
            cable = self._cables.of("nic", nic)
            end = next(end for end in cable.ends if end[0] == "nic")
            siblings = [other for other in self._cables.nics_of(end[1]) if other != nic]
            job = self._fleet.job_of(end[1])
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
                if job is None or job.start > since - 60_000 or not self.is_fresh(states, nic, now):
                    continue
                if not self._is_a_rail(nic, siblings) or not self._others_move(end, siblings, job.nodes, since, now):
                    continue
                what = f"carries nothing for {(now - since) / 1000:.0f} s while its siblings do"
            evidence = self._evidence(cable, since) | {
                "traffic_before_gb_s": float(self._rails.level[nic]) / 1e6,
                "siblings": len(siblings),
            }
            mode = "missing" if gone else "quiet"
            yield Verdict("link_down", end, mode, since, (cable,), 0.75, f"{_said(end)} {what}", evidence)

    def _is_a_rail(self, nic: int, siblings: list[int]) -> bool:
        """Return whether a NIC carried its share of the node's traffic, and does not now."""
        if not self._rails.carries_less(nic, siblings, self._config.rail_share):
            return False
        return bool(self._rails.level[nic] >= self._config.rail_share * np.median(self._rails.level[siblings]))

    def _others_move(self, end: End, siblings: list[int], nodes: tuple[str, ...], since: Instant, now: Instant) -> bool:
        """Return whether the siblings on the node, and most NICs of the rail on the job's nodes, go on moving data."""
        steady = now - int(self._config.rail_quiet_s * 1000)
        late = max(now - int(self._config.rail_quiet_s * 500), since)
        if len(self._rails.moves(siblings, steady, late)) < len(siblings):
            return False
        alike = [self._cables.index(("nic", node, end[2])) for node in nodes if node != end[1]]
        known = [nic for nic in alike if nic is not None]
        return not known or len(self._rails.moves(known, steady, late)) >= 0.5 * len(known)

    def _lives(self, cable: Cable, since: Instant, now: Instant) -> bool:
        return cable.node is None or self._nodes.lives(cable.node, since, now)

    def _line(self, cable: Cable, since: Instant) -> tuple[Instant, str] | None:
        told = [self._lines.down_line(end, since) for end in cable.ends]
        return next((line for line in told if line is not None), None)

    def _name(self, cable: Cable, showing: list[End]) -> End:
        """Return the end to name: a node's NIC if it reports its link, else the first of the ends that show it."""
        for end, states, port in self.ports(cable):
            if end[0] == "nic" and states.state[port] >= 0:
                return end
        return min(showing)

    def _evidence(self, cable: Cable, since: Instant) -> dict[str, float | int | str]:
        told: dict[str, float | int | str] = {"cable": " - ".join(_said(end) for end in cable.ends)}
        for end, states, port in self.ports(cable):
            side = "nic" if end[0] == "nic" else f"port_{end[1]}"
            told[f"{side}_up"] = int(states.state[port])
            told[f"{side}_downs"] = int(states.downs(since - 1)[port])
        job = self._fleet.job_of(cable.node) if cable.node is not None else None
        if job is not None:
            told["job_id"] = job.job_id
        return told


def _first(states: States, port: int, since: Instant) -> Instant:
    times = np.concatenate([states.lost[port], states.counted[port]])
    return int(times[times > since].min(initial=2**62)) if (times > since).any() else -1


def _said(end: End) -> str:
    return f"{end[1]} {end[2]}"
