"""Run every benchmark, one after the other: `make bench`."""

import subprocess
import sys

BENCHMARKS = (
    "engine", "sink", "replay", "latency", "viewers", "memory", "realism", "history", "history_sizing", "backtest"
)  # fmt: skip


def main() -> None:
    """Run the named benchmarks, or all, each in a process of its own; exit 1 if one could not be run."""
    wanted = sys.argv[1:] or list(BENCHMARKS)
    failed = [
        name for name in wanted if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode
    ]
    if failed:
        sys.exit(f"could not be run: {', '.join(failed)}")


if __name__ == "__main__":
    main()
