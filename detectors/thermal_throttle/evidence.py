"""What a finding says: the culprit's figures with its peers' beside them, in words for whoever is on call."""

from dataclasses import dataclass

import numpy as np

from detectors.contract import FloatArray, IntArray, rfc3339
from detectors.fleet import Job
from detectors.thermal_throttle.cooling import FAN, CoolingAlarm
from detectors.thermal_throttle.peers import Usual
from detectors.thermal_throttle.readings import HW_THERMAL, GpuHeat


@dataclass(frozen=True, slots=True)
class Case:
    """All that is known when a finding is made: the GPUs held down, the node's busy ones, the peers, the air."""

    where: str
    held: IntArray
    mates: IntArray
    usual: Usual
    alarm: CoolingAlarm | None
    inlet_c: float
    inlet_usual_c: float
    rack_nodes: int
    job: Job | None


def score(case: Case, gpus: GpuHeat) -> float:
    """Return how sure this is: the driver's own word, how much of the node it takes, and whether the BMC agrees."""
    share = min(1.0, len(case.held) / max(len(case.mates), 1))
    told = bool((gpus.reasons[case.held] > 0).any())
    return 0.4 + (0.2 if told else 0.0) + 0.2 * share + (0.2 if case.alarm is not None else 0.0)


def summary(gpus: GpuHeat, case: Case, *, whole: bool) -> str:
    """Return one sentence."""
    who = f"{case.where}: heat holds down {len(case.held)} of {len(case.mates)} busy GPUs"
    if not whole:
        who = f"{case.where}: heat holds the clock down"
    temp, clock = _median(gpus.temp[case.held]), _median(gpus.clock[case.held])
    figures = "" if temp is None else f", {temp:.0f} C"
    # Between two kernels a clock that is held down may read high for a moment: that would only confuse.
    if clock is not None and clock < 0.98 * case.usual.clock:
        figures += f", {clock:.0f} MHz beside {case.usual.clock:.0f} of its peers"
    cause = f"; BMC: {case.alarm.words}" if case.alarm is not None else ""
    rack = f"; {case.rack_nodes} nodes of the rack take in warm air" if case.rack_nodes > 1 else ""
    return f"{who}{figures}{cause}{rack}"


def action(case: Case, *, whole: bool) -> str:
    """Return what to do first."""
    if case.rack_nodes > 1:
        return "look at the rack's air: blanking panels, doors, the air handler; then at its nodes"
    if case.alarm is not None and case.alarm.part == FAN:
        return "drain the node and replace the fans that stand still"
    if case.alarm is not None:
        return "look for what warms the air at the node's inlet; drain the node if it does not cool down"
    if whole:
        return "drain the node; check its fans, filters and the air at its inlet"
    return "drain the node; check the GPU's heat sink, its seat and its paste"


def evidence(gpus: GpuHeat, case: Case) -> dict[str, float | int | str]:
    """Return the numbers, each with its unit in its name."""
    bits = np.bitwise_or.reduce(np.where(gpus.reasons[case.held] >= 0, gpus.reasons[case.held], 0))
    medians = {
        "gpu_temp_c": _median(gpus.temp[case.held]),
        "gpu_temp_limit_c": _median(gpus.chip_limit[case.held]),
        "gpu_temp_peers_c": case.usual.temp,
        "memory_temp_c": _median(gpus.memory[case.held]),
        "sm_clock_mhz": _median(gpus.clock[case.held]),
        "sm_clock_before_mhz": _median(gpus.clock_level[case.held]),
        "sm_clock_peers_mhz": case.usual.clock,
        "power_w": _median(gpus.power[case.held]),
        "power_peers_w": case.usual.power,
        "thermal_violation_fraction": _median(gpus.throttled(case.held)),
        "inlet_c": case.inlet_c,
        "inlet_usual_c": case.inlet_usual_c,
    }
    told: dict[str, float | int | str] = {
        "gpus_held": len(case.held),
        "gpus_busy": len(case.mates),
        "peers": case.usual.count,
        "rack_nodes_with_warm_inlets": case.rack_nodes,
        "throttle_reasons": f"{int(bits):#x}",
        "hardware_slowdown": int(bool(int(bits) & HW_THERMAL)),
    }
    told |= {name: float(value) for name, value in medians.items() if value is not None and np.isfinite(value)}
    if case.alarm is not None:
        told |= {"cooling_alarm": case.alarm.words, "cooling_alarm_at": rfc3339(case.alarm.at)}
    if case.job is not None:
        told["job_id"] = case.job.job_id
    return told


def _median(values: FloatArray) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else None
