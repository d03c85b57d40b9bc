"""The engine with all detectors on DCGM at 25 fields: GPU-rows/s on one core, whose time it is, state, growth.

Columns are generated (`benchmarks.gpu_columns`); only the engine's own work is timed, in CPU time, from rows in memory
to findings: buffering, order, detectors. Beside it, in the same run: one rule of one detector row by row in
Python, and a single plain NumPy pass over the same columns, which is the least that any look at every reading takes.
`--short` takes fewer ticks and no fleet of 100,000 GPUs: seconds instead of minutes.
"""

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu_columns import FIELDS, TICK_MS, GpuFleet
from detectors.contract import EXACT, Finding
from detectors.engine.engine import Choice, Engine
from detectors.engine.rows import Rows
from detectors.registry import choose
from services.kit.durable import replace_file

BAR_ROWS_S, AIM_ROWS_S = 500_000, 1_000_000
BAR_STATE_BYTES = 16_384
START_MS = 1_760_000_000_000 // TICK_MS * TICK_MS
WARM_UP = 30
"""Ticks before time is taken: what is learnt of every GPU has grown to its size by then, intervals are known."""
RULE = "power_throttle"
"""The detector whose rule is also written row by row."""
_CLOCK_RATIO, _BRAKE, _HISTORY = 0.7, 0x80, 24
_READ = ("DEV_POWER_USAGE", "DEV_SM_CLOCK", "DEV_CLOCK_THROTTLE_REASONS", "DEV_GPU_UTIL", "DEV_POWER_VIOLATION")


@dataclass
class Run:
    """What one fleet cost: CPU seconds by tick, and by detector in all measured ticks; bytes of state; findings."""

    gpus: int
    ticks_s: list[float] = field(default_factory=list)
    rows: int = 0
    by_detector_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    state_bytes: int = 0
    snapshot_s: float = 0.0
    """Time for which detection stands still while a snapshot is taken."""
    written_s: float = 0.0
    """Time of writing it, which goes on beside."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def tick_s(self) -> float:
        """Return the CPU time of one tick, the median."""
        return statistics.median(self.ticks_s)

    @property
    def rows_s(self) -> float:
        """Return GPU-rows a second of CPU time."""
        return self.rows / len(self.ticks_s) / self.tick_s


def main() -> None:
    """Run it and print the figures with their ratios to the bars, to the naive version and to the ceiling."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer ticks, and no fleet of 100,000 GPUs")
    short = parser.parse_args().short
    sizes = {1_000: 30, 10_000: 12} if short else {1_000: 120, 10_000: 60, 100_000: 12}
    choices = choose()
    runs = {gpus: measure(gpus, ticks, choices) for gpus, ticks in sizes.items()}
    middle = runs[10_000]
    naive_s, ceiling_s = beside(10_000, 3 if short else 10)
    print(f"{len(choices)} detectors, DCGM at {len(FIELDS)} fields, 10,000 GPUs a tick, one core, CPU time")
    print(f"  {middle.rows_s:12,.0f} GPU-rows/s  ratio to the bar of {BAR_ROWS_S:,}: {middle.rows_s / BAR_ROWS_S:.2f}, "
          f"to the aim of {AIM_ROWS_S:,}: {middle.rows_s / AIM_ROWS_S:.2f}")  # fmt: skip
    rule_s = middle.by_detector_s[RULE] / middle.rows
    print(f"  {1 / naive_s:12,.0f} GPU-rows/s  the rule of {RULE} row by row; in columns {1 / rule_s:,.0f}: "
          f"ratio {naive_s / rule_s:.1f}")  # fmt: skip
    print(
        f"  {1 / ceiling_s:12,.0f} GPU-rows/s  one NumPy pass over the columns: ratio {middle.rows_s * ceiling_s:.2f}"
    )
    total = sum(middle.ticks_s)
    for name, spent in sorted(middle.by_detector_s.items(), key=lambda entry: -entry[1]):
        print(f"  {name:20} {100 * spent / total:5.1f} %  {1e6 * spent / middle.rows:6.3f} us a row")
    own = total - sum(middle.by_detector_s.values())
    print(f"  {'the engine itself':20} {100 * own / total:5.1f} %  {1e6 * own / middle.rows:6.3f} us a row")
    for run in runs.values():
        state = run.state_bytes / run.gpus
        print(f"{run.gpus:8,} GPUs: {1000 * run.tick_s:8.1f} ms of CPU a tick of {TICK_MS / 1000:.0f} s "
              f"({100 * run.tick_s * 1000 / TICK_MS:.1f} % of a core), {1e6 * run.tick_s / run.gpus:.2f} us a GPU, "
              f"state {state:,.0f} bytes a GPU (ratio to the bar {state / BAR_STATE_BYTES:.2f}), "
              f"{len(run.findings)} findings")  # fmt: skip
        print(f"               a snapshot stops detection for {1000 * run.snapshot_s:.0f} ms and is written beside in "
              f"{1000 * run.written_s:.0f} ms: ratio to both at once "
              f"{run.snapshot_s / (run.snapshot_s + run.written_s):.2f}")  # fmt: skip


def measure(gpus: int, ticks: int, choices: Sequence[Choice]) -> Run:
    """Feed one fleet tick by tick; time is taken of the engine alone, after a warm-up."""
    fleet, run = GpuFleet(gpus, START_MS), Run(gpus)
    engine = Engine(fleet.topology, choices, ("jobs", "logs", "dcgm"))
    engine.feed_jobs(fleet.jobs)
    with shared_out(choices, run.by_detector_s):
        for number in range(WARM_UP + ticks):
            rows = fleet.tick(number)
            if number == WARM_UP:
                run.by_detector_s.clear()
            began = time.process_time()
            run.findings += step(engine, rows, fleet.start + (number + 1) * TICK_MS)
            if number >= WARM_UP:
                run.ticks_s.append(time.process_time() - began)
                run.rows += len(rows.times)
    began = time.perf_counter()
    state = engine.snapshot()
    run.snapshot_s = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        replace_file(Path(folder) / "fleet.state", (state,))
        run.written_s = time.perf_counter() - began
    run.state_bytes = len(state)
    return run


def step(engine: Engine, rows: Rows, upto: int) -> list[Finding]:
    """Hand the engine one tick."""
    engine.feed(rows)
    for stream in engine.streams:
        engine.mark(stream, upto)
    return engine.process()


@contextmanager
def shared_out(choices: Sequence[Choice], spent: dict[str, float]) -> Iterator[None]:
    """Add up each detector's CPU time by its name."""
    wrapped: list[tuple[Any, str, Callable[..., Any]]] = []
    for kind, _ in choices:
        for name in ("observe", "advance"):
            method = getattr(kind, name)
            wrapped.append((kind, name, method))
            setattr(kind, name, _timed(method, kind.spec.name, spent))
    try:
        yield
    finally:
        for kind, name, method in wrapped:
            setattr(kind, name, method)


def _timed(method: Callable[..., Any], name: str, spent: dict[str, float]) -> Callable[..., Any]:
    def timed(*given: Any) -> Any:
        began = time.process_time()
        try:
            return method(*given)
        finally:
            spent[name] += time.process_time() - began

    return timed


def beside(gpus: int, ticks: int) -> tuple[float, float]:
    """Return the CPU seconds a row of the naive version, and of the plain pass; the least of some ticks each."""
    fleet = GpuFleet(gpus, START_MS)
    seen: dict[tuple[str | int, str | int], _Gpu] = {}
    naive: list[float] = []
    plain: list[float] = []
    for number in range(ticks):
        rows = fleet.tick(number)
        began = time.process_time()
        braked_by_row(rows, seen)
        between = time.process_time()
        pass_of(rows)
        naive.append((between - began) / len(rows.times))
        plain.append((time.process_time() - between) / len(rows.times))
    return min(naive), min(plain)


@dataclass(slots=True)
class _Gpu:
    """What the version by row keeps of a GPU."""

    last: dict[str, float] = field(default_factory=dict)
    clocks: list[float] = field(default_factory=list)


def braked_by_row(rows: Rows, seen: dict[tuple[str | int, str | int], _Gpu]) -> int:
    """Return how many GPUs read as braked: the bit, and a clock far below the GPU's own median; one row at a time."""
    node, gpu = rows.keys["node"], rows.keys["gpu"]
    columns = [(name, rows.values[f"DCGM_FI_{name}"], rows.valid[f"DCGM_FI_{name}"]) for name in _READ]
    braked = 0
    for row in range(len(rows.times)):
        kept = seen.setdefault((node.categories[node.codes[row]], gpu.categories[gpu.codes[row]]), _Gpu())
        for name, values, valid in columns:
            if valid[row] and 0 <= values[row] < EXACT:
                kept.last[name] = float(values[row])
        clock, past = kept.last.get("DEV_SM_CLOCK", 0.0), kept.clocks
        bits = int(kept.last.get("DEV_CLOCK_THROTTLE_REASONS", 0.0))
        if bits & _BRAKE and past and clock < _CLOCK_RATIO * statistics.median(past):
            braked += 1
        else:
            past.append(clock)
            del past[:-_HISTORY]
    return braked


def pass_of(rows: Rows) -> int:
    """Look at every reading once: is it there and a number, and how many lie above their column's mean."""
    above = 0
    for name, values in rows.values.items():
        sound = rows.valid[name] & np.isfinite(values)
        above += int(np.count_nonzero(sound & (values > values.mean())))
    return above


if __name__ == "__main__":
    main()
