"""The GPUs of a fleet as arrays by index into ``fleet.entities("dcgm")``: where they sit, and what is kept of each."""

import zlib
from math import inf
from typing import Any

import numpy as np

from detectors.contract import Batch, Entity, FloatArray, IntArray
from detectors.fleet.fleet import Fleet, Job
from detectors.signals.xid import normal_address

WHOLE_NODE = -1
"""In place of a GPU's index: the node as a whole."""


class GpuLayout:
    """Which node every GPU sits in; nodes are numbered in the order in which they became known."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.node: IntArray = np.empty(0, np.int64)
        self.gpu: IntArray = np.empty(0, np.int64)
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._members: list[list[int]] = []
        self._addresses: dict[tuple[str, str], int] = {}
        self._jobs: tuple[Any, IntArray] = (), np.empty(0, np.int64)
        self._address_of = {
            (name, int(gpu["gpu"])): address
            for name, node in fleet.nodes.items()
            for gpu in node.get("gpus", ())
            if (address := normal_address(str(gpu.get("pci_bus_id") or ""))) is not None
        }

    def __len__(self) -> int:
        return len(self.node)

    def extend(self) -> None:
        """Take note of the GPUs that were not known before."""
        start = len(self.node)
        keys = self._fleet.entities("dcgm")[start:]
        if not keys:
            return
        nodes, gpus = [], []
        for offset, key in enumerate(keys):
            node, gpu = str(key[0]), int(key[1])
            if node not in self._numbers:
                self._numbers[node] = len(self.names)
                self.names.append(node)
                self._members.append([])
            nodes.append(self._numbers[node])
            gpus.append(gpu)
            self._members[self._numbers[node]].append(start + offset)
            if (address := self._address_of.get((node, gpu))) is not None:
                self._addresses[node, address] = start + offset
        self.node = np.concatenate([self.node, np.array(nodes, np.int64)])
        self.gpu = np.concatenate([self.gpu, np.array(gpus, np.int64)])

    def number(self, node: str) -> int:
        """Return a node's number, -1 if it has no GPU that is known."""
        return self._numbers.get(node, -1)

    def members(self, node: str) -> IntArray:
        """Return the GPUs of a node."""
        number = self.number(node)
        return np.array(self._members[number] if number >= 0 else [], np.int64)

    def model_of(self, node: str) -> str:
        """Return the model of a node's GPUs, as the topology names it."""
        return str(self._fleet.nodes.get(node, {}).get("gpu_model") or "")

    def of_job(self, job: Job) -> IntArray:
        """Return the indices of a job's GPUs."""
        parts = [np.empty(0, np.int64)]
        for node in job.nodes:
            members = self.members(node)
            parts.append(members[np.isin(self.gpu[members], job.gpus[node])] if node in job.gpus else members)
        return np.concatenate(parts)

    def jobs(self) -> IntArray:
        """Return a number for the job of every GPU, of the latest to start where several have it; 0: none."""
        running = sorted(self._fleet.jobs.values(), key=lambda job: (job.start, job.job_id))
        key = (len(self), *((job.job_id, job.start) for job in running))
        if key != self._jobs[0]:
            found = np.zeros(len(self), np.int64)
            for job in running:
                number = zlib.crc32(f"{job.job_id}/{job.start}".encode()) + 1
                for node in job.nodes:
                    members, part = self.members(node), job.gpus.get(node)
                    found[members if part is None else members[np.isin(self.gpu[members], part)]] = number
            self._jobs = key, found
        return self._jobs[1]

    def at_address(self, node: str, address: str) -> int | None:
        """Return the GPU at a PCI address of a node, as far as the topology has it."""
        return self._addresses.get((node, address))

    def entity(self, gpu: int) -> Entity:
        """Return what a finding on a GPU names."""
        return {"node": self.names[self.node[gpu]], "gpu": int(self.gpu[gpu])}

    def named(self, node: str, gpu: int) -> Entity:
        """Return what a finding on a GPU names, or one on its node for `WHOLE_NODE`."""
        return {"node": node} if gpu == WHOLE_NODE else self.entity(gpu)


def reported(batch: Batch, name: str, tick: int, here: Any, least: float = 0.0, most: float = inf) -> FloatArray:
    """Return a field's readings in one tick for the entities at `here`; NaN where none is within `least` and `most`."""
    column = batch.sound.get(name)
    if column is None:
        return np.full(batch.at[tick, here].shape, np.nan)
    readings: FloatArray = column[tick][here]
    fits = least <= 0 or np.minimum.reduce(readings, initial=most) >= least
    fits = fits and (most == inf or np.maximum.reduce(readings, initial=least) <= most)
    return readings if fits else np.where((readings >= least) & (readings <= most), readings, np.nan)
