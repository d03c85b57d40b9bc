"""File systems as their clients count them: what jobs read and write, how long a request takes, who waits.

Latency follows the load as in a single-server queue: base / (1 - utilisation). A slow object server holds a share of
the files: its requests take `size` times as long, and its throughput falls with the square root of that, as queues
lengthen faster than rates fall. A burst buffer on the node takes checkpoints at the speed of its own NVMe and is
drained to the parallel file system meanwhile (the CORAL report, sections III and V-D: Summit's nodes write 2.1 GB/s to
theirs and drain asynchronously).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from services.recording.schema import TIMESTAMP, name_column
from services.synth.cluster.profile import ClusterProfile, MountProfile
from services.synth.cluster.world import World
from services.synth.physics.effects import Effect, Effects, Floats
from services.synth.physics.scatter import Scatter
from services.synth.physics.workload import Workload
from services.synth.telemetry.collector import Beats, to_ms

_REQUEST_BYTES = 1 << 20  # clients read and write in pieces of this size
_CHATTER_OPS_S, _CHATTER_BYTES = 0.35, 4096  # a node's own: logs, home directories, health checks
_FULLEST = 0.97  # utilisation beyond which requests are held back, not queued: latency stops rising
_LATENCY_NOISE, _NODE_SPREAD = 0.12, 0.03  # relative: of a quarter of a minute's mean, and for good
_METADATA_SHARE = 0.1  # of requests
_FILES_PER_BATCH = 4  # a rank's batch comes from so many files, on servers at random
_OPENING_SHARE = 0.3  # of the time to fetch a batch goes into opening files


def capacity_left(share: float, size: float) -> float:
    """Return what is left of a mount's throughput when a share of its servers answers `size` times as slowly."""
    return 1.0 - share + share / float(np.sqrt(size))


def felt(world: World, effects: Effects) -> Iterable[Effect]:
    """Say what jobs feel of slow and busy mounts: longer waits for data, longer checkpoints."""
    nodes = np.arange(world.profile.nodes)
    for effect in effects.of("mount.slow"):
        share, size = float(effect.detail["share"]), effect.size
        met = 1.0 - (1.0 - share) ** _FILES_PER_BATCH
        # Files of a checkpoint lie on all servers, and it is done when the slowest is.
        yield _felt("node.data_wait_factor", nodes, 1.0 + met * (size - 1.0), effect)
        yield _felt("node.checkpoint_factor", nodes, float(np.sqrt(size)), effect)
    for effect in effects.of("mount.metadata_slow"):
        yield _felt("node.data_wait_factor", nodes, 1.0 + _OPENING_SHARE * (effect.size - 1.0), effect)
        yield _felt("node.checkpoint_factor", nodes, 1.0 + _OPENING_SHARE / 2 * (effect.size - 1.0), effect)
    for effect in effects.of("mount.load"):
        longer = 1.0 / (1.0 - min(effect.size, _FULLEST))
        yield _felt("node.data_wait_factor", nodes, longer, effect)
        yield _felt("node.checkpoint_factor", nodes, longer, effect)


def _felt(quantity: str, nodes: np.ndarray[tuple[int], np.dtype[np.int64]], size: float, of: Effect) -> Effect:
    return Effect(quantity, nodes, size, of.course, {"mount": of.detail["mount"]})


@dataclass
class _Flow:
    """What went over one mount in an interval, of each node: bytes, arrays of shape (ticks, nodes)."""

    read: Floats
    written: Floats


class StorageModel:
    """Makes the storage stream; must be asked for its ticks in order, as counters and backlogs go on."""

    def __init__(self, profile: ClusterProfile, workload: Workload, effects: Effects, rng: np.random.Generator) -> None:
        self._profile, self._workload, self._effects, self._rng = profile, workload, effects, rng
        self._scatter = Scatter(rng, profile.conditions, profile.storage_interval_s)
        shape = (len(profile.mounts), profile.nodes)
        uptime_s = rng.uniform(9, 70, profile.nodes) * 86400
        self._counted = {
            "read_bytes": np.floor(rng.uniform(1e6, 4e7, shape) * uptime_s),
            "write_bytes": np.floor(rng.uniform(4e5, 9e6, shape) * uptime_s),
        }
        for what in ("read", "write"):
            self._counted[f"{what}_ops"] = np.floor(self._counted[f"{what}_bytes"] / _REQUEST_BYTES)
        self._habit = 1 + _NODE_SPREAD * rng.standard_normal(shape)
        self._backlog = np.zeros(shape)  # bytes on a burst buffer that are still to be drained

    def rows(self, beats: Beats, start_ms: int) -> pa.RecordBatch:
        """Return the rows of the next ticks, ordered by timestamp; scrapes that went missing are left out."""
        profile, mounts = self._profile, self._profile.mounts
        columns = self._columns(beats.times)
        ticks, count = len(beats.times), len(mounts)
        stamps = np.repeat(to_ms(beats.times, start_ms).ravel(), count)
        kept = np.flatnonzero(np.repeat(beats.kept.ravel(), count))
        order = kept[np.argsort(stamps[kept], kind="stable")]
        nodes = np.repeat(np.tile(np.arange(profile.nodes, dtype=np.int32), ticks), count)
        numbers = np.tile(np.arange(count, dtype=np.int32), ticks * profile.nodes)
        table = {
            "timestamp": pa.array(stamps[order]).cast(TIMESTAMP),
            "node": name_column(nodes[order], profile.node_names),
            "mount": name_column(numbers[order], [mount.mount for mount in mounts]),
        }
        for name, values in columns.items():
            flat = np.moveaxis(values, 0, -1).ravel()[order]  # (mounts, ticks, nodes) to ticks, nodes, mounts
            table[name] = pa.array(np.round(flat, 3).astype(np.float32) if "latency" in name else flat)
        return pa.RecordBatch.from_pydict(table)

    def _columns(self, times: Floats) -> dict[str, Floats]:
        """Return the value columns, each (mounts, ticks, nodes)."""
        interval, mounts = self._profile.storage_interval_s, self._profile.mounts
        flows = self._flows(times, interval)
        self._drain(flows, times, interval)
        columns: dict[str, list[Floats]] = {}
        for number, (mount, flow) in enumerate(zip(mounts, flows, strict=True)):
            for name, values in self._of_mount(number, mount, flow, times, interval).items():
                columns.setdefault(name, []).append(values)
        return {name: np.stack(values) for name, values in columns.items()}

    def _flows(self, times: Floats, interval: float) -> list[_Flow]:
        """Return what jobs moved over each mount."""
        profile = self._profile
        flows = [_Flow(np.zeros_like(times), np.zeros_like(times)) for _ in profile.mounts]
        number = {mount.mount: place for place, mount in enumerate(profile.mounts)}
        for run, moved in self._workload.moved(times, interval):
            training = run.spec.training
            ranks = np.bincount(run.place, minlength=len(run.nodes))
            source = flows[number[profile.mount_of(training.reads_from).mount]]
            target = flows[number[profile.mount_of(training.checkpoints_to).mount]]
            checkpoint = training.checkpoint_gb * 1e9 * ranks
            source.read[:, run.nodes] += moved.batches * training.read_mb_per_step * 1e6 * ranks
            target.read[:, run.nodes] += moved.loaded * checkpoint
            target.written[:, run.nodes] += moved.saved * checkpoint
        return flows

    def _drain(self, flows: list[_Flow], times: Floats, interval: float) -> None:
        """Copy on what lies on burst buffers, in place, as fast as the file system behind them takes it."""
        mounts = self._profile.mounts
        for number, mount in enumerate(mounts):
            if mount.drains_to is None:
                continue
            behind = [other.mount for other in mounts].index(mount.drains_to)
            rate = mount.drain_gb_s * 1e9 * interval * self._left(mounts[behind], times)
            for tick in range(len(times)):
                waiting = self._backlog[number] + flows[number].written[tick]
                moved = np.minimum(waiting, rate[tick])
                self._backlog[number] = waiting - moved
                flows[number].read[tick] += moved
                flows[behind].written[tick] += moved

    def _left(self, mount: MountProfile, times: Floats) -> Floats:
        """Return the share of a mount's throughput that is left for our jobs."""
        left = np.ones_like(times)
        for effect in self._on(mount, "mount.slow"):
            lost = 1.0 - capacity_left(float(effect.detail["share"]), effect.size)
            left *= 1.0 - lost * effect.course.level(times)
        for effect in self._on(mount, "mount.load"):
            left *= 1.0 - np.minimum(effect.size * effect.course.level(times), _FULLEST)
        return left

    def _on(self, mount: MountProfile, quantity: str) -> Iterator[Effect]:
        return (effect for effect in self._effects.of(quantity) if effect.detail["mount"] == mount.mount)

    def _of_mount(
        self, number: int, mount: MountProfile, flow: _Flow, times: Floats, interval: float
    ) -> dict[str, Floats]:
        rng, left = self._rng, self._left(mount, times)
        columns: dict[str, Floats] = {}
        waiting = np.zeros_like(times)
        slower = self._slower(mount, times)
        peaks = {"read": mount.read_gb_s, "write": mount.write_gb_s}
        usual = {"read": mount.read_latency_ms, "write": mount.write_latency_ms}
        for what, moved in (("read", flow.read), ("write", flow.written)):
            chatter = rng.poisson(_CHATTER_OPS_S * interval, times.shape).astype(np.float64)
            capacity = peaks[what] * 1e9 * interval * left
            load = moved if mount.local else np.broadcast_to(moved.sum(axis=1, keepdims=True), moved.shape)
            busy = np.minimum(load / capacity, _FULLEST)
            noise = np.exp(self._profile.noise * _LATENCY_NOISE * self._scatter.normal(f"{what} {number}", times.shape))
            latency = usual[what] * self._habit[number] * slower * noise / (1.0 - busy)
            ops = np.ceil(moved / _REQUEST_BYTES) + chatter
            columns[f"{what}_bytes"] = self._count(f"{what}_bytes", number, np.round(moved) + chatter * _CHATTER_BYTES)
            columns[f"{what}_ops"] = self._count(f"{what}_ops", number, ops)
            columns[f"{what}_latency_ms"] = latency
            waiting += ops / interval * latency / 1000
        columns["waiters"] = rng.poisson(np.minimum(waiting, 4096.0)).astype(np.float64)
        return {name: columns[name] for name in _ORDER}

    def _slower(self, mount: MountProfile, times: Floats) -> Floats:
        """Return how much longer the mean request takes, of what is slow; nodes meet slow servers unevenly."""
        slower = np.ones_like(times)
        for effect in self._on(mount, "mount.slow"):
            share = float(effect.detail["share"])
            met = np.clip(share * np.exp(0.3 * self._rng.standard_normal(times.shape)), 0.0, 1.0)
            slower *= 1.0 + met * (effect.size - 1.0) * effect.course.level(times)
        for effect in self._on(mount, "mount.load"):
            slower /= 1.0 - np.minimum(effect.size * effect.course.level(times), _FULLEST)
        for effect in self._on(mount, "mount.metadata_slow"):
            slower *= 1.0 + _METADATA_SHARE * (effect.size - 1.0) * effect.course.level(times)
        return slower

    def _count(self, counter: str, number: int, increments: Floats) -> Floats:
        values = self._counted[counter][number] + np.cumsum(increments, axis=0)
        self._counted[counter][number] = values[-1]
        return np.asarray(values)


_ORDER = (
    "read_bytes",
    "write_bytes",
    "read_ops",
    "write_ops",
    "read_latency_ms",
    "write_latency_ms",
    "waiters",
)
