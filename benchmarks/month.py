"""A month of a cluster whose nodes and jobs come and go: what detection keeps of it, by day. No servers.

200 nodes of 8 GPUs with a NIC, a BMC and a mount each, of which `--renamed` have another name every day, as those of an
autoscaled pool have, and 60 jobs a day of 16 ranks; nothing names the nodes beforehand. All detectors run. Readings
come every half hour, and the detectors are asked as often: what is kept does not depend on it. What must be flat is
the state of one day beside that of another: the last beside the third where all nodes last, beside the tenth where
names are forgotten after a week. `--short` takes a few days and nodes, and forgets after half a day.
"""

import argparse
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Kind, LogRecord
from detectors.engine.engine import Engine
from detectors.engine.heard import DAY_MS, Forgetting
from detectors.engine.inputs import fields_read
from detectors.engine.rows import KeyColumn, Rows
from detectors.fleet.fleet import KEYS, Job, JobEvent
from detectors.registry import choose

START_MS = 1_760_000_000_000 // DAY_MS * DAY_MS
TICK_MS = 1_800_000
GPUS, JOBS_A_DAY, RANKS, JOB_HOURS = 8, 60, 16, 3
PARTS: dict[Kind, Sequence[str | int]] = {
    "dcgm": tuple(range(GPUS)), "nic": ("mlx5_0",), "bmc": ("node_power", "fan1"), "storage": ("/scratch",),
}  # fmt: skip
FAULTY = re.compile("ERROR|ECC|REMAP|THROTTLE|VIOLATION|^err|_err", re.IGNORECASE)
POWER = "DCGM_FI_DEV_POWER_USAGE"
CHOICES = choose()
FIELDS = fields_read(CHOICES)
STREAMS = ("jobs", "logs", "steps", *PARTS)


class Cluster:
    """The telemetry of one day after the other."""

    def __init__(self, nodes: int, renamed: int, seed: int = 1) -> None:
        self._lasting = [f"node-{number:03}" for number in range(nodes - renamed)]
        self._renamed = renamed
        self._chance = np.random.default_rng(seed)

    def day(self, number: int) -> Iterator[tuple[list[JobEvent], list[LogRecord], list[Rows]]]:
        """Yield by tick what comes on a day: jobs that start or end, log lines, readings."""
        begin = START_MS + number * DAY_MS
        names = [*self._lasting, *(f"pool-{number:03}-{one:03}" for one in range(self._renamed))]
        lines = [LogRecord(begin + 1, "kernel", "NVRM: loading NVIDIA UNIX Driver", node=name) for name in names]
        running: dict[str, tuple[int, Job]] = {}
        for tick in range(DAY_MS // TICK_MS):
            at = begin + tick * TICK_MS
            over = [job for until, job in running.values() if until <= at]
            events = [JobEvent(at, "end", job) for job in over]
            for job in over:
                del running[job.job_id]
            before, upto = (JOBS_A_DAY * n * TICK_MS // (DAY_MS - JOB_HOURS * DAY_MS // 24) for n in (tick, tick + 1))
            for one in range(before, min(upto, JOBS_A_DAY)):
                nodes = tuple(names[(2 * one + place) % len(names)] for place in range(2))
                job = Job(f"job-{number:03}-{one:02}", nodes, at, GPUS)
                running[job.job_id] = at + JOB_HOURS * DAY_MS // 24, job
                events.append(JobEvent(at, "start", job))
            rows = [self._readings(kind, names, at) for kind in PARTS]
            yield events, lines if tick == 0 else [], [*rows, *self._steps(at, [job for _, job in running.values()])]

    def _readings(self, kind: Kind, names: Sequence[str], at: int) -> Rows:
        parts = PARTS[kind]
        node, part = np.repeat(np.arange(len(names)), len(parts)), np.tile(np.arange(len(parts)), len(names))
        keys = dict(zip(KEYS[kind], (KeyColumn(node, tuple(names)), KeyColumn(part, tuple(parts))), strict=True))
        return self._rows(kind, keys, np.full(len(node), at + 1))

    def _steps(self, at: int, jobs: Sequence[Job]) -> Iterator[Rows]:
        if jobs:
            job, rank = np.repeat(np.arange(len(jobs)), RANKS), np.tile(np.arange(RANKS), len(jobs))
            names = KeyColumn(job, tuple(one.job_id for one in jobs))
            yield self._rows(
                "steps", {"job_id": names, "rank": KeyColumn(rank, tuple(range(RANKS)))}, np.full(len(job), at + 1)
            )

    def _rows(self, kind: Kind, keys: dict[str, KeyColumn], times: NDArray[np.int64]) -> Rows:
        values = {name: np.full(len(times), 0.0 if FAULTY.search(name) else 50.0) for name in FIELDS[kind]}
        if POWER in values:
            values[POWER] += self._chance.normal(size=len(times))
        return Rows(kind, times, keys, values, dict.fromkeys(values, np.ones(len(times), bool)))


def states(days: int, nodes: int, renamed: int, forget_ms: int) -> Iterator[tuple[int, int]]:
    """Yield by day how many bytes the state has, and how many the process holds in memory."""
    engine = Engine(None, CHOICES, STREAMS, grid_ms=TICK_MS, forgetting=Forgetting(forget_ms))
    cluster = Cluster(nodes, renamed)
    for number in range(days):
        for tick, (events, lines, rows) in enumerate(cluster.day(number)):
            engine.feed_jobs(events)
            engine.feed_logs(lines)
            for part in rows:
                engine.feed(part)
            for stream in STREAMS:
                engine.mark(stream, START_MS + number * DAY_MS + (tick + 1) * TICK_MS - 1)
            engine.process()
            engine.incidents()
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        yield len(engine.snapshot()), pages * 4096


def main() -> None:
    """Print the states by day, and the last beside the first that is to be like it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--renamed", type=int, default=50, help="nodes that have another name every day")
    parser.add_argument("--short", action="store_true", help="four days of six nodes, forgotten after half a day")
    asked = parser.parse_args()
    days, nodes, renamed, forget_ms = (4, 6, 3, DAY_MS // 2) if asked.short else (30, 200, asked.renamed, 7 * DAY_MS)
    settled = 2 if not renamed else 2 + forget_ms // DAY_MS
    found = []
    for number, (state, memory) in enumerate(states(days, nodes, renamed, forget_ms), start=1):
        found.append((state, memory))
        print(f"day {number:2}: state {state:>12,} bytes, memory {memory / 2**20:6.0f} MiB", flush=True)
    of_state, of_memory = (last / first for last, first in zip(found[-1], found[settled], strict=True))
    print(f"day {days} beside day {settled + 1}: state ratio {of_state:.2f}, memory ratio {of_memory:.2f}")


if __name__ == "__main__":
    main()
