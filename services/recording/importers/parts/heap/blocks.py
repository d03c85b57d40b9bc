"""Writes blocks of Prometheus' TSDB as OpenMetrics text, by Prometheus' own promtool, where it is on the PATH."""

import itertools
import json
import re
import shutil
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path
from threading import Timer
from typing import Any

from services.kit.archive_members import copy
from services.kit.errors import TooMuchError
from services.recording.importers.parts.series.known_series import KNOWN_METRICS

BLOCK_NAME = r"[0-9A-HJKMNP-TV-Z]{26}"
"""A ULID."""
_SAMPLES = 4_000_000
"""Of a file, at most, by what the blocks say that they hold: half of what is read of one file at once."""
_MOST_FILES = 1000
_PATIENCE_S = 900
_WORDS = 200


def dump_blocks(root: Path, most: int) -> dict[Path, str]:
    """Put a folder's blocks as text in their place, in files that follow each other in time.

    Return why for each block that stays, none where promtool is not there at all. TooMuchError: the text comes to more
    than `most` bytes.
    """
    tool = shutil.which("promtool")
    databases = defaultdict(list)
    for meta in root.rglob("meta.json"):
        if re.fullmatch(BLOCK_NAME, meta.parent.name) and (meta.parent / "index").exists():
            databases[meta.parent.parent].append(meta.parent)
    left: dict[Path, str] = {}
    for database, blocks in sorted(databases.items() if tool is not None else ()):
        made: list[Path] = []
        try:
            for number, (first, last) in enumerate(_windows(blocks), start=1):
                made.append(database / f"prometheus-metrics-{number:03d}.prom")
                most -= _dump(str(tool), database, first, last, made[-1], most)
        except TooMuchError:
            raise
        except (OSError, ValueError, KeyError, TypeError, subprocess.SubprocessError) as error:
            for path in made:
                path.unlink(missing_ok=True)
            left |= dict.fromkeys(blocks, f"promtool cannot read it: {' '.join(str(error).split())[:_WORDS]}")
            continue
        for block in blocks:
            shutil.rmtree(block)
    return left


def _windows(blocks: list[Path]) -> list[tuple[int, int]]:
    """Return stretches of time, in ms, both ends included, that hold some `_SAMPLES` each."""
    metas: list[dict[str, Any]] = [json.loads((block / "meta.json").read_bytes()) for block in blocks]
    first, end = min(int(meta["minTime"]) for meta in metas), max(int(meta["maxTime"]) for meta in metas)
    samples = sum(int(meta.get("stats", {}).get("numSamples", 0)) for meta in metas)
    count = min(max(1, -(-samples // _SAMPLES)), _MOST_FILES)
    bounds = [first + (end - first) * number // count for number in range(count + 1)]
    return [(begin, until - 1) for begin, until in itertools.pairwise(bounds)]


def _dump(tool: str, database: Path, first: int, last: int, out: Path, most: int) -> int:
    """Write the series that importers know, of one stretch of time; return the bytes that they are."""
    match = f'{{__name__=~"{KNOWN_METRICS}"}}'
    window = (f"--min-time={first}", f"--max-time={last}", f"--match={match}")
    command = [tool, "tsdb", "dump-openmetrics", *window, str(database)]
    with tempfile.TemporaryFile() as errors, out.open("wb") as target:
        # the user's own promtool, with paths and numbers
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process:  # noqa: S603
            watchdog = Timer(_PATIENCE_S, process.kill)
            watchdog.start()
            try:
                written = copy(process.stdout, target, most) if process.stdout is not None else 0
            except BaseException:
                process.kill()
                raise
            finally:
                watchdog.cancel()
        errors.seek(0)
        problem = errors.read(_WORDS * 4).decode("utf-8", "replace")
    if process.returncode != 0:
        raise ValueError(problem or f"it ended with {process.returncode}")
    return written
