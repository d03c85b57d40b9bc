"""The load of the sink's benchmark: DCGM readings of 200 nodes of 8 GPUs, 25 fields, so 40,000 series, every 5 s."""

import time
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from services.kit import topics, wire
from services.kit.kafka import KafkaSettings, producer

NODES, GPUS, NODES_A_MESSAGE, INTERVAL_MS = 200, 8, 2, 5000
FIELDS = (
    "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_MEM_CLOCK", "DCGM_FI_DEV_MEMORY_TEMP", "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
    "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_MEM_COPY_UTIL", "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_POWER_VIOLATION",
    "DCGM_FI_DEV_THERMAL_VIOLATION", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_USED",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_ROW_REMAP_FAILURE",
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_PROF_PCIE_TX_BYTES",
    "DCGM_FI_PROF_PCIE_RX_BYTES", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
)  # fmt: skip
SERIES = NODES * GPUS * len(FIELDS)
_CONSTANT = {
    "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
    "DCGM_FI_DEV_THERMAL_VIOLATION",
}  # fmt: skip
_COUNTERS = {
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    "DCGM_FI_DEV_POWER_VIOLATION",
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
}


@dataclass(frozen=True)
class Load:
    """`ticks` readings of each series, the last of them at the time this was made."""

    ticks: int
    origin: wire.Origin

    @classmethod
    def ending_now(cls, samples: int, target: str) -> "Load":
        """Return a load of so many samples, to the tick, that ends now."""
        return cls(samples // SERIES, wire.Origin("bench", "sink", 0, 0, target))

    @property
    def samples(self) -> int:
        """Return how many samples it has."""
        return self.ticks * SERIES

    @cached_property
    def times(self) -> NDArray[np.int64]:
        """Epoch ms by (tick, node): every node has its own offset in the interval."""
        start = (int(time.time() * 1000) // INTERVAL_MS - self.ticks - 1) * INTERVAL_MS
        offsets = np.sort(np.random.default_rng(1).integers(0, INTERVAL_MS, NODES))
        return np.add.outer(start + np.arange(self.ticks) * INTERVAL_MS, offsets)

    @cached_property
    def values(self) -> NDArray[np.float32]:
        """Readings by (tick, GPU of the cluster, field): noise on a level, counters, and constants."""
        rng = np.random.default_rng(2)
        out = np.round(rng.normal(400, 30, (self.ticks, NODES * GPUS, len(FIELDS))), 1).astype(np.float32)
        for index, name in enumerate(FIELDS):
            if name in _CONSTANT:
                out[:, :, index] = 0
            elif name in _COUNTERS:
                out[:, :, index] = np.cumsum(out[:, :, index], axis=0)
        return out

    def fill(self, kafka: KafkaSettings) -> int:
        """Send it to its topic, 400 samples a message, and return the bytes of the values."""
        client = producer(kafka)
        names = pa.array([f"n{n:04d}" for n in range(NODES)])
        gpus = pa.array(np.tile(np.arange(GPUS, dtype=np.uint8), NODES_A_MESSAGE))
        codes = np.repeat(np.arange(NODES_A_MESSAGE, dtype=np.int8), GPUS)
        key, headers = self.origin.unit.encode(), self.origin.headers(wire.ARROW)
        size = 0
        for tick in range(self.ticks):
            for first in range(0, NODES, NODES_A_MESSAGE):
                nodes = slice(first, first + NODES_A_MESSAGE)
                rows = slice(first * GPUS, (first + NODES_A_MESSAGE) * GPUS)
                columns = {
                    "timestamp": pa.array(np.repeat(self.times[tick, nodes], GPUS), pa.timestamp("ms", "UTC")),
                    "node": pa.DictionaryArray.from_arrays(codes, names[nodes]),
                    "gpu": gpus,
                }
                columns |= {name: pa.array(self.values[tick, rows, i]) for i, name in enumerate(FIELDS)}
                value = wire.encode_batch(pa.RecordBatch.from_pydict(columns))
                size += len(value)
                client.send(topics.declared().of_stream("dcgm"), key=key, value=value, headers=headers)
        client.flush()
        client.close()
        return size
