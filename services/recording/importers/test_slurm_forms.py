"""Slurm's jobs as sacct, scontrol and squeue print them, releases 20 to 25: what is written is read."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.errors import UserError
from services.recording.conftest import imported
from services.recording.importers.slurm import convert, recognise
from services.recording.importers.test_slurm import HEADER
from services.recording.reader import Recording
from tests.mangled import FUZZ, fuzzed, survives

START = 1_711_958_400


class Run(NamedTuple):
    job_id: int
    name: str
    node: int
    """The first of its two nodes; no two runs share one."""
    start_s: int
    length_s: int
    state: str
    gpus: tuple[int, ...]

    @property
    def over(self) -> bool:
        return self.state != "RUNNING"

    @property
    def nodes(self) -> list[str]:
        return [f"gpu{self.node:03d}", f"gpu{self.node + 1:03d}"]

    @property
    def hosts(self) -> str:
        return f"gpu[{self.node:03d}-{self.node + 1:03d}]"

    @property
    def tres(self) -> str:
        count = 2 * len(self.gpus)
        return f"cpu=64,mem=1T,node=2,billing=64,gres/gpu={count},gres/gpu:h100={count}"

    @property
    def indices(self) -> str:
        return ",".join(map(str, self.gpus))


def stamp(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def sacct(runs: Sequence[Run], delimiter: str = "|", closed: bool = False) -> str:
    """Return what ``sacct -P`` prints, with ``-p`` (`closed`) a delimiter behind each line; names as they are."""
    names = HEADER.split("|")
    lines = [names]
    for run in runs:
        times = [
            stamp(run.start_s - 60),
            stamp(run.start_s),
            stamp(run.start_s + run.length_s) if run.over else "Unknown",
        ]
        lines.append([str(run.job_id), run.name, "ann", run.state, "0:0", *times, run.hosts, run.tres])
    return "\n".join(delimiter.join(cells) + (delimiter if closed else "") for cells in lines) + "\n"


def sacct_fixed(runs: Sequence[Run], widths: Mapping[str, int]) -> str:
    """Return what ``sacct`` prints without -P: names to the right, values cut to their column with a + at the end."""
    rows = [line.split("\x1f") for line in sacct(runs, "\x1f").split("\n")[:-1]]
    columns = [widths.get(name, 19 if name in {"Submit", "Start", "End"} else 10) for name in rows[0]]
    lines = [" ".join(f"{name[:width]:>{width}}" for name, width in zip(rows[0], columns, strict=True))]
    lines.append(" ".join("-" * width for width in columns))
    for row in rows[1:]:
        cells = []
        for value, width in zip(row, columns, strict=True):
            content = value.encode()
            cut = content if len(content) <= width else content[: width - 1] + b"+"
            cells.append((b" " * (width - len(cut)) + cut).decode(errors="surrogateescape"))
        lines.append(" ".join(cells))
    return "\n".join(f"{line} " for line in lines) + "\n"


def scontrol(runs: Sequence[Run], release: int = 24, one_line: bool = False) -> str:
    """Return what ``scontrol show job -d`` prints (``-o``: `one_line`); the end of a job that runs is its limit."""
    blocks = []
    for run in runs:
        gres = "GRES_IDX=gpu:h100" if release < 21 else f"GRES=gpu:h100:{len(run.gpus)}"
        lines = [
            f"JobId={run.job_id} JobName={run.name}",
            "UserId=ann(1007) GroupId=ann(1007) MCS_label=N/A",
            "Priority=4294901757 Nice=0 Account=ml QOS=normal",
            f"JobState={run.state} Reason=None Dependency=(null)",
            "Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0",
            "RunTime=00:00:10 TimeLimit=2-00:00:00 TimeMin=N/A",
            f"SubmitTime={stamp(run.start_s - 60)} EligibleTime={stamp(run.start_s - 60)}",
            f"StartTime={stamp(run.start_s)} EndTime={stamp(run.start_s + run.length_s)} Deadline=N/A",
            "Partition=gpu AllocNode:Sid=login1:4711",
            "ReqNodeList=(null) ExcNodeList=(null)",
            f"NodeList={run.hosts}",
            f"BatchHost={run.nodes[0]}",
            "NumNodes=2 NumCPUs=64 NumTasks=2 CPUs/Task=32 ReqB:S:C:T=0:0:*:*",
            f"TRES={run.tres}" if release < 23 else f"ReqTRES={run.tres}\n   AllocTRES={run.tres}",
            "Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=*",
            f"JOB_GRES=gpu:h100:{2 * len(run.gpus)}",
            f"  Nodes={run.hosts} CPU_IDs=0-31 Mem=512000 {gres}(IDX:{run.indices})",
            "MinCPUsNode=32 MinMemoryNode=500G MinTmpDiskNode=0",
            "Command=/home/ann/run.sh\n   WorkDir=/home/ann",
        ]
        blocks.append(" ".join(" ".join(lines).split("\n   ")) if one_line else "\n   ".join(lines))
    return ("\n" if one_line else "\n\n").join(blocks) + "\n"


def number(value: int | None, release: int) -> Any:
    """Return a number in a release's form."""
    return value if release < 23 else {"set": value is not None, "infinite": False, "number": value or 0}


def squeue(runs: Sequence[Run], release: int = 24) -> str:
    """Return what ``squeue --json`` prints."""
    jobs = [
        {
            "job_id": run.job_id, "name": run.name, "user_name": "ann", "nodes": run.hosts, "state_reason": "None",
            "job_state": run.state if release < 23 else [run.state], "array_job_id": number(0, release),
            "array_task_id": number(None, release), "submit_time": number(run.start_s - 60, release),
            "start_time": number(run.start_s, release), "end_time": number(run.start_s + run.length_s, release),
            "tres_alloc_str": run.tres, "gres_detail": [f"gpu:h100:{len(run.gpus)}(IDX:{run.indices})"] * 2,
        }
        for run in runs
    ]  # fmt: skip
    return json.dumps({"meta": {"slurm": {"version": {"major": release}}}, "jobs": jobs, "errors": []}, indent=1)


def sacct_json(runs: Sequence[Run], release: int = 24) -> str:
    """Return what ``sacct --json`` prints."""
    jobs = [
        {
            "job_id": run.job_id, "name": run.name, "user": "ann", "nodes": run.hosts,
            "state": {"current": run.state if release < 23 else [run.state], "reason": "None"},
            "time": {"submission": run.start_s - 60, "start": run.start_s,
                     "end": run.start_s + run.length_s if run.over else 0},
            "tres": {"allocated": [{"type": "gres", "name": "gpu", "count": 2 * len(run.gpus)},
                                   {"type": "gres", "name": "gpu:h100", "count": 2 * len(run.gpus)}]},
        }
        for run in runs
    ]  # fmt: skip
    return json.dumps({"meta": {"slurm": {"version": {"major": release}}}, "jobs": jobs, "errors": []})


NAMES = st.text(st.sampled_from("ab-_ .|,;=^"), min_size=1, max_size=12).filter(lambda name: name == name.strip())


@st.composite
def schedules(draw: st.DrawFn) -> list[Run]:
    return [
        Run(
            100 + place,
            draw(NAMES),
            1 + 2 * place,
            START + draw(st.integers(0, 10_000)),
            draw(st.integers(1, 10_000)),
            draw(st.sampled_from(["COMPLETED", "RUNNING", "TIMEOUT", "FAILED"])),
            tuple(sorted(draw(st.sets(st.integers(0, 7), min_size=1)))),
        )
        for place in range(draw(st.integers(1, 4)))
    ]


def jobs_of(text: str) -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        report, recording = imported(convert, Path(folder), {"jobs.txt": text})
        assert not report.skipped, report
        return {job.job_id: job for job in recording.jobs()}


def check(found: dict[str, Any], runs: Sequence[Run], *, parts: bool) -> None:
    assert set(found) == {str(run.job_id) for run in runs}
    for run in runs:
        job = found[str(run.job_id)]
        assert (job.name, job.user, job.nodes, job.state) == (run.name, "ann", run.nodes, run.state)
        assert (job.submit, job.start) == ((run.start_s - 60) * 1000, run.start_s * 1000)
        assert job.end == ((run.start_s + run.length_s) * 1000 if run.over else None)
        assert job.gpus_per_node == len(run.gpus)
        whole = run.gpus == tuple(range(len(run.gpus)))
        assert job.gpus == ({node: list(run.gpus) for node in run.nodes} if parts and not whole else None)


@given(runs=schedules(), delimiter=st.sampled_from(["|", ";", "^", "~~"]), closed=st.booleans())
@FUZZ
def test_sacct_is_read_with_any_delimiter_in_names_too(runs: list[Run], delimiter: str, closed: bool) -> None:
    check(jobs_of(sacct(runs, delimiter, closed)), runs, parts=False)


@given(runs=schedules(), release=st.sampled_from([20, 21, 22, 23, 24, 25]), one_line=st.booleans())
@FUZZ
def test_scontrol_is_read_and_names_the_gpus(runs: list[Run], release: int, one_line: bool) -> None:
    check(jobs_of(scontrol(runs, release, one_line)), runs, parts=True)


@pytest.mark.parametrize(("write", "parts"), [(squeue, True), (sacct_json, False)])
@given(runs=schedules(), release=st.sampled_from([20, 21, 22, 23, 24, 25]))
@FUZZ
def test_json_is_read(write: Callable[[Sequence[Run], int], str], parts: bool, runs: list[Run], release: int) -> None:
    check(jobs_of(write(runs, release)), runs, parts=parts)


RUNS = [Run(7, "a|b\\|c", 1, START, 60, "COMPLETED", (0, 1)), Run(8, "x", 3, START, 60, "NODE_FAIL", (4, 5))]


def fixed(runs: Sequence[Run]) -> str:
    return sacct_fixed(runs, {"NodeList": 15})


def test_a_bar_in_a_name_is_part_of_it_where_the_other_fields_say_so(tmp_path: Path) -> None:
    text = sacct(RUNS) + f"9|a|ann|COMPLETED|0:0|{stamp(START)}|{stamp(START)}|more|{stamp(START + 60)}|gpu009|node=1\n"
    report, recording = imported(convert, tmp_path, {"jobs.txt": text})
    assert [job.name for job in recording.jobs()] == ["a|b|c", "x"], "an escaped bar is a bar"
    assert dict(report.skipped) == {"a line with more or fewer fields than its header": 1}


def test_jobs_that_share_a_node_have_the_gpus_that_scontrol_names(tmp_path: Path) -> None:
    runs = [RUNS[0]._replace(state="RUNNING"), RUNS[1]._replace(node=1, state="RUNNING")]
    _, recording = imported(convert, tmp_path, {"jobs.txt": scontrol(runs)})
    found = {job.job_id: job.gpus for job in recording.jobs()}
    assert found == {"7": {"gpu001": [0, 1], "gpu002": [0, 1]}, "8": {"gpu001": [4, 5], "gpu002": [4, 5]}}
    assert len(recording.topology.nodes[0].gpus) == 6


def test_gpus_that_two_jobs_seem_to_have_at_once_are_unknown(tmp_path: Path) -> None:
    runs = [RUNS[0]._replace(state="RUNNING"), RUNS[1]._replace(node=1, gpus=(1,), state="RUNNING")]
    _, recording = imported(convert, tmp_path, {"jobs.txt": scontrol(runs)})
    assert [job.gpus for job in recording.jobs()] == [{"gpu001": [], "gpu002": []}] * 2


@given(
    names=st.lists(st.text(st.sampled_from("ab-_ .|,;=^+é"), min_size=1, max_size=14), min_size=1, max_size=4),
    states=st.lists(st.sampled_from(["COMPLETED", "OUT_OF_MEMORY", "NODE_FAIL"]), min_size=4, max_size=4),
    widths=st.fixed_dictionaries({"JobName": st.integers(7, 14), "NodeList": st.integers(9, 20)}),
)
@FUZZ
def test_a_table_with_widths_is_read_and_what_it_cut_off_is_not_taken_for_the_whole(
    names: list[str], states: list[str], widths: dict[str, int]
) -> None:
    runs = [
        Run(number, name.strip(), 1 + 2 * number, START, 60, state, (0, 1))
        for number, (name, state) in enumerate(zip(names, states, strict=False), start=1)
    ]
    with TemporaryDirectory() as folder:
        (Path(folder) / "jobs.txt").write_bytes(sacct_fixed(runs, widths).encode(errors="surrogateescape"))
        if widths["NodeList"] < len(runs[0].hosts):
            with pytest.raises(UserError, match="a value that sacct cut off: NodeList"):
                convert(Path(folder) / "jobs.txt", Path(folder) / "out")
            return
        report = convert(Path(folder) / "jobs.txt", Path(folder) / "out")
        jobs = {int(job.job_id): job for job in Recording.open(Path(folder) / "out").jobs()}
    assert [jobs[run.job_id].state for run in runs] == [run.state for run in runs]
    for run in runs:
        assert jobs[run.job_id].nodes == run.nodes
        whole = len(run.name.encode()) <= widths["JobName"] and not (
            run.name.endswith("+") and len(run.name.encode()) == widths["JobName"]
        )
        assert jobs[run.job_id].name == (run.name if whole else "")
    assert report.skipped["a value that sacct cut off: AllocTRES (print it with -P)"] == len(runs)
    assert all(job.gpus_per_node is None for job in jobs.values())


def test_a_table_with_widths_is_known_by_its_dashes() -> None:
    text = sacct_fixed(RUNS, {})
    assert recognise("jobs.txt", text) == "a table of sacct"
    assert recognise("jobs.txt", text.splitlines()[0] + "\n1 2 3\n") is None


@fuzzed(*(write(RUNS).encode() for write in (sacct, fixed, scontrol, squeue)))
def test_mangled_jobs(content: bytes) -> None:
    survives(convert, {"jobs.txt": content})
