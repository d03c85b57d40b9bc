"""What a finding says: the culprit's figures with its peers' beside them, in words for whoever is on call."""

from dataclasses import dataclass

import numpy as np

from detectors.bmc_alarms import Alarm
from detectors.contract import IntArray, rfc3339
from detectors.fleet import Job
from detectors.gpus_at_work import GpusAtWork
from detectors.statistics import median_of
from detectors.thermal_throttle.heat import Heat
from detectors.throttle_bits import HW_THERMAL, named


@dataclass(frozen=True, slots=True)
class Case:
    """All that is known when a finding is made: the GPUs held down, the node's busy ones, the peers, the air."""

    where: str
    held: IntArray
    mates: IntArray
    peers: IntArray
    alarm: Alarm | None
    inlet_c: float
    inlet_usual_c: float
    rack_nodes: int
    job: Job | None
    told: bool
    """Whether the driver says so itself, by its reasons or its counter of throttled time."""


def score(case: Case) -> float:
    """Return how sure this is: the driver's own word, how much of the node it takes, and whether the BMC agrees."""
    share = min(1.0, len(case.held) / max(len(case.mates), 1))
    return 0.4 + (0.2 if case.told else 0.0) + 0.2 * share + (0.2 if case.alarm is not None else 0.0)


def summary(gpus: GpusAtWork, case: Case, *, whole: bool) -> str:
    """Return one sentence."""
    who = f"{case.where}: heat holds down {len(case.held)} of {len(case.mates)} busy GPUs"
    if not whole:
        who = f"{case.where}: heat holds the clock down"
    temp, clock = median_of(gpus.temp[case.held]), median_of(gpus.clock[case.held])
    usual = median_of(gpus.clock[case.peers])
    figures = f", {temp:.0f} C" if np.isfinite(temp) else ""
    # Between two kernels a clock that is held down may read high for a moment: that would only confuse.
    if clock < 0.98 * usual:
        figures += f", {clock:.0f} MHz beside {usual:.0f} of its peers"
    cause = f"; BMC: {case.alarm.words}" if case.alarm is not None else ""
    rack = f"; {case.rack_nodes} nodes of the rack take in warm air" if case.rack_nodes > 1 else ""
    return f"{who}{figures}{cause}{rack}"


def action(case: Case, *, whole: bool) -> str:
    """Return what to do first."""
    if case.rack_nodes > 1:
        return "look at the rack's air: blanking panels, doors, the air handler; then at its nodes"
    if case.alarm is not None and case.alarm.part == "fan":
        return "drain the node and replace the fans that stand still"
    if case.alarm is not None:
        return "look for what warms the air at the node's inlet; drain the node if it does not cool down"
    if whole:
        return "drain the node; check its fans, filters and the air at its inlet"
    return "drain the node; check the GPU's heat sink, its seat and its paste"


def evidence(gpus: GpusAtWork, heat: Heat, case: Case) -> dict[str, float | int | str]:
    """Return the numbers, each with its unit in its name."""
    held, peers = case.held, case.peers
    bits = int(np.bitwise_or.reduce(np.maximum(gpus.reasons[held], 0)))
    medians = {
        "gpu_temp_c": median_of(gpus.temp[held]),
        "gpu_temp_limit_c": median_of(heat.chip_limit[held]),
        "gpu_temp_peers_c": median_of(gpus.temp[peers]),
        "memory_temp_c": median_of(gpus.memory[held]),
        "sm_clock_mhz": median_of(gpus.clock[held]),
        "sm_clock_before_mhz": median_of(gpus.usual["clock"].level[held]),
        "sm_clock_peers_mhz": median_of(gpus.clock[peers]),
        "power_w": median_of(gpus.power[held]),
        "power_peers_w": median_of(gpus.power[peers]),
        "thermal_violation_fraction": median_of(gpus.throttled.share(held)),
        "activity": median_of(gpus.activity[held]),
        "activity_peers": median_of(gpus.activity[peers]),
        "inlet_c": case.inlet_c,
        "inlet_usual_c": case.inlet_usual_c,
    }
    medians["work_rate"] = min(medians["sm_clock_mhz"] / medians["sm_clock_peers_mhz"], 1.0)
    said: dict[str, float | int | str] = {
        "gpus_held": len(held),
        "gpus_busy": len(case.mates),
        "peers": len(peers),
        "rack_nodes_with_warm_inlets": case.rack_nodes,
        "throttle_reasons": named(bits),
        "hardware_slowdown": int(bool(bits & HW_THERMAL)),
    }
    said |= {name: float(value) for name, value in medians.items() if np.isfinite(value)}
    if not case.told:
        said["by_chance"] = gpus.by_chance(held)
    if case.alarm is not None:
        said |= {"cooling_alarm": case.alarm.words, "cooling_alarm_at": rfc3339(case.alarm.at)}
    if case.job is not None:
        said["job_id"] = case.job.job_id
    return said
