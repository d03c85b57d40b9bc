"""What a finding says: the culprit's figures with its peers' beside them, in words for whoever is on call."""

from dataclasses import dataclass

import numpy as np

from detectors.contract import FloatArray, IntArray, rfc3339
from detectors.fleet import Job
from detectors.power_throttle.config import PowerThrottleConfig
from detectors.power_throttle.readings import GpuReadings
from detectors.power_throttle.supply import SupplyAlarm
from detectors.statistics import masked_median, peer_distance

_SUPPLY_STATES = ("nominal", "warning", "critical")


@dataclass(frozen=True, slots=True)
class Case:
    """All that is known when a finding is made: indices of the braked GPUs, the node's busy GPUs, and the peers."""

    node: str
    braked: IntArray
    mates: IntArray
    peers: IntArray
    alarm: SupplyAlarm | None
    supply_state: int | None
    feeds: tuple[str, ...]
    feed_nodes: int
    feed_nodes_braked: int
    job: Job | None


def score(case: Case) -> float:
    """Return how sure this is: the brake itself, how much of the node it takes, and whether the BMC agrees."""
    share = min(1.0, len(case.braked) / max(len(case.mates), 1))
    return 0.5 + 0.3 * share + (0.2 if case.alarm is not None or case.supply_state == 2 else 0.0)


def summary(gpus: GpuReadings, case: Case, gpu: int | None) -> str:
    """Return one sentence."""
    who = f"{case.node}: hardware power brake on {len(case.braked)} of {len(case.mates)} busy GPUs"
    if gpu is not None:
        who = f"{case.node} GPU {gpu}: hardware power brake"
    level, _ = gpus.level(case.braked)
    power, before = _median(gpus.power[case.braked]), _median(level)
    drop = "" if power is None or before is None else f", {before:.0f} W to {power:.0f} W each"
    cause = f"; BMC: {case.alarm.words}" if case.alarm is not None else ""
    shared = f"; {case.feed_nodes_braked} nodes of the same feed are braked" if case.feed_nodes_braked > 1 else ""
    return f"{who}{drop}{cause}{shared}"


def action(case: Case) -> str:
    """Return what to do first."""
    if case.feed_nodes_braked > 1:
        return "check the power feed that the braked nodes share"
    return "drain the node and check its power supplies and their feeds"


def evidence(gpus: GpuReadings, case: Case, config: PowerThrottleConfig) -> dict[str, float | int | str]:
    """Return the numbers, each with its unit in its name."""
    level_power, level_clock = gpus.level(case.braked)
    clock = gpus.clock[case.braked]
    distance = peer_distance(clock, gpus.clock[case.peers], config.clock_floor_mhz)
    bits = np.bitwise_or.reduce(np.where(gpus.reasons[case.braked] >= 0, gpus.reasons[case.braked], 0))
    medians = {
        "power_w": gpus.power[case.braked],
        "power_before_w": level_power,
        "power_peers_w": gpus.power[case.peers],
        "sm_clock_mhz": clock,
        "sm_clock_before_mhz": level_clock,
        "sm_clock_peers_mhz": gpus.clock[case.peers],
        "sm_clock_peer_deviations": distance,
        "power_violation_fraction": gpus.throttled(case.braked),
        "power_violation_fraction_peers": gpus.throttled(case.peers),
    }
    said: dict[str, float | int | str] = {
        "gpus_braked": len(case.braked),
        "gpus_busy": len(case.mates),
        "peers": len(case.peers),
        "throttle_reasons": f"0x{int(bits):x}",
    }
    said |= {name: value for name, column in medians.items() if (value := _median(column)) is not None}
    if case.alarm is not None:
        said |= {"supply_alarm": case.alarm.words, "supply_alarm_at": rfc3339(case.alarm.at)}
    if case.supply_state is not None:
        said["bmc_supply_state"] = _SUPPLY_STATES[case.supply_state]
    if case.feeds:
        said |= {
            "power_feeds": ", ".join(case.feeds),
            "feed_nodes": case.feed_nodes,
            "feed_nodes_braked": case.feed_nodes_braked,
        }
    if case.job is not None:
        said["job_id"] = case.job.job_id
    return said


def _median(column: FloatArray) -> float | None:
    middle = float(masked_median(column, np.isfinite(column)))
    return middle if np.isfinite(middle) else None
