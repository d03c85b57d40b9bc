"""Heat holds clocks down: a fan that stands still, warm air at the inlet, a heat sink that sits badly.

A reading of a GPU at work counts as held down if the driver says so (SW_THERMAL, HW_THERMAL) and the temperature
(near the highest operating one, or far beyond the peers') or the clock (below the peers', or its own) bears it out;
or if the counter of throttled time (else that of one of these reasons) moves a third of the time near the limit;
where the driver says nothing, if the GPU is near its limit or far hotter than its peers, hotter than any that keeps
its clock, and its clock lies below its peers'. Time held down adds up and leaks away, so that steps and scrapes of
any length count alike. With an alarm of the node's fans or inlet two readings are enough, and the node is named, from
the alarm on; most of a node's busy GPUs also make one finding on the node; one GPU alone is named after a minute: as a
page where it costs a tenth of its clock, else as a note, and as a ticket when that lasts and its heat sink is to blame.
Without the driver's word and any alarm the loss of clock must also be beyond what chance brings in this cluster,
unless the GPU is at its limit and far hotter than its peers, or in a job of one node than its model's on others
(`heat`). Fans that have failed hold a finding open.

It is wrong where several heat sinks of a node fail at a time (named as the node). Without the driver's word it misses
what costs less than a tenth of the clock, of one GPU at its limit less than a twentieth, and a limit
far lower than the model's while all peers are warm.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Final, Self

import numpy as np

from detectors.case_book import CaseBook, OpenCase, in_words
from detectors.contract import (
    Batch,
    BoolArray,
    DetectorConfig,
    DetectorSpec,
    Fault,
    Finding,
    Instant,
    IntArray,
    LogRecord,
    Severity,
)
from detectors.core.tails import Tails
from detectors.engine.state import pack, unpack
from detectors.fleet.fleet import Fleet
from detectors.fleet.gpus import WHOLE_NODE, reported
from detectors.signals.bmc_alarms import Alarm, BmcAlarms
from detectors.signals.brakes import COSTS
from detectors.signals.gpus_at_work import STALE_MS, GpusAtWork
from detectors.signals.heat_limits import limits_of
from detectors.signals.held_down import RETURN_MS, RETURNED_MS, medians
from detectors.signals.throttle_bits import HW_THERMAL_NS, SW_THERMAL_NS
from detectors.spec import load_spec
from detectors.thermal_throttle.config import ThermalThrottleConfig
from detectors.thermal_throttle.evidence import Case, action, evidence, score, summary
from detectors.thermal_throttle.heat import RELEASE_MS, Heat

_FAULT: Fault = "thermal_throttle"
_READINGS: Final = 2
"""HW_SLOWDOWN may blip on a change of P-state (DCGM dcgm_fields.h), a blip seldom spans two readings."""
_ALARMED_S: Final = 5.0
"""Two readings at 5 s: the BMC has reported why already."""
_NODE_S: Final = 20.0
"""Four scrapes of 5 s on most of a node's GPUs."""
_ALONE_S: Final = 60.0
"""One GPU alone: the interval of BMC telemetry; by then a fan or the inlet would have been reported."""
_NODE_SHARE: Final = 0.5
"""One heat sink is one GPU; what has half a node's is the air."""
_ALARM_MS: Final = 3_600_000
"""Warm air takes a quarter of an hour and more to bring GPUs to their limit: an alarm of the last hour is the onset."""
_MILD_S: Final = 150.0
"""As long as a GPU must be free until a finding is over: what lasts so long is no moment between two steps."""
_ASPECTS: Final[dict[Severity, str]] = {"page": "", "ticket": "mild", "info": "harmless"}
"""What costs more later is another finding."""


class ThermalThrottle:
    """See the module; the thresholds are in detector.yaml."""

    spec: ClassVar[DetectorSpec] = load_spec(__package__ or "")
    config_type: ClassVar[type[DetectorConfig]] = ThermalThrottleConfig

    def __init__(self, config: DetectorConfig, fleet: Fleet) -> None:
        if not isinstance(config, ThermalThrottleConfig):
            raise TypeError(f"{type(config).__name__} is not a ThermalThrottleConfig")
        self._config = config
        self._fleet = fleet
        self._gpus = GpusAtWork(
            config, fleet, "DCGM_FI_DEV_THERMAL_VIOLATION", (HW_THERMAL_NS, SW_THERMAL_NS), own_past=False
        )
        self._heat = Heat(config, self._gpus)
        self._cooling = BmcAlarms(fleet, ["fan", "inlet"])
        self._book = CaseBook(self.spec.name, RETURN_MS)

    @property
    def tails(self) -> Tails:
        """What is usual here: `hindcast calibrate` writes it down."""
        return self._gpus.tails

    def logs(self, records: Sequence[LogRecord]) -> Sequence[Finding]:
        """Note what the BMCs say of fans and inlets."""
        self._cooling.take_lines(records)
        return ()

    def observe(self, batch: Batch) -> Sequence[Finding]:
        """Take readings; what follows from them is decided at the next point of the grid."""
        if batch.kind == "bmc":
            self._cooling.take_sensors(batch)
        elif batch.kind == "dcgm":
            self._gpus.take(batch)
            self._note_limits(batch)
        return ()

    def _note_limits(self, batch: Batch) -> None:
        """Take the limits of GPUs that are new from their model, and of all from what DCGM reports."""
        heat, gpus, known = self._heat, self._gpus, len(self._heat)
        if known < len(gpus):
            heat.grow(len(gpus))
            for gpu in range(known, len(gpus)):
                model = gpus.layout.model_of(gpus.layout.names[gpus.layout.node[gpu]])
                heat.chip_limit[gpu], heat.memory_limit[gpu] = limits_of(model)
        for limit, field in (
            (heat.chip_limit, "DCGM_FI_DEV_GPU_MAX_OP_TEMP"),
            (heat.memory_limit, "DCGM_FI_DEV_MEM_MAX_OP_TEMP"),
        ):
            if field in batch.sound:
                for tick, here in batch.ticks():
                    degrees = reported(batch, field, tick, here)
                    sound = (degrees > 5) & (degrees < 150)
                    limit[batch.entities[here][sound]] = degrees[sound]

    def advance(self, now: Instant) -> Sequence[Finding]:
        """Decide: what is over, and what began."""
        gpus = self._gpus
        self._cooling.advance(now)
        new = gpus.settle()
        if np.count_nonzero(new):
            self._heat.judge(now, new, self._alarmed(now))
        gpus.look(now)
        fresh = gpus.fresh(now)
        over = [finding for case in self._book.cases() for finding in self._close(now, case, fresh)]
        suspect = fresh & (self._heat.run > 0)
        began: list[Finding] = []
        if np.count_nonzero(suspect):
            for number in np.unique(gpus.layout.node[suspect]).tolist():
                here = np.flatnonzero(suspect & (gpus.layout.node == number))
                began += self._judge_node(now, gpus.layout.names[number], here, fresh)
        if over or began:
            self._hold()
        return [*over, *began]

    def _alarmed(self, now: Instant) -> BoolArray:
        """Return the GPUs (count,) of nodes whose BMC reports a fan or an inlet."""
        layout, alarmed = self._gpus.layout, np.zeros(len(self._gpus), bool)
        for node in self._cooling.alarmed(now):
            alarmed[layout.members(node)] = True
        return alarmed

    def _judge_node(self, now: Instant, node: str, here: IntArray, fresh: BoolArray) -> list[Finding]:
        layout = self._gpus.layout
        if self._book.get(_FAULT, layout.named(node, WHOLE_NODE)) is not None:
            return []
        alone = np.array([self._book.get(_FAULT, layout.named(node, gpu)) is None for gpu in here.tolist()], bool)
        fresh_ones = here[alone]
        if not len(fresh_ones):
            return []
        alarm = self._cooling.alarm(node, now)
        mates = np.flatnonzero(fresh & self._gpus.busy & (layout.node == layout.node[here[0]]))
        together = here[self._held_for(here, _NODE_S) & self._sure(here)]
        most = len(here) > 1 and len(together) >= _NODE_SHARE * max(len(mates), 1)
        alarmed = alarm is not None and bool(self._held_for(fresh_ones, _ALARMED_S).any())
        if most or alarmed:
            found = self._fire(now, node, WHOLE_NODE, here, mates, alarm, fresh)
            parts = [case for case in self._book.cases() if found and case.node == node and case.gpu != WHOLE_NODE]
            return found + [self._book.resolve(case, now, "now part of the finding on its node") for case in parts]
        sure = fresh_ones[self._held_for(fresh_ones, _ALONE_S) & self._sure(fresh_ones)]
        return [
            finding
            for gpu, severity in zip(sure.tolist(), self._severities(now, sure), strict=True)
            for finding in self._fire(now, node, gpu, np.array([gpu]), mates, None, fresh, severity)
        ]

    def _severities(self, now: Instant, those: IntArray) -> list[Severity]:
        """Return how severe it is that heat holds each of some GPUs alone.

        A page where its job may feel it, or no clock is read; else a ticket where its own heat sink is to blame for it
        as long as `_MILD_S`: that gets no better by itself.
        """
        peers = self._gpus.lacks(those, now)[0]
        usual = np.where(np.isfinite(peers), peers, self._gpus.usual["clock"].level[those])
        costs = ~(self._gpus.clock[those] > COSTS * usual)
        mild = self._heat.alone(those, now) & self._held_for(those, _MILD_S)
        severities: list[Severity] = np.where(costs, "page", np.where(mild, "ticket", "info")).tolist()
        return severities

    def _held_for(self, gpus: IntArray, seconds: float) -> BoolArray:
        enough = self._heat.spent_ms[gpus] >= seconds * 1000 - 1000  # less the jitter of scrapes
        return np.asarray(enough & (self._heat.run[gpus] >= _READINGS))

    def _sure(self, gpus: IntArray) -> BoolArray:
        """Return of which GPUs the driver says so, or chance does not bring it."""
        return np.asarray(self._heat.stated[gpus] | self._heat.plain[gpus] | self._gpus.improbable(gpus))

    def _fire(
        self, now: Instant, node: str, gpu: int, held: IntArray, mates: IntArray, alarm: Alarm | None, fresh: BoolArray,
        severity: Severity = "page",
    ) -> list[Finding]:  # fmt: skip
        whole, layout = gpu == WHOLE_NODE, self._gpus.layout
        inlet, usual_inlet = self._cooling.inlet(node)
        case = Case(
            where=in_words(layout.named(node, gpu)),
            held=held,
            mates=mates,
            peers=self._gpus.peers_of(int(held[0]), now),
            alarm=alarm,
            inlet_c=inlet,
            inlet_usual_c=usual_inlet,
            rack_nodes=self._warm_in_rack(now, node, fresh),
            job=self._fleet.job_of(node, None if whole else int(layout.gpu[gpu])),
            stated=bool(self._heat.stated[held].any()),
        )
        return self._book.fire(
            now,
            _FAULT,
            layout.named(node, gpu),
            gpu=gpu,
            started_at=min(now, self._onset(held, alarm)),
            severity=severity,
            score=score(case),
            summary=summary(self._gpus, self._heat, case, whole=whole),
            action=action(case, whole=whole),
            evidence=evidence(self._gpus, self._heat, case),
            aspect=_ASPECTS[severity],
            memo={"again": severity == "page" and self._book.returned(now, _FAULT, layout.named(node, gpu))},
        )

    def _onset(self, held: IntArray, alarm: Alarm | None) -> Instant:
        """Return when the fan's or inlet's alarm came if lately before; else between the last free and first held."""
        began = self._heat.since[held]
        first = int(began.min())
        if alarm is not None and first - _ALARM_MS <= alarm.at <= first:
            return alarm.at
        before = self._heat.before[held][began == first]
        before = before[(before >= 0) & (before < first) & (first - before <= STALE_MS)]
        return (int(before.max()) + first) // 2 if len(before) else first

    def _warm_in_rack(self, now: Instant, node: str, fresh: BoolArray) -> int:
        """Return how many nodes of the rack, this one with them, are held down by the air at their inlets."""
        rack, layout = self._fleet.nodes.get(node, {}).get("rack"), self._gpus.layout
        hot = np.unique(layout.node[fresh & (self._heat.run >= _READINGS)])
        names = {layout.names[number] for number in hot.tolist()} | {node}
        alarms = [
            self._cooling.alarm(name, now) for name in names if self._fleet.nodes.get(name, {}).get("rack") == rack
        ]
        return sum(alarm is not None and alarm.part == "inlet" for alarm in alarms)

    def _members(self, case: OpenCase) -> IntArray:
        return self._gpus.layout.members(case.node) if case.gpu == WHOLE_NODE else np.array([case.gpu])

    def _close(self, now: Instant, case: OpenCase, fresh: BoolArray) -> list[Finding]:
        """Close what has been free for long enough; what is silent, or has no fans, stays open."""
        members = self._members(case)
        heard = members[fresh[members]]
        free = self._heat.free_ms[heard] >= (RETURNED_MS if case.memo.get("again") else RELEASE_MS)
        if not len(heard) or not free.all() or self._cooling.fan_down(case.node, now):
            return []
        self._heat.over(members)
        figures = {"gpu_temp_c": self._gpus.temp[heard], "sm_clock_mhz": self._gpus.clock[heard]}
        return [self._book.resolve(case, now, "heat holds nothing down any more", medians(figures))]

    def _hold(self) -> None:
        """Learn nothing from GPUs that a finding is open on."""
        self._gpus.held[:] = False
        for case in self._book.cases():
            self._gpus.held[self._members(case)] = True

    def snapshot(self) -> bytes:
        """Return the whole state."""
        numbers, arrays = self._gpus.snapshot()
        lines, sensors = self._cooling.snapshot()
        document: dict[str, Any] = {"numbers": numbers, "lines": lines, "book": self._book.snapshot()}
        return pack(document, arrays | sensors | self._heat.arrays("heat_"))

    @classmethod
    def restore(cls, config: DetectorConfig, fleet: Fleet, state: bytes) -> Self:
        """Return a detector that goes on exactly where `snapshot` was taken."""
        document, arrays = unpack(state)
        detector = cls(config, fleet)
        detector._gpus.restore(document["numbers"], arrays)
        detector._heat.load(arrays, "heat_")
        detector._cooling.load(document["lines"], arrays)
        detector._book.load(document["book"])
        return detector
