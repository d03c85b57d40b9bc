import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.recording import diff as module
from services.recording.conftest import START, TICKS, edit_lines, header, rewrite, topology
from services.recording.diff import PARTS, RecordingDiff, diff_recordings
from services.recording.model import Gpu, Node, Topology
from services.recording.reader import Recording
from services.recording.schema import STREAMS, TIMESTAMP, name_column
from services.recording.writer import RecordingWriter

Change = Callable[[pa.Table], pa.Table]


@pytest.fixture
def other(made: Path, tmp_path: Path) -> Path:
    """A copy of the small recording, to be changed and compared with it."""
    return Path(shutil.copytree(made, tmp_path / "small"))


def compare(a: Path, b: Path, **options: Any) -> RecordingDiff:
    return diff_recordings(Recording.open(a), Recording.open(b), **options)


def column(name: str, values: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]) -> Change:
    def change(table: pa.Table) -> pa.Table:
        old = table.column(name).to_numpy().copy()
        return table.set_column(table.column_names.index(name), name, pa.array(values(old)))

    return change


def test_a_recording_is_the_same_as_itself(made: Path, other: Path) -> None:
    found = compare(made, other)
    assert found.same
    assert list(found.streams) == list(STREAMS)
    assert set(found.documents) == set(PARTS) - {"streams"}
    for stream in found.streams.values():
        assert (stream.rows_a, stream.rows_b) == (TICKS * 2, TICKS * 2)
        assert sum(entry.compared for entry in stream.columns.values()) >= TICKS * 2 - 1


def test_order_within_one_time_does_not_matter(made: Path, other: Path) -> None:
    swapped = np.arange(TICKS * 2).reshape(-1, 2)[:, ::-1].reshape(-1)
    rewrite(other, "dcgm", lambda table: table.take(swapped))
    assert compare(made, other).same


def test_the_type_a_number_is_stored_in_does_not_matter(made: Path, other: Path) -> None:
    rewrite(other, "dcgm", column("DCGM_FI_DEV_GPU_TEMP", lambda old: old.astype(np.float64)))
    assert compare(made, other).same


def test_a_missing_row_a_new_row_and_a_changed_value_are_found(made: Path, other: Path) -> None:
    def change(table: pa.Table) -> pa.Table:
        table = column("DCGM_FI_DEV_GPU_TEMP", lambda old: np.where(old == 7, 8, old).astype(np.float32))(table)
        return pa.concat_tables([table.slice(0, 10), table.slice(11)])

    rewrite(other, "dcgm", change)
    found = compare(made, other).streams["dcgm"]
    assert (found.only_a, found.only_b, found.empty_a) == (1, 0, 0)
    assert found.examples == ["only in A: 2024-04-01T08:00:25Z node=n1 gpu=0"]
    entry = found.columns["DCGM_FI_DEV_GPU_TEMP"]
    assert (entry.compared, entry.differ, entry.largest) == (TICKS * 2 - 1, 1, 1.0)
    assert entry.first == "2024-04-01T08:00:15Z node=n2 gpu=1: 7.0 and 8.0"
    turned = compare(other, made).streams["dcgm"]
    assert (turned.only_a, turned.only_b) == (0, 1)


def test_null_is_not_zero_and_nan_is_nan(made: Path, other: Path) -> None:
    def without_loss(table: pa.Table) -> pa.Table:
        index = table.column_names.index("loss")
        filled = table.column("loss").fill_null(pa.scalar(0, pa.float32()))
        return table.set_column(index, "loss", filled)

    rewrite(other, "steps", without_loss)
    entry = compare(made, other).streams["steps"].columns["loss"]
    assert (entry.compared, entry.differ, entry.only_a, entry.only_b) == (TICKS, 0, 0, TICKS)


def test_a_column_that_one_lacks_counts_where_it_has_values(made: Path, other: Path) -> None:
    rewrite(other, "dcgm", lambda table: table.append_column("more", pa.array([1.5] * (TICKS * 2))))
    entry = compare(made, other).streams["dcgm"].columns["more"]
    assert (entry.compared, entry.only_b) == (0, TICKS * 2)
    rewrite(
        other, "dcgm", lambda table: table.drop_columns(["more"]).append_column("x", pa.nulls(TICKS * 2, pa.int8()))
    )
    assert compare(made, other).same


def test_a_row_without_any_value_is_distinguished(made: Path, other: Path) -> None:
    def emptied(table: pa.Table) -> pa.Table:
        index = table.column_names.index("port_xmit_data")
        values = [None, *table.column("port_xmit_data").to_pylist()[1:]]
        return table.set_column(index, "port_xmit_data", pa.array(values, pa.float32()))

    rewrite(other, "nic", emptied)
    one = Path(shutil.copytree(other, other.parent / "again" / "small"))
    rewrite(one, "nic", lambda table: table.slice(1))
    found = compare(other, one).streams["nic"]
    assert (found.only_a, found.empty_a) == (1, 1)


def test_a_tolerance_is_relative_to_the_larger(made: Path, other: Path) -> None:
    rewrite(other, "dcgm", column("DCGM_FI_DEV_GPU_TEMP", lambda old: (old * 1.01).astype(np.float32)))
    assert not compare(made, other, tolerance=0.001).same
    assert compare(made, other, tolerance=0.011).same


def test_a_stream_that_one_lacks_is_all_alone(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "small"
    with RecordingWriter(out) as writer:
        writer.finish(header("small"), topology())
    found = compare(made, out, parts=["streams"])
    assert {stream.only_a for stream in found.streams.values()} == {TICKS * 2}
    assert not found.same


def test_changed_documents_are_named(made: Path, other: Path) -> None:
    edit_lines(other, "jobs.jsonl", lambda lines: [line.replace('"RUNNING"', '"SUSPENDED"') for line in lines])
    edit_lines(other, "events.jsonl", lambda lines: lines[:1])
    edit_lines(other, "labels.jsonl", lambda lines: [line.replace('"f1"', '"f2"') for line in lines])
    content = json.loads((other / "topology.json").read_text())
    content["nodes"][0]["gpus"][1]["pcie_gen"] = 3
    (other / "topology.json").write_text(json.dumps(content))
    found = compare(made, other)
    assert found.documents["topology"].examples == ["node n1 gpu 1: pcie_gen 4 and 3"]
    assert found.documents["jobs"].examples == ["job 812: state RUNNING and SUSPENDED"]
    assert (found.documents["events"].only_a, found.documents["events"].only_b) == (1, 0)
    assert found.documents["labels"].examples == ["only in A: label f1", "only in B: label f2"]
    assert compare(made, other, parts=["streams"]).same


ROWS = st.dictionaries(
    st.tuples(st.integers(0, 6), st.integers(0, 3)),  # tick, gpu
    st.none() | st.sampled_from([0.0, 1.0, math.nan, 2.5]),
    min_size=1,
    max_size=20,
)


def _written(out: Path, rows: dict[tuple[int, int], float | None]) -> Recording:
    ordered = sorted(rows)
    table = pa.RecordBatch.from_pydict(
        {
            "timestamp": pa.array([START + tick * 1000 for tick, _ in ordered]).cast(TIMESTAMP),
            "node": name_column(np.zeros(len(ordered), np.int64), ["n1"]),
            "gpu": pa.array([gpu for _, gpu in ordered], pa.uint8()),
            "DCGM_FI_DEV_GPU_TEMP": pa.array([rows[key] for key in ordered], pa.float32(), from_pandas=False),
        }
    )
    with RecordingWriter(out) as writer:
        writer.write("dcgm", table)
        writer.finish(header(out.name), Topology(nodes=[Node(name="n1", gpus=[Gpu(gpu=gpu) for gpu in range(4)])]))
    return Recording.open(out)


@given(a=ROWS, b=ROWS, window=st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_it_finds_what_comparing_row_by_row_finds(
    a: dict[tuple[int, int], float | None], b: dict[tuple[int, int], float | None], window: int
) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_WINDOW_ROWS", window)
        both = (_written(Path(folder) / name, rows) for name, rows in (("a", a), ("b", b)))
        found = diff_recordings(*both, parts=["streams"]).streams["dcgm"]
    shared = [(a[key], b[key]) for key in a.keys() & b.keys()]
    numbers = [(x, y) for x, y in shared if x is not None and y is not None]
    entry = found.columns.get("DCGM_FI_DEV_GPU_TEMP", module.ColumnDiff())
    assert (found.rows_a, found.rows_b) == (len(a), len(b))
    assert (found.only_a, found.only_b) == (len(a.keys() - b.keys()), len(b.keys() - a.keys()))
    assert found.empty_a == sum(a[key] is None for key in a.keys() - b.keys())
    assert entry.compared == len(numbers)
    assert entry.differ == sum(x != y and not (math.isnan(x) and math.isnan(y)) for x, y in numbers)
    assert entry.only_a == sum(x is not None and y is None for x, y in shared)
    assert entry.only_b == sum(x is None and y is not None for x, y in shared)
