"""What jobs send over a cluster's network: bytes of every cable, each way, from the runs of the jobs.

All is computed on a grid of `GRID_S` common to every port, so that both ends of a cable show the same bytes; telemetry
reads between the grid's points. A step's collectives move the same bytes however long it takes.
"""

from dataclasses import dataclass

import numpy as np

from services.synth.cluster.fabric import Fabric
from services.synth.cluster.profile import ClusterProfile
from services.synth.jobs.job import Run
from services.synth.physics.effects import Effects, Floats, Ints
from services.synth.physics.scatter import Scatter
from services.synth.physics.workload import Workload
from services.synth.randomness import generator

GRID_S = 5.0
"""The physics' own step: short against any cadence of switches' telemetry."""

_OVER_NETWORK = 0.85  # of what training moves over PCIe, the part that goes on through the network (GPU-direct RDMA)
_MOST = 0.92  # of a port's speed that payload can take: headers, gaps
_WORKING_SET_NOISE = 0.015  # relative, grid step to grid step: batches differ
_PORT_SPREAD = 0.02  # relative, for good: where a rank sits in ring and pipeline
_HASH_SPREAD = {"ecmp": 0.12, "static": 0.28, "adaptive": 0.015}
"""Relative deviation of an uplink's share of its leaf's traffic: few large flows hash badly (estimated)."""
_CHATTER_BYTES_S = 30_000.0  # subnet manager, ARP, LLDP, health checks


@dataclass
class Load:
    """Bytes in each grid step, shape (steps, cables of that kind), and how hard collectives press just then.

    ``tx``/``rx`` are a machine's port's; ``up``/``down`` an uplink's, leaf to spine and back. ``bursts`` (steps, N) is
    the share of time in which a port's job has collectives under way.
    """

    tx: Floats
    rx: Floats
    up: Floats
    down: Floats
    far_tx: Floats
    far_rx: Floats
    bursts: Floats
    live: Floats
    """Share of the step that each cable was up: (steps, cables)."""


class Traffic:
    """Turns runs into bytes; must be asked for its grid in order."""

    def __init__(
        self, profile: ClusterProfile, fabric: Fabric, workload: Workload, effects: Effects, seed: int
    ) -> None:
        self._profile, self._network, self._fabric = profile, fabric.network, fabric
        self._workload, self._effects = workload, effects
        chance = generator(seed, "traffic habits")
        self._spread = 1 + _PORT_SPREAD * np.clip(chance.standard_normal((2, fabric.hosts)), -2.5, 2.5)
        self._spread *= profile.conditions.factors("ports.load_sigma", (2, fabric.hosts))
        draws = _uneven(len(fabric.leaves), len(fabric.up_leaf), chance)
        self._even = {kind: 1 + spread * draws for kind, spread in _HASH_SPREAD.items()}
        self._scatter = Scatter(generator(seed, "traffic noise"), profile.conditions, GRID_S)

    def over(self, grid: Floats) -> Load:
        """Return the load of the grid steps that end at ``grid`` (seconds, evenly spaced)."""
        fabric, steps = self._fabric, len(grid)
        tx, rx, far_tx, far_rx, bursts = np.zeros((5, steps, fabric.hosts))
        for run in self._workload.runs:
            self._collectives(run, grid, (tx, rx, far_tx, far_rx, bursts))
            self._storage(run, grid, (tx, rx, far_tx, far_rx))
        scatter = self._profile.noise * _WORKING_SET_NOISE * self._scatter.normal("ports", (steps, fabric.hosts))
        noise = np.maximum(1 + scatter, 0.0)  # its tails are heavy in some worlds, and no port sends less than nothing
        live, speed = self.live(grid), self._slow_share(grid)
        for moved, far, spread in ((tx, far_tx, self._spread[0]), (rx, far_rx, self._spread[1])):
            self._carried(moved, far, noise * spread, live, speed)
        up = self._spread_out(far_tx, live, 0, grid)
        down = self._spread_out(far_rx, live, 1, grid)
        self._others(grid, tx, rx, up, down)
        return Load(tx, rx, up, down, far_tx, far_rx, bursts, live)

    def live(self, grid: Floats) -> Floats:
        """Return the share of each grid step that every cable was up."""
        fabric = self._fabric
        live = np.ones((len(grid), fabric.cables))
        for effect in self._effects.of("cable.down"):
            if effect.course.start < grid[-1] and effect.course.end > grid[0] - GRID_S:
                live[:, effect.columns] *= 1.0 - effect.course.mean(grid, GRID_S)[:, None]
        for effect in self._effects.of("switch.down"):
            if effect.course.start < grid[-1] and effect.course.end > grid[0] - GRID_S:
                for switch in effect.columns:
                    live[:, fabric.cables_of(int(switch))] *= 1.0 - effect.course.mean(grid, GRID_S)[:, None]
        return live

    def _slow_share(self, grid: Floats) -> Floats:
        """Return what is left of each machine's port's speed: (steps, N)."""
        speed = np.ones((len(grid), self._fabric.hosts))
        for effect in self._effects.of("cable.speed_share"):
            share = effect.course.mean(grid, GRID_S)
            hosts = effect.columns[effect.columns < self._fabric.hosts]
            speed[:, hosts] *= 1.0 - (1.0 - effect.size) * share[:, None]
        return speed

    def weights(self, grid: Floats, way: int) -> Floats:
        """Return how flows hash over a leaf's uplinks, relative to an even spread: (steps, L); way 0 up, 1 down."""
        even = np.broadcast_to(self._even[self._network.routing][way], (len(grid), len(self._fabric.up_leaf)))
        for effect in self._effects.of("switch.static") if way == 0 else ():
            share = effect.course.mean(grid, GRID_S)
            if share.any():
                mine = np.isin(self._fabric.up_leaf, effect.columns)
                stuck = even + share[:, None] * (self._even["static"][way] - even)
                even = np.where(mine, stuck, even)
        return even

    def _ports(self, run: Run) -> Ints:
        """Return the host cables of a run's nodes, shape (nodes, nics)."""
        nics = self._fabric.nics
        return np.asarray(np.array(run.nodes)[:, None] * nics + np.arange(nics))

    def _collectives(self, run: Run, grid: Floats, into: tuple[Floats, ...]) -> None:
        if len(run.nodes) < 2:
            return
        training, fabric = run.spec.training, self._fabric
        progress = _steps_by(run, grid) - _steps_by(run, grid - GRID_S)
        if not progress.any():
            return
        ports = self._ports(run)
        per_node = len(run.gpus) / len(run.nodes)
        rate = _OVER_NETWORK * training.pcie_gb_s * 1e9 * per_node / fabric.nics
        rate = min(rate, _MOST * float(fabric.host_gbps[0]) * 1e9 / 8)
        moved = progress[:, None] * (rate * training.usual_step_s)
        groups = fabric.group_of[np.array(run.nodes)]
        beside = np.bincount(groups)[groups] - 1
        far = np.repeat(1.0 - beside / max(len(run.nodes) - 1, 1), fabric.nics)
        busy = np.minimum(1.0, 2.0 * progress * training.usual_step_s / GRID_S)
        tx, rx, far_tx, far_rx, bursts = into
        columns = ports.ravel()
        for whole, distant in ((tx, far_tx), (rx, far_rx)):
            whole[:, columns] += moved
            distant[:, columns] += moved * far
        if len(np.unique(groups)) > 1:
            bursts[:, columns] = np.maximum(bursts[:, columns], busy[:, None])

    def _storage(self, run: Run, grid: Floats, into: tuple[Floats, ...]) -> None:
        if not self._network.carries_storage:
            return
        training, profile, fabric = run.spec.training, self._profile, self._fabric
        ranks = len(run.gpus) / len(run.nodes)
        reads, writes = np.zeros((2, len(grid)))
        if not profile.mount_of(training.reads_from).local:
            steps = _steps_by(run, grid) - _steps_by(run, grid - GRID_S)
            reads += steps * training.read_mb_per_step * 1e6 * ranks
        if not profile.mount_of(training.checkpoints_to).local:
            size = training.checkpoint_gb * 1e9 * ranks
            reads += size * _share_over([run.loading], grid)
            writes += size * _share_over(run.checkpoints, grid)
        tx, rx, far_tx, far_rx = into
        columns = self._ports(run).ravel()
        servers = np.arange(fabric.nodes * fabric.nics, fabric.hosts)
        nodes = len(run.nodes)
        for moved, (near, far), (near_served, far_served) in (
            (reads, (rx, far_rx), (tx, far_tx)),
            (writes, (tx, far_tx), (rx, far_rx)),
        ):
            if not moved.any():
                continue
            part = (moved / fabric.nics)[:, None]
            near[:, columns] += part
            served = (moved * nodes / max(len(servers), 1))[:, None]
            near_served[:, servers] += served
            if fabric.spines:
                far[:, columns] += part
                far_served[:, servers] += served

    def _carried(self, moved: Floats, far: Floats, noise: Floats, live: Floats, speed: Floats) -> None:
        """Bring noise, lost ports and the ports' speed into what is asked of them, in place."""
        fabric = self._fabric
        carrying = live if speed.min() == 1.0 else live.copy()
        if carrying is not live:
            carrying[:, : fabric.hosts] *= 0.5 + 0.5 * speed
        for asked in (moved, far):
            np.multiply(asked, noise, out=asked)
            self._failover(asked, carrying)
        np.minimum(moved, _MOST * speed * fabric.host_gbps * 1e9 / 8 * GRID_S, out=moved)
        np.minimum(far, moved, out=far)
        np.add(moved, _CHATTER_BYTES_S * GRID_S * live[:, : fabric.hosts], out=moved)

    def _failover(self, moved: Floats, live: Floats) -> None:
        """Let the port beside carry what a port that is down would."""
        fabric = self._fabric
        lost = np.flatnonzero((live[:, : fabric.hosts] < 1).any(axis=0))
        for cable in lost:
            machine = fabric.host_machine[cable]
            mine = np.flatnonzero(fabric.host_machine == machine)
            place = int(np.flatnonzero(mine == cable)[0])
            beside = int(mine[place ^ 1 if (place ^ 1) < len(mine) else place - 1])
            gone = moved[:, cable] * (1.0 - live[:, cable])
            moved[:, cable] -= gone
            if beside != cable:
                moved[:, beside] += gone * live[:, beside]

    def _spread_out(self, far: Floats, live: Floats, way: int, grid: Floats) -> Floats:
        """Return the bytes of every uplink: a leaf's traffic over those of its uplinks that are up."""
        fabric = self._fabric
        leaves, links = len(fabric.leaves), len(fabric.up_leaf)
        if not links:
            return np.zeros((len(far), 0))
        order = np.argsort(fabric.host_leaf, kind="stable")
        owners, first = np.unique(fabric.host_leaf[order], return_index=True)
        of_leaf = np.zeros((len(far), leaves))
        of_leaf[:, owners] = np.add.reduceat(far[:, order], first, axis=1)
        weight = self.weights(grid, way) * live[:, fabric.hosts :]
        total = weight.reshape(len(far), leaves, -1).sum(axis=2)
        share = np.divide(
            weight, total[:, fabric.up_leaf], out=np.zeros_like(weight), where=total[:, fabric.up_leaf] > 0
        )
        return np.asarray(of_leaf[:, fabric.up_leaf] * share)

    def _others(self, grid: Floats, tx: Floats, rx: Floats, up: Floats, down: Floats) -> None:
        """Add the flows of others, as far as there is room."""
        fabric = self._fabric
        for effect in self._effects.of("cable.extra_gbps"):
            share = effect.course.mean(grid, GRID_S)
            if not share.any():
                continue
            extra = (share * effect.size * 1e9 / 8 * GRID_S)[:, None]
            upward = effect.detail["direction"] == "up"
            hosts = effect.columns[effect.columns < fabric.hosts]
            uplinks = effect.columns[effect.columns >= fabric.hosts] - fabric.hosts
            (tx if upward else rx)[:, hosts] += extra
            (up if upward else down)[:, uplinks] += extra
        room = _MOST * GRID_S * 1e9 / 8
        for moved, gbps in (
            (tx, fabric.host_gbps),
            (rx, fabric.host_gbps),
            (up, fabric.up_gbps),
            (down, fabric.up_gbps),
        ):
            np.minimum(moved, room * gbps, out=moved)


def _uneven(leaves: int, uplinks: int, chance: np.random.Generator) -> Floats:
    """Return how uplinks differ by chance, up and down, shape (2, uplinks): every leaf has full ones and emptier ones.

    Spread evenly over 1.5 deviations each side, in an order of its own at every leaf.
    """
    each = uplinks // leaves if leaves else 0
    if each < 2:
        return np.zeros((2, uplinks))
    ranks = np.argsort(chance.random((2, leaves, each)), axis=2)
    jitter = 0.1 * np.clip(chance.standard_normal((2, leaves, each)), -2, 2)
    return np.asarray((np.linspace(-1.5, 1.5, each)[ranks] + jitter).reshape(2, uplinks))


def _steps_by(run: Run, at: Floats) -> Floats:
    """Return how many steps a run has done by times, with the part done of the one under way."""
    if not len(run.start):
        return np.zeros(len(at))
    at = np.minimum(at, run.end)
    step = np.clip(np.searchsorted(run.start, at, side="right") - 1, 0, None)
    return np.asarray(step + np.clip((at - run.start[step]) / run.total[step], 0.0, 1.0))


def _share_over(spans: list[tuple[float, float]], grid: Floats) -> Floats:
    """Return which part of some stretches, each counted 1, falls into the grid steps."""
    part = np.zeros(len(grid))
    for begin, end in spans:
        if end > begin and end > grid[0] - GRID_S and begin < grid[-1]:
            inside = np.clip(grid, begin, end) - np.clip(grid - GRID_S, begin, end)
            part += inside / (end - begin)
    return part
