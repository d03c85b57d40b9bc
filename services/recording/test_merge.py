import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.kit.errors import UserError
from services.recording import merge as merge_module
from services.recording.conftest import END, INTERVAL_MS, START, batch, header, rows_in, topology
from services.recording.importers.contract import Report
from services.recording.merge import merge_recordings
from services.recording.model import Event, Gpu, Job, Label, Node, Topology
from services.recording.reader import Recording
from services.recording.schema import STREAMS, TIMESTAMP, name_column
from services.recording.validate import validate_recording
from services.recording.writer import RecordingWriter

# time in seconds from the start, node, GPU, value
Row = tuple[int, str, int, float | None]


def dcgm(rows: list[Row], column: str = "DCGM_FI_DEV_GPU_TEMP", kind: Any = None) -> pa.RecordBatch:
    rows = sorted(rows, key=lambda row: row[0])
    names = sorted({row[1] for row in rows})
    return pa.RecordBatch.from_pydict(
        {
            "timestamp": pa.array([START + row[0] * 1000 for row in rows]).cast(TIMESTAMP),
            "node": name_column(np.array([names.index(row[1]) for row in rows]), names),
            "gpu": pa.array([row[2] for row in rows], pa.uint8()),
            column: pa.array([row[3] for row in rows], kind or pa.float32(), from_pandas=False),
        }
    )


def recording(folder: Path, name: str, batches: dict[str, pa.RecordBatch] | None = None, **documents: Any) -> Recording:
    machines = documents.pop("topology", None) or topology()
    with RecordingWriter(folder / name) as writer:
        for stream, rows in (batches or {}).items():
            writer.write(stream, rows, interval_s=5)
        writer.write_events(documents.pop("events", []))
        writer.write_jobs(documents.pop("jobs", []))
        writer.write_labels(documents.pop("labels", []))
        writer.finish({**header(name), **documents}, machines)
    return Recording.open(folder / name)


def merged(folder: Path, *recordings: Recording, **options: Any) -> tuple[Recording, Report]:
    report = merge_recordings(recordings, folder / "whole", **options)
    assert validate_recording(folder / "whole") == []
    return Recording.open(folder / "whole"), report


def test_split_by_streams_and_by_columns_comes_together_again(made: Path, tmp_path: Path) -> None:
    whole = Recording.open(made)
    temperature = batch("dcgm")
    power = pa.RecordBatch.from_pydict(
        {
            **{name: temperature.column(name) for name in ("timestamp", "node", "gpu")},
            "DCGM_FI_DEV_POWER_USAGE": temperature.column(3),
        }
    )
    first = recording(
        tmp_path, "first", {"dcgm": temperature, "nic": batch("nic"), "steps": batch("steps")}, jobs=list(whole.jobs())
    )
    second = recording(tmp_path, "second", {"dcgm": power, "bmc": batch("bmc")}, events=list(whole.events()))
    result, report = merged(tmp_path, first, second)
    assert not report.skipped
    assert result.streams() == ("dcgm", "nic", "bmc", "steps")
    for stream in ("nic", "bmc"):  # steps hold a NaN, which equals nothing
        assert pq.read_table(result.path / f"{stream}.parquet").equals(pq.read_table(made / f"{stream}.parquet"))
    rows = rows_in(result, "dcgm")
    assert len(rows) == temperature.num_rows
    assert all(row["DCGM_FI_DEV_GPU_TEMP"] == row["DCGM_FI_DEV_POWER_USAGE"] is not None for row in rows)
    assert list(result.events()) == list(whole.events())
    assert result.manifest.streams["dcgm"].interval_s == 5


def test_of_two_values_the_first_stays_and_the_difference_is_counted(tmp_path: Path) -> None:
    nan = float("nan")
    first = recording(tmp_path, "first", {"dcgm": dcgm([(0, "n1", 0, 1.0), (5, "n1", 0, None), (10, "n1", 0, nan)])})
    second = recording(
        tmp_path,
        "second",
        {"dcgm": dcgm([(0, "n1", 0, 2.0), (5, "n1", 0, 7.0), (10, "n1", 0, nan), (10, "n2", 1, 9.0)])},
    )
    result, report = merged(tmp_path, first, second)
    values = [row["DCGM_FI_DEV_GPU_TEMP"] for row in rows_in(result, "dcgm")]
    assert values[:2] == [1.0, 7.0]
    assert np.isnan(values[2])
    assert values[3] == 9.0
    assert list(report.skipped.values()) == [1], (
        "NaN and NaN are no difference, nor is a value where the other has none"
    )
    assert "2024-04-01T08:00:00Z n1 0" in next(iter(report.first.values()))
    assert result.manifest.source["differences"]


def test_a_float32_equals_the_float64_that_it_was_rounded_from(tmp_path: Path) -> None:
    first = recording(tmp_path, "first", {"dcgm": dcgm([(0, "n1", 0, 0.1)])})
    second = recording(tmp_path, "second", {"dcgm": dcgm([(0, "n1", 0, 0.1)], kind=pa.float64())})
    _, report = merged(tmp_path, first, second)
    assert not report.skipped


def test_columns_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    first = recording(tmp_path, "first", {"dcgm": dcgm([(0, "n1", 0, 0.1)], "note")})
    words = dcgm([(0, "n1", 0, 0.1)]).append_column("note", pa.array(["x"]))
    second = recording(tmp_path, "second", {"dcgm": words})
    with pytest.raises(UserError, match="'note' is"):
        merge_recordings([first, second], tmp_path / "whole")
    assert not (tmp_path / "whole").exists()


KEYS = st.tuples(st.integers(0, 12), st.sampled_from(["n1", "n2"]), st.sampled_from([0, 1]))
PARTS = st.lists(st.dictionaries(KEYS, st.one_of(st.none(), st.integers(0, 3)), min_size=1), min_size=2, max_size=4)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(parts=PARTS, rows=st.integers(1, 5))
def test_merging_is_what_a_dictionary_would_do(parts: list[dict[Any, Any]], rows: int) -> None:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge_module, "_BATCH_ROWS", rows)
        recordings = [
            recording(Path(name), f"part-{number}", {"dcgm": dcgm([(*key, value) for key, value in part.items()])})
            for number, part in enumerate(parts)
        ]
        result, report = merged(Path(name), *recordings)
        expected: dict[Any, Any] = {}
        differences = 0
        for part in parts:
            for key, value in part.items():
                held = expected.get(key)
                expected[key] = value if held is None else held
                differences += held is not None and value is not None and held != value
        found = {
            ((round(row["timestamp"].timestamp() * 1000) - START) // 1000, row["node"], row["gpu"]): row[
                "DCGM_FI_DEV_GPU_TEMP"
            ]
            for row in rows_in(result, "dcgm")
        }
        assert found == expected
        assert sum(report.skipped.values()) == differences


def test_memory_holds_a_few_batches_of_each_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_module, "_BATCH_ROWS", 10)
    seen: list[int] = []
    window = merge_module._Join.window

    def watched(self: Any, parts: Any) -> pa.RecordBatch:
        seen.append(sum(batch.num_rows for batches in parts for batch in batches))
        return window(self, parts)

    monkeypatch.setattr(merge_module._Join, "window", watched)
    first = recording(tmp_path, "first", {"dcgm": dcgm([(at, "n1", 0, 1.0) for at in range(300)])})
    second = recording(tmp_path, "second", {"dcgm": dcgm([(at, "n2", 0, 1.0) for at in range(0, 300, 3)])})
    merged(tmp_path, first, second)
    assert sum(seen) == 400
    assert max(seen) <= 40


def test_topologies_complete_each_other(tmp_path: Path) -> None:
    one = Topology(nodes=[Node(name="n1", rack="r1", gpus=[Gpu(gpu=0, uuid="GPU-a")]), Node(name="n2")])
    gpus = [Gpu(gpu=0, pci_bus_id="00000000:07:00.0", uuid="GPU-b"), Gpu(gpu=1)]
    two = Topology(nodes=[Node(name="n1", gpu_model="H100", gpus=gpus), Node(name="n3")])
    first = recording(tmp_path, "first", {"dcgm": dcgm([(0, "n1", 0, 1.0)])}, topology=one)
    second = recording(tmp_path, "second", {"dcgm": dcgm([(0, "n1", 1, 1.0)])}, topology=two)
    result, report = merged(tmp_path, first, second)
    assert [node.name for node in result.topology.nodes] == ["n1", "n2", "n3"]
    node = result.topology.nodes[0]
    assert (node.rack, node.gpu_model) == ("r1", "H100")
    assert [(gpu.gpu, gpu.uuid, gpu.pci_bus_id) for gpu in node.gpus] == [
        (0, "GPU-a", "00000000:07:00.0"),
        (1, None, None),
    ]
    assert report.skipped == {"topology: another uuid; the first stays": 1}


def line(at: int, message: str) -> Event:
    return Event(timestamp=START + at, source="kernel", node="n1", severity="info", message=message)


def test_a_line_that_both_have_is_there_once_and_one_written_twice_stays_twice(tmp_path: Path) -> None:
    first = recording(tmp_path, "first", events=[line(1, "a"), line(2, "b"), line(2, "b")])
    second = recording(tmp_path, "second", events=[line(2, "c"), line(2, "b"), line(0, "z")])
    result, report = merged(tmp_path, first, second)
    assert [event.message for event in result.events()] == ["z", "a", "b", "b", "c"]
    assert sum(report.skipped.values()) == 1


def job(job_id: str, start: int, end: int | None, **fields: Any) -> Job:
    state = fields.pop("state", "RUNNING" if end is None else "COMPLETED")
    until = None if end is None else START + end
    return Job(job_id=job_id, nodes=fields.pop("nodes", ["n1"]), start=START + start, end=until, state=state, **fields)


def test_jobs_are_united_and_the_end_is_taken_from_who_saw_it(tmp_path: Path) -> None:
    first = recording(tmp_path, "first", jobs=[job("1", 0, None, user="ann"), job("2", 0, 5, nodes=["n2"])])
    second = recording(tmp_path, "second", jobs=[job("1", 0, 900, state="FAILED", name="llm"), job("3", 1000, 2000)])
    result, report = merged(tmp_path, first, second)
    jobs = {one.job_id: one for one in result.jobs()}
    assert set(jobs) == {"1", "2", "3"}
    assert (jobs["1"].state, jobs["1"].end, jobs["1"].user, jobs["1"].name) == ("FAILED", START + 900, "ann", "llm")
    assert not report.skipped


def test_two_ids_for_the_same_gpus_do_not_make_an_invalid_recording(tmp_path: Path) -> None:
    first = recording(tmp_path, "first", jobs=[job("1", 0, 900)])
    second = recording(tmp_path, "second", jobs=[job("llm", 10, 890), job("4", 900, 950)])
    result, report = merged(tmp_path, first, second)
    assert {one.job_id: one.gpus for one in result.jobs()} == {"1": None, "llm": {"n1": []}, "4": None}
    assert len(report.skipped) == 1


def test_a_job_whose_log_names_no_node_ran_on_the_only_one(tmp_path: Path) -> None:
    log = recording(tmp_path, "log", jobs=[job("7", 0, 900, nodes=[])], topology=Topology(nodes=[]))
    alone = recording(tmp_path, "alone", topology=Topology(nodes=[Node(name="n1", gpus=[Gpu(gpu=0)])]))
    result, report = merged(tmp_path, alone, log)
    assert [one.nodes for one in result.jobs()] == [["n1"]]
    assert "job 7 names no node: taken to have run on n1, the only one there is" in report.notes
    several = merge_recordings([log, recording(tmp_path, "several")], tmp_path / "apart")
    assert not any("names no node" in note for note in several.notes)


def label(label_id: str, node: str, incident: str | None = None, root: bool | None = None) -> Label:
    fields: dict[str, Any] = {"incident": incident, "root": root} if incident else {}
    return Label(id=label_id, fault="straggler", entity={"node": node}, onset=START, end=END, within_s=60, **fields)


def test_labels_keep_their_meaning_and_get_ids_of_their_own(tmp_path: Path) -> None:
    first = recording(tmp_path, "first", labels=[label("f1", "n1", "i1", True), label("f2", "n2")])
    second = recording(tmp_path, "second", labels=[label("f1", "n2", "i1", True), label("x", "n2")])
    result, report = merged(tmp_path, first, second)
    labels = {one.id: one for one in result.labels()}
    assert set(labels) == {"f1", "f2", "f1-second"}
    assert labels["f1-second"].incident == "i1-second", "another incident that happens to have the same name"
    assert report.skipped == {"labels: the same label is in another recording": 1}


def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    first = recording(tmp_path, "first", events=[line(1, "a")])
    other = recording(tmp_path, "other", events=[line(1, "a")], cluster={"name": "elsewhere"})
    later: dict[str, Any] = {"start": END + INTERVAL_MS, "end": END + 2 * INTERVAL_MS}
    late = recording(tmp_path, "late", **later)
    for parts, words in (
        ([first, other], "different clusters"),
        ([first, late], "after the others"),
    ):
        with pytest.raises(UserError, match=words):
            merge_recordings(parts, tmp_path / "whole")
    merged(tmp_path, first, other, cluster="one")
    assert Recording.open(tmp_path / "whole").manifest.cluster.name == "one"


def test_a_cluster_that_nobody_named_goes_by_the_name_that_another_gives(tmp_path: Path) -> None:
    logs = recording(tmp_path, "logs", events=[line(1, "a")], cluster={"name": "imported"})
    here = recording(tmp_path, "here", events=[line(1, "b")], cluster={"name": "local"})
    vela = recording(tmp_path, "vela", events=[line(1, "c")], cluster={"name": "vela"})
    result, report = merged(tmp_path, logs, vela, here)
    assert result.manifest.cluster.name == "vela"
    assert "logs, here: of a cluster that nobody named, taken as vela" in report.notes
    merge_recordings([logs, here], tmp_path / "unnamed")
    assert Recording.open(tmp_path / "unnamed").manifest.cluster.name == "imported"


def test_all_streams_merge_with_themselves_into_themselves(made: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    again.mkdir()
    for path in made.iterdir():
        (again / path.name).write_bytes(path.read_bytes())
    text = (again / "recording.yaml").read_text().replace("name: small\ntitle", "name: again\ntitle")
    (again / "recording.yaml").write_text(text)
    result, report = merged(tmp_path, Recording.open(made), Recording.open(again))
    for stream in STREAMS:
        ours, theirs = (pq.read_table(folder / f"{stream}.parquet") for folder in (result.path, made))
        order: Any = [(name, "ascending") for name in ("timestamp", *STREAMS[stream].key_names)]
        assert ours.num_rows == theirs.num_rows
        assert plain(ours).sort_by(order).to_pylist().__repr__() == plain(theirs).sort_by(order).to_pylist().__repr__()
    for name in ("events.jsonl", "jobs.jsonl", "labels.jsonl", "topology.json"):
        assert [json.loads(text) for text in (result.path / name).read_text().splitlines()] == [
            json.loads(text) for text in (made / name).read_text().splitlines()
        ]
    assert all("same" in reason for reason in report.skipped), "repeats, and no difference"


def plain(table: pa.Table) -> pa.Table:
    for index, column in enumerate(table.schema):
        if pa.types.is_dictionary(column.type):
            table = table.set_column(index, column.name, pc.cast(table.column(index), pa.string()))
    return table


def test_the_headline_is_what_the_user_says_else_the_one_of_all_else_the_name(tmp_path: Path) -> None:
    first = recording(tmp_path, "a", {"dcgm": dcgm([(0, "n1", 0, 1.0)])})
    second = recording(tmp_path, "b", {"dcgm": dcgm([(0, "n2", 0, 2.0)])})
    other = recording(tmp_path, "c", {"dcgm": dcgm([(0, "n2", 0, 2.0)])}, title="Scrapes of 2 nodes")
    assert merged(tmp_path / "named", first, other, title="Rack 7 went dark")[0].manifest.title == "Rack 7 went dark"
    assert merged(tmp_path / "one", first, second)[0].manifest.title == first.manifest.title
    whole, _ = merged(tmp_path / "two", first, other)
    assert whole.manifest.title == "whole"
    assert [part["title"] for part in whole.manifest.source["merged"]] == [first.manifest.title, "Scrapes of 2 nodes"]
