"""Which recordings to make: enough labels of every fault, from as many scenarios as there are, for the least CPU."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from benchmarks.held_out.case import Case, Outline, outline
from services.recording.faults import FAULTS
from services.synth.library import scenario_paths
from services.synth.make import scenario_and_world

FEWEST_NODES = 8
"""A recording has at least so many, or all that its scenario is written for."""
_PER_RECORDING_S, _PER_HOUR_S, _PER_NODE_HOUR_S, _PER_NODE_PAIR_HOUR_S = 4.0, 6.5, 0.03, 0.0006
"""CPU seconds, measured with 10 to 512 nodes: to make and open one; for an hour of the engine's grid; for each node,
and for each two, as ports and jobs are compared with one another. The cadence of DCGM hardly matters."""
_ANY_SEED = 1


@dataclass(frozen=True)
class Plan:
    """Recordings to make, and how many labels of each fault they have."""

    cases: Sequence[Case]
    labels: Counter[str]
    cpu_minutes: float


def cost_s(known: Outline) -> float:
    """Return about how many CPU seconds a recording takes to make and score."""
    of_nodes = known.nodes * (_PER_NODE_HOUR_S + known.nodes * _PER_NODE_PAIR_HOUR_S)
    return _PER_RECORDING_S + known.hours * (_PER_HOUR_S + of_nodes)


def summed(cases: Iterable[Case]) -> Plan:
    """Return cases with what they have and cost: labels vary in time and place with the seed, not in number."""
    listed = list(cases)
    labels: Counter[str] = Counter()
    seconds = 0.0
    for case in listed:
        seed = _ANY_SEED if case.world is None else case.seed
        if (known := outline(replace(case, seed=seed, budget=None))) is not None:
            labels.update(known.required)
            seconds += cost_s(known)
    return Plan(listed, labels, seconds / 60)


def choose(
    labels: int,
    first_seed: int,
    case_of: Callable[[str], Case | None],
    faults: Sequence[str] = tuple(FAULTS),
    variety: int = 3,
    worlds: Sequence[int] = (),
) -> Plan:
    """Return recordings with at least `labels` required labels of each of `faults`, where scenarios have it.

    `case_of` gives the case of a scenario by its name, seed apart; None: not to be used. Greedy by labels still wanted
    per CPU second. Of a fault that several scenarios have no scenario gives more than an even share of the first
    `variety` of them: thirty cases of one story are one case thirty times. Each is made in the next of `worlds`, where
    some labels may not be required.
    """
    cases_of = {name: case for name in scenario_paths() if (case := case_of(name)) is not None}
    usable = {name: known for name, case in cases_of.items() if (known := outline(case)) is not None and known.required}
    tellers = Counter(fault for known in usable.values() for fault in known.required)
    most = {fault: math.ceil(labels / max(1, min(variety, tellers[fault]))) for fault in faults}
    have: Counter[str] = Counter()
    by: Counter[tuple[str, str]] = Counter()
    seeds: Counter[str] = Counter()
    cases: list[Case] = []
    while True:
        worth = {
            name: sum(
                max(0, min(count, labels - have[fault], most[fault] - by[name, fault]))
                for fault, count in known.required.items()
                if fault in faults
            )
            / cost_s(known)
            for name, known in usable.items()
        }
        best = max(worth, key=lambda name: worth[name], default="")
        if not best or worth[best] <= 0:
            return summed(cases)
        world = worlds[sum(seeds.values()) % len(worlds)] if worlds else None
        case = replace(cases_of[best], seed=first_seed + seeds[best], world=world)
        seeds[best] += 1
        known = outline(case) if worlds else usable[best]
        if known is None:
            continue
        cases.append(case)
        required = known.required
        have.update(required)
        by.update({(best, fault): count for fault, count in required.items()})


def faults_plan(
    labels: int, first_seed: int, scale: float, faults: Sequence[str] = tuple(FAULTS), worlds: Sequence[int] = ()
) -> Plan:
    """Return the recordings of the scorecard: every scenario on its own cluster, `scale` times as large."""

    def case_of(name: str) -> Case:
        return Case("faults", name, first_seed, _scaled(name, scale))

    return choose(labels, first_seed, case_of, faults, worlds=worlds)


def _scaled(scenario: str, scale: float) -> float:
    """Return the scale at which a scenario has at least the fewest nodes."""
    return round(max(scale, min(1.0, FEWEST_NODES / nodes_of(scenario))), 4)


@cache
def nodes_of(scenario: str) -> int:
    """Return how many nodes a scenario's own cluster has."""
    return scenario_and_world(scenario_paths()[scenario])[1].written_for.nodes
