"""What jobs feel of the network: how much longer they communicate, and, where it carries storage, read.

The slowest flow sets a collective's time; a file's blocks come from all servers, and what counts is the mean.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from services.synth.cluster.fabric import Fabric
from services.synth.cluster.world import World
from services.synth.physics.effects import Effect, Effects, Ints
from services.synth.physics.network import EFFICIENCY

_BESIDE = 2.0  # the port beside carries a lost one's traffic as well
_ALONE = 40.0  # no port beside: retransmissions until it is back
_RETRY_S, _RETRY_FACTOR = 45.0, 3.0  # a port that is down this shortly costs timeouts, too
_PER_ERROR = 0.02  # of a step's communication more, per lost frame a second: a retransmission of some 20 ms (estimated)
_MOST_ERRORS = 2.0
_CUT_OFF = 10.0  # a leaf without uplinks: what can goes over the node's other ports
_SLOWEST = 4.0  # however slow a link has trained to, flows move to the port beside at last
_FAIR = 0.5  # a flow that shares a queue with another's gets at least half
_JAM = 4  # exponent: head-of-line blocking makes overload worse than proportional (fitted to the brief's collapse)
_BLOCKED = 0.6  # of a storm's pauses, what neighbours on the same leaf feel (estimated)
_UNMARKED = 1.3  # collectives on a leaf that pauses where it should mark (estimated)


def felt(world: World, effects: Effects) -> Iterable[Effect]:
    """Return how much longer communication and reading take on which nodes, for all that acts on the network."""
    fabric = world.profile.fabric
    if fabric is None:
        return
    for effect in effects.of("cable.down"):
        yield from _down(fabric, effect, effect.columns)
    for effect in effects.of("cable.extra_gbps"):
        yield from _elephants(fabric, effect)
    for effect in effects.of("cable.pausing"):
        yield from _storm(fabric, effect)
    for effect in effects.of("cable.errors_per_s"):
        yield from _slow_cables(fabric, effect, 1.0 + min(_PER_ERROR * effect.size, _MOST_ERRORS))
    for effect in effects.of("cable.speed_share"):
        yield from _slow_cables(fabric, effect, min(1.0 / effect.size, _SLOWEST))
    yield from _of_switches(fabric, effects)


def _of_switches(fabric: Fabric, effects: Effects) -> Iterator[Effect]:
    efficiency = fabric.network.routing_efficiency or EFFICIENCY[fabric.network.routing]
    for quantity, factor in (("switch.static", efficiency / EFFICIENCY["static"]), ("switch.unmarked", _UNMARKED)):
        for effect in effects.of(quantity):
            for switch in effect.columns:
                yield from _slower(fabric, effect, fabric.nodes_at(int(switch)), factor)
    for effect in effects.of("switch.down"):
        for switch in effect.columns:
            yield from _down(fabric, effect, fabric.cables_of(int(switch)))


def _slow_cables(fabric: Fabric, effect: Effect, factor: float) -> Iterator[Effect]:
    for cable in effect.columns:
        nodes = fabric.nodes_on(int(cable))
        yield from _slower(fabric, effect, nodes, factor, reading=_mean(fabric, int(cable), factor))


def _storm(fabric: Fabric, effect: Effect) -> Iterator[Effect]:
    """Yield what a machine that pauses its leaf does to itself, and to those beside it."""
    for cable in effect.columns:
        own = fabric.nodes_on(int(cable))
        others = sorted(set(fabric.nodes_at(int(fabric.host_leaf[cable]))) - set(own))
        yield from _slower(fabric, effect, own, 1.0 / (1.0 - min(effect.size, 0.8)))
        yield from _slower(fabric, effect, others, 1.0 + _BLOCKED * effect.size)


def _slower(
    fabric: Fabric, effect: Effect, nodes: list[int], factor: float, *, reading: float | None = None
) -> Iterator[Effect]:
    """Yield that communication takes `factor` times as long while the effect acts; reading as long, or `reading`."""
    columns = np.array(nodes, dtype=np.int64)
    if factor > 1.0 and len(columns):
        yield Effect("node.collective_factor", columns, factor, effect.course)
    read = factor if reading is None else reading
    if fabric.network.carries_storage and read > 1.0 and len(columns):
        yield Effect("node.data_wait_factor", columns, read, effect.course)


def _mean(fabric: Fabric, cable: int, factor: float) -> float:
    """Return how much longer reading takes where one of a node's ports, or of a leaf's uplinks, is so much slower."""
    ports = fabric.nics if cable < fabric.hosts else len(fabric.up_leaf) // len(fabric.leaves)
    return ports / (ports - 1 + 1.0 / factor) if ports > 1 else factor


def _down(fabric: Fabric, effect: Effect, cables: Ints) -> Iterator[Effect]:
    brief = max((end - begin for begin, end in effect.course.spans()), default=0.0) < _RETRY_S
    nodes = sorted({node for cable in cables[cables < fabric.hosts] for node in fabric.nodes_on(int(cable))})
    if nodes:
        lost = _ALONE if fabric.nics == 1 else _RETRY_FACTOR if brief else _BESIDE
        yield from _slower(fabric, effect, nodes, lost, reading=fabric.nics / max(fabric.nics - 1, 1))
    uplinks = cables[cables >= fabric.hosts] - fabric.hosts
    each = len(fabric.up_leaf) // len(fabric.leaves) if len(uplinks) else 0
    worst: dict[int, float] = {}
    for leaf, gone in zip(*np.unique(fabric.up_leaf[uplinks], return_counts=True), strict=True):
        before, after = _reach(fabric, int(leaf), each), _reach(fabric, int(leaf), each - int(gone))
        factor = min(before / max(after, 0.05), _CUT_OFF)
        for node in fabric.nodes_at(int(leaf)):
            worst[node] = max(worst.get(node, 1.0), factor)
    for factor in sorted(set(worst.values())):
        yield from _slower(fabric, effect, [node for node in worst if worst[node] == factor], factor)


def _reach(fabric: Fabric, leaf: int, uplinks: int) -> float:
    """Return which part of what a leaf's ports may send at once its uplinks bring through, at most 1."""
    efficiency = fabric.network.routing_efficiency or EFFICIENCY[fabric.network.routing]
    asked = float(fabric.host_gbps[fabric.host_leaf == leaf].sum())
    return min(1.0, uplinks * fabric.up_gbps * efficiency / asked) if asked else 1.0


def _elephants(fabric: Fabric, effect: Effect) -> Iterator[Effect]:
    """Yield what large flows of others do to those whose uplinks they take."""
    uplinks = effect.columns[effect.columns >= fabric.hosts] - fabric.hosts
    for leaf in np.unique(fabric.up_leaf[uplinks]):
        nodes = fabric.nodes_at(int(leaf))
        mine = int((fabric.up_leaf[uplinks] == leaf).sum())
        each = len(fabric.up_leaf) // len(fabric.leaves)
        built = each * fabric.up_gbps
        share = effect.size / fabric.up_gbps
        asked = fabric.network.usual_load * float(fabric.host_gbps[fabric.host_leaf == leaf].sum())
        jam = max(1.0, (asked + mine * effect.size) / built) ** _JAM
        mean = 1.0 / (1.0 - min(share, _FAIR) * mine / each)
        slowest = mean if fabric.network.routing == "adaptive" else 1.0 / (1.0 - min(share, _FAIR))
        yield from _slower(fabric, effect, nodes, slowest * jam, reading=mean * jam)
