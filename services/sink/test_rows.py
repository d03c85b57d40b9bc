from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.kit.wire import ARROW, WireError, encode_batch, payload_of
from services.sink.rows import Entities, Reader, Rows, together

START = 1_711_958_400_000


class Message:
    """A Kafka record, as far as payload_of looks."""

    topic = "telemetry.dcgm"
    partition = offset = timestamp = 0
    key: bytes | None = None

    def __init__(self, value: bytes) -> None:
        self.value: bytes | None = value
        self.headers: Any = [("content-type", ARROW)]

    def batch(self) -> pa.RecordBatch:
        payload = payload_of(self)
        assert isinstance(payload, pa.RecordBatch)
        return payload


def batch(tick: int, nodes: list[str], masks: list[list[bool]], values: np.ndarray[Any, Any]) -> pa.RecordBatch:
    rows = len(nodes) * 2
    columns: dict[str, Any] = {
        "timestamp": pa.array(np.full(rows, START + tick), pa.timestamp("ms", "UTC")),
        "node": pa.array(np.repeat(nodes, 2).tolist()).dictionary_encode(),
        "gpu": pa.array(np.tile([0, 1], len(nodes)).astype(np.uint8)),
        "note": pa.array(["text"] * rows),
    }
    for i, kind in enumerate((pa.float32(), pa.float64(), pa.int32())):
        columns[f"f{i}"] = pa.array(values[:rows, i], kind, mask=~np.array(masks[i][:rows]))
    return pa.RecordBatch.from_pydict(columns)


def cells(rows: Rows, entities: Entities) -> set[tuple[object, ...]]:
    valid = np.ones(rows.values.shape, bool) if rows.valid is None else rows.valid
    return {
        (int(rows.times[r]), entities.keys[int(rows.entities[r])], name, float(rows.values[r, c]))
        for r in range(len(rows.times))
        for c, name in enumerate(rows.columns)
        if valid[r, c]
    }


MASK = st.one_of(st.just([True] * 20), st.lists(st.booleans(), min_size=20, max_size=20), st.just([False] * 20))


@settings(deadline=None)
@given(
    groups=st.lists(
        st.sampled_from([["v001", "v002"], ["v003"], ["v002", "v001"], ["v004", "v009", "v005"]]), min_size=1
    ),
    masks=st.lists(MASK, min_size=3, max_size=3),
    seed=st.integers(0, 2**32 - 1),
)
def test_messages_read_by_position_are_those_that_arrow_decodes(
    groups: list[list[str]], masks: list[list[bool]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    messages = [
        encode_batch(batch(tick, nodes, masks, rng.integers(-1000, 1000, (20, 3)).astype(np.float64)))
        for tick, nodes in enumerate(groups)
    ]
    entities = Entities(("node", "gpu"))
    reader = Reader(entities)
    plain = [reader.decoded(Message(value).batch()) for value in messages]
    want = [cells(rows, entities) for rows in plain]
    assert not any(reader.knows(value) for value in messages)
    for value in messages:
        reader.decoded(Message(value).batch(), value)
    found, unknown = reader.known(messages)
    assert unknown == []
    assert cells(together(found), entities) == set().union(*want)
    assert sum(len(rows.times) for rows in found) == sum(len(rows.times) for rows in plain)


def test_other_nodes_under_the_same_layout_are_not_mistaken() -> None:
    entities = Entities(("node", "gpu"))
    reader = Reader(entities)
    values = np.ones((4, 3))
    one = encode_batch(batch(0, ["v001", "v002"], [[True] * 4] * 3, values))
    swapped = batch(0, ["v001", "v002"], [[True] * 4] * 3, values)
    column: Any = swapped.column("node")
    indices = pa.DictionaryArray.from_arrays(pa.array([1, 1, 0, 0], pa.int32()), column.dictionary)
    two = encode_batch(swapped.set_column(1, "node", indices))
    assert len(one) == len(two)
    reader.decoded(Message(one).batch(), one)
    assert reader.knows(one)
    assert not reader.knows(two)
    rows = reader.decoded(Message(two).batch(), two)
    assert [entities.keys[int(e)] for e in rows.entities] == [
        ("v002", "0"),
        ("v002", "1"),
        ("v001", "0"),
        ("v001", "1"),
    ]


def test_compressed_messages_are_read_and_not_learnt() -> None:
    reader = Reader(Entities(("node", "gpu")))
    table = batch(0, ["v001", "v002"], [[True] * 4] * 3, np.ones((4, 3)))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_batch(table)
    value = sink.getvalue().to_pybytes()
    assert reader.decoded(Message(value).batch(), value).values.tolist() == np.ones((4, 3)).tolist()
    assert not reader.knows(value)


def test_an_impossible_time_is_left_to_be_read_alone() -> None:
    entities = Entities(("node", "gpu"))
    reader = Reader(entities)
    good = encode_batch(batch(0, ["v001"], [[True] * 2] * 3, np.ones((2, 3))))
    bad = encode_batch(batch(-START, ["v001"], [[True] * 2] * 3, np.ones((2, 3))))
    reader.decoded(Message(good).batch(), good)
    assert reader.known([good, bad]) == ([], [0, 1])
    with pytest.raises(WireError, match="1971 to 2109"):
        reader.decoded(Message(bad).batch(), bad)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"node": ["v001"], "gpu": [0]}, "column timestamp is missing"),
        ({"timestamp": [1], "node": ["v001"], "gpu": [0]}, "column timestamp is int64"),
        ({"timestamp": pa.array([None], pa.timestamp("ms", "UTC")), "node": ["v001"], "gpu": [0]}, "has nulls"),
        ({"timestamp": pa.array([START], pa.timestamp("ms", "UTC")), "node": ["v001"]}, "column gpu is missing"),
    ],
)
def test_a_bad_shape_says_what_is_wrong(columns: dict[str, Any], reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        Reader(Entities(("node", "gpu"))).decoded(pa.RecordBatch.from_pydict(columns))


def test_columns_that_differ_are_united() -> None:
    first = Rows(np.array([1]), np.array([0]), ("a", "b"), np.array([[1.0, 2.0]]), None)
    second = Rows(np.array([2]), np.array([1]), ("b", "c"), np.array([[3.0, 4.0]]), np.array([[True, False]]))
    rows = together([first, second])
    assert rows.columns == ("a", "b", "c")
    assert rows.valid is not None
    assert rows.valid.tolist() == [[True, True, False], [False, True, False]]
    assert rows.values[rows.valid].tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("count", [127, 128])
def test_as_many_names_as_their_codes_can_number(count: int) -> None:
    names = [f"v{number:03d}" for number in range(count)]
    column = pa.DictionaryArray.from_arrays(pa.array(np.arange(count), pa.int8()), pa.array(names))
    table = pa.RecordBatch.from_pydict(
        {
            "timestamp": pa.array(np.full(count, START), pa.timestamp("ms", "UTC")),
            "node": column,
            "gpu": pa.array(np.zeros(count, np.uint8)),
            "f0": pa.array(np.arange(count, dtype=np.float32)),
        }
    )
    value = encode_batch(table)
    entities = Entities(("node", "gpu"))
    rows = Reader(entities).decoded(Message(value).batch(), value)
    assert cells(rows, entities) == {(START, (name, "0"), "f0", float(n)) for n, name in enumerate(names)}
