"""One schedule as Slurm, LSF and PBS account for it: the same jobs, whichever scheduler wrote it down."""

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.kit.errors import UserError
from services.recording.conftest import imported
from services.recording.importers import lsf, pbs, slurm
from services.recording.importers.contract import Report
from services.recording.model import Job
from services.recording.reader import Recording
from tests.mangled import fuzzed, survives

DAY = 1_711_929_600  # 2024-04-01T00:00:00Z
EXITS = {
    # state: (Slurm, LSF's exitInfo, LSF's words, PBS' exit status)
    "COMPLETED": ("COMPLETED", 0, "Done successfully. The CPU time used is 9.0 seconds;", 0),
    "FAILED": ("FAILED", 0, "Exited with exit code 1. The CPU time used is 9.0 seconds;", 1),
    "CANCELLED": ("CANCELLED by 1007", 14, "Exited; TERM_OWNER: job killed by owner;", 271),
    "TIMEOUT": ("TIMEOUT", 5, "Exited; TERM_RUNLIMIT: job killed after reaching LSF run time limit;", -29),
    "OUT_OF_MEMORY": ("OUT_OF_MEMORY", 16, "Exited; TERM_MEMLIMIT: job killed after reaching LSF memory limit;", -27),
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """What a scheduler did with one job: times in seconds since 1970, `end` None while it runs."""

    number: int
    name: str
    user: str
    hosts: tuple[str, ...]
    gpus: int
    submit: int
    start: int
    end: int | None
    state: str


@st.composite
def schedules(draw: st.DrawFn) -> list[Run]:
    runs = []
    for number in range(1, draw(st.integers(1, 6)) + 1):
        first, count = draw(st.integers(1, 6)), draw(st.integers(1, 4))
        submit = DAY + draw(st.integers(0, 40_000))
        start = submit + draw(st.integers(0, 3000))
        state = draw(st.sampled_from(["RUNNING", *EXITS]))
        end = None if state == "RUNNING" else start + draw(st.integers(1, 30_000))
        hosts = tuple(f"gpu{host:02d}" for host in range(first, first + count))
        name, user = (
            draw(st.from_regex(r"[a-z][a-z0-9_.-]{0,30}", fullmatch=True)),
            draw(st.sampled_from(["ann", "bob"])),
        )
        runs.append(Run(900 + number, name, user, hosts, draw(st.integers(1, 8)), submit, start, end, state))
    return runs


def stamp(at: int | None, form: str = "%Y-%m-%dT%H:%M:%S", absent: str = "Unknown") -> str:
    return absent if at is None else datetime.fromtimestamp(at, UTC).strftime(form)


def sacct(runs: list[Run]) -> str:
    lines = ["JobID|JobName|User|State|ExitCode|Submit|Start|End|NodeList|AllocTRES"]
    for run in runs:
        state = EXITS[run.state][0] if run.state in EXITS else "RUNNING"
        times = "|".join(stamp(at) for at in (run.submit, run.start, run.end))
        tres = f"cpu=8,gres/gpu={run.gpus * len(run.hosts)},node={len(run.hosts)}"
        lines.append(f"{run.number}|{run.name}|{run.user}|{state}|0:0|{times}|{','.join(run.hosts)}|{tres}")
    return "\n".join(lines) + "\n"


def lsb_acct(runs: list[Run]) -> str:
    """Return records as LSF 10.1 writes them, with hosts asked for, slots and pairs of a submission."""
    lines = []
    for run in sorted((run for run in runs if run.end), key=lambda run: run.end or 0):
        slots = " ".join(f'"{host}" "{host}"' for host in run.hosts)
        needs = f"select[(ngpus>0)] order[r15s:pg] rusage[ngpus_physical={run.gpus}.00]"
        status, why = (64, 0) if run.state == "COMPLETED" else (32, EXITS[run.state][1])
        lines.append(
            f'"JOB_FINISH" "10.1" {run.end} {run.number} 1000 33554438 1 {run.submit} 0 0 {run.start} "{run.user}" '
            f'"gpu" "{needs.replace("ngpus_physical", "mem")}" "" "" "login1" "/home" "" "" "" "1711.1" 1 "pool" '
            f'{2 * len(run.hosts)} {slots} {status} 60.0 "{run.name}" "python -c ""print(7)""" '
            f'{" ".join(["-1"] * 19)} "" "default" 256 1 "" "" 0 2048 0 "" "" "" "" 0 "" {why} "" -1 "/{run.user}" "" '
            f'"" "" -1 "" "" 5136 "" {run.start} "" "" 2 1032 "0" 1033 "0" 1 "gpu01" 9 9 1 1 0 0 2048 "{needs} " "" -1'
        )
    return "\n".join(lines) + "\n"


def broken(text: str) -> str:
    """Return a line as LSF breaks it: after 79 characters, wherever that is, going on indented."""
    lines, rest = [text[:79]], text[79:]
    while rest:
        lines.append(" " * 21 + rest[:58])
        rest = rest[58:]
    return "\n".join(lines)


def bhist(runs: list[Run]) -> str:
    blocks, clock = [], "%a %b %e %H:%M:%S %Y"
    for run in runs:
        hosts = " ".join(f"<{host}> <{host}>" for host in run.hosts)
        begin = stamp(run.start, clock)
        needs = f"on Host(s) {hosts}, Effective RES_REQ <select[type == local] rusage[ngpus_physical={run.gpus}.00] >;"
        lines = [
            f"Job <{run.number}>, Job Name <{run.name}>, User <{run.user}>, Project <default>, Command <a b>",
            f"{stamp(run.submit, clock)}: Submitted from host <login1>, to Queue <gpu>, Requested Resources <mem=9>;",
            f"{begin}: Dispatched {2 * len(run.hosts)} Task(s) on Host(s) {hosts}, Allocated 2 Slot(s) {needs}",
            f"{begin}: Starting (Pid 4711);",
        ]
        if run.end:
            lines.append(f"{stamp(run.end, clock)}: {EXITS[run.state][2]}")
        blocks.append(
            "\n".join(map(broken, lines)) + "\n\nSummary of time in seconds spent in various states by  now\n"
        )
    return "-----\n".join(blocks)


def bjobs(runs: list[Run]) -> str:
    clock = "%b %e %H:%M:%S %Y"
    records = [
        {
            "JOBID": str(run.number), "STAT": {"RUNNING": "RUN", "COMPLETED": "DONE"}.get(run.state, "EXIT"),
            "USER": run.user, "JOB_NAME": run.name, "EXEC_HOST": ":".join(f"2*{host}" for host in run.hosts),
            "SUBMIT_TIME": stamp(run.submit, clock), "START_TIME": stamp(run.start, clock),
            "FINISH_TIME": stamp(run.end, clock, "-"), "GPU_NUM": str(run.gpus),
            "EXIT_REASON": EXITS[run.state][2] if run.state in EXITS else "-",
        }
        for run in runs
    ]  # fmt: skip
    return json.dumps({"COMMAND": "bjobs", "JOBS": len(records), "RECORDS": records})


def accounting(runs: list[Run]) -> str:
    lines = []
    for run in runs:
        common = (
            f"user={run.user} group=users project=_pbs_project_default jobname={run.name} queue=gpu ctime={run.submit} "
            f"qtime={run.submit} etime={run.submit} start={run.start} "
            f"exec_host={'+'.join(f'{host}/0*8' for host in run.hosts)} "
            f"exec_vnode={'+'.join(f'({host}:ncpus=8:ngpus={run.gpus})' for host in run.hosts)} "
            f"Resource_List.ngpus={run.gpus * len(run.hosts)} Resource_List.walltime=24:00:00"
        )
        at = "%m/%d/%Y %H:%M:%S"
        lines.append((run.submit, f"{stamp(run.submit, at)};Q;{run.number}.pbs;queue=gpu"))
        lines.append((run.start, f"{stamp(run.start, at)};S;{run.number}.pbs;{common}"))
        if run.end:
            ended = f"session=9 end={run.end} Exit_status={EXITS[run.state][3]} resources_used.walltime=00:09:00"
            lines.append((run.end, f"{stamp(run.end, at)};E;{run.number}.pbs;{common} {ended}"))
    return "\n".join(text for _, text in sorted(lines, key=lambda line: line[0])) + "\n"


Writer = Callable[[list[Run]], str]


def jobs_of(convert: Callable[..., Report], text: str) -> dict[str, Job]:
    with tempfile.TemporaryDirectory() as folder:
        _, recording = imported(convert, Path(folder), {"jobs": text})
        return {job.job_id: job for job in recording.jobs()}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(runs=schedules())
def test_one_schedule_gives_the_same_jobs_by_every_schedulers_accounting(runs: list[Run]) -> None:
    truth = jobs_of(slurm.convert, sacct(runs))
    assert len(truth) == len(runs)
    forms: list[tuple[Callable[..., Report], Writer]] = [
        (lsf.convert, bhist),
        (lsf.convert, bjobs),
        (pbs.convert, accounting),
    ]
    for convert, writer in forms:
        assert jobs_of(convert, writer(runs)) == truth, writer.__name__
    over = [run for run in runs if run.end]
    if over:  # lsb.acct has finished jobs only
        assert jobs_of(lsf.convert, lsb_acct(over)) == jobs_of(slurm.convert, sacct(over))


RUN = Run(907, "llm", "ann", ("gpu01", "gpu02"), 8, DAY, DAY + 60, DAY + 3660, "OUT_OF_MEMORY")


@pytest.mark.parametrize(
    ("convert", "text"), [(lsf.convert, lsb_acct([RUN])), (lsf.convert, bhist([RUN])), (pbs.convert, accounting([RUN]))]
)  # fmt: skip
def test_an_end_that_is_no_success_is_a_scheduler_event(tmp_path: Path, convert: Any, text: str) -> None:
    (tmp_path / "jobs").write_text(text)
    convert(tmp_path / "jobs", tmp_path / "out")
    (event,) = Recording.open(tmp_path / "out").events()
    assert (event.source, event.job_id, event.severity) == ("scheduler", "907", "warning")
    assert event.timestamp == (DAY + 3660) * 1000
    assert "State=OUT_OF_MEMORY" in event.message
    assert len(Recording.open(tmp_path / "out").topology.nodes[0].gpus) == 8


@pytest.mark.parametrize("when", ["submit", "start", "end"])
def test_a_time_that_no_clock_shows_costs_its_job_at_most(when: str) -> None:
    wrong: dict[str, Any] = {"number": 908, "hosts": ("gpu09",), when: -9223372036854775809}
    jobs = jobs_of(lsf.convert, lsb_acct([replace(RUN, **wrong), RUN]))
    assert jobs.pop("907") == jobs_of(lsf.convert, lsb_acct([RUN]))["907"]
    assert [job.submit for job in jobs.values()] == ([None] if when == "submit" else [])


def test_times_without_a_year_need_one(tmp_path: Path) -> None:
    (tmp_path / "jobs").write_text(bhist([RUN]).replace(" 2024:", ":"))
    with pytest.raises(UserError, match="give --year"):
        lsf.convert(tmp_path / "jobs", tmp_path / "out")
    lsf.convert(tmp_path / "jobs", tmp_path / "out", year=2024, timezone="+02:00")
    (job,) = Recording.open(tmp_path / "out").jobs()
    assert job.start == (DAY + 60 - 7200) * 1000


def test_torque_says_by_which_signal_and_pbs_by_a_deletion(tmp_path: Path) -> None:
    fields = "user=ann jobname=a queue=q ctime=1711929600 start=1711929660 exec_host=n1/0+n1/1+n2/0"
    fields += " Resource_List.nodes=2:ppn=2:gpus=4 Resource_List.walltime=01:00:00"
    lines = [
        f"04/01/2024 00:01:00;S;7.head;{fields}",
        f"04/01/2024 01:01:00;E;7.head;{fields} end=1711933260 Exit_status=271 resources_used.walltime=1:00:03",
        f"04/01/2024 00:01:00;S;8.head;{fields}",
        "04/01/2024 00:31:00;D;8.head;requestor=ann@head",
        f"04/01/2024 00:31:00;E;8.head;{fields} end=1711931460 Exit_status=271 resources_used.walltime=00:30:00",
        "no record at all",
    ]  # fmt: skip
    (tmp_path / "20240401").write_text("\n".join(lines))
    report = pbs.convert(tmp_path / "20240401", tmp_path / "out")
    jobs = {job.job_id: job for job in Recording.open(tmp_path / "out").jobs()}
    assert [(job.state, job.nodes, job.gpus_per_node) for job in jobs.values()] == [
        ("TIMEOUT", ["n1", "n2"], 4), ("CANCELLED", ["n1", "n2"], 4)
    ]  # fmt: skip
    assert report.skipped["a line that is no record of PBS' accounting"] == 1
    assert report.first["a line that is no record of PBS' accounting"].endswith("20240401: line 6")


@fuzzed(*(write([RUN]).encode() for write in (lsb_acct, bhist, bjobs)))
def test_mangled_lsf_accounting_gives_a_clean_recording_or_a_clear_error(content: bytes) -> None:
    survives(lsf.convert, {"jobs": content})


@fuzzed(accounting([RUN]).encode())
def test_mangled_pbs_accounting_gives_a_clean_recording_or_a_clear_error(content: bytes) -> None:
    survives(pbs.convert, {"20240401": content})
