"""A port or a switch of the fabric is congested: somebody waits there, far longer than is usual here, and for long.

Somebody waits where a port is paused, pauses, drops, or has no credits (InfiniBand), for at least a tenth of the time
or by a packet lost a second, a quarter of that where most ports of a switch pause, or a tenth while the steps of a job
there take a twentieth longer than they did; ECN marks alone are how a RoCE fabric works, and alert nobody: they only
help to find where a congestion begins. Nor do ports that lose little, where the steps of their hosts' jobs (of an
uplink, of all jobs that may send through it) are known and take as long as before (where packets are lost: and vary so
little that they show it), or as longer ones long before, or a job had just begun and has yet to make some.
Whether it is unusual is not for a bar to say (pauses of healthy fabrics reach hundreds a second): `flows` holds every
port's change against its own habit to that of its peers, by what is usual in this cluster. What a port has shown since
it was first seen, or since it and its peers carry twice as much as before, is a property: of severity info, once.
Bursts are what collectives and checkpoints do: only what is hot for most of `sustain_s` counts. Of the ports that are
hot together on switches cabled to one another, the origin is named alone (`origin`), once, until no port around has
been hot for four minutes. NICs (`port_xmit_wait`, or packets sent again while they come in marked) speak for the switch
port at their other end where no switch reports, or for themselves where the topology does not have it.

It is wrong about two congestions at a time on neighbouring switches (one finding), about a congestion that is there
from the start (info: nothing to compare with), about one that all ports of a job share (load), about a lost spine
whose load the others carry evenly (`link_fault` names the spine), and about a job that fills one InfiniBand uplink
and not those beside it, which nobody minds.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import ClassVar, Final

import numpy as np

from detectors.base import BaseDetector
from detectors.case_book import OpenCase
from detectors.congestion.config import CongestionConfig
from detectors.congestion.counters import SIGNALS
from detectors.congestion.fabric import Fabric
from detectors.congestion.flows import JUDGED, LOOK_MS, TRACE, WAITS, Flows
from detectors.congestion.origin import Hot, Origin, origin_of, strongest, together
from detectors.congestion.pace import FELT, WINDOW_MS, Paces
from detectors.contract import Batch, DetectorConfig, DetectorSpec, Finding, FloatArray, Instant, Kind
from detectors.core.evidence import odds_in_words, threshold
from detectors.core.statistics import known_or
from detectors.fleet.fleet import Fleet, Job
from detectors.spec import load_spec

FAULT: Final = "fabric_congestion"
_EVERY_MS: Final = 10_000
_LEFT: Final = 0.25
"""Of what was found: who waits for less has a congestion behind him, not the same one."""
_SAME_ORDER: Final = 4.0
"""Between how long a port waits and how much longer steps are lies at most such a factor: exchanges overlap with
computation in part, and what counters of waiting count differs by maker."""
_LOSES: Final = 20.0
"""Of `drops_per_s`; a policy: who loses so many packets is named before steps can show what it costs."""
_PAUSE_BITS: Final = 65_535 * 512
"""The longest that one pause frame asks for, in bit times of the link (IEEE 802.1Qbb)."""
_MARKS_PER_S: Final = 1000.0
"""The unit of marks beside what makes somebody wait; it decides where a congestion begins, not whether there is one."""
_PART: Final = 0.5
"""A port takes part in a congestion from half of what is sustained on."""
_LEARNS_MS: Final = 600_000
"""So long after a job has begun its load is nobody's habit yet; so far back, at most, steps are held against others."""
_ALL_PORTS: Final = 0.25
"""Of what matters at one port, where most of a switch pause: what crosses it crosses two, and collectives many."""
_PROPERTY: Final = "since first seen"
_PROPERTY_S: Final = 600.0
_UNITS: Final = {
    "rx": "pauses_received", "tx": "pauses_sent", "drop": "drops", "wait": "waits", "retry": "retransmissions",
    "mark": "ecn_marks",
}  # fmt: skip
_RELEASE_MS: Final = 240_000
"""What comes back within it is the same congestion; a resolve is due within five minutes (policy)."""
_ACTION: Final = (
    "find the flows through it (who sends, who receives), check its ECN and PFC configuration against its peers', and "
    "whether a link beside it is lost"
)


class Congestion(BaseDetector):
    """See the module; the settings are in detector.yaml."""

    spec: ClassVar[DetectorSpec] = load_spec(__package__ or "")
    config_type: ClassVar[type[DetectorConfig]] = CongestionConfig

    KEPT = ("_flows", "_looked", "_paces")
    _config: CongestionConfig

    def __init__(self, config: DetectorConfig, fleet: Fleet) -> None:
        super().__init__(config, fleet)
        self._fabric = Fabric(fleet)
        switch, nic = self.spec.fields["switch"], self.spec.fields["nic"]
        of_switch = {signal: list[str]() for signal in SIGNALS} | {
            "rx": [name for name in switch if name.endswith("RX_PKTS")],
            "tx": [name for name in switch if name.endswith("TX_PKTS")],
            "drop": [name for name in switch if "DISCARDS" in name or name == "port_xmit_discards"],
            "wait": ["port_xmit_wait"],
            "mark": ["SAI_PORT_STAT_ECN_MARKED_PACKETS"],
            "traffic": ["SAI_PORT_STAT_IF_OUT_OCTETS"],
        }
        of_nic = {signal: list[str]() for signal in SIGNALS} | {
            "drop": ["port_xmit_discards"],
            "wait": ["port_xmit_wait"],
            "retry": [name for name in nic if "err" in name or name == "out_of_sequence"],
            "mark": ["np_cnp_sent"],
            "traffic": ["port_xmit_data"],
        }
        self._flows: dict[Kind, Flows] = {
            "switch": Flows(self._config, "switch", of_switch, self.tails),
            "nic": Flows(self._config, "nic", of_nic, self.tails),
        }
        self._paces = Paces(fleet)
        self._looked = -1

    def observe(self, batch: Batch) -> Sequence[Finding]:
        """Take readings; what follows from them is decided at the next look."""
        if batch.kind == "steps":
            self._paces.take(batch)
            return ()
        self._flows[batch.kind].take(batch)
        self._fabric.sync(batch.kind, len(self._flows[batch.kind]))
        return ()

    def advance(self, now: Instant) -> Sequence[Finding]:
        """Every ten seconds: look at the ports that it is time for, and decide what is over, and what began."""
        if now // _EVERY_MS <= self._looked:
            return []
        self._looked = now // _EVERY_MS
        if now % WINDOW_MS == 0:
            self._paces.close(now)
        if not any(map(len, self._flows.values())):  # no port was ever read
            return self._close(now)
        jobs, known, slower = self._fabric.jobs(), self._known(), self._slower(now)
        for kind, flows in self._flows.items():
            if len(flows):
                side = self._fabric.sides[kind]
                flows.look(now, self._bars(kind), side.peers(jobs), side.on(known), self._matters(kind, slower))
        hot = self._hot(now, _PART, 0.0)
        found = self._close(now) + self._properties(now)
        sure = self._hot(now, 1.0, self._wealth()) if hot else hot
        for lot in together(self._fabric, hot) if sure else ():
            origin = origin_of(self._fabric, self._with_marks(lot))
            if origin.switch in known or not any(port in sure for port in lot):
                continue
            if self._harmless(now, lot):
                self._accept(now, lot)
            elif not self._backs_up(origin):
                found += self._fire(now, origin, lot, slower)
        return found

    def _accept(self, now: Instant, lot: Hot) -> None:
        """Take for usual what has held up nobody for as long as steps are known: it is not why they grow later."""
        if now - self._onset(now, lot) > _LEARNS_MS:
            for kind, side in self._fabric.sides.items():
                self._flows[kind].accept(np.array([n for n, place in enumerate(side.places) if place in lot], int))

    def _harmless(self, now: Instant, lot: Hot) -> bool:
        """Return whether nobody whose these ports are works the slower for it, as their steps show."""
        onset = self._onset(now, lot)
        if any(signals["drop"] >= _LOSES for signals in lot.values()):
            return False
        users, lost = [self._users(port) for port in lot], any(signals["drop"] >= 1 for signals in lot.values())
        return all(users) and all(self._works_on(now, job, onset, lost) for job in chain(*users))

    def _works_on(self, now: Instant, job: Job, onset: Instant, lost: bool) -> bool:
        """Return whether a job's steps are not longer for it; or it had just begun, and has yet to make some.

        Pauses may be load; where packets are `lost` steps that scatter too much to show it are no excuse.
        """
        name, paces = job.job_id, self._paces
        if paces.is_known(name):
            return paces.as_before(now, name, shown=lost) or paces.was_slow(now, name, onset)
        return len(self._paces) > 0 and job.start > onset - _LEARNS_MS

    def _users(self, port: tuple[str, str]) -> list[Job]:
        """Return the job of a port's host; of a cable between switches all jobs that may send through it."""
        if (host := self._fabric.host.get(port)) is not None:
            job = self._fleet.job_of(host)
            return [] if job is None else [job]
        ends = {port[0], self._fabric.far.get(port, port)[0]}
        wide = (job for job in self._fleet.jobs.values() if len(job.nodes) > 1)
        return [job for job in wide if self._fabric.reaches(job.nodes, ends)]

    def _backs_up(self, origin: Origin) -> bool:
        """Return whether a switch pauses a host whose job has a congestion elsewhere: the host sends into that one."""
        host = self._fabric.host.get((origin.switch, origin.port))
        job = None if host is None or origin.by != "pauses sent" else self._fleet.job_of(host)
        return job is not None and any(self._fabric.reaches(job.nodes, case.memo["near"]) for case in self._cases())

    def _matters(self, kind: Kind, slower: Mapping[str, float]) -> FloatArray:
        """Return which share of the rates that matter does so at each port, (ports,): less where jobs are slower.

        What its ports wait must be of the order of what a job loses. A job that is slow for long is used to it, so what
        it was slower by goes on to matter until the case is over.
        """
        side = self._fabric.sides[kind]
        matters = np.ones(len(side.gbps))
        for job, rise in slower.items():
            share = min(max(TRACE, rise / (_SAME_ORDER * self._config.waiting_share)), 1.0)
            used = self._fabric.used_by(kind, set(self._fleet.jobs[job].nodes))
            matters = np.where(used, np.minimum(matters, share), matters)
        whole = self._fabric.mostly(self._flows["switch"].pausing(_ALL_PORTS)) if kind == "switch" else set()
        np.minimum(matters, _ALL_PORTS, out=matters, where=side.on(whole))
        for case in self._cases():
            np.minimum(matters, case.memo.get("matters", 1.0), out=matters, where=side.on(case.memo["near"]))
        return matters

    def _slower(self, now: Instant) -> dict[str, float]:
        """Return the running jobs whose steps are longer than they were, and by how much."""
        rises = self._paces.slower(now)
        slow = np.flatnonzero(rises >= FELT).tolist()
        named = {str(self._paces.jobs.names[number]): float(rises[number]) for number in slow}
        return {job: rise for job, rise in named.items() if job in self._fleet.jobs}

    def _cases(self) -> list[OpenCase]:
        return [case for case in self._book.cases(FAULT) if case.aspect != _PROPERTY]

    def _known(self) -> set[str]:
        """Return the switches that an open finding covers."""
        return {switch for case in self._cases() for switch in case.memo["near"]}

    def _bars(self, kind: Kind) -> FloatArray:
        """Return the rates that matter, (signals, ports) in 1/s."""
        config, gbps = self._config, self._fabric.sides[kind].gbps
        bars = np.empty((JUDGED, len(gbps)))
        bars[:2] = config.waiting_share * gbps * 1e9 / _PAUSE_BITS
        bars[2:] = np.array([[config.drops_per_s, config.wait_ticks_per_s, config.drops_per_s, _MARKS_PER_S]]).T
        return bars

    def _watched(self) -> tuple[int, int]:
        """Return how many ports are watched, and how many nodes there are."""
        nodes = set(self._fleet.nodes) | {host for side in self._fabric.sides.values() for host in side.hosts if host}
        return sum(len(flows) for flows in self._flows.values()), max(len(nodes), 1)

    def _wealth(self) -> float:
        ports, nodes = self._watched()
        return threshold(self._config.false_alarms_per_100_node_days, ports, nodes, LOOK_MS / 1000)

    def _hot(self, now: Instant, share: float, wealth: float) -> Hot:
        """Return the ports that have been hot for that share of what is sustained, with their signals while they were.

        What comes and goes has gone at some ports when it is read at others.
        """
        hot: Hot = {}
        for number in self._flows["switch"].hot(now, share, wealth).tolist():
            signals = self._signals("switch", number, self._flows["switch"].looks.shown)
            hot[self._fabric.sides["switch"].places[number]] = signals | {"rx": signals["rx"] + signals["wait"]}
        waiting = self._flows["nic"].hot(now, share, wealth).tolist()
        reporting = {switch for switch, _ in self._fabric.sides["switch"].places} if waiting else set()
        for number in waiting:
            place = self._fabric.sides["nic"].places[number]
            if place[0] not in reporting:
                # A NIC that waits for credits is paused by the switch port that it is plugged into.
                signals = self._signals("nic", number, self._flows["nic"].looks.shown)
                hot[place] = {
                    "tx": signals["wait"],
                    "drop": signals["drop"] + signals["retry"],
                    "mark": signals["mark"],
                }
        return hot

    def _signals(self, kind: Kind, number: int, strength: FloatArray) -> dict[str, float]:
        """Return the strengths of a port's signals, of those of all ports; of marks only what is unusual."""
        flows = self._flows[kind]
        signals = dict(zip(SIGNALS, np.nan_to_num(strength[:, number]).tolist(), strict=False))
        return signals if flows.odd_marks()[number] else signals | {"mark": 0.0}

    def _with_marks(self, lot: Hot) -> Hot:
        """Return the hot ports of a lot with those on the same switches that mark unusually often now."""
        switches, side = {switch for switch, _ in lot}, self._fabric.sides["switch"]
        marking = np.flatnonzero(self._flows["switch"].odd_marks()).tolist()
        places = [(side.places[number], number) for number in marking if side.places[number][0] in switches]
        strength = self._flows["switch"].looks.strength
        return {place: self._signals("switch", number, strength) for place, number in places} | lot

    def _fire(self, now: Instant, origin: Origin, lot: Hot, slower: dict[str, float]) -> list[Finding]:
        started_at = self._onset(now, lot)
        where = f"{origin.switch} {origin.port}".strip()
        others = sum(port[0] != origin.switch or port[1] not in origin.ports for port in lot)
        suffer = f"; {others} other ports suffer" if others else ""
        evidence = self._evidence(origin, lot)
        switches = {port[0] for port in lot}
        held_up = [job for job in slower if self._fabric.reaches(self._fleet.jobs[job].nodes, switches)]
        held_up = [job for job in held_up if not self._paces.was_slow(now, job, started_at)]
        effect = ""
        if held_up:
            job = max(held_up, key=lambda job: (slower[job], job))
            effect = f"; the steps of job {job} take {100 * slower[job]:.0f} % longer than before"
            before, lately = (values[self._paces.jobs.find(job)] for values in self._paces.before_and_now())
            evidence |= {"job_id": job, "step_time_s": float(lately), "step_time_before_s": float(before)}
        return self._book.fire(
            now,
            FAULT,
            self._fabric.entity(origin.switch, origin.port),
            started_at=started_at,
            severity="ticket",
            score=0.9 if origin.by == "marks and drops" else 0.75,
            summary=f"{where} is congested for {(now - started_at) / 1000:.0f} s, by {origin.by}{suffer}{effect}",
            action=_ACTION,
            evidence=evidence,
            memo={
                "near": sorted({origin.switch} | {near for port in lot for near in self._fabric.near(port[0])}),
                "matters": float(np.clip(_LEFT * strongest(lot), TRACE, 1.0)) if held_up else 1.0,
            },
        )

    def _onset(self, now: Instant, lot: Hot) -> Instant:
        firsts = [
            int(self._flows[kind].looks.hot_since[number])
            for kind, side in self._fabric.sides.items()
            for number, place in enumerate(side.places)
            if place in lot
        ]
        return min((first for first in firsts if first >= 0), default=now)

    def _evidence(self, origin: Origin, lot: Hot) -> dict[str, float | int | str]:
        fabric, (ports, _) = self._fabric, self._watched()
        evidence: dict[str, float | int | str] = {
            "by": origin.by,
            "ports_hot": len(lot),
            "ports_of_origin": len(origin.ports),
            "switches_hot": len({switch for switch, _ in lot}),
        }
        wealth = 0.0
        for kind, side in fabric.sides.items():
            numbers = [number for number, place in enumerate(side.places) if place in lot]
            wealth = max([wealth, *self._flows[kind].evidence.wealth[numbers].tolist()])
        evidence["by_chance"] = odds_in_words(wealth, ports, LOOK_MS / 1000)
        reports = {place[0] for place in fabric.sides["switch"].places}
        kind = "switch" if origin.switch in reports else "nic"
        named = [
            number
            for number, place in enumerate(fabric.sides[kind].places)
            if place[0] == origin.switch and place[1] in origin.ports
        ]
        evidence |= self._figures(kind, named) if named else {}
        far, host = fabric.far.get((origin.switch, origin.port)), fabric.host.get((origin.switch, origin.port))
        if far or host:
            evidence["far_end"] = " ".join(far) if far else str(host)
        return evidence

    def _figures(self, kind: Kind, named: list[int]) -> dict[str, float]:
        """Return the highest rates of some ports, what they are used to, and the median of all ports (1/s)."""
        flows, bars = self._flows[kind], self._bars(kind)
        rates, usual = flows.looks.strength * bars, flows.usual() * bars
        figures: dict[str, float] = {}
        for row, signal in enumerate(SIGNALS[:JUDGED]):
            if np.isfinite(rates[row, named]).any():
                worst = named[int(np.nanargmax(rates[row, named]))]
                figures[f"{_UNITS[signal]}_per_s"] = float(rates[row, worst])
                figures[f"{_UNITS[signal]}_per_s_usual"] = float(np.nan_to_num(usual[row, worst]))
                figures[f"{_UNITS[signal]}_per_s_median"] = float(np.nan_to_num(np.nanmedian(rates[row])))
        paused = np.nan_to_num(flows.looks.strength[:2, named]).max(initial=0.0)
        if paused > 0:
            figures["paused_share_at_most"] = min(float(paused) * self._config.waiting_share, 1.0)
        return figures

    def _properties(self, now: Instant) -> list[Finding]:
        """Report once the ports that have waited since they were first seen: nothing shows that it is a fault."""
        found: list[Finding] = []
        rows = [SIGNALS.index(signal) for signal in WAITS]
        for kind, flows in self._flows.items():
            side, usual = self._fabric.sides[kind], known_or(flows.usual()[rows], 0.0)
            if not np.count_nonzero(usual >= 1):
                continue
            settled = np.array([flows.habits[row].learnt_s >= _PROPERTY_S for row in rows])
            above = np.where(settled, usual - np.median(usual, axis=1, keepdims=True), 0.0)
            for number in np.flatnonzero(above.max(axis=0, initial=0.0) >= 1).tolist():
                switch, port = side.places[number]
                entity = self._fabric.entity(switch, port)
                if self._book.get(FAULT, entity, _PROPERTY) is None:
                    found += self._book.fire(
                        now,
                        FAULT,
                        entity,
                        started_at=now - int(_PROPERTY_S * 1000),
                        severity="info",
                        score=0.3,
                        summary=f"{switch} {port} has waited more than its like ever since it carries so much",
                        action=_ACTION,
                        evidence=self._figures(kind, [number]),
                        aspect=_PROPERTY,
                    )
        return found

    def _close(self, now: Instant) -> list[Finding]:
        """Close what is calm: no port on the switches around has been hot for long."""
        cases, found = self._cases(), list[Finding]()
        for case in cases:
            near, latest = set(case.memo["near"]), -1
            for kind, side in self._fabric.sides.items():
                latest = max(latest, int(self._flows[kind].looks.last_hot[side.on(near)].max(initial=-1)))
            if now - latest >= _RELEASE_MS:
                found.append(self._book.resolve(case, now, "the switches around are calm again"))
        return found

    def restored(self) -> None:
        """Find again where every port is."""
        for kind, flows in self._flows.items():
            self._fabric.sync(kind, len(flows))
