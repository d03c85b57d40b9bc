"""DCGM columns of a fleet at work, made by NumPy: what `benchmarks.engine` feeds. No recording, no generator.

Nodes of eight GPUs; nine in ten work in jobs of 64 nodes, the rest idle; every node is scraped at an offset of its own;
one reading in five hundred is missing; gauges are noisy, counters grow, nothing is at fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from detectors.engine.rows import KeyColumn, Rows
from detectors.fleet.fleet import Job, JobEvent

if TYPE_CHECKING:
    from collections.abc import Callable

Column = NDArray[np.float64]

GPUS_A_NODE, NODES_A_JOB = 8, 64
WORKING, MISSING = 0.9, 0.002
TICK_MS = 5000
FIELDS = (
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_SM_CLOCK",
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS",
    "DCGM_FI_DEV_XID_ERRORS",
    "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_DEV_MEMORY_TEMP",
    "DCGM_FI_DEV_POWER_VIOLATION",
    "DCGM_FI_DEV_THERMAL_VIOLATION",
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT",
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    "DCGM_FI_DEV_PCIE_LINK_GEN",
    "DCGM_FI_DEV_PCIE_LINK_WIDTH",
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
    "DCGM_FI_PROF_PCIE_TX_BYTES",
    "DCGM_FI_PROF_PCIE_RX_BYTES",
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    "DCGM_FI_DEV_ROW_REMAP_PENDING",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE",
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    "DCGM_FI_PROF_NVLINK_TX_BYTES",
    "DCGM_FI_PROF_NVLINK_RX_BYTES",
    "DCGM_FI_PROF_DRAM_ACTIVE",
)
"""The 25 fields: what the rules decide on; a field more or less of them changes the cost of one detector a little."""


class GpuFleet:
    """A fleet of `gpus` GPUs from `start` (ms) on: its topology, its jobs, and its readings tick by tick."""

    def __init__(self, gpus: int, start: int) -> None:
        self.gpus, self.start = gpus, start
        self._chance = np.random.default_rng(1)
        nodes = -(-gpus // GPUS_A_NODE)
        self.names = tuple(f"n{number:05d}" for number in range(nodes))
        self._node = np.arange(gpus) // GPUS_A_NODE
        self._offset = self._chance.integers(0, TICK_MS - 1, nodes)[self._node]
        jobs = int(WORKING * nodes) // NODES_A_JOB or 1
        self._working = self._node < max(jobs * NODES_A_JOB, 1)
        self._count = np.zeros(gpus)
        members = [self.names[first : first + NODES_A_JOB] for first in range(0, jobs * NODES_A_JOB, NODES_A_JOB)]
        self.jobs = [
            JobEvent(start, "start", Job(f"job-{number}", part, start, GPUS_A_NODE))
            for number, part in enumerate(members)
        ]
        card = {"power_limit_w": 700.0, "pcie_gen": 5, "pcie_width": 16}
        every = [{"gpu": gpu} | card for gpu in range(GPUS_A_NODE)]
        self.topology = {
            "nodes": [{"name": name, "gpu_model": "NVIDIA H100 80GB HBM3", "gpus": every} for name in self.names]
        }

    def tick(self, number: int) -> Rows:
        """Return one reading of every GPU, but for those that are missing: 25 columns."""
        here = self._chance.random(self.gpus) >= MISSING
        times = self.start + number * TICK_MS + 1 + self._offset
        columns = self._columns(number)
        valid = np.ones(int(here.sum()), bool)
        return Rows(
            "dcgm",
            times[here],
            {
                "node": KeyColumn(self._node[here], self.names),
                "gpu": KeyColumn((np.arange(self.gpus) % GPUS_A_NODE)[here], tuple(range(GPUS_A_NODE))),
            },
            {name: column[here] for name, column in columns.items()},
            dict.fromkeys(columns, valid),
        )

    def _columns(self, number: int) -> dict[str, Column]:
        work, count = self._working, self.gpus

        def noisy(busy: float, spread: float, idle: float) -> Column:
            return np.where(work, busy + spread * self._chance.standard_normal(count), idle)

        power = noisy(620.0, 15.0, 75.0)
        self._count += power * TICK_MS  # mJ
        capped = work & (self._chance.random(count) < 0.1)
        made: dict[str, Callable[[], Column]] = {
            "GPU_UTIL": lambda: np.clip(np.rint(noisy(97.0, 2.0, 0.0)), 0, 100),
            "POWER_USAGE": lambda: power,
            "SM_CLOCK": lambda: np.rint(noisy(1755.0, 8.0, 345.0) / 15) * 15,
            "CLOCK_THROTTLE_REASONS": lambda: np.where(work, np.where(capped, 4.0, 0.0), 1.0),
            "GPU_TEMP": lambda: np.rint(noisy(62.0, 2.0, 32.0)),
            "MEMORY_TEMP": lambda: np.rint(noisy(74.0, 2.0, 38.0)),
            "POWER_VIOLATION": lambda: np.where(work, 2e6 * number, 0.0),
            "ENFORCED_POWER_LIMIT": lambda: np.full(count, 700.0),
            "TOTAL_ENERGY_CONSUMPTION": self._count.copy,
            "PCIE_LINK_GEN": lambda: np.where(work, 5.0, 1.0),
            "PCIE_LINK_WIDTH": lambda: np.full(count, 16.0),
            "PCIE_REPLAY_COUNTER": lambda: np.floor(number / 40 + np.arange(count) % 7),
            "PCIE_TX_BYTES": lambda: np.abs(noisy(2.5e9, 2e8, 1e5)),
            "PCIE_RX_BYTES": lambda: np.abs(noisy(3.5e9, 2e8, 1e5)),
            "NVLINK_TX_BYTES": lambda: np.abs(noisy(1.2e11, 5e9, 0.0)),
            "NVLINK_RX_BYTES": lambda: np.abs(noisy(1.2e11, 5e9, 0.0)),
            "DRAM_ACTIVE": lambda: np.clip(noisy(0.45, 0.02, 0.0), 0, 1),
        }
        none = np.zeros(count)
        found: dict[str, Column] = {}
        for name in FIELDS:
            short = name.removeprefix("DCGM_FI_").removeprefix("DEV_").removeprefix("PROF_")
            found[name] = made[short]() if short in made else none
        return found
