"""What a finding says: the culprit's figures with its peers' beside them, in words for whoever is on call."""

from dataclasses import dataclass

import numpy as np

from detectors.bmc_alarms import Alarm
from detectors.contract import IntArray, rfc3339
from detectors.fleet import Fleet, Job
from detectors.gpus_at_work import GpusAtWork
from detectors.statistics import median_of
from detectors.throttle_bits import named

_SUPPLY_STATES = ("nominal", "warning", "critical")


@dataclass(frozen=True, slots=True)
class Case:
    """All that is known when a finding is made: indices of the braked GPUs, the node's busy GPUs, and the peers."""

    node: str
    braked: IntArray
    mates: IntArray
    peers: IntArray
    alarm: Alarm | None
    supply_state: int | None
    feeds: tuple[str, ...]
    feed_nodes: int
    feed_nodes_braked: int
    job: Job | None
    stated: bool
    """Whether the driver says so itself, by its reasons or its counter of throttled time."""


def feeds_of(fleet: Fleet, node: str) -> tuple[tuple[str, ...], set[str]]:
    """Return the power feeds of a node, or its rack where those are not known, and the nodes that share one."""
    told = fleet.nodes.get(node, {})
    feeds = tuple(told.get("power_feeds") or ())
    if feeds:
        return feeds, {name for name, one in fleet.nodes.items() if {*feeds} & {*(one.get("power_feeds") or ())}}
    if rack := told.get("rack"):
        return (str(rack),), {name for name, one in fleet.nodes.items() if one.get("rack") == rack}
    return (), {node}


def score(case: Case) -> float:
    """Return how sure this is: how much of the node it takes, whether driver and BMC say so."""
    share = min(1.0, len(case.braked) / max(len(case.mates), 1))
    told = case.alarm is not None or case.supply_state == 2
    return 0.3 + (0.2 if case.stated else 0.0) + 0.3 * share + (0.2 if told else 0.0)


def summary(gpus: GpusAtWork, case: Case, gpu: int | None) -> str:
    """Return one sentence."""
    what = "hardware power brake" if case.stated else "clock and power cut"
    who = f"{case.node}: {what} on {len(case.braked)} of {len(case.mates)} busy GPUs"
    if gpu is not None:
        who = f"{case.node} GPU {gpu}: {what}"
    power, before = median_of(gpus.power[case.braked]), median_of(gpus.usual["power"].level[case.braked])
    drop = f", {before:.0f} W to {power:.0f} W each" if power < before else ""
    clock, peers = median_of(gpus.clock[case.braked]), median_of(gpus.clock[case.peers])
    beside = f", {clock:.0f} MHz beside {peers:.0f} of its peers" if clock < peers else ""
    cause = f"; BMC: {case.alarm.words}" if case.alarm is not None else ""
    shared = f"; {case.feed_nodes_braked} nodes of the same feed are braked" if case.feed_nodes_braked > 1 else ""
    return f"{who}{drop}{beside}{cause}{shared}"


def action(case: Case) -> str:
    """Return what to do first."""
    if case.feed_nodes_braked > 1:
        return "check the power feed that the braked nodes share"
    return "drain the node and check its power supplies and their feeds"


def evidence(gpus: GpusAtWork, case: Case) -> dict[str, float | int | str]:
    """Return the numbers, each with its unit in its name."""
    braked, peers = case.braked, case.peers
    medians = {
        "power_w": gpus.power[braked],
        "power_before_w": gpus.usual["power"].level[braked],
        "power_peers_w": gpus.power[peers],
        "sm_clock_mhz": gpus.clock[braked],
        "sm_clock_before_mhz": gpus.usual["clock"].level[braked],
        "sm_clock_peers_mhz": gpus.clock[peers],
        "gpu_temp_c": gpus.temp[braked],
        "power_violation_fraction": gpus.throttled.share(braked),
        "power_violation_fraction_peers": gpus.throttled.share(peers),
        "activity": gpus.activity[braked],
        "activity_peers": gpus.activity[peers],
        "activity_peers_before": gpus.usual["activity"].level[peers],
    }
    said: dict[str, float | int | str] = {
        "gpus_braked": len(braked),
        "gpus_busy": len(case.mates),
        "peers": len(peers),
        "throttle_reasons": named(int(np.bitwise_or.reduce(np.maximum(gpus.reasons[braked], 0)))),
    }
    said |= {name: value for name, column in medians.items() if np.isfinite(value := median_of(column))}
    clock, usual = said.get("sm_clock_mhz"), said.get("sm_clock_peers_mhz", said.get("sm_clock_before_mhz"))
    if isinstance(clock, float) and isinstance(usual, float):
        said["work_rate"] = clock / usual
    if not case.stated:
        said["by_chance"] = gpus.by_chance(braked)
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
