"""Jobs from Slurm, by a command that prints them: `squeue --json`, or, for the lookback too, `sacct --json`."""

import shlex
import subprocess
import tempfile
from pathlib import Path

from services.kit.errors import UserError
from services.recording.importers.contract import Report
from services.recording.importers.slurm import jobs_in
from services.recording.model import Job

_TIMEOUT_S = 60.0


def slurm_jobs(command: str) -> list[Job]:
    """Return the jobs that a command prints; UserError (exit code 2) where it cannot be run or prints none."""
    remedy = "give a command that prints JSON, such as `squeue --json` or `sacct -a -S now-1days --json`"
    try:
        done = subprocess.run(  # noqa: S603 - the user's own command, without a shell
            shlex.split(command), capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise UserError(f"--slurm {command!r} cannot be run: {error}", remedy=remedy, exit_code=2) from None
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip()[-300:]
        raise UserError(f"--slurm {command!r} ended with {done.returncode}: {words}", remedy=remedy, exit_code=2)
    with tempfile.TemporaryDirectory(prefix="hindcast-slurm-") as folder:
        printed = Path(folder) / "printed.json"
        printed.write_bytes(done.stdout)
        try:
            return jobs_in(printed, Report())
        except UserError as error:
            words = error.message.replace(f"{printed}: ", "")
            raise UserError(f"--slurm {command!r}: {words}", remedy=remedy, exit_code=2) from None
