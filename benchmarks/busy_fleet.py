"""A large fleet at work, made by NumPy: what `benchmarks.hour` feeds. No recording, no generator.

Nodes of eight GPUs in places for jobs of up to 1,000 nodes; where a job is over another begins after a while. Its
ranks report every step, its GPUs do less while it writes a checkpoint. Every reading is noisy, counters grow, rare
errors come at the rates of a healthy fleet, one reading in five hundred is missing, and a few things go really wrong.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.gpu_columns import FIELDS, GPUS_A_NODE, MISSING, TICK_MS
from services.recording.schema import TIMESTAMP, name_column

Column = NDArray[np.float64]
Written = tuple[int, dict[str, Any]]
"""A line of a topic, and its time (epoch ms)."""

SIZES = (1000, 1000, 512, 512, *[256] * 4, *[128] * 8, *[64] * 16, *[32] * 16, *[16] * 16, *[8] * 32, *[4] * 32,
         *[2] * 32, *[1] * 64)  # fmt: skip
"""Nodes of the places for jobs, over and over as long as there is room."""
IDLE_SHARE = 0.05
LARGE, LARGE_LASTS_S, SMALL_LASTS_S, BETWEEN_S = 64, 5400.0, 900.0, (10.0, 120.0)
"""Jobs of so many nodes and more last longer; mean times, and the time until a place has another job."""
CHECKPOINT_EVERY_S, CHECKPOINT_S = 600, 20
BRAKE, SW_POWER_CAP, IDLE = 0x80, 0x4, 0x1


@dataclass
class Place:
    """Nodes `first` to `end` for one job after the other."""

    first: int
    end: int
    job: str = ""
    began: int = 0
    """When the job that is there began (ms), or, with no job, when the next one begins."""
    over: int = 0
    step_ms: float = 0.0
    next_ms: float = 0.0
    steps: int = 0
    saves_s: float = 0.0
    """When in every `CHECKPOINT_EVERY_S` it writes a checkpoint."""

    @property
    def gpus(self) -> slice:
        """The GPUs of its nodes."""
        return slice(self.first * GPUS_A_NODE, self.end * GPUS_A_NODE)


@dataclass(frozen=True)
class _Step:
    """One step of a job: by rank how long it computes (s) and when it is logged (ms); how long it takes (s)."""

    job: str
    iteration: int
    gpus: slice
    compute: Column
    logged: Column
    total: float


@dataclass
class Trouble:
    """What goes wrong on which GPUs: masks and factors by GPU."""

    braked: NDArray[np.bool_]
    lost: NDArray[np.bool_]
    slow: Column
    wide: Column
    hung: set[int] = field(default_factory=set)
    """Places whose job stands still."""


class BusyFleet:
    """A fleet of `gpus` GPUs for `ticks` ticks from `start` (ms) on."""

    def __init__(self, gpus: int, start: int, ticks: int) -> None:
        self.gpus, self.start, self.ticks = gpus, start, ticks
        self._chance = chance = np.random.default_rng(1)
        nodes = -(-gpus // GPUS_A_NODE)
        self.names = tuple(f"n{number:05d}" for number in range(nodes))
        self._node = (np.arange(gpus) // GPUS_A_NODE).astype(np.int32)
        self._scraped = chance.integers(0, TICK_MS - 1, nodes)[self._node]
        self._places: list[Place] = []
        at, room = 0, int((1 - IDLE_SHARE) * nodes)
        while at < room:
            for size in (size for size in SIZES if size <= max(1, nodes // 4)):
                if at + size <= room:
                    self._places.append(Place(at, at + size))
                    at += size
        self.begun, self.step_rows = 0, 0
        self._sums: dict[str, set[float]] = defaultdict(set)
        self._work, self._efficiency = np.zeros(gpus), 1 + 0.012 * chance.standard_normal(gpus)
        self._limit = np.full(gpus, 700.0)
        self._counts = {name: np.floor(chance.exponential(1e6, gpus)) for name in ("energy", "capped", "hot", "replay")}
        self._errors = {
            name: np.zeros(gpus) for name in ("sbe", "dbe", "crc", "nvlink_replay", "xid", "pending", "failed")
        }
        self.trouble = Trouble(np.zeros(gpus, bool), np.zeros(gpus, bool), np.ones(gpus), np.full(gpus, 16.0))
        self._lines: list[Written] = []
        self._events = [line for place in self._places for line in self._begin(place, start, begun=True)]
        card = {"power_limit_w": 700.0, "pcie_gen": 5, "pcie_width": 16}
        every = [{"gpu": gpu} | card for gpu in range(GPUS_A_NODE)]
        self.topology = {
            "nodes": [{"name": name, "gpu_model": "NVIDIA H100 80GB HBM3", "gpus": every} for name in self.names]
        }

    def tick(self, number: int) -> tuple[list[Written], list[Written], pa.RecordBatch | None, pa.RecordBatch]:
        """Return what comes in a tick: lines of jobs and logs, rows of steps and GPUs. Asked of one after the other."""
        begin = self.start + number * TICK_MS
        self._go_wrong(number, begin)
        steps = self._steps(begin + TICK_MS)
        self.step_rows += 0 if steps is None else steps.num_rows
        gpus = self._readings(begin)
        events = sorted(self._events + self._change(begin + TICK_MS), key=lambda line: line[0])
        lines, self._events, self._lines = self._lines, [], []
        return events, lines, steps, gpus

    def unchanged(self) -> list[str]:
        """Return the columns that were the same at every tick."""
        return [name for name, sums in self._sums.items() if len(sums) == 1]

    def _begin(self, place: Place, at: int, *, begun: bool = False) -> Iterator[Written]:
        nodes = place.end - place.first
        lasts_s = max(120.0, self._chance.exponential(LARGE_LASTS_S if nodes >= LARGE else SMALL_LASTS_S))
        place.job, place.began, place.over = f"job-{self.begun}", at, at + int(1000 * lasts_s)
        if place.first == 0 and begun:
            place.over = at + self.ticks * TICK_MS // 3  # so that one of the largest ends and another begins
        place.step_ms = float(self._chance.uniform(3000, 6000) + 4 * nodes)
        place.saves_s = float(self._chance.uniform(0, CHECKPOINT_EVERY_S))
        place.next_ms, place.steps = at + (0 if begun else 20_000) + self._chance.uniform(1, place.step_ms), 0
        self.begun += 1
        self._work[place.gpus] = 1.0
        self._limit[place.gpus] = self._chance.choice((700.0, 700.0, 650.0))
        yield at, {"timestamp": at, "event": "start", "job": self._job(place) | {"end": None, "state": "RUNNING"}}

    def _change(self, upto: int) -> list[Written]:
        """Return the jobs that end up to a time, and those that begin."""
        found: list[Written] = []
        for place in self._places:
            if place.job and place.over <= upto:
                job = self._job(place) | {"end": place.over, "state": "COMPLETED"}
                found.append((place.over, {"timestamp": place.over, "event": "end", "job": job}))
                self._work[place.gpus] = 0.0
                place.job, place.began = "", place.over + int(1000 * self._chance.uniform(*BETWEEN_S))
            elif not place.job and place.began <= upto:
                found += self._begin(place, place.began)
        return found

    def _job(self, place: Place) -> dict[str, Any]:
        nodes = self.names[place.first : place.end]
        return {"job_id": place.job, "nodes": nodes, "start": place.began, "gpus_per_node": GPUS_A_NODE}

    def _go_wrong(self, number: int, at: int) -> None:
        """Let go wrong what does so at this tick: each on another node of the first places."""
        trouble, part = self.trouble, max(self.ticks // 8, 1)
        gpu = [place.gpus.start + GPUS_A_NODE * ((place.end - place.first) // 2) for place in self._places]
        node = slice(gpu[0], gpu[0] + GPUS_A_NODE)
        if number == part:
            trouble.braked[node] = True
        elif number == part + max(part // 3, 1):
            trouble.braked[node] = False
        elif number == 2 * part:
            self._errors["xid"][gpu[1]] = 79
            trouble.lost[gpu[1]] = True
            self._say(at, gpu[1], "79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
        elif number == 3 * part:
            trouble.slow[gpu[2]] = 1.3
        elif number == 4 * part:
            trouble.wide[gpu[3]] = 8.0
        elif number == 5 * part:
            trouble.lost[gpu[4] : gpu[4] + GPUS_A_NODE] = True
            trouble.hung.add(4)
        elif number == 6 * part:
            self._errors["dbe"][gpu[5]] += 1
            self._errors["pending"][gpu[5]] = self._errors["failed"][gpu[5]] = 1
            self._errors["xid"][gpu[5]] = 64
            self._say(at, gpu[5], "64, pid='<unknown>', name=<unknown>, Row Remapper: failed to remap.")
        if self._chance.random() < 0.2:  # a kernel of somebody's that does what it must not
            bad = int(self._chance.integers(self.gpus))
            self._errors["xid"][bad] = 31
            self._say(at, bad, "31, pid=4711, name=python, Ch 00000008, intr 00000000. MMU Fault")

    def _say(self, at: int, gpu: int, what: str) -> None:
        message = f"NVRM: Xid (PCI:0000:{0x18 + 0x11 * (gpu % GPUS_A_NODE):02x}:00): {what}"
        line = {"timestamp": at + 1, "source": "kernel", "severity": "error", "node": self.names[self._node[gpu]]}
        self._lines.append((at + 1, line | {"message": message}))

    def _steps(self, upto: int) -> pa.RecordBatch | None:
        """Return the rows of the steps that end before a time: of each rank, and of the job as a whole."""
        steps: list[_Step] = []
        for number, place in enumerate(self._places):
            while place.job and place.next_ms < min(upto, place.over) and number not in self.trouble.hung:
                steps.append(self._step(place))
        if not steps:
            return None

        def joined(of_ranks: Callable[[_Step], Any], of_job: Callable[[_Step], float]) -> Any:
            return np.concatenate([np.append(of_ranks(step), of_job(step)) for step in steps])

        each = [len(step.compute) + 1 for step in steps]
        ranks = joined(lambda step: np.arange(len(step.compute)), lambda _: -1)
        times = joined(lambda step: step.logged, lambda step: step.logged.max()).astype(np.int64)
        order = np.argsort(times, kind="stable")
        nodes = joined(lambda step: self._node[step.gpus], lambda _: 0)
        compute = joined(lambda step: step.compute, lambda step: float(step.compute.mean()))
        total = np.repeat([step.total for step in steps], each)
        data = 0.01 + 0.002 * self._chance.random(len(total))
        loss = 2.0 + 1500 / (500 + np.repeat([step.iteration for step in steps], each))
        columns: dict[str, Any] = {
            "timestamp": pa.array(times[order]).cast(TIMESTAMP),
            "job_id": name_column(np.repeat(np.arange(len(steps)), each)[order], [step.job for step in steps]),
            "rank": pa.array(ranks[order].astype(np.int32)),
            "node": name_column(nodes[order], self.names, (ranks < 0)[order]),
            "iteration": pa.array(np.repeat([step.iteration for step in steps], each)[order]),
        }
        values: dict[str, Column] = {
            "step_time_s": total,
            "compute_s": compute,
            "comm_wait_s": total - compute - data,
            "data_wait_s": data,
            "tokens_per_s": 4096 / total,
        }
        for name, value in values.items():
            columns[name] = pa.array(np.round(value, 4)[order].astype(np.float32))
        loss += 0.01 * self._chance.random(len(loss))
        columns["loss"] = pa.array(np.round(loss, 6)[order].astype(np.float32), mask=(ranks >= 0)[order])
        return pa.RecordBatch.from_pydict(columns)

    def _step(self, place: Place) -> _Step:
        """Return the next step of a job, and let it be over."""
        slow = self.trouble.slow[place.gpus] * np.where(self.trouble.braked[place.gpus], 2.8, 1.0)
        compute = 0.0008 * place.step_ms * slow * (1 + 0.01 * self._chance.standard_normal(len(slow)))
        total = float(compute.max()) + 0.0002 * place.step_ms
        logged = place.next_ms + np.minimum(self._chance.exponential(2.0, len(slow)), 40.0)
        place.steps += 1
        place.next_ms += 1000 * total
        return _Step(place.job, place.steps, place.gpus, compute, logged, total)

    def _readings(self, begin: int) -> pa.RecordBatch:
        """Return one reading of every GPU, by time, but for those that are missing, or that are lost."""
        here = (self._chance.random(self.gpus) >= MISSING) & ~self.trouble.lost
        times = begin + 1 + self._scraped
        order = np.flatnonzero(here)
        order = order[np.argsort(times[order], kind="stable")]
        columns: dict[str, Any] = {
            "timestamp": pa.array(times[order]).cast(TIMESTAMP),
            "node": name_column(self._node[order], self.names),
            "gpu": pa.array((order % GPUS_A_NODE).astype(np.uint8)),
        }
        for name, column in self._columns(begin).items():
            self._sums[name].add(float(column.sum()))
            columns[name] = pa.array(column[order])
        return pa.RecordBatch.from_pydict(columns)

    def _columns(self, begin: int) -> dict[str, Column]:
        chance, count, trouble = self._chance, self.gpus, self.trouble
        work = self._work.copy()
        for number, place in enumerate(self._places):
            saving = (begin / 1000 - place.saves_s) % CHECKPOINT_EVERY_S < CHECKPOINT_S
            if place.job:
                work[place.gpus] = 0.15 if saving or number in trouble.hung else chance.normal(0.95, 0.02)
        busy = work > 0

        def noisy(idle: float, full: float, spread: float) -> Column:
            return np.maximum(
                idle + work * (full - idle) + np.where(busy, spread, 0.004 * idle) * chance.standard_normal(count), 0.0
            )

        def grown(name: str, by: Column) -> Column:
            self._counts[name] = self._counts[name] + np.floor(by)
            return self._counts[name]

        def rare(name: str, each_hour: float) -> Column:
            self._errors[name] = self._errors[name] + chance.poisson(each_hour * TICK_MS / 3_600_000, count)
            return self._errors[name]

        braked = trouble.braked
        power = np.where(braked, 150.0, np.minimum(noisy(75.0, 620.0, 15.0) * self._efficiency, self._limit))
        capped = busy & (chance.random(count) < 0.1) & ~braked
        clock = np.where(braked, 345.0, np.rint(noisy(345.0, 1755.0, 8.0) / trouble.slow / 15) * 15)
        temperature = np.rint(noisy(32.0, 62.0, 2.0))
        made = (
            np.clip(np.rint(noisy(0.0, 97.0, 2.0)), 0, 100),
            power,
            clock,
            np.where(braked, BRAKE, np.where(capped, SW_POWER_CAP, np.where(busy, 0, IDLE))).astype(np.float64),
            self._errors["xid"],
            temperature,
            temperature + np.rint(8 + 4 * work),
            grown("capped", np.where(capped, 2e7, 0.0)),
            grown("hot", np.where(chance.random(count) < 1e-4, 1e3, 0.0)),
            self._limit,
            grown("energy", power * TICK_MS),
            np.where(busy, 5.0, 1.0),
            trouble.wide,
            rare_replays(self._counts, chance),
            noisy(1e5, 2.5e9, 2e8),
            noisy(1e5, 3.5e9, 2e8),
            rare("sbe", 0.005),
            self._errors["dbe"],
            self._errors["pending"],
            self._errors["failed"],
            rare("crc", 0.01),
            rare("nvlink_replay", 0.01),
            noisy(0.0, 1.2e11, 5e9),
            noisy(0.0, 1.2e11, 5e9),
            np.clip(noisy(0.0, 0.45, 0.02), 0, 1),
        )
        return dict(zip(FIELDS, made, strict=True))


def rare_replays(counts: dict[str, Column], chance: np.random.Generator) -> Column:
    """Return the replays of PCIe links with one more here and there."""
    counts["replay"] = counts["replay"] + (chance.random(len(counts["replay"])) < 1e-4)
    return counts["replay"]
