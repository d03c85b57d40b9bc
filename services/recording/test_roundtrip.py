from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.kit.errors import UserError
from services.recording import reader as reader_module
from services.recording import writer as writer_module
from services.recording.conftest import (
    END,
    INTERVAL_MS,
    START,
    TICKS,
    batch,
    documents,
    edit_manifest,
    header,
    rewrite,
    topology,
)
from services.recording.model import Event
from services.recording.reader import Recording, times_of
from services.recording.schema import NAME, STREAMS, TIMESTAMP, name_column
from services.recording.tidy import open_tidy
from services.recording.writer import RecordingWriter


def rows(batches: list[pa.RecordBatch]) -> list[dict[str, object]]:
    return [row for part in batches for row in part.to_pylist()]


@pytest.mark.parametrize("stream", STREAMS)
def test_every_stream_comes_back_as_it_was_written(made: Path, stream: str) -> None:
    read = rows(list(Recording.open(made).batches(stream)))
    assert repr(read) == repr(batch(stream).to_pylist())  # repr, because a NaN is not equal to itself
    assert len(read) == 2 * TICKS


def test_names_times_and_gpus_have_the_formats_types(made: Path) -> None:
    first = next(Recording.open(made).batches("dcgm"))
    assert first.schema.field("timestamp").type == TIMESTAMP
    assert first.schema.field("node").type == NAME
    assert first.schema.field("gpu").type == pa.uint8()


def test_documents_come_back_sorted_with_their_unknown_keys(made: Path, tmp_path: Path) -> None:
    recording = Recording.open(made)
    assert [event.message for event in recording.events()] == ["PSU", "hello"]
    assert [event.message for event in recording.events(start=START + 5000)] == ["hello"]
    assert [job.job_id for job in recording.jobs()] == ["812"]
    assert [label.id for label in recording.labels()] == ["d1", "f1"]
    assert recording.topology == topology()
    line = '{"timestamp":"2024-04-01T08:00:00Z","source":"kernel","severity":"info","message":"m","facility":"kern"}'
    assert Event.model_validate_json(line).model_extra == {"facility": "kern"}


def test_the_manifest_keeps_unknown_keys_and_counts(small: Path) -> None:
    edit_manifest(small, lambda content: content.update(clock_skew_s={"n1": 2.5}))
    manifest = Recording.open(small).manifest
    assert manifest.model_extra == {"clock_skew_s": {"n1": 2.5}}
    assert (manifest.cluster.nodes, manifest.cluster.gpus) == (2, 4)
    assert manifest.streams["bmc"].rows == 2 * TICKS
    assert (manifest.start, manifest.end) == (START, END)


def test_an_unknown_column_is_kept(tmp_path: Path) -> None:
    extended = batch("dcgm").append_column("vendor_note", pa.array(["x"] * 2 * TICKS))
    with RecordingWriter(tmp_path / "r") as writer:
        writer.write("dcgm", extended)
        writer.finish(header("r"), topology())
    assert next(Recording.open(tmp_path / "r").batches("dcgm")).column("vendor_note")[0].as_py() == "x"


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    start=st.none() | st.integers(START - 9000, END + 9000),
    end=st.none() | st.integers(START - 9000, END + 9000),
    most=st.integers(1, 50),
)
def test_a_time_range_gives_exactly_its_rows(made: Path, start: int | None, end: int | None, most: int) -> None:
    found = list(Recording.open(made).batches("dcgm", start, end, max_rows=most))
    times = np.concatenate([times_of(one) for one in found]) if found else np.empty(0, np.int64)
    all_times = times_of(batch("dcgm"))
    wanted = all_times[(all_times >= (start or 0)) & (all_times < (END * 2 if end is None else end))]
    assert times.tolist() == wanted.tolist()
    assert all(0 < one.num_rows <= most for one in found)


@settings(max_examples=12, deadline=None)
@given(cuts=st.lists(st.integers(0, TICKS), max_size=8), group=st.integers(10, 50))
def test_the_bytes_do_not_depend_on_how_rows_were_batched(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], group: int
) -> None:
    folder = tmp_path_factory.mktemp("bytes")
    contents = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer_module, "ROW_GROUP_ROWS", group)
        for number, edges in enumerate(([0, TICKS], sorted({0, TICKS, *cuts}))):
            out = folder / str(number) / "r"
            with RecordingWriter(out) as writer:
                for first, last in pairwise(edges):
                    for stream in ("dcgm", "steps"):
                        writer.write(stream, batch(stream, first, last), interval_s=5)
                documents(writer)
                writer.finish(header("r"), topology())
            contents.append({path.name: path.read_bytes() for path in out.iterdir()})
    assert contents[0] == contents[1]
    assert pq.ParquetFile(folder / "1" / "r" / "dcgm.parquet").metadata.row_group(0).num_rows == group


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 40), max_size=60), st.integers(-2, 42), st.integers(-2, 42), st.integers(1, 400))
def test_a_time_range_gives_exactly_its_lines(
    tmp_path_factory: pytest.TempPathFactory, seconds: list[int], first: int, last: int, probe: int
) -> None:
    path = tmp_path_factory.mktemp("lines") / "r"
    at = [START + 1000 * second for second in sorted(seconds)]
    with RecordingWriter(path) as writer:
        writer.write_events(
            Event(timestamp=one, source="kernel", severity="info", message=f"{n}" * 9) for n, one in enumerate(at)
        )
        writer.finish(header("r"), topology())
    start, end = START + 1000 * first, START + 1000 * last
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader_module, "_PROBE", probe)
        found = [(event.timestamp, event.message) for event in Recording.open(path).events(start, end)]
    assert found == [(one, f"{n}" * 9) for n, one in enumerate(at) if start <= one < end]


def test_lines_far_from_the_range_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "_PROBE", 300)
    with RecordingWriter(tmp_path / "r") as writer:
        times = range(START, START + 100_000, 1000)
        writer.write_events(
            Event(timestamp=at, source="kernel", severity="info", message="of a kernel") for at in times
        )
        writer.finish(header("r"), topology())
    path = tmp_path / "r" / "events.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([b"\xff\n", b"\n", *lines[2:70], b"{\n", *lines[71:]]))
    recording = Recording.open(tmp_path / "r")
    assert len(list(recording.events(START + 50_000, START + 60_000))) == 10
    with pytest.raises(UserError, match=r"events\.jsonl: line 71: "):
        list(recording.events(START + 50_000, START + 90_000))


def test_row_groups_outside_the_range_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "ROW_GROUP_ROWS", 20)
    with RecordingWriter(tmp_path / "r") as writer:
        writer.write("dcgm", batch("dcgm"))
        writer.finish(header("r"), topology())
    path = tmp_path / "r" / "dcgm.parquet"
    footer = pq.ParquetFile(path).metadata
    first = footer.row_group(0).column(3)
    content = bytearray(path.read_bytes())
    begin = first.dictionary_page_offset or first.data_page_offset
    content[begin : begin + first.total_compressed_size] = b"\xff" * first.total_compressed_size
    path.write_bytes(bytes(content))
    recording = Recording.open(tmp_path / "r")
    assert sum(one.num_rows for one in recording.batches("dcgm", start=START + 10 * INTERVAL_MS)) == 100
    with pytest.raises(UserError, match=r"dcgm\.parquet: damaged data"):
        list(recording.batches("dcgm"))


def test_a_foreign_file_is_read_in_the_formats_types(tmp_path: Path, small: Path) -> None:
    table = pq.read_table(small / "dcgm.parquet")
    plain = table.set_column(1, "node", table["node"].cast(pa.string()))
    plain = plain.set_column(2, "gpu", table["gpu"].cast(pa.int64()))
    pq.write_table(plain, small / "dcgm.parquet", store_schema=False)
    first = next(Recording.open(small).batches("dcgm"))
    assert first.schema.field("node").type == NAME
    assert first.schema.field("gpu").type == pa.uint8()
    assert repr(first.to_pylist()) == repr(batch("dcgm").to_pylist())


def arrow_peak(directory: Path, count: int) -> int:
    """The most bytes that Arrow holds while one row group of ``count`` rows of eight float64 columns is read."""
    names = name_column(np.zeros(count, dtype=np.int64), ["n1"])
    noise = np.random.default_rng(1).random(count)
    columns = {f"DCGM_FI_{number}": pa.array(noise) for number in range(8)}
    times = pa.array(START + np.arange(count) // 4).cast(TIMESTAMP)
    table = pa.table({"timestamp": times, "node": names, "gpu": pa.array(np.zeros(count, np.uint8)), **columns})
    pq.write_table(table, directory / "dcgm.parquet", use_dictionary=False, row_group_size=count)
    usual, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        assert sum(one.num_rows for one in Recording.open(directory).batches("dcgm", max_rows=16_384)) == count
    finally:
        pa.set_memory_pool(usual)
    return pool.max_memory() or 0


def test_memory_does_not_grow_with_the_row_group(small: Path) -> None:
    a_quarter, a_million = arrow_peak(small, 250_000), arrow_peak(small, 1_000_000)
    assert a_quarter > 1_000_000  # the measure works
    assert a_million < 1.2 * a_quarter
    assert a_million < 1_000_000 * 8 * 8 / 2


def test_leaving_the_writer_early_leaves_nothing_behind(tmp_path: Path) -> None:
    def broken() -> None:
        with RecordingWriter(tmp_path / "r") as writer:
            writer.write("dcgm", batch("dcgm"))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        broken()
    assert list(tmp_path.iterdir()) == []


def test_a_recording_is_never_overwritten(small: Path) -> None:
    with pytest.raises(UserError, match="exists already") as refused:
        RecordingWriter(small)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("disorder", ["within", "between"])
def test_the_writer_refuses_rows_out_of_order(tmp_path: Path, disorder: str) -> None:
    with RecordingWriter(tmp_path / "r") as writer:
        if disorder == "within":
            rows_back = batch("dcgm").take(np.arange(2 * TICKS)[::-1])
            with pytest.raises(ValueError, match="not sorted"):
                writer.write("dcgm", rows_back)
        else:
            writer.write("dcgm", batch("dcgm", 5, 9))
            with pytest.raises(ValueError, match="not sorted"):
                writer.write("dcgm", batch("dcgm", 4, 5))


def test_the_writer_refuses_other_columns_than_before(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path / "r") as writer:
        writer.write("dcgm", batch("dcgm", 0, 2))
        with pytest.raises(ValueError, match="other columns"):
            writer.write("dcgm", batch("dcgm", 2, 3).append_column("more", pa.array([1.0, 2.0])))
        with pytest.raises(ValueError, match="no column 'reading'"):
            writer.write("bmc", batch("bmc").drop_columns(["reading"]))


def test_asking_for_a_stream_that_is_not_there_says_which_are(small: Path) -> None:
    edit_manifest(small, lambda content: content["streams"].pop("nic"))
    with pytest.raises(UserError, match="has no stream 'nic'") as caught:
        list(Recording.open(small).batches("nic"))
    assert "dcgm, switch, bmc" in caught.value.remedy


def test_only_the_columns_asked_for_are_read(made: Path) -> None:
    first = next(Recording.open(made).batches("bmc", columns=["reading"]))
    assert first.schema.names == ["timestamp", "node", "sensor", "reading"]
    with pytest.raises(UserError, match="column 'DCGM_FI_DEV_POWER_USAGE' is missing"):
        list(Recording.open(made).batches("dcgm", columns=["DCGM_FI_DEV_POWER_USAGE"]))


def test_broken_recordings_are_distinguished(small: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such recording") as caught:
        Recording.open(tmp_path / "nowhere")
    assert caught.value.exit_code == 2
    path = small / "dcgm.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"dcgm\.parquet: not a readable Parquet file") as caught:
        list(Recording.open(small).batches("dcgm"))
    assert caught.value.exit_code == 1
    path.unlink()
    with pytest.raises(UserError, match=r"dcgm\.parquet: missing"):
        Recording.open(small)
    (small / "jobs.jsonl").write_text('{"job_id": "812"}\n')
    with pytest.raises(UserError, match=r"jobs\.jsonl: line 1: nodes: Field required"):
        list(Recording.open(made_again(small)).jobs())
    edit_manifest(small, lambda content: content.update(format="hindcast.recording/v9"))
    with pytest.raises(UserError, match=r"format is 'hindcast.recording/v9'"):
        Recording.open(small)
    (small / "recording.yaml").write_text("a: [")
    with pytest.raises(UserError, match="not YAML"):
        Recording.open(small)
    (small / "recording.yaml").unlink()
    with pytest.raises(UserError, match="missing, so this is no recording"):
        Recording.open(small)


@pytest.mark.parametrize("name", ["events.jsonl", "jobs.jsonl", "labels.jsonl"])
def test_a_listed_file_that_is_missing_is_named(small: Path, name: str) -> None:
    (small / name).unlink()
    with pytest.raises(UserError, match=rf"{name}: missing, although recording.yaml lists it"):
        Recording.open(small)
    edit_manifest(small, lambda content: content["files"].pop(name))
    Recording.open(small)


def test_a_column_that_occurs_twice_is_named(small: Path) -> None:
    rewrite(small, "bmc", lambda table: table.append_column("reading", table["reading"]))
    for read in (Recording.open(small).batches("bmc"), Recording.open(small).batches("bmc", columns=["reading"])):
        with pytest.raises(UserError, match=r"bmc\.parquet: column 'reading' occurs twice"):
            list(read)
    with pytest.raises(UserError, match="occurs twice"):
        open_tidy(small)


def made_again(directory: Path) -> Path:
    edit_manifest(directory, lambda content: content["streams"].pop("dcgm"))
    return directory


@pytest.mark.parametrize(
    ("row", "value", "message"),
    [
        (7, None, "row 7: timestamp is null"),
        (50, START + 1, "row 50: timestamp is before that of the row before"),
        (0, START - 1, "row 0: timestamp 2024-04-01T07:59:59.999Z lies outside the recording"),
        (119, END + 1, "row 119: timestamp 2024-04-01T08:05:00.001Z lies outside the recording"),
    ],
)
@pytest.mark.parametrize("most", [7, 1000])
def test_a_wrong_timestamp_is_named(small: Path, row: int, value: int | None, message: str, most: int) -> None:
    table = pq.read_table(small / "nic.parquet")
    times = table["timestamp"].cast(pa.int64()).to_pylist()
    times[row] = value
    column = pa.array(times, pa.int64()).cast(TIMESTAMP)
    pq.write_table(table.set_column(0, "timestamp", column), small / "nic.parquet")
    with pytest.raises(UserError, match=rf"nic\.parquet: {message}"):
        list(Recording.open(small).batches("nic", max_rows=most))


def test_a_missing_required_column_is_named(small: Path) -> None:
    table = pq.read_table(small / "bmc.parquet")
    pq.write_table(table.drop_columns(["reading"]), small / "bmc.parquet")
    with pytest.raises(UserError, match="column 'reading' is missing"):
        list(Recording.open(small).batches("bmc"))
