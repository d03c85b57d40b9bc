"""The benchmarks that need no servers still run, in their short form: that nothing has rotted, not how fast it is."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("engine", "GPU-rows/s"),
        ("hour", "over 5 s: 0 of 24"),
        ("backtest", "CPU-hours a cluster-year"),
        ("tickets", "; as counted from the labels"),
        ("month", "day 4 beside day 3: state ratio"),
    ],
)
def test_a_benchmark_runs_in_its_short_form(name: str, says: str) -> None:
    asked = [sys.executable, "-m", f"benchmarks.{name}", "--short"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert says in done.stdout
