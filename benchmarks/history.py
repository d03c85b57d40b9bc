"""A year of history under the stack's retention: `python -m benchmarks.history [--series N] [--days N] [--replicas N]`.

100 series at 60 s, 52.6 million samples with the shapes of DCGM's readings, are written as TSDB blocks, put into a
bucket by Thanos' own tool, and compacted, downsampled and expired by `thanos compact` with the flags of services/stack.
Then it says which resolution is there of which age, whether Thanos Query over Store has every sample of 300 days,
and how long it takes to answer. Exit code 1 where something of it is not as it should be.

With `--replicas 2` both of a pair have written the year, and Compact makes one of it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.measured import children_cpu_s
from services.kit.errors import UserError
from services.stack import build, configs
from services.stack.health import QueryHealth
from services.stack.recipes import EVALUATOR
from services.stack.runner import Stack
from services.stack.settings import load_settings
from services.stack.spec import ProcessSpec
from services.stack.topology import RETENTION

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
STEP_MS = 60_000
LARGEST_MS = 14 * DAY_MS
"""Compact's largest block, at whose multiples of the epoch it cuts."""
RESOLUTIONS = {"raw": 0, "5m": 5 * 60_000, "1h": HOUR_MS}
"""What Thanos calls a resolution, and how its meta.json says it: ms."""
WINDOW_DAYS = 300
BAR_S = 2.0
# Four panels over the 300 days at 1,200 points, as Grafana asks for them.
PANELS = (
    "sum by (Hostname) (DCGM_FI_DEV_POWER_USAGE)",
    "max by (gpu) (max_over_time(DCGM_FI_DEV_GPU_TEMP[6h]))",
    "sum(rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[12h]))",
    "DCGM_FI_DEV_SM_CLOCK",
)
POINTS = 1200


@dataclass(frozen=True)
class Made:
    """One block as it was written: from `start` to `end` (epoch ms, the end not included), samples, sums by metric."""

    start: int
    end: int
    samples: int
    sums: dict[str, float]


@dataclass(frozen=True)
class Block:
    """One block of the bucket: its resolution, its times in epoch ms, samples, bytes."""

    resolution: str
    start: int
    end: int
    samples: int
    size: int


class History:
    """A bucket that holds a synthetic year, as Compact leaves it."""

    def __init__(
        self, stack: Stack, *, series: int, days: int, end_ms: int, replicas: int = 1, block_days: int = 2
    ) -> None:
        """Prepare the year that ends at `end_ms`; `stack` has query and compact, nothing of it started.

        Blocks are of two hours, as a sidecar uploads them, in the last stretch of 14 days, which is not over; those
        before it, which would take the longest, are of `block_days`.
        """
        self.stack = stack
        self.end_ms = end_ms
        self.start_ms = end_ms - days * DAY_MS
        self.made: list[Made] = []
        self.series = series
        self._replicas = replicas
        older_ms = end_ms // LARGEST_MS * LARGEST_MS
        self._parts = ((self.start_ms, older_ms, block_days * DAY_MS), (older_ms, end_ms, 2 * HOUR_MS))
        found = build.ensure(stack.settings.cache_dir, (EVALUATOR, "thanos"))
        self._evaluator, self._thanos = found[EVALUATOR] / EVALUATOR, found["thanos"] / "thanos"
        self._compact, self._query = (stack.process(name).spec.argv for name in ("compact", "query"))

    def write(self) -> None:
        """Write the blocks, once for each replica, and put them into the bucket as a sidecar would."""
        for replica in range(self._replicas):
            with tempfile.TemporaryDirectory(dir=self.stack.state_dir) as folder:
                self.made = [made for part in self._parts for made in self._part(folder, *part)]
                labels = {**configs.PROMETHEUS_LABELS, configs.REPLICA_LABEL: str(replica)}
                under = (f'--label={name}="{value}"' for name, value in labels.items())
                upload = ("tools", "bucket", "upload-blocks", f"--path={folder}")
                _run(str(self._thanos), *upload, *under, self._objstore())

    def compact(self) -> None:
        """Run Compact as the stack does, but once and without its delays: blocks are new, and are deleted at once."""
        changed = ("--wait", "--http-address", "--delete-delay")
        flags = [flag for flag in self._compact if flag.partition("=")[0] not in changed]
        # The second run deletes what the first has marked.
        for _ in range(2):
            _run(*flags, "--http-address=127.0.0.1:0", "--consistency-delay=0s", "--delete-delay=0s")

    def blocks(self) -> list[Block]:
        """Return the blocks in the bucket, the oldest first."""
        names = {ms: name for name, ms in RESOLUTIONS.items()}
        found = []
        for path in Path(self.stack.addresses.bucket).glob("*/meta.json"):
            meta = json.loads(path.read_text(encoding="utf-8"))
            size = sum(file.stat().st_size for file in path.parent.rglob("*") if file.is_file())
            resolution = names[meta["thanos"]["downsample"]["resolution"]]
            found.append(Block(resolution, meta["minTime"], meta["maxTime"], meta["stats"]["numSamples"], size))
        return sorted(found, key=_start)

    def query(self) -> str:
        """Start Store, and a Query that asks it alone; return Query's URL."""
        stack = self.stack
        stack.process("store").start()
        ports = stack.service_context().ports
        http, grpc = ports.take(), ports.take()
        url = f"http://127.0.0.1:{http}"
        changed = ("--endpoint", "--http-address", "--grpc-address")
        argv = (
            *(flag for flag in self._query if flag.partition("=")[0] not in changed),
            f"--http-address=127.0.0.1:{http}", f"--grpc-address=127.0.0.1:{grpc}",
            f"--endpoint={stack.addresses.store_grpc}",
        )  # fmt: skip
        stack.add_process(ProcessSpec("query-store", argv, QueryHealth(url, stores=1), ports=(http, grpc)))
        return url

    def _part(self, folder: str, start: int, end: int, block: int) -> list[Made]:
        if start == end:
            return []
        flags = {"start": start, "end": end, "step": STEP_MS, "series": self.series, "block": block}
        options = (f"-{name}={value}" for name, value in flags.items())
        lines = _run(str(self._evaluator), "blocks", *options, folder).splitlines()
        found = map(json.loads, lines)
        return [Made(block["start"], block["end"], block["samples"], block["sums"]) for block in found]

    def _objstore(self) -> str:
        return next(flag for flag in self._compact if flag.startswith("--objstore.config-file="))


def _start(block: Block) -> tuple[str, int]:
    return block.resolution, block.start


def _run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"{' '.join(argv[:4])} … failed with exit code {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


def kept_ms(resolution: str) -> int:
    """Return how long the stack's retention keeps a resolution, in ms."""
    return int(RETENTION[resolution].removesuffix("d")) * DAY_MS


def amiss(blocks: Sequence[Block], history: History) -> list[str]:
    """Return what is wrong with the bucket: data kept beyond its time, or an age of which a due resolution is missing.

    A block is kept until its newest sample is too old, so the oldest sample may be older by its range, 14 days at most.
    """
    wrong = []
    end, first = history.end_ms, history.start_ms
    due = {"raw": 0, "5m": kept_ms("raw"), "1h": kept_ms("5m")}
    for resolution in RESOLUTIONS:
        mine = [block for block in blocks if block.resolution == resolution]
        late = [block for block in mine if block.end < end - kept_ms(resolution)]
        if late:
            wrong.append(f"{len(late)} blocks of {resolution} are older than {RETENTION[resolution]}")
        reached = max(first, end - kept_ms(resolution))
        last = end - due[resolution]
        for block in mine:
            if block.start > reached + STEP_MS:
                break
            reached = max(reached, block.end)
        if reached < last - STEP_MS:
            wrong.append(f"{resolution} is missing {(end - reached) / DAY_MS:.1f} days before the end")
    return wrong


def differences(url: str, history: History) -> list[str]:
    """Return where Query's sum of the last 300 days of a metric is not what was written.

    One sample of the steadiest metric is 1e-7 of its sum. (`count_over_time` of what is downsampled counts the points
    that there are now.)
    """
    begin = history.end_ms - WINDOW_DAYS * DAY_MS
    made = [block for block in history.made if block.start >= begin]
    reach, at = f"[{history.end_ms - made[0].start}ms]", (history.end_ms - 1) / 1000
    wrong = []
    for metric in made[0].sums:
        want = sum(block.sums[metric] for block in made)
        got = _scalar(url, f"sum(sum_over_time({metric}{reach}))", at)
        if abs(got - want) > 1e-9 * abs(want):
            wrong.append(f"{metric}: the sum is {got:.9g}, {want:.9g} was written")
    return wrong


def _scalar(url: str, query: str, at_s: float) -> float:
    asked = {"query": query, "time": f"{at_s:.3f}", "max_source_resolution": "1h"}
    answer = httpx.post(f"{url}/api/v1/query", data=asked, timeout=60)
    result = answer.raise_for_status().json()["data"]["result"]
    return float(result[0]["value"][1]) if result else 0.0


def answer_s(url: str, panel: str, end_ms: int) -> tuple[float, int]:
    """Return how long a panel of 300 days takes in seconds, and the points of its series that has the fewest."""
    step_s = WINDOW_DAYS * DAY_MS // POINTS // 1000
    begin_s = end_ms // 1000 - WINDOW_DAYS * DAY_MS // 1000
    asked: dict[str, str | int] = {"query": panel, "start": begin_s, "end": end_ms // 1000 - 60, "step": step_s}
    began = time.monotonic()
    answer = httpx.post(f"{url}/api/v1/query_range", data=asked, timeout=60)
    took = time.monotonic() - began
    result = answer.raise_for_status().json()["data"]["result"]
    return took, min((len(series["values"]) for series in result), default=0)


def bytes_a_sample(blocks: Sequence[Block], series: int) -> dict[str, float]:
    """Return by resolution what is stored, index and all, for each raw sample that it stands for."""
    found = {}
    for resolution in RESOLUTIONS:
        mine = [block for block in blocks if block.resolution == resolution]
        raw = sum(block.end - block.start for block in mine) / STEP_MS * series
        if raw:
            found[resolution] = sum(block.size for block in mine) / raw
    return found


def _print_sizes(blocks: Sequence[Block], history: History) -> None:
    for resolution, size in bytes_a_sample(blocks, history.series).items():
        mine = [block for block in blocks if block.resolution == resolution]
        oldest, newest = ((history.end_ms - at) / DAY_MS for at in (mine[0].start, mine[-1].end))
        print(
            f"{resolution:3}: {len(mine):3} blocks, {oldest:5.1f} to {newest:4.1f} days old "
            f"(kept {RETENTION[resolution]}), "
            f"{sum(block.size for block in mine) / 1e6:6.1f} MB, {size:.3f} bytes a raw sample"
        )


def main() -> None:
    """Make the year, keep it, ask it."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--series", type=int, default=100)
    options.add_argument("--days", type=int, default=365)
    options.add_argument("--replicas", type=int, default=1)
    chosen = options.parse_args()
    end_ms = int(time.time()) // 3600 * HOUR_MS
    wrong: list[str] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Stack(Path(folder), load_settings(), only=("query", "compact")) as stack,
    ):
        history = History(stack, series=chosen.series, days=chosen.days, end_ms=end_ms, replicas=chosen.replicas)
        history.write()
        made = sum(block.samples for block in history.made) * chosen.replicas
        print(
            f"{made:,} samples in {len(history.made) * chosen.replicas} blocks, {children_cpu_s():.0f} CPU-s",
            flush=True,
        )
        history.compact()
        blocks = history.blocks()
        print(f"compacted, downsampled and expired: {children_cpu_s():.0f} CPU-s in all, load {os.getloadavg()[0]:.1f}")
        _print_sizes(blocks, history)
        wrong += amiss(blocks, history)
        url = history.query()
        wrong += differences(url, history)
        times = []
        for _ in range(5):
            for panel in PANELS:
                took, points = answer_s(url, panel, end_ms)
                times.append(took)
                if points < POINTS:
                    wrong.append(f"{panel}: {points} of {POINTS} points")
        median, most = statistics.median(times), max(times)
        print(
            f"{WINDOW_DAYS} days in {POINTS} points, {len(times)} queries: median {median:.3f} s, most {most:.3f} s "
            f"(bar {BAR_S:.0f} s, ratio {most / BAR_S:.2f})"
        )
        if most >= BAR_S:
            wrong.append(f"a query took {most:.2f} s")
    if wrong:
        sys.exit("\n".join(wrong))
    print("every sample of 300 days is there, at the resolutions that are due, and nothing is kept beyond its time")


if __name__ == "__main__":
    main()
