"""Hardware power brake, lost feed, failed power supply: clocks and power of a GPU at work are cut together.

A GPU reads as braked when it is at work, says why (the HW_POWER_BRAKE bit, or throttled for power most of the time
with neither the software cap nor the temperature to explain it), and its clock and power both lie far below its own
level of the last minutes. GPUs that wait for a braked one lose power but keep their clock, and say nothing: nothing
is raised on them. Two readings of three must agree, or one if the node's BMC tells of a failed supply. Most GPUs of
a node make one finding on the node. A GPU whose power limit stands below that of the others of its model is found too:
it never gets to their clocks, and the software cap that says so is normal on them.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np

from detectors.case_book import CaseBook, OpenCase, in_words
from detectors.contract import (
    Batch,
    BoolArray,
    DetectorConfig,
    DetectorSpec,
    Entity,
    Evidence,
    Fault,
    Finding,
    Instant,
    IntArray,
    LogRecord,
)
from detectors.fleet import Fleet
from detectors.power_throttle.config import PowerThrottleConfig
from detectors.power_throttle.evidence import Case, action, evidence, score, summary
from detectors.power_throttle.limits import Limits
from detectors.power_throttle.machines import Machines
from detectors.power_throttle.peers import Peers
from detectors.power_throttle.readings import GpuReadings
from detectors.power_throttle.supply import Supplies, SupplyAlarm
from detectors.spec import load_spec
from detectors.state import pack, unpack

_FAULT: Fault = "power_throttle"
_LIMIT = "limit"
"""The aspect of a finding that is about a power limit that was lowered, not about a brake."""


class PowerThrottle:
    """See the module; the thresholds are in detector.yaml."""

    spec: ClassVar[DetectorSpec] = load_spec(__package__ or "")
    config_type: ClassVar[type[DetectorConfig]] = PowerThrottleConfig

    def __init__(self, config: DetectorConfig, fleet: Fleet) -> None:
        if not isinstance(config, PowerThrottleConfig):
            raise TypeError(f"{type(config).__name__} is not a PowerThrottleConfig")
        self._config = config
        self._fleet = fleet
        self._machines = Machines(fleet)
        self._gpus = GpuReadings(config)
        self._peers = Peers(config, fleet, self._machines, self._gpus)
        self._supplies = Supplies()
        self._limits = Limits(config)
        self._book = CaseBook(self.spec.name)

    def logs(self, records: Sequence[LogRecord]) -> Sequence[Finding]:
        """Note what the BMCs say of power supplies."""
        self._supplies.take_lines(records)
        return ()

    def observe(self, batch: Batch) -> Sequence[Finding]:
        """Take readings; what follows from them is decided at the next point of the grid."""
        if batch.kind == "bmc":
            self._supplies.take_sensors(batch, self._fleet.entities("bmc"))
        elif batch.kind == "dcgm":
            self._gpus.take(batch)
            self._machines.extend(self._gpus)
            self._limits.take(batch, len(self._gpus))
        return ()

    def advance(self, now: Instant) -> Sequence[Finding]:
        """Decide: what is over, and what began."""
        self._gpus.settle()
        self._supplies.advance(now)
        fresh = self._gpus.fresh(now)
        over = self._close(now, fresh)
        suspect = fresh & (self._gpus.register > 0)
        began = self._judge(now, fresh, suspect) if suspect.any() else []
        return [*over, *began, *self._judge_limits(now, fresh)]

    def _judge_limits(self, now: Instant, fresh: BoolArray) -> list[Finding]:
        """Say where a power limit was lowered, and where that is over; what is silent stays open."""
        machines = self._machines
        lowered = self._limits.lowered(now, fresh, machines.model, self._gpus.limit)
        found: list[Finding] = []
        for entry in [entry for entry in self._book.cases() if entry.aspect == _LIMIT]:
            members = self._members(entry)
            if (members & fresh).any() and not (members & lowered).any():
                found.append(self._end(now, entry, "the power limit is that of the others again"))
        for gpu in np.flatnonzero(lowered):
            entity = {"node": machines.names[machines.node[gpu]], "gpu": int(machines.gpu[gpu])}
            if self._book.get(_FAULT, entity, _LIMIT) is None:
                found += self._fire_limit(now, int(gpu), entity, fresh)
        return found

    def _fire_limit(self, now: Instant, gpu: int, entity: Entity, fresh: BoolArray) -> list[Finding]:
        usual = self._limits.usual(fresh & (self._machines.model == self._machines.model[gpu]))
        here = float(self._limits.enforced[gpu])
        return self._book.fire(
            now,
            _FAULT,
            entity,
            started_at=int(self._limits.since[gpu]),
            severity="ticket",
            score=min(1.0, 2 * (1 - here / usual)),
            summary=f"{in_words(entity)}: its power limit is {here:.0f} W, that of its peers {usual:.0f} W",
            action="set the limit back (nvidia-smi -pl), and find out who or what lowered it",
            evidence={"power_limit_w": here, "power_limit_peers_w": usual},
            aspect=_LIMIT,
        )

    def _judge(self, now: Instant, fresh: BoolArray, suspect: BoolArray) -> list[Finding]:
        braked = self._brakes()
        whole = {held.node for held in braked if "gpu" not in held.entity}
        suspect &= self._peers.confirm(suspect, fresh)
        found: list[Finding] = []
        nodes = np.unique(self._machines.node[suspect])
        suspected = {self._machines.names[node] for node in nodes}
        for number in nodes.tolist():
            node = self._machines.names[number]
            here = np.flatnonzero(suspect & (self._machines.node == number))
            if node not in whole:
                found += self._judge_node(now, node, here, fresh, suspected | {held.node for held in braked})
        return found

    def _judge_node(
        self, now: Instant, node: str, here: IntArray, fresh: BoolArray, braked_nodes: set[str]
    ) -> list[Finding]:
        first = int(self._gpus.first_braked[here].min())
        alarm = self._supplies.alarm(node, first - int(self._config.supply_window_s * 1000))
        sure = here if alarm else here[self._held_long_enough(here)]
        if not len(sure):
            return []
        mates = np.flatnonzero(fresh & self._gpus.busy & (self._machines.node == self._machines.node[here[0]]))
        share = len(here) / max(len(mates), 1)
        cases: list[tuple[int | None, IntArray]] = [(None, here)]
        if share < self._config.node_share or not (alarm or len(here) > 1):
            cases = [(int(self._machines.gpu[gpu]), np.array([gpu])) for gpu in sure]
        found: list[Finding] = []
        for gpu, braked in cases:
            entity: Entity = {"node": node} if gpu is None else {"node": node, "gpu": gpu}
            if self._book.get(_FAULT, entity) is None:
                found += self._fire(now, entity, self._case(node, braked, mates, fresh, alarm, braked_nodes))
        if cases[0][0] is None:
            parts = [entry for entry in self._brakes() if entry.node == node and "gpu" in entry.entity]
            found += [self._end(now, entry, "now part of the finding on its node") for entry in parts]
        return found

    def _brakes(self) -> list[OpenCase]:
        return [entry for entry in self._book.cases() if entry.aspect != _LIMIT]

    def _held_long_enough(self, gpus: IntArray) -> BoolArray:
        register = self._gpus.register[gpus]
        count = sum((register >> bit) & 1 for bit in range(self._config.window_readings))
        held_ms = self._gpus.at[gpus] - self._gpus.first_braked[gpus]
        return np.asarray((count >= self._config.confirm_readings) & (held_ms >= self._config.confirm_s * 1000))

    def _case(
        self,
        node: str,
        braked: IntArray,
        mates: IntArray,
        fresh: BoolArray,
        alarm: SupplyAlarm | None,
        braked_nodes: set[str],
    ) -> Case:
        feeds, sharing = self._machines.feeds(node)
        return Case(
            node=node,
            braked=braked,
            mates=mates,
            peers=self._peers.of(int(braked[0]), fresh),
            alarm=alarm,
            supply_state=self._supplies.worst_state(node),
            feeds=feeds,
            feed_nodes=len(sharing),
            feed_nodes_braked=len(braked_nodes & sharing),
            job=self._fleet.job_of(node),
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
            evidence=evidence(self._gpus, case, self._config),
        )
        if (entry := self._book.get(_FAULT, entity)) is not None:
            self._watch(entry, watched=True)
        return found

    def _onset(self, case: Case) -> Instant:
        """Return when the supply's alarm came if before; else midway from the last free to the first braked reading."""
        first = int(self._gpus.first_braked[case.braked].min())
        if case.alarm is not None and case.alarm.at <= first:
            return case.alarm.at
        before = self._gpus.last_free[case.braked]
        before = before[(before >= 0) & (before < first) & (first - before <= self._config.stale_s * 1000)]
        return (int(before.max()) + first) // 2 if len(before) else first

    def _close(self, now: Instant, fresh: BoolArray) -> list[Finding]:
        """Close what has been free of brake for long enough; what is silent stays open."""
        since, held_ms = self._gpus.free_since, self._config.release_s * 1000
        released = (since >= 0) & (self._gpus.at - since >= held_ms)
        over: list[Finding] = []
        for entry in self._brakes():
            heard = self._members(entry) & fresh
            if heard.any() and released[heard].all():
                self._gpus.register[heard] = 0  # what was braked before is no reason to raise it again
                over.append(self._end(now, entry, "clocks and power are free again"))
        return over

    def _end(self, now: Instant, entry: OpenCase, reason: str) -> Finding:
        members = np.flatnonzero(self._members(entry))
        power, clock = self._gpus.power[members], self._gpus.clock[members]
        now_reads: Evidence = {
            name: float(np.median(column[np.isfinite(column)]))
            for name, column in (("power_w", power), ("sm_clock_mhz", clock))
            if np.isfinite(column).any()
        }
        over = self._book.resolve(entry, now, reason, now_reads)
        if entry.aspect != _LIMIT:
            self._watch(entry, watched=False)
        return over

    def _members(self, entry: OpenCase) -> BoolArray:
        of_node: BoolArray = self._machines.node == self._machines.number(entry.node)
        gpu = entry.entity.get("gpu")
        return of_node if gpu is None else of_node & (self._machines.gpu == gpu)

    def _watch(self, entry: OpenCase, *, watched: bool) -> None:
        others = any("gpu" not in other.entity for other in self._book.cases() if other.node == entry.node)
        self._gpus.watched[self._members(entry)] = watched or others

    def snapshot(self) -> bytes:
        """Return the whole state."""
        numbers, arrays = self._gpus.snapshot()
        document: dict[str, Any] = {
            "numbers": numbers,
            "supplies": self._supplies.snapshot(),
            "book": self._book.snapshot(),
        }
        return pack(document, arrays | self._limits.arrays())

    @classmethod
    def restore(cls, config: DetectorConfig, fleet: Fleet, state: bytes) -> Self:
        """Return a detector that goes on exactly where `snapshot` was taken."""
        document, arrays = unpack(state)
        detector = cls(config, fleet)
        detector._gpus.load(document["numbers"], arrays)
        detector._limits.load(arrays)
        detector._machines.extend(detector._gpus)
        detector._supplies = Supplies.restore(document["supplies"])
        detector._book.load(document["book"])
        return detector
