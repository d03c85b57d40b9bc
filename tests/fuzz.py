"""Gives every parser's fuzz test more time than `make test` does: `make fuzz MINUTES=60`.

The parsers are the tests under `tests.mangled.fuzzed`. Each runs in a process of its own, for so many minutes, with a
bound on the time and memory of an example. What is found lies in tests/fuzzed/ at once, where `make test` tries it
first: mend the parser, and commit the two together. What reached new code stays in .fuzz/ for the next run.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.mangled import FOUND

_ROOT = Path(__file__).resolve().parents[1]
_PYTEST = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "--timeout", "0"]
_LONGEST_S = 20
"""Seconds for an example: they take hundredths, and a machine with other work some more."""
_MOST_MB = 1000
"""Memory of the process: it has 200 at the start."""
_LARGEST = 30_000
"""Bytes of an example: ten times the longest sample."""


def main() -> int:
    """Fuzz what is asked for; return 1 where something was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=1.0, help="for each parser")
    parser.add_argument("--only", default="", help="parsers with this in the name of the test's file or function")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at once")
    options = parser.parse_args()
    tests = [test for test in _collected() if options.only in test]
    if not tests:
        print(f"no fuzz test has {options.only!r} in its name. Remedy: see .venv/bin/pytest --collect-only -m fuzz")
        return 2
    print(f"{len(tests)} parsers, {options.minutes:g} min each, {options.jobs} at once", flush=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        clean = list(pool.map(partial(_fuzzed, seconds=round(60 * options.minutes)), tests))
    print(f"{clean.count(False)} of {len(tests)} parsers failed")
    return 0 if all(clean) else 1


def _collected() -> list[str]:
    places = [path for folder in ("detectors", "services", "tests") for path in (_ROOT / folder).rglob("test_*.py")]
    files = [str(path) for path in places if "@fuzzed(" in path.read_text()]  # the others need not be imported
    command = [*_PYTEST, "-m", "fuzz", "--collect-only", *files]
    listed = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        sys.exit(listed.stdout)
    return [line for line in listed.stdout.splitlines() if "::" in line]


def _fuzzed(test: str, seconds: int) -> bool:
    """Fuzz one parser, print how that went, and return whether nothing was found."""
    path, _, function = test.partition("::")
    name = f"{Path(path).stem}.{function}"
    corpus = _ROOT / ".fuzz" / re.sub(r"[^\w.]+", "-", name)
    corpus.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as scratch:
        found = Path(scratch, "found")
        found.mkdir()
        options = (
            f"-max_total_time={seconds} -timeout={_LONGEST_S} -rss_limit_mb={_MOST_MB} -max_len={_LARGEST} "
            f"-report_slow_units=1000000 -print_final_stats=1 -artifact_prefix={found}/"
        )
        more = {"HINDCAST_FUZZ_CORPUS": str(corpus), "HINDCAST_FUZZ_OPTIONS": options, "TMPDIR": scratch}
        run = subprocess.run(
            [*_PYTEST, "-s", "--tb", "no", "-p", "tests.fuzzing", test],
            cwd=_ROOT, env=os.environ | more, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
        for content in found.iterdir():
            keep = FOUND / name.partition("[")[0]
            keep.mkdir(parents=True, exist_ok=True)
            shutil.move(content, keep / content.name)
    output = run.stdout.decode(errors="replace")
    count, memory = (
        (re.findall(pattern, output) or ["?"])[-1] for pattern in (r"executed_units: +(\d+)", r"peak_rss_mb: +(\d+)")
    )
    print(f"{test}: {'clean' if run.returncode == 0 else 'FAILED'}, {count} examples, {memory} MB", flush=True)
    if run.returncode:
        shown = [line for line in output.splitlines() if not line.startswith(("#", "INFO", "WARNING", "\t"))]
        print("\n".join(shown[-60:]), flush=True)
    return run.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
