"""A cluster's ordinary business: jobs of given kinds, drawn by seed and put on free nodes as a scheduler would.

Kinds say how often, how large, how long, and how they end. Jobs queue first come, first served, on the nodes that no
job of the scenario's own has; some are on already when the recording starts.
"""

from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from services.synth.cluster.world import World
from services.synth.randomness import generator
from services.synth.story.scenario import JobSpec, Mix, MixKind, Outcome, Scenario

_DISPATCH_S = 4.0  # a scheduler's round
_GAP_S = 25.0  # epilog and prolog between two jobs of a node
_SMALL = 2  # jobs of so few nodes stay as they are on a smaller cluster
_FIRST_ID = 40000


@dataclass(frozen=True)
class _Wish:
    """A job as it is submitted: before anybody knows where and when it runs."""

    submit: float
    kind: MixKind
    nodes: int
    length: float
    outcome: Outcome


def jobs_of(scenario: Scenario, world: World, seed: int) -> list[JobSpec]:
    """Return the scenario's own jobs and those of its mix; no two on one node at a time.

    UserError: a job names a mount or a node that the scenario's own profile does not have.
    """
    return [_as_usual_here(_at_home(spec, world), world) for spec in _all(scenario, world, seed)]


def _as_usual_here(spec: JobSpec, world: World) -> JobSpec:
    """Return a job as jobs of the cluster's world are: first steps, how ranks differ, evaluations."""
    conditions, training = world.profile.conditions, spec.training
    if conditions.seed is None:
        return spec
    chance = conditions.generator(f"job {spec.name}")
    changed: dict[str, Any] = {"rank_spread": max(training.rank_spread, conditions.number("work.rank_spread"))}
    if training.warm_up:
        changed["warm_up"] = [max(training.warm_up[0], conditions.number("work.first_step")), *training.warm_up[1:]]
    if conditions.yes("work.evaluates") and training.reports and training.evaluate_every is None:
        changed["evaluate_every"] = int(chance.integers(100, 401))
        changed["evaluate_s"] = float(chance.uniform(3, 5)) * training.usual_step_s
    return spec.model_copy(update={"training": training.model_copy(update=changed)})


def _at_home(spec: JobSpec, world: World) -> JobSpec:
    """Return a job whose mounts are there: on another cluster than it was written for, the first stands for others."""
    training = spec.training
    named = {name: getattr(training, name) for name in ("reads_from", "checkpoints_to")}
    there = {name: world.mount(path) for name, path in named.items() if path is not None}
    if all(named[name] == path for name, path in there.items()):
        return spec
    return spec.model_copy(update={"training": training.model_copy(update=there)})


def _all(scenario: Scenario, world: World, seed: int) -> list[JobSpec]:
    if scenario.mix is None:
        return scenario.jobs
    taken = {node for spec in scenario.jobs for node in world.nodes(spec.nodes)}
    free = [node for node in world.nodes(scenario.mix.nodes) if node not in taken]
    if not free:
        return scenario.jobs
    own = {spec.id for spec in scenario.jobs}
    mixed = _placed(scenario.mix, free, world, generator(seed, "mix"))
    return [*scenario.jobs, *(spec for spec in mixed if spec.id not in own)]


def _placed(mix: Mix, nodes: list[int], world: World, rng: np.random.Generator) -> list[JobSpec]:
    """Return the jobs that a first-come-first-served scheduler runs on some nodes."""
    ready = np.full(len(nodes), -np.inf)  # when each is free
    place = np.array(nodes)
    horizon = world.duration_s
    found: list[JobSpec] = []
    ratio = world.profile.nodes / world.written_for.nodes
    before = -max(kind.longest_s for kind in mix.kinds)
    now = before
    users = {kind.name: kind.users for kind in mix.kinds}
    rate = _submitted_per_s(mix, len(nodes), ratio)
    for number in count():
        now += float(rng.exponential(1 / rate))
        if now >= horizon:
            return found
        wish = _wish(mix, now, ratio, len(nodes), rng)
        order = np.argsort(ready, kind="stable")
        start = max(now + _DISPATCH_S, float(ready[order[wish.nodes - 1]]))
        fit = np.flatnonzero(ready <= start)
        chosen = fit[_together(place[fit], wish.nodes)]
        end = start + wish.length
        ready[chosen] = end + _GAP_S
        who = users[wish.kind.name][int(rng.integers(len(users[wish.kind.name])))]
        if end <= 0 or start >= horizon:
            continue
        found.append(
            JobSpec(
                id=str(_FIRST_ID + number),
                name=wish.kind.name,
                user=who,
                partition=wish.kind.partition,
                nodes=[int(node) for node in place[chosen]],
                gpus=None if wish.kind.gpus is None else list(range(min(wish.kind.gpus, world.profile.node.gpus))),
                submit=round(now, 3),
                start=round(start, 3),
                end=round(end, 3),
                state=wish.outcome.state,
                training=wish.kind.training,
            )
        )
    return found


def _submitted_per_s(mix: Mix, nodes: int, ratio: float) -> float:
    """Return how often jobs must come so that the nodes are as busy as asked, on average."""
    shares = np.array([kind.share for kind in mix.kinds])
    node_s = [
        sum(weight * _size(size, ratio, nodes) for size, weight in kind.nodes.items())
        / sum(kind.nodes.values())
        * kind.mean_length_s
        for kind in mix.kinds
    ]
    return float(mix.occupancy * nodes / (np.dot(shares, node_s) / shares.sum()))


def _wish(mix: Mix, now: float, ratio: float, nodes: int, rng: np.random.Generator) -> _Wish:
    kind = mix.kinds[_pick([kind.share for kind in mix.kinds], rng)]
    sizes = list(kind.nodes)
    size = sizes[_pick(list(kind.nodes.values()), rng)]
    outcome = kind.outcomes[_pick([outcome.share for outcome in kind.outcomes], rng)]
    low, high = outcome.lasts
    length = float(np.exp(rng.uniform(np.log(low), np.log(high))))
    return _Wish(now, kind, _size(size, ratio, nodes), length, outcome)


def _pick(weights: list[float], rng: np.random.Generator) -> int:
    cumulative = np.cumsum(weights)
    return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))


def _size(size: int, ratio: float, nodes: int) -> int:
    """Return a job's nodes on the cluster that is made: large jobs go with the cluster, small ones stay."""
    return min(nodes, max(min(size, _SMALL), round(size * ratio)))


def _together(places: np.ndarray[tuple[int], np.dtype[np.int64]], count: int) -> slice:
    """Return where among free places (ascending) the `count` that lie closest together are."""
    spans = places[count - 1 :] - places[: len(places) - count + 1]
    first = int(np.argmin(spans))
    return slice(first, first + count)
