"""What else goes on in a world while a scenario's story takes place, on nodes that the story does not touch.

Serving and small jobs beside the training, users whose own programs crash, nodes that are rebooted on purpose, with the
scheduler's word or without. None of it is a fault.
"""

from functools import cache
from typing import Any

from services.synth.cluster.world import World
from services.synth.cluster.worlds import table
from services.synth.faults.node_reboot import NodeReboot
from services.synth.faults.user_crash import UserCrash
from services.synth.story.presets import SHIPPED, with_presets
from services.synth.story.scenario import Mix, Scenario

_DAY_S = 86_400.0
_REBOOT_S = (240.0, 900.0)
_QUIET_S = 600.0
"""Nothing of this happens so soon after the start or before the end: a reboot is over before the recording is."""
_RESERVED = 0.15
"""Share of the free nodes on which no job runs: those that are rebooted."""


@cache
def _mix() -> dict[str, Any]:
    content: dict[str, Any] = with_presets(table()["beside"], SHIPPED)
    return content


def with_company(scenario: Scenario, world: World) -> Scenario:
    """Return a scenario with what else goes on in its world; as it is in no world.

    UserError: the cluster has fewer nodes than the scenario names.
    """
    conditions = world.profile.conditions
    if conditions.seed is None:
        return scenario
    free = _untouched(scenario, world)
    chance = conditions.generator("beside", scenario.seed)
    chance.shuffle(free)
    reserved, used = free[: int(_RESERVED * len(free))], sorted(free[int(_RESERVED * len(free)) :])
    days = scenario.duration / _DAY_S
    first, last = _QUIET_S, scenario.duration - _QUIET_S - _REBOOT_S[1]
    happenings: list[NodeReboot | UserCrash] = []
    for node in reserved if last > first else ():
        if chance.random() < conditions.number("work.reboots_per_node_day") / _RESERVED * days:
            at = float(chance.uniform(first, last))
            drained = conditions.yes("work.reboots_are_told")
            until = at + float(chance.uniform(*_REBOOT_S))
            name = world.by_index(node)
            happenings.append(NodeReboot(kind="node_reboot", node=name, at=at, until=until, drained=drained))
    happenings += [
        UserCrash(
            kind="user_crash",
            node=world.by_index(int(chance.choice(used))),
            gpu=int(chance.integers(world.profile.node.gpus)),
            at=float(chance.uniform(0, scenario.duration)),
            xid=(13, 31, 43)[int(chance.integers(3))],
        )
        for _ in range(int(chance.poisson(conditions.number("work.crashes_per_node_day") * days * len(used))))
    ]
    changed: dict[str, Any] = {"happenings": [*scenario.happenings, *happenings]}
    if used and scenario.mix is not None:
        changed["mix"] = scenario.mix.model_copy(update={"nodes": used})
    elif used and conditions.yes("work.beside"):
        occupancy = conditions.number("work.beside_occupancy")
        changed["mix"] = Mix.model_validate(_mix() | {"nodes": used, "occupancy": occupancy})
    return scenario.model_copy(update=changed)


def _untouched(scenario: Scenario, world: World) -> list[int]:
    """Return the nodes that neither a job of the scenario's own nor a happening has to do with."""
    per_node = world.profile.node.gpus
    touched = {node for spec in scenario.jobs for node in world.nodes(spec.nodes)}
    named = [getattr(happening, "node", None) for happening in scenario.happenings]
    named += [distractor.entity.get("node") for distractor in scenario.distractors]
    touched |= {world.node(name) for name in named if isinstance(name, str)}
    for happening in scenario.happenings:
        for effect in happening.effects(world):
            kind = effect.quantity.partition(".")[0]
            columns = [int(column) for column in effect.columns]
            if kind == "gpu":
                touched |= {column // per_node for column in columns}
            elif kind in {"node", "job"}:
                touched |= set(columns)
            elif kind == "cable":
                hosts, machine = world.fabric.hosts, world.fabric.host_machine
                touched |= {int(machine[column]) for column in columns if column < hosts}
    return [node for node in range(world.profile.nodes) if node not in touched]
