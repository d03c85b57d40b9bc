"""What machines of a world do for good and is no fault: as effects, which the physics know already.

GPUs that correct single bits all the time, gauges that show an XID of long ago, exporters that start anew and forget,
ranks that are given unlike work for some minutes (long sequences, favoured experts).
"""

from collections.abc import Iterator

import numpy as np

from services.synth.cluster.world import World
from services.synth.physics.effects import Course, Effect
from services.synth.telemetry.outages import Outages

_SBE_SIGMA, _SBE_MOST_PER_H = 1.5, 400.0
_BOUTS_S, _BOUT_SHARE = 1800.0, 0.15
"""Half of what a GPU corrects comes in bouts: this often, for this share of the time."""
_OLD_XIDS = {13: 6, 31: 6, 43: 4, 45: 4, 63: 1, 94: 1, 48: 1}
"""Which codes stand in gauges from before, by weight: users' programs mostly."""
_ALWAYS_S = 1.0e6
_UNEVEN, _UNEVEN_S = (0.04, 0.18), (120.0, 900.0)
"""Deviation of ranks' work when it is uneven (between ranks of mixtures of experts, in recordings of others), and for
how long."""
_SHARES = 8
"""So many shares of work there are among ranks at a time."""
_UNEVEN_NODES = 0.25
"""Of the times that work is uneven, it is between nodes: data-parallel replicas."""


def habits(world: World, outages: Outages, seed: int) -> Iterator[Effect]:
    """Yield the effects; none in no world."""
    conditions = world.profile.conditions
    if conditions.seed is None:
        return
    gpus, chance = world.profile.gpu_count, conditions.generator("habits", seed)
    always = Course.between(-_ALWAYS_S, world.duration_s + _ALWAYS_S)
    for gpu in np.flatnonzero(chance.random(gpus) < conditions.number("gpus.sbe_habit_share")):
        per_h = conditions.number("gpus.sbe_habit_per_h") * float(np.exp(_SBE_SIGMA * chance.standard_normal()))
        per_s = min(per_h, _SBE_MOST_PER_H) / 3600
        begin = -float(chance.uniform(0, _BOUTS_S))
        bouts = Course.between(begin, world.duration_s + 1.0, period_s=_BOUTS_S, duty=_BOUT_SHARE)
        yield Effect("gpu.sbe_per_s", np.array([gpu]), per_s / 2, always)
        yield Effect("gpu.sbe_per_s", np.array([gpu]), per_s / 2 / _BOUT_SHARE, bouts)
    codes, weights = np.array(list(_OLD_XIDS)), np.array(list(_OLD_XIDS.values()), dtype=np.float64)
    for gpu in np.flatnonzero(chance.random(gpus) < conditions.number("gpus.old_xid_share")):
        yield Effect("gpu.xid", np.array([gpu]), float(chance.choice(codes, p=weights / weights.sum())), always)
    times_h = conditions.number("work.uneven_per_h")
    for at in np.sort(chance.uniform(0, world.duration_s, chance.poisson(times_h * world.duration_s / 3600))).tolist():
        course = Course.between(at, at + float(chance.uniform(*_UNEVEN_S)))
        between_nodes = chance.random() < _UNEVEN_NODES
        share = chance.integers(_SHARES, size=gpus)
        if between_nodes:
            share = np.repeat(chance.integers(_SHARES, size=world.profile.nodes), world.profile.node.gpus)
        sizes = np.exp(float(chance.uniform(*_UNEVEN)) * chance.standard_normal(_SHARES))
        for number, size in enumerate(sizes.tolist()):
            yield Effect("gpu.more_work", np.flatnonzero(share == number), size, course)
    for span in outages.restarts:
        if span.entity is not None:
            yield Effect("node.exporter_restarted", np.array([span.entity]), 1.0, Course.between(span.begin, span.end))
