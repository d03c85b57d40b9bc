import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from services.kit.errors import UserError
from services.recording.conftest import rows_in
from services.recording.importers.mlperf_power import convert
from services.recording.reader import Recording
from services.recording.validate import validate_recording
from tests.data import public
from tests.mangled import fuzzed, survives

AT = 1_715_960_308_000


def mllog(at: int, key: str, value: Any, metadata: Any = "") -> str:
    record = {"namespace": "", "time_ms": at, "event_type": "POINT_IN_TIME", "key": key, "value": value}
    return ":::MLLOG " + json.dumps({**record, "metadata": metadata})


def node_file(offset: int, watts: list[float]) -> str:
    lines = [mllog(AT + offset, "power_measurement_start", None)]
    lines += [mllog(AT + offset + 2000 * index, "power_reading", value) for index, value in enumerate(watts)]
    lines.append(mllog(AT + offset + 2000 * len(watts), "power_measurement_stop", None))
    return "\n".join(lines) + "\n"


def job_output() -> str:
    system = {"submitter": "Us", "system_name": "Big H100", "accelerators_per_node": "8", "accelerator_model_name": "H"}
    steps = [mllog(AT + 1000 * n, "tracked_stats", {"train_step_timing in s": 1 + n / 10}) for n in (3, 1, 2)]
    lines = [
        "+ echo ':::DLPAL x 77 3 a,b,c'",
        ":::DLPAL /image 77 3 HOSTA,HOSTB,HOSTC",
        ":::SYSJSON " + json.dumps(system),
        "some noise of the job",
        mllog(AT - 5000, "cache_clear", True),
        " 12: " + mllog(AT, "global_batch_size", 4),
        " 12: " + mllog(AT, "max_sequence_length", 100),
        "  0: " + mllog(AT, "submission_benchmark", "gpt3"),
        *("  0: " + step for step in steps),
        "  0: " + mllog(AT + 9000, "run_stop", None, {"status": "success"}),
    ]
    return "\n".join(lines) + "\n"


@pytest.fixture
def result(tmp_path: Path) -> Path:
    """A result of three nodes, of which node_10's file is a copy of node_2's."""
    folder = tmp_path / "smc" / "power" / "result_1"
    folder.mkdir(parents=True)
    (folder / "node_2.txt").write_text(node_file(0, [500, 600.5, 700]))
    (folder / "node_10.txt").write_text(node_file(0, [500, 600.5, 700]))
    (folder / "node_3.txt").write_text(node_file(700, [510, 610]))
    (folder / "sw_0.txt").write_text("")
    (folder / "total_power.txt").write_text("Total Power Usage: 1 kWh\n")
    (tmp_path / "smc" / "result_1.txt").write_text(job_output())
    return tmp_path / "smc"


def test_a_result_becomes_a_valid_recording(result: Path, tmp_path: Path) -> None:
    report = convert(result, tmp_path / "mine")
    assert report.made == {"nodes": 2, "readings": 5, "steps": 3}
    assert list(report.skipped.values()) == [1]
    assert validate_recording(tmp_path / "mine") == []
    recording = Recording.open(tmp_path / "mine")
    rows = rows_in(recording, "bmc")
    assert [(row["node"], row["reading"]) for row in rows] == [
        ("node_2", 500), ("node_3", 510), ("node_2", 600.5), ("node_3", 610), ("node_2", 700)
    ]  # fmt: skip
    assert {(row["sensor"], row["unit"], row["state"]) for row in rows} == {("node_power", "W", None)}
    steps = rows_in(recording, "steps")
    assert [(row["rank"], row["iteration"], round(row["step_time_s"], 3)) for row in steps] == [
        (-1, 1, 1.1), (-1, 2, 1.2), (-1, 3, 1.3)
    ]  # fmt: skip
    assert steps[0]["tokens_per_s"] == pytest.approx(400 / 1.1)
    (job,) = recording.jobs()
    assert (job.job_id, job.state, job.nodes) == ("77", "COMPLETED", ["node_2", "node_3", "node_10"])
    assert (job.start, job.end) == (AT - 5000, AT + 9000)
    assert recording.manifest.cluster.gpus == 24


def test_copies_and_what_is_no_node_are_reported(result: Path, tmp_path: Path) -> None:
    convert(result, tmp_path / "mine")
    source = Recording.open(tmp_path / "mine").manifest.source
    assert source["copies_left_out"] == {"node_2": ["node_10"]}
    assert {note.split(" ")[0] for note in source["notes"]} >= {"sw_0.txt", "total_power.txt"}


def test_the_jobs_own_lines_become_events_with_their_rank(result: Path, tmp_path: Path) -> None:
    convert(result, tmp_path / "mine")
    events = list(Recording.open(tmp_path / "mine").events())
    assert [event.rank for event in events] == [None, 12, 12, 0, 0]
    assert events[-1].message.startswith(":::MLLOG ")
    assert "run_stop" in events[-1].message


def edit(path: Path, change: Callable[[list[str]], list[str]]) -> None:
    path.write_text("".join(change(path.read_text().splitlines(keepends=True))))


BAD_LINES: dict[str, tuple[str, str, str]] = {
    "broken json": ("node_3.txt", ":::MLLOG {not json\n", r"node_3\.txt: line 3: holds broken JSON"),
    "no record": ("node_3.txt", "hello\n", r"node_3\.txt: line 3: is no :::MLLOG record"),
    "empty line": ("node_3.txt", "\n", r"node_3\.txt: line 3: is no :::MLLOG record"),
    "text for watts": ("node_3.txt", mllog(AT + 2700, "power_reading", "many") + "\n", r"line 3: has no numeric"),
    "no watts": ("node_3.txt", mllog(AT + 2700, "power_reading", None) + "\n", r"line 3: a power_reading whose value"),
    "negative": ("node_3.txt", mllog(AT + 2700, "power_reading", -4) + "\n", r"line 3: a power_reading whose value"),
    "earlier": ("node_3.txt", mllog(AT + 5, "power_reading", 4) + "\n", r"line 3: a power_reading that is not later"),
    "job log": ("result_1.txt", ":::MLLOG {broken\n", r"result_1\.txt: line 3: broken JSON"),
    "job log without time": ("result_1.txt", ':::MLLOG {"key": "x"}\n', r"result_1\.txt: line 3: a record without"),
    "step time": (
        "result_1.txt",
        mllog(AT, "tracked_stats", {"train_step_timing in s": "slow"}) + "\n",
        r"result_1\.txt: line 3: step time 'slow' is no number",
    ),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_a_bad_line_is_named(result: Path, tmp_path: Path, case: str) -> None:
    name, line, message = BAD_LINES[case]
    (path,) = result.rglob(name)
    edit(path, lambda lines: [*lines[:2], line, *lines[2:]])
    with pytest.raises(UserError, match=message):
        convert(result, tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


def test_a_cut_off_line_is_named(result: Path, tmp_path: Path) -> None:
    (path,) = result.rglob("node_3.txt")
    path.write_text(path.read_text()[:-30])
    with pytest.raises(UserError, match=r"node_3\.txt: line 4: holds broken JSON"):
        convert(result, tmp_path / "mine")


def test_a_folder_that_is_no_single_result_is_refused(result: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such directory"):
        convert(tmp_path / "nowhere", tmp_path / "mine")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="and has none"):
        convert(tmp_path / "empty", tmp_path / "mine")
    second = result / "power" / "result_2"
    second.mkdir()
    (second / "node_1.txt").write_text(node_file(0, [1]))
    with pytest.raises(UserError, match="power/result_1, power/result_2"):
        convert(result, tmp_path / "mine")
    (second / "node_1.txt").unlink()
    (result / "result_1.txt").unlink()
    with pytest.raises(UserError, match=r"has no job output result_1\.txt"):
        convert(result, tmp_path / "mine")


def test_the_real_run_comes_in_exactly(tmp_path: Path) -> None:
    source = public("mlperf-smc-64node-h100-power")
    report = convert(source, tmp_path / "mlperf-gpt3")
    assert (report.made["nodes"], report.made["steps"]) == (34, 288)
    assert list(report.skipped.values()) == [30]
    assert validate_recording(tmp_path / "mlperf-gpt3") == []
    recording = Recording.open(tmp_path / "mlperf-gpt3")
    table = pa.Table.from_batches(recording.batches("bmc"))
    (first,) = source.rglob("node_1.txt")
    lines = [json.loads(line.removeprefix(":::MLLOG ")) for line in first.read_text().splitlines()]
    wanted = [line["value"] for line in lines if line["key"] == "power_reading"]
    mine = np.array(table["node"].to_pylist()) == "node_1"
    assert table["reading"].to_numpy()[mine].tolist() == wanted
    steps = pa.Table.from_batches(recording.batches("steps"))["step_time_s"].to_numpy()
    assert np.median(steps) == pytest.approx(10.64, abs=0.01)
    assert recording.manifest.cluster.gpus == 512


RESULT = {
    "smc/power/result_1/node_2.txt": node_file(0, [500, 600.5, 700]).encode(),
    "smc/power/result_1/node_3.txt": node_file(700, [510, 610]).encode(),
    "smc/result_1.txt": job_output().encode(),
}


@pytest.mark.parametrize("name", ["smc/power/result_1/node_2.txt", "smc/result_1.txt"])
@fuzzed(*RESULT.values())
def test_damaged_results(name: str, content: bytes) -> None:
    survives(lambda source, out: convert(source / "smc", out), RESULT | {name: content})
