import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit import wire
from services.kit.wire import Origin, Watermark, WireError
from tests.mangled import fuzzed

ORIGIN = Origin("vela", "brake-2", generation=3, shift_ms=-17, target="receive")


@dataclass
class Got:
    """A record as a consumer hands it out."""

    headers: Iterable[tuple[str, bytes]]
    value: bytes | None = None
    topic: str = "telemetry.dcgm"
    partition: int = 0
    offset: int = 0
    timestamp: int = 0
    key: bytes | None = field(default=None)


def test_origin_survives_the_headers() -> None:
    assert wire.origin_of(ORIGIN.headers(wire.ARROW)) == ORIGIN
    assert ORIGIN.unit == "vela/brake-2"


@given(at=st.integers(min_value=0, max_value=2**42), end=st.booleans())
def test_mark_survives(at: int, end: bool) -> None:
    watermark = Watermark(at, end)
    assert wire.payload_of(Got(ORIGIN.headers(wire.WATERMARK) + watermark.headers())) == watermark


@given(st.lists(st.tuples(st.integers(0, 2**41), st.floats(width=32), st.none() | st.floats())))
def test_batch_survives(rows: list[tuple[int, float, float | None]]) -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "timestamp": pa.array([row[0] for row in rows], pa.timestamp("ms", "UTC")),
            "node": pa.array(["v001"] * len(rows)).dictionary_encode(),
            "a": pa.array([row[1] for row in rows], pa.float32()),
            "b": pa.array([row[2] for row in rows], pa.float64()),
        }
    )
    back = wire.payload_of(Got(ORIGIN.headers(wire.ARROW), wire.encode_batch(batch)))
    assert isinstance(back, pa.RecordBatch)
    assert repr(back.to_pylist()) == repr(batch.to_pylist())


def test_rows_keep_nan_apart_from_null() -> None:
    rows: list[wire.Row] = [{"loss": float("nan")}, {"loss": None}]
    back = wire.payload_of(Got(ORIGIN.headers(wire.NDJSON), wire.encode_rows(rows)))
    assert repr(back) == repr(rows)


@pytest.mark.parametrize(
    ("headers", "value", "reason"),
    [
        ([], b"x", "unknown content-type"),
        ([("content-type", wire.ARROW)], None, "no value"),
        ([("content-type", wire.ARROW)], b"not arrow", "not an Arrow stream"),
        ([("content-type", wire.NDJSON)], b'{"a":1}\n{"a"', "line 2 is not JSON"),
        ([("content-type", wire.NDJSON)], b"[1]", "line 1 is not a JSON object"),
        ([("content-type", wire.WATERMARK)], None, "mark-ms"),
    ],
)
def test_what_cannot_be_decoded_says_why(headers: list[tuple[str, bytes]], value: bytes | None, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        wire.payload_of(Got(headers, value))


BATCH = pa.RecordBatch.from_pydict({"node": pa.array(["v1", "v2"]).dictionary_encode(), "a": [1.5, None]})
ROWS = wire.encode_rows([{"timestamp": "2024-04-01T08:00:00.000Z", "node": "v1", "a": float("nan"), "b": [1, {}]}] * 2)


@pytest.mark.parametrize("content_type", [wire.ARROW, wire.NDJSON])
@fuzzed(wire.encode_batch(BATCH), ROWS)
def test_no_bytes_bring_the_decoder_down(content_type: bytes, content: bytes) -> None:
    with contextlib.suppress(WireError):
        payload = wire.payload_of(Got([("content-type", content_type)], content))
        if isinstance(payload, pa.RecordBatch):
            payload.validate(full=True)


@fuzzed(*(value for _, value in ORIGIN.headers(wire.ARROW)), b"1711958400000")
def test_no_header_brings_the_decoder_down(content: bytes) -> None:
    with contextlib.suppress(WireError):
        wire.payload_of(Got([("content-type", wire.WATERMARK), ("mark-ms", content), ("mark-end", content)]))
    for name, _ in ORIGIN.headers(wire.ARROW):
        with contextlib.suppress(WireError):
            wire.origin_of([*ORIGIN.headers(wire.ARROW), (name, content)])


def test_a_truncated_batch_is_a_wire_error() -> None:
    whole = wire.encode_batch(pa.RecordBatch.from_pydict({"a": pa.array(range(100))}))
    for cut in range(1, len(whole) - 8, 7):
        with pytest.raises(WireError):
            wire.payload_of(Got([("content-type", wire.ARROW)], whole[:cut]))


@pytest.mark.parametrize("lost", ["schema", "cluster", "replay", "generation", "shift-ms"])
def test_a_missing_header_is_named(lost: str) -> None:
    headers = [pair for pair in ORIGIN.headers(wire.ARROW) if pair[0] != lost]
    with pytest.raises(WireError, match=lost):
        wire.origin_of(headers)
