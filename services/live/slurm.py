"""Jobs from Slurm, by a command that prints them: `squeue --json`, or, for the lookback too, `sacct --json`."""

import logging
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from services.kit.errors import UserError
from services.recording.importers.contract import Report
from services.recording.importers.slurm import jobs_in
from services.recording.model import Job

_log = logging.getLogger(__name__)
_EVERY_S = 60.0
_TIMEOUT_S = 60.0


class Slurm:
    """Runs the command once a minute; while it fails, the jobs are those that are known.

    UserError (exit code 2) where it fails the first time. `monotonic`: seconds.
    """

    def __init__(self, command: str, monotonic: Callable[[], float]) -> None:
        self._command, self._monotonic = command, monotonic
        self._jobs = self._run()
        self._ran_s = monotonic()

    def jobs(self) -> list[Job]:
        """Return the jobs as of the last time that the command was of use."""
        if self._monotonic() - self._ran_s >= _EVERY_S:
            self._ran_s = self._monotonic()
            try:
                self._jobs = self._run()
            except UserError as error:
                _log.warning("the jobs are those known before: %s", error.message)
        return self._jobs

    def _run(self) -> list[Job]:
        remedy = "give a command that prints JSON, such as `squeue --json` or `sacct -a -S now-1days --json`"
        try:
            done = subprocess.run(  # noqa: S603 - the user's own command, without a shell
                shlex.split(self._command), capture_output=True, timeout=_TIMEOUT_S, check=False
            )
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise UserError(f"--slurm {self._command!r} cannot be run: {error}", remedy=remedy, exit_code=2) from None
        if done.returncode:
            words = done.stderr.decode(errors="replace").strip()[-300:]
            raise UserError(
                f"--slurm {self._command!r} ended with {done.returncode}: {words}", remedy=remedy, exit_code=2
            )
        with tempfile.TemporaryDirectory(prefix="hindcast-slurm-") as folder:
            printed = Path(folder) / "printed.json"
            printed.write_bytes(done.stdout)
            try:
                return jobs_in(printed, Report())
            except UserError as error:
                words = error.message.replace(f"{printed}: ", "")
                raise UserError(f"--slurm {self._command!r}: {words}", remedy=remedy, exit_code=2) from None
