"""What a finding says: the culprit's figures with its peers' beside them, in words for whoever is on call."""

from dataclasses import dataclass

from detectors.core.statistics import median_of
from detectors.fleet.fleet import Fleet
from detectors.power_throttle.work import Work
from detectors.signals.held_down import Figures, HeldDown, bits_of, medians
from detectors.signals.throttle_bits import HW_POWER_BRAKE, HW_SLOWDOWN

_SUPPLY_STATES = ("nominal", "warning", "critical")


@dataclass(frozen=True, slots=True)
class Case(HeldDown):
    """GPUs held down by a brake: with the state of the node's supplies, and the nodes that share its feeds.

    `capped`: the driver says that it caps their power, and they draw far less than it allows.
    """

    node: str
    supply_state: int | None
    feeds: tuple[str, ...]
    feed_nodes: int
    feed_nodes_braked: int
    capped: bool


def feeds_of(fleet: Fleet, node: str) -> tuple[tuple[str, ...], set[str]]:
    """Return the power feeds of a node, or its rack where those are not known, and the nodes that share one."""
    facts = fleet.nodes.get(node, {})
    feeds = tuple(facts.get("power_feeds") or ())
    if feeds:
        return feeds, {name for name, one in fleet.nodes.items() if {*feeds} & {*(one.get("power_feeds") or ())}}
    if rack := facts.get("rack"):
        return (str(rack),), {name for name, one in fleet.nodes.items() if one.get("rack") == rack}
    return (), {node}


def score(case: Case) -> float:
    """Return how sure this is: how much of the node it takes, whether driver and BMC say so."""
    bmc_reports = case.alarm is not None or case.supply_state == 2
    return 0.3 + (0.2 if case.stated else 0.0) + 0.3 * case.share + (0.2 if bmc_reports else 0.0)


def summary(gpus: Work, case: Case, gpu: int | None) -> str:
    """Return one sentence."""
    slowdown = bits_of(gpus, case.held) & (HW_SLOWDOWN | HW_POWER_BRAKE) == HW_SLOWDOWN
    words = "hardware slowdown, without heat" if slowdown else "hardware power brake"
    what = words if case.stated else "clock and power cut"
    if case.capped and not case.stated:
        what = "power capped far below the limit"
    who = f"{case.node}: {what} on {len(case.held)} of {len(case.mates)} busy GPUs"
    if gpu is not None:
        who = f"{case.node} GPU {gpu}: {what}"
    power, before = median_of(gpus.power[case.held]), median_of(gpus.usual["power"].level[case.held])
    drop = f", {before:.0f} W to {power:.0f} W each" if power < before else ""
    clock, peers = median_of(gpus.clock[case.held]), median_of(gpus.clock[case.peers])
    beside = f", {clock:.0f} MHz beside {peers:.0f} of its peers" if clock < peers else ""
    shared = f"; {case.feed_nodes_braked} nodes of the same feed are braked" if case.feed_nodes_braked > 1 else ""
    return f"{who}{drop}{beside}{case.bmc_words}{shared}"


def action(case: Case) -> str:
    """Return what to do first."""
    if case.feed_nodes_braked > 1:
        return "check the power feed that the braked nodes share"
    if case.capped and not case.stated:
        return "ask its BMC for a power cap (Redfish PowerLimit), and why: a supply or feed that is lost"
    return "drain the node and check its power supplies and their feeds"


def evidence(gpus: Work, case: Case) -> Figures:
    """Return the numbers, each with its unit in its name."""
    held, peers = case.held, case.peers
    figures = case.evidence(gpus, "supply") | {"gpus_braked": len(held)}
    figures |= medians(
        {
            "power_before_w": gpus.usual["power"].level[held],
            "power_violation_fraction": gpus.throttled_share(held),
            "power_violation_fraction_peers": gpus.throttled_share(peers),
            "activity_peers_before": gpus.usual["activity"].level[peers],
        }
    )
    clock, usual = figures.get("sm_clock_mhz"), figures.get("sm_clock_peers_mhz", figures.get("sm_clock_before_mhz"))
    if isinstance(clock, float) and isinstance(usual, float):
        figures["work_rate"] = clock / usual
    if case.supply_state is not None:
        figures["bmc_supply_state"] = _SUPPLY_STATES[case.supply_state]
    if case.feeds:
        figures |= {
            "power_feeds": ", ".join(case.feeds),
            "feed_nodes": case.feed_nodes,
            "feed_nodes_braked": case.feed_nodes_braked,
        }
    return figures
