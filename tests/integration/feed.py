"""A small cluster's telemetry, sent to Kafka as the wire format has it: what the sink's tests feed it with."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from kafka import KafkaProducer
from numpy.typing import NDArray

from services.kit import replays, wire
from services.kit.replays import ReplayState

INTERVAL_MS = 5000
START_MS = 1_711_958_400_000  # 2024-04-01T08:00:00Z
FIELDS = (
    "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_XID_ERRORS",
)  # fmt: skip
XID = FIELDS.index("DCGM_FI_DEV_XID_ERRORS")


@dataclass
class Cluster:
    """`values` (ticks, nodes, gpus, fields); `there` (ticks, nodes): the scrape arrived; times by node in a tick."""

    nodes: int
    gpus: int
    ticks: int
    seed: int
    values: NDArray[np.float64] = field(init=False)
    there: NDArray[np.bool_] = field(init=False)
    phases_ms: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        shape = (self.ticks, self.nodes, self.gpus, len(FIELDS))
        self.values = np.round(rng.normal(300, 40, shape), 3)
        self.values[..., 3] = np.cumsum(np.abs(self.values[..., 3]), axis=0)
        self.values[..., XID] = 0
        self.there = np.ones((self.ticks, self.nodes), np.bool_)
        self.phases_ms = rng.integers(100, INTERVAL_MS - 100, self.nodes)

    def time_ms(self, tick: int, node: int) -> int:
        """Return when a node was scraped."""
        return START_MS + tick * INTERVAL_MS + int(self.phases_ms[node])

    @property
    def end_ms(self) -> int:
        """Return the end of the last tick."""
        return START_MS + self.ticks * INTERVAL_MS - 1

    @property
    def samples(self) -> int:
        """Return how many readings there are."""
        return int(self.there.sum()) * self.gpus * len(FIELDS)

    def name(self, node: int) -> str:
        """Return a node's name."""
        return f"v{node + 1:03d}"

    def topology(self) -> dict[str, Any]:
        """Return topology.json."""
        return {
            "nodes": [
                {
                    "name": self.name(node),
                    "gpu_model": "NVIDIA A100-SXM4-80GB",
                    "gpus": [
                        {"gpu": g, "uuid": f"GPU-{node:04d}-{g}", "pci_bus_id": f"00000000:{g:02X}:00.0"}
                        for g in range(self.gpus)
                    ],
                }
                for node in range(self.nodes)
            ]
        }

    def batch(self, tick: int, nodes: Sequence[int]) -> pa.RecordBatch:
        """Return one tick's rows of these nodes, those that were scraped, in time order."""
        rows = [n for n in sorted(nodes, key=lambda n: self.phases_ms[n]) if self.there[tick, n]]
        times = np.repeat([self.time_ms(tick, n) for n in rows], self.gpus).astype(np.int64)
        values = self.values[tick, rows].reshape(-1, len(FIELDS))
        columns: dict[str, Any] = {
            "timestamp": pa.array(times, pa.timestamp("ms", "UTC")),
            "node": pa.array(np.repeat([self.name(n) for n in rows], self.gpus).tolist()).dictionary_encode(),
            "gpu": pa.array(np.tile(np.arange(self.gpus, dtype=np.uint8), len(rows))),
        }
        columns |= {name: pa.array(values[:, i]) for i, name in enumerate(FIELDS)}
        return pa.RecordBatch.from_pydict(columns)


@dataclass
class Feed:
    """Sends a cluster's telemetry to the broker as one replay."""

    producer: KafkaProducer
    origin: wire.Origin
    topic: str = "telemetry.dcgm"

    def announce(self, cluster: Cluster) -> None:
        """Announce topology and state, as a replay does before its first row."""
        replays.announce_topology(self.producer, self.origin.unit, cluster.topology())
        self.producer.flush()
        replays.announce(
            self.producer,
            ReplayState(
                cluster=self.origin.cluster,
                replay=self.origin.replay,
                generation=self.origin.generation,
                shift_ms=self.origin.shift_ms,
                target=self.origin.target,
                recording="feed",
                from_ms=START_MS,
                to_ms=cluster.end_ms,
                warm_from_ms=START_MS,
                speed=0,
                state="running",
                streams=("dcgm",),
                intervals_s={"dcgm": INTERVAL_MS / 1000},
            ),
        )
        self.producer.flush()

    def ticks(self, cluster: Cluster, first: int, last: int) -> None:
        """Send ticks `first` to `last`, the last not included, each followed by its watermark."""
        for tick in range(first, last):
            for start in range(0, cluster.nodes, 2):
                self.nodes(cluster, tick, range(start, min(start + 2, cluster.nodes)))
            self.watermark(START_MS + (tick + 1) * INTERVAL_MS - 1)

    def nodes(self, cluster: Cluster, tick: int, nodes: range) -> None:
        """Send a tick of some nodes in one message."""
        batch = cluster.batch(tick, nodes)
        if batch.num_rows:
            self.send(wire.encode_batch(batch), self.origin.headers(wire.ARROW))

    def watermark(self, at_ms: int, *, end: bool = False) -> None:
        """Send a watermark."""
        self.send(None, self.origin.headers(wire.WATERMARK) + wire.Watermark(at_ms, end).headers())

    def send(self, value: bytes | None, headers: wire.Headers) -> None:
        """Send one record under the replay's key."""
        self.producer.send(self.topic, key=self.origin.unit.encode(), value=value, headers=headers)

    def flush(self) -> None:
        """Wait until the broker has all of it."""
        self.producer.flush()
