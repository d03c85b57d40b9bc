"""Hardware power brake, lost feed, failed power supply: clocks and power of a GPU at work are cut together.

What the driver says counts first: the HW_POWER_BRAKE bit, or its counter, with the clock or the power to bear it out;
HW_SLOWDOWN at half of the clock, where no heat explains it; or a counter of time throttled for power that neither the
software cap nor the temperature explains. Without either, clocks and power that fall together on most of a node's
GPUs, and on no peers, are a brake if the node's BMC reports a supply; without that too if it is beyond chance, by
half a minute of evidence, and as far as brakes and caps: a fifth of both on a whole node, half of its clock on one
GPU, while they work as much as before, are no warmer than their peers, chip and memory, and were not too hot just
before. A node whose GPUs run at one clock, though each draws its own, had it set: that is no cap, unless some are
read at full clocks with as little power; one of a job's nodes whose GPUs draw as much as each other, at clocks of
their own, is capped even at nine tenths of them. A tenth is enough of a node that the driver holds at a software cap
while its GPUs draw far less than their limit, which nobody lowered: the cap is another's, as a BMC's for a lost
supply. GPUs that wait for a braked one keep their clock, and nothing is raised on them. A power limit that was
lowered on a node, and costs its jobs a tenth, is an alert unless somebody chose it (`caps`); else, and on one GPU, it
is noted, and so is a supply whose load the others carry.

It is wrong where a whole node's clocks are set to half in the middle of a job that has no other, and blind, without
bits and BMC, to a brake that takes less, or that was on before the node was first seen.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Final, Self

import numpy as np

from detectors.case_book import CaseBook, OpenCase
from detectors.contract import (
    Batch,
    BoolArray,
    DetectorConfig,
    DetectorSpec,
    Entity,
    Fault,
    Finding,
    Instant,
    IntArray,
    LogRecord,
)
from detectors.core.statistics import median_of
from detectors.core.tails import Tails
from detectors.engine.state import pack, unpack
from detectors.fleet.fleet import Fleet
from detectors.power_throttle.brake import Brake
from detectors.power_throttle.caps import Caps
from detectors.power_throttle.config import PowerThrottleConfig
from detectors.power_throttle.evidence import Case, action, evidence, feeds_of, score, summary
from detectors.power_throttle.limits import Limits
from detectors.power_throttle.work import Work
from detectors.signals.bmc_alarms import Alarm, BmcAlarms
from detectors.signals.brakes import BY_TWO, HALVED, NODE_LEFT, SLOWED
from detectors.signals.gpus_at_work import FEWEST_PEERS, STALE_MS
from detectors.signals.held_down import RETURN_MS, RETURNED_MS, medians
from detectors.signals.set_clocks import SetClocks
from detectors.signals.throttle_bits import POWER_BRAKE_NS, POWER_CAP_NS
from detectors.spec import load_spec

_FAULT: Fault = "power_throttle"
_SUPPLY: Final = "supply"
"""The aspect of findings that are about a supply whose load the others carry, and not about a brake."""
_NODE_SHARE: Final = 0.5
"""A chassis or supply brakes all GPUs of a node at once: half, as readings get lost."""
_RELEASE_MS, _UNSURE_MS = 24_000, 230_000
"""Six readings at 5 s, two at slow cadences: a brake that flutters is one finding. Where nobody says that it is off, it
may be back: as long as a page, resolved within five minutes, allows."""
_CARRIED_MS: Final = 120_000
"""Firmware brakes within seconds of a supply's failure: two minutes on, the other supplies carry the load."""


class PowerThrottle:
    """See the module; the thresholds are in detector.yaml."""

    spec: ClassVar[DetectorSpec] = load_spec(__package__ or "")
    config_type: ClassVar[type[DetectorConfig]] = PowerThrottleConfig

    def __init__(self, config: DetectorConfig, fleet: Fleet) -> None:
        if not isinstance(config, PowerThrottleConfig):
            raise TypeError(f"{type(config).__name__} is not a PowerThrottleConfig")
        self._config, self._fleet = config, fleet
        self._gpus = Work(config, fleet, "DCGM_FI_DEV_POWER_VIOLATION", (POWER_BRAKE_NS, POWER_CAP_NS))
        self._brake = Brake(config, self._gpus)
        self._supplies, self._cooling = BmcAlarms(fleet, ["supply"]), BmcAlarms(fleet, ["fan", "inlet"])
        self._limits, self._set_clocks = Limits(), SetClocks()
        self._book = CaseBook(self.spec.name, RETURN_MS)
        self._caps = Caps(fleet, self._gpus, self._limits, self._book)

    @property
    def tails(self) -> Tails:
        """What is usual here: `hindcast calibrate` writes it down."""
        return self._gpus.tails

    def logs(self, records: Sequence[LogRecord]) -> Sequence[Finding]:
        """Note what the BMCs say of power supplies, and which power limits people set."""
        self._supplies.take_lines(records)
        self._cooling.take_lines(records)
        self._limits.take_lines(records, self._gpus.layout)
        return ()

    def observe(self, batch: Batch) -> Sequence[Finding]:
        """Take readings; what follows from them is decided at the next point of the grid."""
        if batch.kind == "bmc":
            self._supplies.take_sensors(batch)
            self._cooling.take_sensors(batch)
        elif batch.kind == "dcgm":
            self._gpus.take(batch)
            self._limits.take(batch, len(self._gpus))
        return ()

    def advance(self, now: Instant) -> Sequence[Finding]:
        """Decide: what is over, and what began."""
        gpus = self._gpus
        for alarms in (self._supplies, self._cooling):
            alarms.advance(now)
        if np.count_nonzero(new := gpus.settle()):
            self._brake.judge(now, new)
        gpus.look(now)
        fresh = gpus.fresh(now)
        over = self._close(now, fresh)
        suspect = fresh & (gpus.run > 0)
        began = self._judge(now, fresh, suspect) if suspect.any() else []
        return [*over, *began, *self._caps.judge(now, fresh), *self._judge_supplies(now, fresh)]

    def _judge(self, now: Instant, fresh: BoolArray, suspect: BoolArray) -> list[Finding]:
        found, layout = list[Finding](), self._gpus.layout
        held, at_work = (
            np.bincount(layout.node[some], minlength=len(layout.names)) for some in (suspect, fresh & self._gpus.busy)
        )
        nodes = np.flatnonzero(held).tolist()
        self._set_clocks.forget(now - STALE_MS)
        braked_nodes = {layout.names[node] for node in nodes if held[node] >= _NODE_SHARE * at_work[node]}
        braked_nodes |= {case.node for case in self._brakes()}
        for number in nodes:
            node = layout.names[number]
            if self._book.get(_FAULT, {"node": node}) is None:
                here = np.flatnonzero(suspect & (layout.node == number))
                mates = np.flatnonzero(fresh & self._gpus.busy & (layout.node == number))
                found += self._judge_node(now, node, here, mates, braked_nodes)
        return found

    def _judge_node(
        self, now: Instant, node: str, here: IntArray, mates: IntArray, braked_nodes: set[str]
    ) -> list[Finding]:
        gpus, alarm = self._gpus, self._supplies.alarm(node, now)
        (brake, held), watts = self._brake.stated(now, here), np.fmax(gpus.watts(here), gpus.power[here])
        chosen = self._limits.decided(gpus, here, watts)
        alone = (job := self._fleet.job_of(node)) is None or len(job.nodes) == 1
        otherwise = gpus.otherwise[here]
        if alone and alarm is None:  # who has a node alone may cap it, by a limit that is not read
            chosen |= 2 * np.count_nonzero(otherwise & ~self._limits.is_read(here)) > len(here)
        spent = self._limits.spent(gpus, here, watts)
        stated = brake | (held & ~chosen & ~spent)
        confirmed = gpus.run[here] >= self._config.confirm_readings
        often = confirmed | self._brake.counted_long(here)
        soon = often | (gpus.run[here] >= self._config.confirm_readings - (alarm is not None))
        most = len(here) > 1 and len(here) >= _NODE_SHARE * len(mates)
        sure = stated & soon
        if most:
            cut = confirmed & ~chosen & ~gpus.was_hot(here)
            if alarm is not None and alarm.at < int(gpus.since[here].min()) - _CARRIED_MS:
                cut &= self._brake.cooler(now, here, uncooled=True)  # that of hours ago makes no brake of heat
            whole = bool(sure.any()) or (alarm is not None and self._enough(cut, mates))
            sharing = feeds_of(self._fleet, node)[1]
            # A rack's cap may be somebody's decision, where no log would show it.
            capped = self._capped(here) & (len(braked_nodes & sharing) <= 1 or self._limits.logs_come(now))
            free = self._brake.unexplained(here)  # of a clock somewhat lower the driver knows why, if power is it
            slow = int(gpus.since[here].min()), int(gpus.at[here].max()), gpus.clock[here], gpus.power[here]
            chosen_clock = alone or (self._set_clocks.are_set(node, *slow) and not self._brake.some_float(mates))
            left = HALVED if chosen_clock or 2 * np.count_nonzero(free) > len(here) else NODE_LEFT
            whole = whole or self._enough(self._proven(now, here, left, left, capped=capped) & ~chosen, mates)
            # Nothing else halves the clocks of one node of a job at work. A lost feed may take all that it has.
            one_of_some = job is not None and 2 * len(braked_nodes & set(job.nodes)) <= len(job.nodes)
            if one_of_some and left == NODE_LEFT and len(braked_nodes & sharing) <= 1:
                given = self._set_clocks.are_capped(node)  # at less power most of the clock is left
                whole = whole or (given and self._enough(self._proven(now, here, SLOWED, NODE_LEFT) & ~chosen, mates))
            if one_of_some or (len(braked_nodes) > 1 and braked_nodes <= sharing):
                whole = whole or self._enough(self._proven(now, here, HALVED, HALVED, alike=True) & ~chosen, mates)
        else:
            # A supply brakes a node; one GPU whose node's others are free may still have been braked by its supply.
            whole = bool(sure.any()) and alarm is not None and len(here) >= _NODE_SHARE * len(mates)
        if whole:
            found = self._fire(now, {"node": node}, self._case(now, node, here, mates, alarm, braked_nodes, stated))
            parts = [case for case in self._brakes() if case.node == node and "gpu" in case.entity] if found else []
            return found + [self._end(now, case, "now part of the finding on its node") for case in parts]
        # A brake of one GPU that gives its reasons is among them; one of a node may be its supply's doing.
        silent = (gpus.reasons[here] < 0) & ~gpus.brake_counted(here) & (not most)
        of_limit = ~brake & (chosen | otherwise | spent)
        sure = ((stated & often) | (silent & self._proven(now, here, BY_TWO, HALVED))) & ~of_limit
        found = []
        for place in np.flatnonzero(sure).tolist():
            one, entity = here[[place]], gpus.layout.entity(int(here[place]))
            if self._book.get(_FAULT, entity) is None:
                found += self._fire(now, entity, self._case(now, node, one, mates, None, braked_nodes, stated[[place]]))
        return found

    def _enough(self, those: BoolArray, mates: IntArray) -> bool:
        return int(np.count_nonzero(those)) >= max(_NODE_SHARE * len(mates), 2)

    def _capped(self, here: IntArray) -> BoolArray:
        """Return which GPUs the driver holds far below their limit, which was not lowered: at another's cap."""
        gpus, limits = self._gpus, self._limits
        lower = limits.set_lower(gpus, here) | limits.fell(here)
        return self._brake.capped(here) & limits.unspent(gpus, here, gpus.watts(here)) & ~lower

    def _proven(self, now: Instant, here: IntArray, clock: float, power: float, **how: Any) -> BoolArray:
        """Return which GPUs of a node have surely lost so much: see `Brake.proven`."""
        node = self._gpus.layout.names[self._gpus.layout.node[here[0]]]
        uncooled = self._cooling.alarm(node, now) is not None
        return self._brake.proven(now, here, clock, power, uncooled=uncooled, **how)

    def _case(
        self, now: Instant, node: str, braked: IntArray, mates: IntArray, alarm: Alarm | None, braked_nodes: set[str],
        stated: BoolArray,
    ) -> Case:  # fmt: skip
        feeds, sharing = feeds_of(self._fleet, node)
        return Case(
            node=node,
            held=braked,
            mates=mates,
            peers=self._gpus.peers_of(int(braked[0]), now),
            alarm=alarm,
            supply_state=self._supplies.worst_state(node),
            feeds=feeds,
            feed_nodes=len(sharing),
            feed_nodes_braked=len(braked_nodes & sharing),
            job=self._fleet.job_of(node),
            stated=bool(stated.any()),
            capped=bool(self._capped(braked).any()),
        )

    def _fire(self, now: Instant, entity: Entity, case: Case) -> list[Finding]:
        gpu = entity.get("gpu")
        found = self._book.fire(
            now,
            _FAULT,
            entity,
            started_at=self._onset(case),
            severity="page",
            score=score(case),
            summary=summary(self._gpus, case, None if gpu is None else int(gpu)),
            action=action(case),
            evidence=evidence(self._gpus, case),
            memo={"again": self._book.returned(now, _FAULT, entity)},
        )
        self._hold()
        return found

    def _onset(self, case: Case) -> Instant:
        """Return when the supply's alarm came if right before; else midway from the last free to the first braked."""
        gpus = self._gpus
        first = int(gpus.since[case.held].min())
        free = (gpus.run[case.held] == 0).all()
        if case.alarm is not None and (free or first - STALE_MS <= case.alarm.at <= first):
            return case.alarm.at
        before = gpus.before[case.held]
        before = before[(before >= 0) & (before < first) & (first - before <= STALE_MS)]
        return (int(before.max()) + first) // 2 if len(before) else first

    def _close(self, now: Instant, fresh: BoolArray) -> list[Finding]:
        """Close what has been free of brake for long enough; what is silent stays open."""
        over: list[Finding] = []
        for case in self._brakes():
            heard = self._members(case) & fresh
            since = self._gpus.free_since[heard]
            # Where the driver says that the brake is off, it is.
            sure = (self._gpus.reasons[heard] >= 0).all() and self._supplies.alarm(case.node, now) is None
            patience = RETURNED_MS if case.memo.get("again") else _RELEASE_MS if sure else _UNSURE_MS
            if heard.any() and ((since >= 0) & (now - since >= patience)).all():
                over.append(self._end(now, case, "clocks and power are free again"))
        return over

    def _end(self, now: Instant, case: OpenCase, reason: str) -> Finding:
        members = self._members(case)
        figures = {"power_w": self._gpus.power[members], "sm_clock_mhz": self._gpus.clock[members]}
        over = self._book.resolve(case, now, reason, medians(figures))
        self._hold()
        return over

    def _brakes(self) -> list[OpenCase]:
        return [case for case in self._book.cases() if not case.aspect]

    def _members(self, case: OpenCase) -> BoolArray:
        layout, gpu = self._gpus.layout, case.entity.get("gpu")
        of_node: BoolArray = layout.node == layout.number(case.node)
        return of_node if gpu is None else of_node & (layout.gpu == gpu)

    def _hold(self) -> None:
        """Learn nothing from GPUs that a finding is open on."""
        self._gpus.held[:] = False
        for case in self._brakes():
            self._gpus.held |= self._members(case)

    def _judge_supplies(self, now: Instant, fresh: BoolArray) -> list[Finding]:
        """Note supplies that failed while the others carry the load, and where that is over."""
        alarmed = self._supplies.alarmed(now)
        over = [case for case in self._book.cases() if case.aspect == _SUPPLY and case.node not in alarmed]
        found = [self._book.resolve(case, now, "its supplies are well again") for case in over]
        for node in alarmed:
            entity: Entity = {"node": node}
            alarm = self._supplies.alarm(node, now)
            mates = self._gpus.layout.members(node)
            mates = mates[fresh[mates]]
            if alarm is None or now - alarm.at < _CARRIED_MS or not len(mates) or (self._gpus.run[mates] > 0).any():
                continue
            if self._book.get(_FAULT, entity) is None and self._braked_before(mates, now):
                found += self._fire(now, entity, self._case(now, node, mates, mates, alarm, {node}, np.zeros(1, bool)))
            elif self._book.get(_FAULT, entity) is None and self._book.get(_FAULT, entity, _SUPPLY) is None:
                figures = {"power_w": self._gpus.power[mates], "sm_clock_mhz": self._gpus.clock[mates]}
                found += self._book.fire(
                    now,
                    _FAULT,
                    entity,
                    started_at=alarm.at,
                    severity="info",
                    score=0.3,
                    summary=f"{node}: a power supply failed, the others carry the load; BMC: {alarm.words}",
                    action="replace the supply before the next one fails",
                    evidence={"gpus": len(mates), "supply_alarm": alarm.words, **medians(figures)},
                    aspect=_SUPPLY,
                )
        return found

    def _braked_before(self, mates: IntArray, now: Instant) -> bool:
        """Return whether a node whose supply failed has been braked since before its readings began.

        All its GPUs, at work, are far below the clock of those of their model, and below their limit; what they were
        seen to do is then no habit of theirs.
        """
        gpus, peers = self._gpus, self._gpus.peers_of(int(mates[0]), now)
        cut = median_of(gpus.clock[mates]) <= HALVED * median_of(gpus.clock[peers])
        few = len(mates) < 2 or len(peers) < FEWEST_PEERS
        if few or not gpus.busy[mates].all() or not cut or median_of(gpus.power[mates] / gpus.limit[mates]) > HALVED:
            return False
        for habit in gpus.usual.values():
            habit.forget(mates)
        return True

    def snapshot(self) -> bytes:
        """Return the whole state."""
        numbers, arrays = self._gpus.snapshot()
        lines, sensors = self._supplies.snapshot()
        cooling, cooled = self._cooling.snapshot()
        arrays |= sensors | {f"cooling_{name}": array for name, array in cooled.items()}
        document: dict[str, Any] = {"numbers": numbers, "lines": lines, "cooling": cooling}
        document |= {"book": self._book.snapshot(), "set_clocks": self._set_clocks.snapshot()}
        document |= {"orders": self._limits.orders, "logs_heard_at": self._limits.heard_at}
        return pack(document, arrays | self._limits.arrays("limit_"))

    @classmethod
    def restore(cls, config: DetectorConfig, fleet: Fleet, state: bytes) -> Self:
        """Return a detector that goes on exactly where `snapshot` was taken."""
        document, arrays = unpack(state)
        detector = cls(config, fleet)
        detector._gpus.restore(document["numbers"], arrays)
        detector._limits.load(arrays, "limit_")
        detector._supplies.load(document["lines"], arrays)
        cooled = {name.removeprefix("cooling_"): array for name, array in arrays.items() if name.startswith("cooling_")}
        detector._cooling.load(document.get("cooling", {}), cooled)
        detector._book.load(document["book"])
        detector._set_clocks.load(document.get("set_clocks", {}))
        detector._limits.orders = {job: (at, watts) for job, (at, watts) in document.get("orders", {}).items()}
        detector._limits.heard_at = document.get("logs_heard_at", -1)
        return detector
