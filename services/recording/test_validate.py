from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from services.recording import validate_streams
from services.recording.conftest import START, edit_lines, edit_manifest, rewrite
from services.recording.schema import STREAMS, TIMESTAMP, name_column
from services.recording.validate import validate_recording
from services.recording.violation import RowProblems, Violation

Break = Callable[[Path], None]


def only(directory: Path) -> Violation:
    found = validate_recording(directory)
    assert len(found) == 1, "\n".join(str(one) for one in found)
    assert found[0].remedy
    return found[0]


def test_a_good_recording_has_no_violation(made: Path) -> None:
    assert validate_recording(made) == []


def swapped(table: pa.Table) -> pa.Table:
    order = np.arange(table.num_rows)
    order[[10, 11, 20, 21]] = [20, 21, 10, 11]
    return table.take(order)


def set_column(name: str, change: Callable[[Any], Any]) -> Callable[[pa.Table], pa.Table]:
    def apply(table: pa.Table) -> pa.Table:
        return table.set_column(table.schema.names.index(name), name, change(table[name].combine_chunks()))

    return apply


def with_value(row: int, value: Any) -> Callable[[Any], Any]:
    def apply(column: Any) -> Any:
        values = column.to_pylist()
        values[row] = value
        plain = pa.string() if pa.types.is_dictionary(column.type) else column.type
        array = pa.array(values, plain)
        return array.dictionary_encode() if pa.types.is_dictionary(column.type) else array

    return apply


def doubled(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table.slice(0, 31), table.slice(30)])


STREAM_BREAKS: dict[str, tuple[str, Callable[[pa.Table], pa.Table], str, str]] = {
    "unsorted": ("dcgm", swapped, "rows 12 to 21", "before that of an earlier row"),
    "null timestamp": ("dcgm", set_column("timestamp", with_value(7, None)), "row 7", "timestamp is null"),
    "null key": ("nic", set_column("nic", with_value(4, None)), "row 4", "nic is null"),
    "null gpu": ("dcgm", set_column("gpu", with_value(4, None)), "row 4", "gpu is null"),
    "duplicate": ("bmc", doubled, "row 31", "same timestamp and node, sensor as an earlier row"),
    "before the start": ("dcgm", set_column("timestamp", with_value(0, START - 1)), "row 0", "outside the recording"),
    "unknown node": ("dcgm", set_column("node", with_value(9, "n9")), "row 9", "node n9 is not in topology.json"),
    "unknown gpu": ("dcgm", set_column("gpu", with_value(9, 7)), "row 9", "node n2 has no gpu 7"),
    "unknown nic": ("nic", set_column("nic", with_value(9, "eth0")), "row 9", "node n2 has no nic eth0"),
    "unknown switch": ("switch", set_column("switch", with_value(9, "tor-9")), "row 9", "switch tor-9 is not"),
    "unknown bmc": ("bmc", set_column("node", with_value(9, "pdu-1")), "row 9", "node pdu-1 is not"),
    "unknown mount": ("storage", set_column("mount", with_value(9, "/home")), "row 9", "mount /home is not"),
    "unknown job": ("steps", set_column("job_id", with_value(9, "9")), "row 9", "job_id 9 is not in jobs.jsonl"),
    "rank without node": ("steps", set_column("node", with_value(9, None)), "row 9", "node is null for rank 0"),
    "impossible rank": ("steps", set_column("rank", with_value(9, -2)), "row 9", "rank is -2"),
    "missing column": ("steps", lambda table: table.drop_columns(["step_time_s"]), "column step_time_s", "is missing"),
    "missing key": ("dcgm", lambda table: table.drop_columns(["gpu"]), "column gpu", "is missing"),
    "wrong key type": ("dcgm", set_column("gpu", lambda column: column.cast(pa.int32())), "column gpu", "not uint8"),
    "names as plain text": (
        "dcgm",
        set_column("node", lambda column: column.cast(pa.string())),
        "column node",
        "not dictionary-encoded string",
    ),
    "microseconds for milliseconds": (
        "dcgm",
        set_column("timestamp", lambda column: column.cast(pa.timestamp("us", "UTC"))),
        "column timestamp",
        "not timestamp[ms, tz=UTC]",
    ),
    "text for a number": (
        "dcgm",
        set_column("DCGM_FI_DEV_GPU_TEMP", lambda column: column.cast(pa.string())),
        "column DCGM_FI_DEV_GPU_TEMP",
        "not a number",
    ),
    "a number for a unit": (
        "bmc",
        set_column("unit", lambda column: pa.array(np.zeros(len(column)))),
        "column unit",
        "not text",
    ),
}


@pytest.mark.parametrize("case", STREAM_BREAKS)
def test_each_breach_in_a_stream_is_found_where_it_is(small: Path, case: str) -> None:
    stream, change, where, problem = STREAM_BREAKS[case]
    rewrite(small, stream, change)
    found = only(small)
    assert found.file == f"{stream}.parquet"
    assert found.where == where
    assert problem in found.problem


def test_disorder_and_duplicates_across_batches_are_found(tmp_path: Path, small: Path) -> None:
    """The checks read 65,536 rows at a time; what is wrong at a seam must not slip through."""
    count = 65_536
    times = START + np.arange(count + 2) // 300
    times[count] = times[count - 1]
    nodes = name_column(np.zeros(count + 2, dtype=np.int64), ["n1"])
    sensors = name_column(np.arange(count + 2) % 300, [f"fan{number}" for number in range(300)])
    table = pa.table(
        {
            "timestamp": pa.array(times).cast(TIMESTAMP),
            "node": nodes,
            "sensor": sensors,
            "reading": pa.array(np.zeros(count + 2)),
            "unit": name_column(np.zeros(count + 2, dtype=np.int64), ["W"]),
        }
    )
    seam = table.slice(0, count).take(pa.array([*range(count), count - 1]))
    rewrite(small, "bmc", lambda _: seam)
    assert only(small).where == f"row {count}"
    early = pa.concat_tables([table.slice(0, count), table.slice(0, 1)])
    rewrite(small, "bmc", lambda _: early)
    assert only(small).problem == "timestamp is before that of an earlier row"


def with_a_column_twice(table: pa.Table) -> pa.Table:
    return table.append_column(table.schema.names[-1], table.column(table.num_columns - 1))


def truncated(directory: Path) -> None:
    path = directory / "nic.parquet"
    path.write_bytes(path.read_bytes()[:-9])


def lengthened(directory: Path) -> None:
    path = directory / "labels.jsonl"
    path.write_text(path.read_text() + "\n")


FILE_BREAKS: dict[str, tuple[Break, str, str]] = {
    "no manifest": (lambda d: (d / "recording.yaml").unlink(), "recording.yaml", "missing"),
    "other version": (
        lambda d: edit_manifest(d, lambda content: content.update(format="hindcast.recording/v2")),
        "recording.yaml",
        "format is 'hindcast.recording/v2'",
    ),
    "bad manifest field": (
        lambda d: edit_manifest(d, lambda content: content.update(start="noon")),
        "recording.yaml",
        "start: 'noon' is not an RFC 3339 time",
    ),
    "other name": (
        lambda d: edit_manifest(d, lambda content: content.update(name="large")),
        "recording.yaml",
        "is large, and the directory is small",
    ),
    "wrong count": (
        lambda d: edit_manifest(d, lambda content: content["cluster"].update(gpus=5)),
        "recording.yaml",
        "is 5, and topology.json has 4",
    ),
    "no seed": (
        lambda d: edit_manifest(d, lambda content: content.update(origin="synthetic")),
        "recording.yaml",
        "is missing from a synthetic recording",
    ),
    "unknown stream": (
        lambda d: edit_manifest(d, lambda content: content["streams"].update(gps={"rows": 1, "sha256": "x"})),
        "recording.yaml",
        "is no stream of the format",
    ),
    "no topology": (lambda d: (d / "topology.json").unlink(), "topology.json", "missing"),
    "truncated": (truncated, "nic.parquet", "not a readable Parquet file"),
    "stream gone": (lambda d: (d / "nic.parquet").unlink(), "nic.parquet", "missing"),
    "stream not listed": (
        lambda d: edit_manifest(d, lambda content: content["streams"].pop("nic")),
        "nic.parquet",
        "is not listed in recording.yaml",
    ),
    "wrong rows": (
        lambda d: edit_manifest(d, lambda content: content["streams"]["nic"].update(rows=7)),
        "nic.parquet",
        "has 120 rows, and recording.yaml says 7",
    ),
    "changed stream": (
        lambda d: edit_manifest(d, lambda content: content["streams"]["nic"].update(sha256="0")),
        "nic.parquet",
        "was changed",
    ),
    "stream without a hash": (
        lambda d: edit_manifest(d, lambda content: content["streams"]["nic"].pop("sha256")),
        "nic.parquet",
        "has no sha256 in recording.yaml",
    ),
    "not zstd": (
        lambda d: rewrite(d, "nic", lambda table: table, compression="snappy"),
        "nic.parquet",
        "is compressed by SNAPPY",
    ),
    "changed labels": (
        lengthened,
        "labels.jsonl",
        "was changed",
    ),
    "a column twice": (
        lambda d: rewrite(d, "bmc", with_a_column_twice),
        "bmc.parquet",
        "occurs twice",
    ),
    "events gone": (lambda d: (d / "events.jsonl").unlink(), "events.jsonl", "missing"),
}


@pytest.mark.parametrize("case", FILE_BREAKS)
def test_each_breach_of_a_file_is_found(small: Path, case: str) -> None:
    change, file, problem = FILE_BREAKS[case]
    change(small)
    found = only(small)
    assert found.file == file
    assert problem in found.problem


def replaced(old: str, new: str) -> Callable[[list[str]], list[str]]:
    return lambda lines: [line.replace(old, new) for line in lines]


LINE_BREAKS: dict[str, tuple[str, Callable[[list[str]], list[str]], str, str]] = {
    "not json": ("events.jsonl", lambda lines: [*lines, "{\n"], "line 3", "Invalid JSON"),
    "unknown source": ("events.jsonl", replaced('"sel"', '"gossip"'), "line 1", "source"),
    "events out of order": ("events.jsonl", lambda lines: lines[::-1], "line 2", "before that of an earlier line"),
    "event too late": ("events.jsonl", replaced("08:00:09", "18:00:09"), "line 2", "outside the recording"),
    "event of no node": ("events.jsonl", replaced('"n2"', '"n7"'), "line 1", "n7 is no node"),
    "event without zone": ("events.jsonl", replaced("08:00:04Z", "08:00:04"), "line 1", "has no time zone"),
    "job twice": ("jobs.jsonl", lambda lines: lines * 2, "line 2", "is on line 1 already"),
    "job on no node": ("jobs.jsonl", replaced('"n2"]', '"n2","n7"]'), "line 1", "node n7 is not in topology.json"),
    "job ends first": (
        "jobs.jsonl",
        replaced('"end":null,"state":"RUNNING"', '"end":"2024-04-01T08:00:00Z","state":"FAILED"'),
        "line 1",
        "ends before its start",
    ),
    "ended but running": (
        "jobs.jsonl",
        replaced('"end":null', '"end":"2024-04-01T08:04:00Z"'),
        "line 1",
        "is RUNNING with an end",
    ),
    "over without end": ("jobs.jsonl", replaced("RUNNING", "FAILED"), "line 1", "is FAILED with no end"),
    "jobs overlap": (
        "jobs.jsonl",
        lambda lines: [*lines, lines[0].replace('"812"', '"813"').replace('["n1","n2"]', '["n2"]')],
        "line 2",
        "job 813 and job 812 hold the same GPUs of n2 at once",
    ),
    "submitted late": (
        "jobs.jsonl",
        replaced('"start"', '"submit":"2024-04-01T08:02:00Z","start"'),
        "line 1",
        "starts before its submit",
    ),
    "unknown fault": ("labels.jsonl", replaced("power_throttle", "gremlin"), "line 2", "fault gremlin is not one"),
    "too wide an entity": ("labels.jsonl", replaced('{"node":"n2"}', '{"job_id":"812"}'), "line 2", "entity is job_id"),
    "unknown entity": ("labels.jsonl", replaced('{"node":"n2"}', '{"node":"n7"}'), "line 2", "node n7 is unknown"),
    "unknown gpu in a label": (
        "labels.jsonl",
        replaced('{"node":"n2"}', '{"node":"n2","gpu":9}'),
        "line 2",
        "gpu 9 is unknown",
    ),
    "ends before onset": ("labels.jsonl", replaced("08:03:20", "08:01:00"), "line 2", "end is before onset"),
    "label too late": ("labels.jsonl", replaced("08:03:20", "18:03:20"), "line 2", "end lies outside"),
    "no time to alert": ("labels.jsonl", replaced('"within_s":30.0', '"within_s":0'), "line 2", "within_s is 0"),
    "negative within": ("labels.jsonl", replaced('"within_s":30.0', '"within_s":-3'), "line 2", "within_s"),
    "distractor with a fault": (
        "labels.jsonl",
        replaced('"fault":"none"', '"fault":"job_hang"'),
        "line 1",
        "a distractor of fault job_hang",
    ),
    "label twice": (
        "labels.jsonl",
        lambda lines: [*lines, lines[1].replace(',"incident":"i1","root":true', "")],
        "line 3",
        "id is that of an earlier label",
    ),
    "two roots": (
        "labels.jsonl",
        lambda lines: [*lines, lines[1].replace('"f1"', '"f2"')],
        "line 3",
        "incident i1 has a root already",
    ),
    "root of nothing": ("labels.jsonl", replaced('"incident":"i1",', ""), "line 2", "root without an incident"),
    "job unknown": (
        "labels.jsonl",
        replaced('"job_id":"812","incident"', '"job_id":"9","incident"'),
        "line 2",
        "job 9",
    ),
}


@pytest.mark.parametrize("case", LINE_BREAKS)
def test_each_breach_in_a_line_is_found_where_it_is(small: Path, case: str) -> None:
    name, change, where, problem = LINE_BREAKS[case]
    before = (small / name).read_text()
    edit_lines(small, name, change)
    assert (small / name).read_text() != before, "the case does not change the file"
    found = only(small)
    assert (found.file, found.where) == (name, where)
    assert problem in found.problem


def test_jobs_may_share_a_node_by_gpus(small: Path) -> None:
    def shared(lines: list[str]) -> list[str]:
        half = lines[0].replace('"start"', '"gpus":{"n1":[0],"n2":[0]},"start"')
        return [half, half.replace('"812"', '"813"').replace("[0]", "[1]")]

    edit_lines(small, "jobs.jsonl", shared)
    assert validate_recording(small) == []
    edit_lines(small, "jobs.jsonl", lambda lines: [lines[0], lines[1].replace('"n2":[1]', '"n2":[0]')])
    assert "hold the same GPUs of n2" in only(small).problem


def test_a_topology_that_contradicts_itself_is_found(small: Path) -> None:
    edit_lines(small, "topology.json", replaced('"switch":"tor-1"', '"switch":"tor-9"'))
    found = validate_recording(small)
    assert {one.where for one in found} == {"n1", "n2"}
    assert all("unknown switch tor-9" in one.problem for one in found)
    edit_lines(small, "topology.json", replaced("tor-9", "tor-1"))
    edit_lines(small, "topology.json", replaced('"a":"tor-1:', '"a":"tor-3:'))
    assert "tor-3:Ethernet200 is at no known switch" in only(small).problem


def test_all_violations_are_listed_at_once(small: Path) -> None:
    rewrite(small, "dcgm", set_column("node", with_value(9, "n9")))
    rewrite(small, "nic", set_column("nic", with_value(4, None)))
    edit_lines(small, "labels.jsonl", replaced("power_throttle", "gremlin"))
    assert {one.file for one in validate_recording(small)} == {"dcgm.parquet", "nic.parquet", "labels.jsonl"}


def test_many_bad_rows_are_given_as_ranges_and_then_counted() -> None:
    problems = RowProblems("x.parquet")
    problems.add(np.arange(0, 10), "bad", "mend")
    problems.add(np.arange(10, 15), "bad", "mend")
    problems.add(np.arange(100, 300, 2), "bad", "mend")
    found = list(problems.violations())
    assert [one.where for one in found[:2]] == ["rows 0 to 14", "row 100"]
    assert found[-1].where == "51 further rows from 198 on"
    assert found[-1].count == 51
    assert str(found[1]) == "x.parquet: row 100: bad (mend)"


def test_a_huge_row_group_is_a_violation(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validate_streams, "MAX_ROW_GROUP_ROWS", 100)
    for stream in STREAMS:
        rewrite(small, stream, lambda table: table, row_group_size=100)
    assert validate_recording(small) == []
    rewrite(small, "dcgm", lambda table: table, row_group_size=101)
    assert only(small).problem == "has a row group of more than 100 rows"
