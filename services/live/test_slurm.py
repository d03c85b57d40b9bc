import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from services.kit.errors import UserError
from services.live.listing import Listing
from services.live.polled import Polled
from services.live.slurm import Slurm, command_source
from services.recording.model import Job


def printed(start: int, state: str) -> str:
    """Return what `squeue --json` prints of one job, as far as it is read."""
    job = {"job_id": 812, "name": "train", "job_state": [state], "nodes": "v[001-002]", "user_name": "ada"}
    return json.dumps({"jobs": [job | {"start_time": {"set": True, "infinite": False, "number": start}}]})


def command(tmp_path: Path) -> tuple[Path, str]:
    """Return a file, and a command that prints it and fails where there is none."""
    file = tmp_path / "squeue.json"
    return file, f"{sys.executable} -c 'print(open(\"{file}\").read())'"


def asked(*commands: str) -> Listing:
    return Slurm([command_source(one) for one in commands], lambda: 0).ask()


def test_jobs_are_asked_for_once_a_minute_and_kept_while_slurm_is_away(tmp_path: Path) -> None:
    file, line = command(tmp_path)
    now = 0.0
    file.write_text(printed(1_700_000_000, "RUNNING"))
    polled = Polled(Slurm([command_source(line)], lambda: 0).ask, lambda: now)

    def latest() -> Sequence[Job]:
        return polled.latest().jobs

    (job,) = latest()
    assert (job.job_id, job.nodes, job.start, job.end) == ("812", ["v001", "v002"], 1_700_000_000_000, None)
    file.write_text('{"jobs": []}')
    now = 59.0
    assert latest() == [job]
    now = 61.0
    assert latest() == []
    file.unlink()
    now = 130.0
    assert latest() == []
    file.write_text(printed(1_700_000_000, "RUNNING"))
    now = 200.0
    assert latest() == [job]


def test_a_command_that_is_of_no_use_is_named(tmp_path: Path) -> None:
    file, line = command(tmp_path)
    with pytest.raises(UserError, match=r"(?s)ended with 1: .*No such file"):
        asked(line)
    file.write_text("slurm_load_jobs error: Unable to contact slurm controller")
    with pytest.raises(UserError, match="--slurm"):
        asked(line)
    with pytest.raises(UserError, match="cannot be run"):
        asked("/no/such/squeue --json")


def test_jobs_of_two_commands_are_one_list_and_the_one_that_knows_the_end_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, line = command(tmp_path)
    before = tmp_path / "sacct.json"
    first, second = (json.loads(printed(1_700_000_000, state))["jobs"][0] for state in ("RUNNING", "COMPLETED"))
    over = second | {"end_time": {"set": True, "infinite": False, "number": 1_700_000_600}}
    other = first | {"job_id": 813, "start_time": 1_700_000_100}
    (tmp_path / "squeue.json").write_text(json.dumps({"jobs": [first, other]}))
    before.write_text(json.dumps({"jobs": [over, 3, first | {"job_state": "PENDING"}, over | {"nodes": "v[1-"}]}))
    with caplog.at_level(logging.WARNING):
        for commands in ((line, f"cat {before}"), (f"cat {before}", line)):
            jobs = asked(*commands).jobs
            assert {job.job_id: job.end for job in jobs} == {"812": 1_700_000_600_000, "813": None}
    assert {record.getMessage().removeprefix(f"--slurm 'cat {before}': ") for record in caplog.records} == {
        "job 2 is passed over: no job: its JSON is no object",
        "job 4 is passed over: the node list cannot be read",
    }
