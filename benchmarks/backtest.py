"""What a backtest costs: CPU of the detectors over a window of 768 GPUs, and what that makes of a cluster-year.

96 nodes with readings every 30 s and a training job over all of them, whose ranks report each step. `--short`: 8 nodes
and a quarter of an hour, which says nothing of the bar.
"""

import sys
import tempfile
import time
from pathlib import Path

from detectors.registry import choose
from services.backtest.windows import Cuts, Window
from services.backtest.work import Detection
from services.recording.reader import Recording
from tests.small import Brake, small_recording

NODES, MINUTES = 96, 60
BAR_CPU_H = 18
HOURS_A_YEAR = 365 * 24


def main() -> None:
    """Run it on the grid of five seconds and on that of thirty; print CPU-hours a year beside the bar."""
    short = "--short" in sys.argv
    nodes, minutes = (8, 15) if short else (NODES, MINUTES)
    cuts = Cuts()
    again = (cuts.length_ms + cuts.warm_ms) / cuts.length_ms
    with tempfile.TemporaryDirectory() as scratch:
        brakes = [Brake("v003", 30.0 * minutes, 40.0 * minutes)]
        made = small_recording(Path(scratch), "hour", nodes=nodes, minutes=minutes, brakes=brakes, interval_s=30)
        recording = Recording.open(made)
        start, end = recording.manifest.start, recording.manifest.end
        choices = [(kind.spec.name, (kind, config)) for kind, config in choose()]
        for grid_s in (5, 30):
            work = Detection(recording, Window(start, start, end + 1, end), choices, grid_s * 1000)
            began = time.process_time()
            found = sum(len(findings) for findings in work.run().values())
            took_s = time.process_time() - began
            year_h = took_s / (minutes / 60) * HOURS_A_YEAR * again / 3600
            print(
                f"{nodes * 8} GPUs, grid {grid_s} s: {took_s:.1f} CPU-s for {minutes} minutes, {found} findings; "
                f"{year_h:.1f} CPU-hours a cluster-year, warm-up of {cuts.warm_ms / 3_600_000:g} h a day included"
                + ("" if short else f" (bar {BAR_CPU_H}, ratio {year_h / BAR_CPU_H:.2f})")
            )


if __name__ == "__main__":
    main()
