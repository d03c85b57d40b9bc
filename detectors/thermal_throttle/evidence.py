"""What a finding says: the culprit's figures with its peers' beside them, in words for whoever is on call."""

from dataclasses import dataclass

import numpy as np

from detectors.core.statistics import median_of
from detectors.signals.gpus_at_work import GpusAtWork
from detectors.signals.held_down import Figures, HeldDown, bits_of, medians
from detectors.signals.throttle_bits import HW_THERMAL
from detectors.thermal_throttle.heat import Heat


@dataclass(frozen=True, slots=True)
class Case(HeldDown):
    """GPUs held down by heat: with the air at the node's inlet, and how many nodes of the rack take in warm air."""

    where: str
    inlet_c: float
    inlet_usual_c: float
    rack_nodes: int


def score(case: Case) -> float:
    """Return how sure this is: the driver's own word, how much of the node it takes, and whether the BMC agrees."""
    return 0.4 + (0.2 if case.stated else 0.0) + 0.2 * case.share + (0.2 if case.alarm is not None else 0.0)


def summary(gpus: GpusAtWork, heat: Heat, case: Case, *, whole: bool) -> str:
    """Return one sentence."""
    who = f"{case.where}: heat holds down {len(case.held)} of {len(case.mates)} busy GPUs"
    if not whole:
        who = f"{case.where}: heat holds the clock down"
    temp, clock = median_of(gpus.temp[case.held]), median_of(gpus.clock[case.held])
    usual = median_of(gpus.clock[case.peers])
    figures = f", {temp:.0f} C" if np.isfinite(temp) else ""
    if heat.hot_memory(case.held).all():
        figures += f", its memory {median_of(gpus.memory[case.held]):.0f} C"
    # Between two kernels a clock that is held down may read high for a moment: that would only confuse.
    if clock < 0.98 * usual:
        figures += f", {clock:.0f} MHz beside {usual:.0f} of its peers"
    rack = f"; {case.rack_nodes} nodes of the rack take in warm air" if case.rack_nodes > 1 else ""
    return f"{who}{figures}{case.bmc_words}{rack}"


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


def evidence(gpus: GpusAtWork, heat: Heat, case: Case) -> Figures:
    """Return the numbers, each with its unit in its name."""
    held, peers = case.held, case.peers
    figures = case.evidence(gpus, "cooling")
    figures |= {
        "gpus_held": len(held),
        "rack_nodes_with_warm_inlets": case.rack_nodes,
        "hardware_slowdown": int(bool(bits_of(gpus, held) & HW_THERMAL)),
    }
    figures |= medians(
        {
            "gpu_temp_limit_c": heat.chip_limit[held],
            "gpu_temp_peers_c": gpus.temp[peers],
            "memory_temp_c": gpus.memory[held],
            "memory_temp_limit_c": heat.memory_limit[held],
            "thermal_violation_fraction": gpus.throttled_share(held),
            "inlet_c": np.array([case.inlet_c]),
            "inlet_usual_c": np.array([case.inlet_usual_c]),
            "work_rate": np.array([min(median_of(gpus.clock[held]) / median_of(gpus.clock[peers]), 1.0)]),
        }
    )
    return figures
