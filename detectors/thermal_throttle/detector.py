"""Heat holds clocks down: a fan that stands still, warm air at the inlet, a heat sink that sits badly.

A reading of a GPU at work counts as held down if the driver says so (SW_THERMAL, HW_THERMAL) and the temperature (near
the highest operating one, or far beyond the peers') or the clock (below the peers', or its own) bears it out; or if the
counter of throttled time moves a third of the time near the limit; where the driver says nothing, if the GPU is near
its limit and its clock lies below its peers'. Time held down adds up and leaks away, so that steps and scrapes of any
length count alike. With an alarm of the node's fans or inlet two readings are enough, and the node is named, from the
alarm on; most of a node's busy GPUs also make one finding on the node; one GPU alone is named after a minute. Fans
that have failed hold a finding open. It is wrong where a limit is set lower than the model's and neither reported nor
told by the driver (missed), and where several heat sinks of a node fail at a time (named as the node).
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
    Fault,
    Finding,
    Instant,
    IntArray,
    LogRecord,
)
from detectors.fleet import Fleet
from detectors.gpus import WHOLE_NODE, GpuLayout
from detectors.spec import load_spec
from detectors.state import pack, unpack
from detectors.thermal_throttle.config import ThermalThrottleConfig
from detectors.thermal_throttle.cooling import INLET, Cooling, CoolingAlarm
from detectors.thermal_throttle.evidence import Case, action, evidence, score, summary
from detectors.thermal_throttle.limits import limits_of
from detectors.thermal_throttle.peers import Peers
from detectors.thermal_throttle.readings import GpuHeat

_FAULT: Fault = "thermal_throttle"


class ThermalThrottle:
    """See the module; the thresholds are in detector.yaml."""

    spec: ClassVar[DetectorSpec] = load_spec(__package__ or "")
    config_type: ClassVar[type[DetectorConfig]] = ThermalThrottleConfig

    def __init__(self, config: DetectorConfig, fleet: Fleet) -> None:
        if not isinstance(config, ThermalThrottleConfig):
            raise TypeError(f"{type(config).__name__} is not a ThermalThrottleConfig")
        self._config = config
        self._fleet = fleet
        self._layout = GpuLayout(fleet)
        self._gpus = GpuHeat(config)
        self._peers = Peers(config, fleet, self._layout, self._gpus)
        self._cooling = Cooling(config, fleet)
        self._book = CaseBook(self.spec.name)

    def logs(self, records: Sequence[LogRecord]) -> Sequence[Finding]:
        """Note what the BMCs say of fans and inlets."""
        self._cooling.take_lines(records)
        return ()

    def observe(self, batch: Batch) -> Sequence[Finding]:
        """Take readings; what follows from them is decided at the next point of the grid."""
        if batch.kind == "bmc":
            self._cooling.take_sensors(batch)
        elif batch.kind == "dcgm":
            self._extend(int(batch.entities.max(initial=-1)) + 1)
            self._gpus.take(batch)
        return ()

    def _extend(self, count: int) -> None:
        """Take note of new GPUs, before the first reading of theirs: their limits go by their model."""
        if count <= self._gpus.count:
            return
        start = self._gpus.count
        self._layout.extend()
        self._gpus.grow(len(self._layout))
        for offset, model in enumerate(self._peers.extend()):
            self._gpus.chip_limit[start + offset], self._gpus.memory_limit[start + offset] = limits_of(model)

    def advance(self, now: Instant) -> Sequence[Finding]:
        """Decide: what is over, and what began."""
        self._gpus.settle()
        self._cooling.advance(now)
        fresh = self._gpus.fresh(now)
        over = [finding for entry in self._book.cases() for finding in self._close(now, entry, fresh)]
        asking = self._gpus.asks & fresh
        if asking.any() or np.isfinite(self._gpus.heat_bar).any():
            self._peers.set_bars(asking, fresh)
        suspect = fresh & (self._gpus.run > 0)
        began: list[Finding] = []
        if np.count_nonzero(suspect):
            for number in np.unique(self._layout.node[suspect]).tolist():
                here = np.flatnonzero(suspect & (self._layout.node == number))
                began += self._judge_node(now, self._layout.names[number], here, fresh)
        return [*over, *began]

    def _judge_node(self, now: Instant, node: str, here: IntArray, fresh: BoolArray) -> list[Finding]:
        if self._book.get(_FAULT, self._layout.named(node, WHOLE_NODE)) is not None:
            return []
        alone = np.array([self._book.get(_FAULT, self._layout.named(node, gpu)) is None for gpu in here.tolist()], bool)
        fresh_ones = here[alone]
        if not len(fresh_ones):
            return []
        alarm = self._cooling.alarm(node, now)
        mates = np.flatnonzero(fresh & self._gpus.busy & (self._layout.node == self._layout.node[here[0]]))
        together = here[self._for_long_enough(here, self._config.node_confirm_s)]
        most = len(here) > 1 and len(together) >= self._config.node_share * max(len(mates), 1)
        told = alarm is not None and bool(self._for_long_enough(fresh_ones, self._config.alarm_confirm_s).any())
        if most or told:
            found = self._fire(now, node, WHOLE_NODE, here, mates, alarm, fresh)
            if found:
                found += [
                    self._book.resolve(entry, now, "now part of the finding on its node")
                    for entry in self._book.cases(_FAULT)
                    if entry.node == node and entry.gpu != WHOLE_NODE
                ]
            return found
        sure = fresh_ones[self._for_long_enough(fresh_ones, self._config.gpu_confirm_s)]
        return [
            finding
            for gpu in sure.tolist()
            for finding in self._fire(now, node, gpu, np.array([gpu]), mates, None, fresh)
        ]

    def _for_long_enough(self, gpus: IntArray, seconds: float) -> BoolArray:
        enough = self._gpus.spent_ms[gpus] >= seconds * 1000 - 1000  # less the jitter of scrapes
        return np.asarray(enough & (self._gpus.run[gpus] >= self._config.confirm_readings))

    def _fire(
        self,
        now: Instant,
        node: str,
        gpu: int,
        held: IntArray,
        mates: IntArray,
        alarm: CoolingAlarm | None,
        fresh: BoolArray,
    ) -> list[Finding]:
        whole = gpu == WHOLE_NODE
        inlet, usual_inlet = self._cooling.inlet(node)
        case = Case(
            where=in_words(self._layout.named(node, gpu)),
            held=held,
            mates=mates,
            usual=self._peers.usual(self._peers.of(int(held[0]), fresh)),
            alarm=alarm,
            inlet_c=inlet,
            inlet_usual_c=usual_inlet,
            rack_nodes=self._warm_in_rack(now, node, fresh),
            job=self._fleet.job_of(node, None if whole else int(self._layout.gpu[gpu])),
        )
        return self._book.fire(
            now,
            _FAULT,
            self._layout.named(node, gpu),
            gpu=gpu,
            started_at=min(now, self._onset(held, alarm)),
            severity="page",
            score=score(case, self._gpus),
            summary=summary(self._gpus, case, whole=whole),
            action=action(case, whole=whole),
            evidence=evidence(self._gpus, case),
        )

    def _onset(self, held: IntArray, alarm: CoolingAlarm | None) -> Instant:
        """Return when the fan's or inlet's alarm came if lately before; else between the last free and first held."""
        began = self._gpus.since[held]
        first = int(began.min())
        if alarm is not None and first - self._config.cooling_window_s * 1000 <= alarm.at <= first:
            return alarm.at
        before = self._gpus.free_at[held][began == first]
        before = before[(before >= 0) & (before < first) & (first - before <= self._config.stale_s * 1000)]
        return (int(before.max()) + first) // 2 if len(before) else first

    def _warm_in_rack(self, now: Instant, node: str, fresh: BoolArray) -> int:
        """Return how many nodes of the rack, this one with them, are held down by the air at their inlets."""
        rack = self._fleet.nodes.get(node, {}).get("rack")
        hot = np.unique(self._layout.node[fresh & (self._gpus.run >= self._config.confirm_readings)])
        names = {self._layout.names[number] for number in hot.tolist()} | {node}
        alarms = [
            self._cooling.alarm(name, now) for name in names if self._fleet.nodes.get(name, {}).get("rack") == rack
        ]
        return sum(alarm is not None and alarm.part == INLET for alarm in alarms)

    def _close(self, now: Instant, entry: OpenCase, fresh: BoolArray) -> list[Finding]:
        """Close what has been free for long enough; what is silent, or has no fans, stays open."""
        members = self._layout.members(entry.node) if entry.gpu == WHOLE_NODE else np.array([entry.gpu])
        heard = members[fresh[members]]
        free = self._gpus.free_ms[heard] >= self._config.release_s * 1000
        if not len(heard) or not free.all() or self._cooling.fan_down(entry.node, now):
            return []
        self._gpus.forget(members)
        figures = {"gpu_temp_c": self._gpus.temp[heard], "sm_clock_mhz": self._gpus.clock[heard]}
        now_reads = {
            name: float(np.median(column[np.isfinite(column)]))
            for name, column in figures.items()
            if np.isfinite(column).any()
        }
        return [self._book.resolve(entry, now, "heat holds nothing down any more", now_reads)]

    def snapshot(self) -> bytes:
        """Return the whole state."""
        numbers, arrays = self._gpus.snapshot()
        lines, sensors = self._cooling.snapshot()
        document: dict[str, Any] = {"numbers": numbers, "lines": lines, "book": self._book.snapshot()}
        return pack(document, arrays | sensors)

    @classmethod
    def restore(cls, config: DetectorConfig, fleet: Fleet, state: bytes) -> Self:
        """Return a detector that goes on exactly where `snapshot` was taken."""
        document, arrays = unpack(state)
        detector = cls(config, fleet)
        detector._gpus.restore(document["numbers"], arrays)
        if detector._gpus.count:  # else the first batch makes room, and sets limits
            detector._layout.extend()
            detector._peers.extend()
        detector._cooling.load(document["lines"], arrays)
        detector._book.load(document["book"])
        return detector
