"""Jobs and maintenance from Slurm, by commands that print JSON: `squeue`, `sacct`, `sinfo`, `scontrol show nodes`."""

import json
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from services.kit.errors import UsageError, UserError
from services.live.listing import Listing, PassedOver
from services.live.maintenance import NodeState
from services.live.slurm_nodes import Nodes
from services.recording.importers.contract import Report
from services.recording.importers.slurm import NEVER_STARTED, jobs_in
from services.recording.model import Job

_TIMEOUT_S = 60.0
_HAS_JOBS = re.compile(rb'"jobs"\s*:\s*\[')
_REMEDY = (
    "give a command that prints JSON, such as `squeue --json`, `sacct -a -S now-1days --json`, "
    "`scontrol show nodes --json` or `scontrol show reservations --json`"
)


Document = tuple[str, bytes]
"""JSON, or another form of the jobs, with how it is called where something is wrong with it."""


class Slurm:
    """What sources have of jobs, nodes and reservations. `wall_ms`: wall time, epoch ms."""

    def __init__(self, sources: Sequence[Callable[[], Iterable[Document]]], wall_ms: Callable[[], int]) -> None:
        self._sources, self._wall_ms = sources, wall_ms
        self._passed_over = PassedOver()
        self._reserved: set[str] = set()
        """Nodes that were ever reserved: a reservation that is over is listed no more, and they are open then."""

    def ask(self) -> Listing:
        """Return what there is by now; UserError (exit code 2) where a source cannot be asked or has none of it."""
        jobs: dict[tuple[str, int], Job] = {}
        lists_jobs, nodes = False, Nodes(self._passed_over)
        for name, content in (document for source in self._sources for document in source()):
            if content.lstrip().startswith(b"{") and not _HAS_JOBS.search(content):
                if not nodes.take(_parsed(name, content), name):
                    raise UsageError(f"{name} has no jobs, nodes or reservations", remedy=_REMEDY)
                continue
            lists_jobs = True
            for job in self._jobs(name, content):
                known = jobs.get((job.job_id, job.start))
                if known is None or known.end is None:
                    jobs[job.job_id, job.start] = job
        self._reserved |= nodes.reserved
        states = {node: NodeState() for node in self._reserved} | nodes.states(self._wall_ms())
        return Listing(list(jobs.values()), states, lists_jobs)

    def _jobs(self, name: str, content: bytes) -> list[Job]:
        report = Report()
        with tempfile.TemporaryDirectory(prefix="hindcast-slurm-") as folder:
            file = Path(folder) / "jobs"
            file.write_bytes(content)
            try:
                jobs = jobs_in(file, report)
            except UserError as error:
                words = error.message.replace(f"{file}: ", "")
                raise UsageError(f"{name}: {words}", remedy=_REMEDY) from None
        for why, where in report.first.items():
            if why != NEVER_STARTED:
                self._passed_over.name(f"{name}: {where.removeprefix(f'{file.name}: ')}", why)
        return jobs


def command_source(command: str) -> Callable[[], Iterable[Document]]:
    """Return what runs a command, and has what it prints."""
    return lambda: [(f"--slurm {command!r}", _printed(command))]


def _printed(command: str) -> bytes:
    try:
        done = subprocess.run(  # noqa: S603 - the user's own command, without a shell
            shlex.split(command), capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"--slurm {command!r} cannot be run: {error}", remedy=_REMEDY) from None
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip()[-300:]
        raise UsageError(f"--slurm {command!r} ended with {done.returncode}: {words}", remedy=_REMEDY)
    return done.stdout


def _parsed(name: str, content: bytes) -> dict[str, object]:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise UsageError(f"{name}: JSON that breaks off", remedy=_REMEDY)
    return document
