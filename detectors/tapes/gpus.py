"""Tapes of GPU telemetry for the laws and the tests: columns of a small cluster in, a tape out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from detectors.contract import BoolArray, FloatArray, Instant, IntArray, LogRecord
from detectors.engine.rows import KeyColumn, Rows
from detectors.fleet.fleet import Job, JobEvent
from detectors.tapes.tape import Tape, take

START: Instant = 1_711_958_400_000
"""2024-04-01T08:00:00Z."""


@dataclass(frozen=True)
class Cluster:
    """A few nodes at work for some minutes, each scraped at its own phase."""

    nodes: int = 3
    gpus: int = 4
    minutes: float = 8.0
    interval_s: float = 5.0
    missing: float = 0.02
    """The part of each node's scrapes that are lost."""
    missing_gpu: float = 0.0
    """The part of each GPU's readings that are lost though the node's scrape came."""
    topology_known: bool = True
    job_known: bool = True
    seed: int = 1

    @property
    def ticks(self) -> int:
        """Return the number of scrapes of a node."""
        return int(self.minutes * 60 / self.interval_s)

    @property
    def node(self) -> IntArray:
        """Return which node each GPU sits in, (gpus,)."""
        return np.repeat(np.arange(self.nodes), self.gpus)

    @property
    def at_s(self) -> FloatArray:
        """Return when each GPU is read, in seconds from the start, (ticks, gpus)."""
        phase = np.random.default_rng(self.seed).uniform(0.1, 0.8 * self.interval_s, self.nodes)
        beats: FloatArray = np.arange(self.ticks)[:, None] * self.interval_s + phase[self.node][None, :]
        return beats

    def chance(self, name: str) -> np.random.Generator:
        """Return a generator of random numbers for one purpose."""
        return np.random.default_rng([self.seed, *name.encode()])

    def steady(self, value: float) -> FloatArray:
        """Return a column that is the same for all, (ticks, gpus)."""
        return np.full((self.ticks, self.nodes * self.gpus), float(value))

    def of(self, node: int, gpu: int | None = None) -> Any:
        """Return which columns belong to a node, or to one GPU of it."""
        return slice(node * self.gpus, (node + 1) * self.gpus) if gpu is None else node * self.gpus + gpu

    def tape(
        self,
        columns: Mapping[str, FloatArray],
        *,
        logs: Sequence[LogRecord] = (),
        gone: BoolArray | None = None,
        jobs: Sequence[JobEvent] | None = None,
    ) -> Tape:
        """Return the tape of some fields, each (ticks, gpus): NaN is not reported, `gone` never comes."""
        count, chance = self.nodes * self.gpus, self.chance("missing")
        lost = np.repeat(chance.random((self.ticks, self.nodes)) < self.missing, self.gpus, axis=1)
        lost |= chance.random((self.ticks, count)) < self.missing_gpu
        if gone is not None:
            lost |= gone
        index = np.tile(np.arange(count), (self.ticks, 1)).ravel()
        keys = {
            "node": KeyColumn(index // self.gpus, tuple(name(node) for node in range(self.nodes))),
            "gpu": KeyColumn(index % self.gpus, tuple(range(self.gpus))),
        }
        values = {field_: np.asarray(column, float).ravel() for field_, column in columns.items()}
        valid = {field_: ~np.isnan(column) for field_, column in values.items()}
        times = instant(self.at_s).ravel()
        rows = take(Rows("dcgm", times, keys, values, valid), np.flatnonzero(~lost.ravel()))
        names = tuple(name(node) for node in range(self.nodes))
        job = Job("812", names, START - 3_600_000, self.gpus)
        whole = [JobEvent(job.start, "start", job)] if self.job_known else []
        return Tape(
            start=START,
            end=START + int(self.minutes * 60_000),
            rows=[rows],
            logs=sorted(logs, key=lambda line: line.at),
            jobs=whole if jobs is None else jobs,
            topology=self._topology() if self.topology_known else {},
        )

    def _topology(self) -> dict[str, Any]:
        return {
            "nodes": [
                {
                    "name": name(node),
                    "gpus": [{"gpu": gpu, "pci_bus_id": f"00000000:{bus(gpu)}:00.0"} for gpu in range(self.gpus)],
                }
                for node in range(self.nodes)
            ]
        }


def changed(tape: Tape, field: str, change: Any) -> Tape:
    """Return the tape with a DCGM field computed anew from (seconds, node, gpu, values)."""
    dcgm = tape.rows[0]
    keys = [np.array(dcgm.keys[key].categories)[dcgm.keys[key].codes] for key in ("node", "gpu")]
    values = dict(dcgm.values) | {field: change((dcgm.times - START) / 1000, *keys, dcgm.values.get(field))}
    valid = {field: np.ones(len(dcgm.times), bool), **dcgm.valid}
    return replace(tape, rows=[Rows("dcgm", dcgm.times, dcgm.keys, values, valid), *tape.rows[1:]])


def name(node: int) -> str:
    """Return the name of a node."""
    return f"v{node + 1:03d}"


def bus(gpu: int) -> str:
    """Return the PCI bus of a GPU."""
    return f"{7 + 8 * gpu:02x}"


def instant(seconds: Any) -> Any:
    """Return seconds from the start as epoch milliseconds."""
    return START + np.round(np.asarray(seconds) * 1000).astype(np.int64)


def kernel(at_s: float, node: int, message: str) -> LogRecord:
    """Return a line of a node's kernel log."""
    return LogRecord(int(instant(at_s)), "kernel", message, "error", name(node))


def xid_line(at_s: float, node: int, gpu: int, code: int, text: str = "") -> LogRecord:
    """Return the kernel's line about an XID."""
    return kernel(at_s, node, f"NVRM: Xid (PCI:0000:{bus(gpu)}:00): {code}, pid='<unknown>', name=<unknown>, {text}")
