import json
import sys
from pathlib import Path

import pytest

from services.kit.errors import UserError
from services.live.polled import Polled
from services.live.slurm import slurm_jobs


def printed(start: int, state: str) -> str:
    """Return what `squeue --json` prints of one job, as far as it is read."""
    job = {"job_id": 812, "name": "train", "job_state": [state], "nodes": "v[001-002]", "user_name": "ada"}
    return json.dumps({"jobs": [job | {"start_time": {"set": True, "infinite": False, "number": start}}]})


def command(tmp_path: Path) -> tuple[Path, str]:
    """Return a file, and a command that prints it and fails where there is none."""
    file = tmp_path / "squeue.json"
    return file, f"{sys.executable} -c 'print(open(\"{file}\").read())'"


def test_jobs_are_asked_for_once_a_minute_and_kept_while_slurm_is_away(tmp_path: Path) -> None:
    file, line = command(tmp_path)
    now = 0.0
    file.write_text(printed(1_700_000_000, "RUNNING"))
    slurm = Polled(lambda: slurm_jobs(line), lambda: now)
    (job,) = slurm.latest()
    assert (job.job_id, job.nodes, job.start, job.end) == ("812", ["v001", "v002"], 1_700_000_000_000, None)
    file.write_text('{"jobs": []}')
    now = 59.0
    assert slurm.latest() == [job]
    now = 61.0
    assert slurm.latest() == []
    file.unlink()
    now = 130.0
    assert slurm.latest() == []
    file.write_text(printed(1_700_000_000, "RUNNING"))
    now = 200.0
    assert slurm.latest() == [job]


def test_a_command_that_is_of_no_use_is_named(tmp_path: Path) -> None:
    file, line = command(tmp_path)
    with pytest.raises(UserError, match=r"(?s)ended with 1: .*No such file"):
        slurm_jobs(line)
    file.write_text("slurm_load_jobs error: Unable to contact slurm controller")
    with pytest.raises(UserError, match="--slurm"):
        slurm_jobs(line)
    with pytest.raises(UserError, match="cannot be run"):
        slurm_jobs("/no/such/squeue --json")
