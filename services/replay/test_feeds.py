"""Every row once, in order and unchanged, however the replay is cut into cycles."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.kit.errors import UserError
from services.kit.wire import ARROW
from services.recording.reader import Recording, times_of
from services.recording.tidy import open_tidy
from services.replay import feeds
from services.replay.compact import compact, samples_in
from services.replay.conftest import END, START
from services.replay.feeds import ColumnFeed, Feed, LineFeed, Parcel, open_feeds
from services.replay.spec import ReplayRequest, plan


def decode(parcel: Parcel) -> pa.RecordBatch:
    return pa.ipc.open_stream(parcel.value).read_next_batch()


def plain(batches: list[pa.RecordBatch]) -> list[dict[str, object]]:
    """Rows as they compare: a NaN equals a NaN, a null does not."""
    rows = [row for batch in batches for row in batch.to_pylist()]
    return [{name: "NaN" if value != value else value for name, value in row.items()} for row in rows]


def drive(feed: Feed, cuts: list[int], end: int) -> Iterator[tuple[int, Parcel]]:
    for upto in [*sorted(cuts), end]:
        for parcel in feed.take(upto):
            yield upto, parcel
        following = feed.next_ms()
        assert following is None or following > upto


@settings(max_examples=40, deadline=None)
@given(
    stream=st.sampled_from(["dcgm", "bmc", "steps"]),
    cuts=st.lists(st.integers(START - 1000, END), max_size=30),
    window=st.tuples(st.integers(0, 300_000), st.integers(0, 300_000)),
    limits=st.tuples(st.sampled_from([1, 7, 300, 8192]), st.sampled_from([64, 1000, 1 << 20])),
)
def test_slices_are_the_recording(
    recording_dir: Path, stream: str, cuts: list[int], window: tuple[int, int], limits: tuple[int, int]
) -> None:
    recording = Recording.open(recording_dir)
    begin, end = START + window[0], END - window[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feeds, "MESSAGE_ROWS", limits[0])
        patch.setattr(feeds, "MESSAGE_BYTES", limits[1])
        feed = ColumnFeed(stream, recording.batches(stream, begin, end + 1, max_rows=500))
        sent = list(drive(feed, [cut for cut in cuts if cut <= end], end))
    assert all(parcel.rows <= limits[0] for _, parcel in sent)
    got = [decode(parcel) for _, parcel in sent]
    for (upto, parcel), batch in zip(sent, got, strict=True):
        assert parcel.content_type == ARROW
        assert parcel.rows == batch.num_rows
        assert times_of(batch)[-1] <= upto
    assert plain(got) == plain(list(recording.batches(stream, begin, end + 1)))


def test_a_message_has_only_the_names_it_uses_in_the_narrowest_indices(recording_dir: Path) -> None:
    recording = Recording.open(recording_dir)
    (whole,) = recording.batches("steps")
    piece = compact(whole.slice(5, 4))
    assert piece.to_pylist() == whole.slice(5, 4).to_pylist()
    node: Any = piece.column("node")
    assert node.dictionary.to_pylist() == ["v001"]
    assert node.type.index_type == pa.int8()
    assert node.null_count == 1


def test_names_beyond_a_byte_get_wider_indices() -> None:
    names = pa.array([f"n{number}" for number in range(300)]).dictionary_encode()
    batch = pa.RecordBatch.from_pydict({"node": names})
    assert compact(batch).column("node").type.index_type == pa.int16()
    assert compact(batch).to_pylist() == batch.to_pylist()
    assert compact(batch.slice(0, 128)).column("node").type.index_type == pa.int8()
    assert compact(batch.slice(0, 0)).num_rows == 0


def test_samples_are_the_readings_that_are_there() -> None:
    loss = [float("nan"), 2.0]
    batch = pa.RecordBatch.from_pydict({"gpu": [1, 2], "x": [1.0, None], "loss": loss, "unit": ["W", "W"]})
    assert samples_in(batch, ("gpu",)) == 3


def test_jobs_and_logs_are_fed_also_where_the_recording_has_none(tmp_path: Path, recording_dir: Path) -> None:
    recording = Recording.open(recording_dir)
    assert [feed.stream for feed in open_feeds(recording, START, END)] == ["dcgm", "bmc", "steps", "jobs", "logs"]
    bare = Recording(tmp_path, recording.manifest.model_copy(update={"streams": {}}), recording.topology)
    empty = open_feeds(bare, START, END)
    assert [(feed.stream, feed.next_ms()) for feed in empty] == [("jobs", None), ("logs", None)]


@pytest.mark.parametrize("after", [START - 1, START + 60_000, START + 123_456, END])
def test_a_replay_that_goes_on_sends_what_is_behind_its_position(recording_dir: Path, after: int) -> None:
    recording = Recording.open(recording_dir)
    for whole, rest in zip(open_feeds(recording, START, END), open_feeds(recording, START, END, after), strict=True):
        before = sum(parcel.rows for parcel in whole.take(after))
        behind = list(whole.take(END))
        assert [parcel.rows for parcel in rest.take(END)] == pytest.approx([parcel.rows for parcel in behind])
        assert before or whole.next_ms() is None


def test_rows_out_of_order_are_refused_with_the_file_named(recording_dir: Path) -> None:
    (batch,) = Recording.open(recording_dir).batches("bmc")
    backwards = ColumnFeed("bmc", iter([batch.slice(20, 10), batch.slice(0, 10)]))
    with pytest.raises(UserError, match=r"bmc\.parquet: rows are not sorted"):
        list(backwards.take(END))


def test_lines_out_of_order_are_refused() -> None:
    with pytest.raises(UserError, match="logs: lines are not sorted"):
        list(LineFeed("logs", iter([(5, b"{}"), (4, b"{}")])).take(10))


def test_lines_are_packed_into_messages_of_bounded_size() -> None:
    feed = LineFeed("logs", iter([(at, b"x" * 400_000) for at in range(7)]))
    parcels = list(feed.take(6))
    assert [parcel.rows for parcel in parcels] == [3, 3, 1]
    assert b"\n".join(parcel.value for parcel in parcels).count(b"\n") == 6


def test_a_messy_recording_is_sent_as_its_clean_one_from_wherever_a_replay_goes_on(
    recording_dir: Path, tmp_path: Path
) -> None:
    messy = Path(shutil.copytree(recording_dir, tmp_path / "small"))
    table = pq.read_table(messy / "dcgm.parquet")
    late = table.slice(0, 1).set_column(0, "timestamp", pa.array([END + 1]).cast(table.schema.field(0).type))
    mixed = pa.concat_tables(
        [table.take(np.random.default_rng(1).permutation(table.num_rows)), table.slice(5, 9), late]
    )
    pq.write_table(mixed, messy / "dcgm.parquet")
    recording = open_tidy(messy)
    request = ReplayRequest.model_validate({"recording": messy})
    assert "10 of 3,882 rows of dcgm.parquet left out" in plan(request, recording, (), 0).left_out
    for after in (None, START + 200_017):
        ours, clean = (
            {feed.stream: feed for feed in open_feeds(opened, START, END, after)}
            for opened in (recording, Recording.open(recording_dir))
        )
        assert ours.keys() == clean.keys()
        sent = [plain([decode(parcel) for parcel in feeds_of["dcgm"].take(END)]) for feeds_of in (ours, clean)]
        by_row = [sorted(rows, key=lambda row: (row["timestamp"], row["node"], row["gpu"])) for rows in sent]
        assert by_row[0] == by_row[1]
        assert [row["timestamp"] for row in sent[0]] == [row["timestamp"] for row in sent[1]]
