"""How well jobs are found that nobody lists: by the pairs of nodes that one job has, against the list of jobs.

    python -m benchmarks.inferred_jobs [DIR...]

The recordings of some folders, by default the foreign ones, are read without their list of jobs, logs and steps: what
their GPUs do is all there is. Every ten minutes the pairs of nodes that have been in one job for a quarter of an hour
are compared with those that are taken to be. Beside it, the naive answer: that all nodes at work have one job. No
servers.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from pathlib import Path
from typing import ClassVar

from benchmarks.foreign import FOREIGN
from detectors.base import BaseDetector
from detectors.contract import Batch, DetectorConfig, DetectorSpec, Finding, Instant
from detectors.gpu_lost.detector import GpuLost
from detectors.registry import choose
from services.recording import model
from services.recording.embedded import engine_for, fed
from services.recording.reader import Recording

_EVERY_MS, _SETTLED_MS, _OVER_MS = 600_000, 900_000, 300_000
_FIRST_MS = 1_800_000
"""Nothing is known of a cluster in the first minutes that it is seen."""
Pairs = set[tuple[str, str]]


@dataclass
class Counts:
    """Pairs of nodes in one job: `found` of `all`, `wrong` ones beside, and how many there are of nodes at work."""

    found: int = 0
    all: int = 0
    wrong: int = 0
    at_work: int = 0

    def add(self, other: "Counts") -> None:
        """Add the counts of another recording."""
        self.found, self.all = self.found + other.found, self.all + other.all
        self.wrong, self.at_work = self.wrong + other.wrong, self.at_work + other.at_work

    def words(self) -> str:
        """Return recall and precision, and the precision of the naive answer."""
        recall, precision = self.found / max(self.all, 1), self.found / max(self.found + self.wrong, 1)
        naive = self.all / max(self.at_work, 1)
        return f"recall {recall:.3f}  precision {precision:.3f}, of all nodes in one job {naive:.3f}"


class _Unlisted(Recording):
    """A recording that has GPUs' readings alone."""

    def jobs(self) -> Iterator[model.Job]:
        """Yield nothing: neither a list nor labels."""
        return iter(())


class _Probe(BaseDetector):
    """Finds nothing; notes which nodes share a job every ten minutes."""

    spec: ClassVar[DetectorSpec] = GpuLost.spec
    config_type: ClassVar[type[DetectorConfig]] = GpuLost.config_type
    seen: ClassVar[dict[Instant, Pairs]] = {}

    def observe(self, batch: Batch) -> Sequence[Finding]:
        """Take no notice of readings."""
        del batch
        return ()

    def advance(self, now: Instant) -> Sequence[Finding]:
        """Note the jobs of the moment."""
        if now % _EVERY_MS == 0:
            self.seen[now] = _pairs(job.nodes for job in self._fleet.jobs.values())
        return ()


def _pairs(lots: Iterable[Sequence[str]]) -> Pairs:
    return {(one, two) for nodes in lots for one, two in combinations(sorted(nodes), 2)}


def judged(path: Path) -> Counts | None:
    """Return how well the jobs of a recording are found; None where it has no list of jobs."""
    recording = Recording.open(path)
    jobs, manifest = list(recording.jobs()), recording.manifest
    if not jobs:
        return None
    streams = {"dcgm": manifest.streams["dcgm"]}
    blind = _Unlisted(path, manifest.model_copy(update={"streams": streams}), recording.topology)
    (config,) = (config for kind, config in choose() if kind is GpuLost)
    _Probe.seen.clear()
    for _ in fed(engine_for(blind, [(_Probe, config)]), blind):
        pass
    counts = Counts()
    for now, found in _Probe.seen.items():
        if now - manifest.start < _FIRST_MS:
            continue
        running = [job for job in jobs if job.start <= now and (job.end is None or job.end > now - _OVER_MS)]
        settled = [job for job in running if job.start <= now - _SETTLED_MS and (job.end is None or job.end > now)]
        true, may_be = _pairs(job.nodes for job in settled), _pairs(job.nodes for job in running)
        at_work = {node for job in settled for node in job.nodes}
        counts.add(Counts(len(true & found), len(true), len(found - may_be), comb(len(at_work), 2)))
    return counts


def main() -> None:
    """Print the table; exit 1 where there is no recording with a list of jobs."""
    asked = [Path(name) for name in sys.argv[1:]] or [FOREIGN]
    paths = sorted(file.parent for folder in asked for file in folder.glob("**/recording.yaml"))
    whole, recordings = Counts(), 0
    for path in paths:
        if (counts := judged(path)) is not None:
            print(f"{path.name:32}{counts.words()}", flush=True)
            whole.add(counts)
            recordings += 1
    if not recordings:
        sys.exit(f"no recording with jobs below {', '.join(map(str, asked))}. Remedy: name folders that have some")
    print(f"{f'{recordings} recordings':32}{whole.words()}")


if __name__ == "__main__":
    main()
