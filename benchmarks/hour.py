"""An hour of 100,000 GPUs on one core: what each tick of 5 s costs detect, snapshots included; is any late?

12,500 nodes of eight at DCGM's 25 fields, jobs of up to 1,000 nodes that begin and end, a row of every rank's every
step, log lines, and some faults (`benchmarks.busy_fleet`); all detectors. Telemetry is made and packed into messages
as a replay packs it. Then time is taken of what detect does with them, but for Kafka itself: each is taken apart and
fed to the unit, which detects up to the end of the tick; a snapshot is taken and written. detect takes one every 5 s:
here that is every tick. Time is CPU time of this process, so that what else runs on the machine does not count. A tick
is late where all that takes more than its 5 s. `--short`: some ticks of a small fleet. No servers.
"""

import argparse
import resource
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.busy_fleet import BusyFleet, Written
from benchmarks.engine import START_MS, shared_out
from benchmarks.gpu_columns import FIELDS, TICK_MS
from detectors.engine.heard import AFTER_A_WEEK
from services.detect.configured import Configured
from services.detect.store import SnapshotStore
from services.detect.unit import Plan, Unit
from services.detect.warmup import Line
from services.kit.wire import NDJSON, WATERMARK, Origin, Watermark, encode_rows
from services.replay.feeds import ColumnFeed

STREAMS = ("jobs", "logs", "steps", "dcgm")
ORIGIN = Origin("fleet", "live")
PARTS = (
    "taking messages apart",
    "detecting",
    "standing still for the snapshot",
    "writing it (in service beside detection)",
)


@dataclass
class Message:
    """A record as Kafka hands it out."""

    topic: str
    offset: int
    value: bytes | None
    headers: Iterable[tuple[str, bytes]]
    partition: int = 0
    timestamp: int = 0
    key: bytes | None = None


@dataclass
class Tick:
    """What one tick cost: CPU seconds by part, and by detector; bytes of the snapshot."""

    number: int
    parts: tuple[float, ...]
    by_detector: dict[str, float]
    state_bytes: int

    @property
    def cost_s(self) -> float:
        """All of it."""
        return sum(self.parts)


class Partition:
    """Packs what comes in a tick of the streams that are `fed` into messages, with a mark behind each."""

    def __init__(self, fed: Collection[str]) -> None:
        self._fed = fed
        self._next: dict[str, int] = defaultdict(int)

    def messages(self, fleet: BusyFleet, number: int) -> Iterator[tuple[str, Message]]:
        """Yield a tick's messages, and the stream of each."""
        jobs, logs, steps, gpus = fleet.tick(number)
        upto = fleet.start + (number + 1) * TICK_MS
        of = {"jobs": _lines(jobs), "logs": _lines(logs), "steps": _rows("steps", steps, upto),
              "dcgm": _rows("dcgm", gpus, upto)}  # fmt: skip
        for stream in self._fed:
            for value, content in of[stream]:
                yield stream, self._message(stream, value, content)
        for stream in STREAMS:
            yield stream, self._message(stream, None, WATERMARK, Watermark(upto).headers())

    def _message(self, stream: str, value: bytes | None, content: bytes, more: Any = ()) -> Message:
        offset = self._next[stream]
        self._next[stream] += 1
        return Message(stream, offset, value, [*ORIGIN.headers(content), *more])


def _lines(lines: Sequence[Written]) -> Iterator[tuple[bytes, bytes]]:
    if lines:
        yield encode_rows(row for _, row in lines), NDJSON


def _rows(stream: str, batch: pa.RecordBatch | None, upto: int) -> Iterator[tuple[bytes, bytes]]:
    if batch is not None:
        for parcel in ColumnFeed(stream, iter([batch])).take(upto):
            yield parcel.value, parcel.content_type


def main() -> None:
    """Run it and print what ticks cost; exit 1 if one was late."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=100_000)
    parser.add_argument("--ticks", type=int, default=720, help="of 5 s (720)")
    parser.add_argument(
        "--unlisted", action="store_true", help="no list of jobs and no steps: jobs are found by work in step"
    )
    parser.add_argument("--short", action="store_true", help="24 ticks of 2,000 GPUs")
    asked = parser.parse_args()
    gpus, count = (2_000, 24) if asked.short else (asked.gpus, asked.ticks)
    fleet = BusyFleet(gpus, START_MS, count)
    ticks, lines, restored_s = run(fleet, ("dcgm",) if asked.unlisted else STREAMS)
    report(fleet, ticks)
    print(f"findings and incidents: {dict(Counter(f'{line.topic} {line.state}' for line in lines))}")
    print(f"going on from the last snapshot, as after an upgrade: {restored_s:.2f} s of CPU")
    sys.exit(any(tick.cost_s > TICK_MS / 1000 for tick in ticks))


def run(fleet: BusyFleet, fed: Collection[str]) -> tuple[list[Tick], list[Line], float]:
    """Play the fleet's ticks; return what each cost, what detect sends, and the CPU time of a restart at the end."""
    choices, incidents = Configured({}, None).of(None)
    plan = Plan(choices, fleet.topology, None, STREAMS, 10.0, 2000, incidents, AFTER_A_WEEK)
    partition, unit = Partition(fed), Unit(ORIGIN, 0, plan)
    ticks: list[Tick] = []
    lines: list[Line] = []
    spent: dict[str, float] = defaultdict(float)
    with tempfile.TemporaryDirectory() as folder, shared_out(choices, spent):
        store = SnapshotStore(Path(folder), {})
        for number in range(fleet.ticks):
            messages = list(partition.messages(fleet, number))
            spent.clear()
            clock = [time.process_time()]
            for stream, message in messages:
                unit.take(stream, message, monotonic_s=0.0, wall_ms=0)
            clock.append(time.process_time())
            lines += unit.process(monotonic_s=0.0, held=())
            clock.append(time.process_time())
            stored = unit.stored()
            clock.append(time.process_time())
            store.save(stored)
            clock.append(time.process_time())
            parts = tuple(after - before for before, after in pairwise(clock))
            ticks.append(Tick(number, parts, dict(spent), len(stored.engine)))
        began = time.process_time()
        Unit(ORIGIN, 0, plan, store.load(ORIGIN.unit))
        return ticks, lines, time.process_time() - began


def report(fleet: BusyFleet, ticks: Sequence[Tick]) -> None:
    """Print the figures."""
    costs = np.array([tick.cost_s for tick in ticks])
    late = int(np.count_nonzero(costs > TICK_MS / 1000))
    print(f"{fleet.gpus:,} GPUs, DCGM at {len(FIELDS)} fields, {fleet.begun:,} jobs begun, {fleet.step_rows:,} rows of "
          f"steps; {len(ticks)} ticks of 5 s, a snapshot at each; CPU time of one process")  # fmt: skip
    print(f"a tick: median {np.median(costs):.2f} s, p99 {np.quantile(costs, 0.99):.2f} s, "
          f"largest {costs.max():.2f} s; over 5 s: {late} of {len(ticks)}")  # fmt: skip
    for place, part in enumerate(PARTS):
        own = np.array([tick.parts[place] for tick in ticks])
        print(f"  {part:44} median {np.median(own):.2f} s, largest {own.max():.2f} s")
    print("the dearest ticks:")
    for tick in sorted(ticks, key=lambda tick: -tick.cost_s)[:5]:
        most = sorted(tick.by_detector.items(), key=lambda entry: -entry[1])[:3]
        parts = ", ".join(f"{part:.2f}" for part in tick.parts)
        print(f"  {tick.number:4}: {tick.cost_s:.2f} s ({parts}); of it "
              + ", ".join(f"{name} {spent:.2f}" for name, spent in most))  # fmt: skip
    at = sorted({0, len(ticks) // 6, len(ticks) // 2, len(ticks) - 1})
    print(
        "state: " + ", ".join(f"{ticks[n].state_bytes / fleet.gpus:,.0f} bytes a GPU after {n + 1} ticks" for n in at)
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak RSS {peak:.2f} GiB, what makes the telemetry included")
    print(f"columns that stay the same from the first tick to the last: {fleet.unchanged() or 'none'}")


if __name__ == "__main__":
    main()
