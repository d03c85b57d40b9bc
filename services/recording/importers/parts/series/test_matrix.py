import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.kit.errors import UserError
from services.recording.importers.parts.series import matrix
from services.recording.importers.parts.series.matrix import Matrix, matrix_of
from tests.mangled import fuzzed

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ['"values":[[', '{"metric":', "]]", '"],["', "\\", "é\u2028"]
)
NAMES = st.dictionaries(TEXT, TEXT, max_size=4)
TIMES = st.integers(0, 4_000_000_000_000)
VALUES = st.floats() | st.sampled_from([0.0, 1e300, 5e-324, 2.0**53 + 2])
SERIES = st.lists(st.tuples(NAMES, st.lists(st.tuples(TIMES, VALUES), max_size=6)), max_size=5)


def go_number(value: float) -> str:
    """As Go's strconv writes it: what Prometheus answers with."""
    if math.isnan(value):
        return "NaN"
    return ("+Inf" if value > 0 else "-Inf") if math.isinf(value) else repr(value).removesuffix(".0")


def answer(series: list[tuple[dict[str, str], list[tuple[int, float]]]], **more: Any) -> dict[str, Any]:
    result = [
        {"metric": labels, "values": [[ms / 1000, go_number(value)] for ms, value in samples]}
        for labels, samples in series
    ]
    return {"status": "success", "data": {"resultType": "matrix", "result": result}, **more}


def same(a: Matrix, b: Matrix) -> None:
    assert a.labels == b.labels
    assert a.counts.tolist() == b.counts.tolist()
    assert a.times.tolist() == b.times.tolist()
    assert np.array_equal(a.values, b.values, equal_nan=True)


@given(series=SERIES, compact=st.booleans(), escaped=st.booleans())
@settings(deadline=None)
def test_every_sample_comes_out_as_it_went_in(series: Any, compact: bool, escaped: bool) -> None:
    separators = (",", ":") if compact else (", ", ": ")
    found = matrix_of(json.dumps(answer(series), separators=separators, ensure_ascii=escaped).encode())
    assert found.labels == [labels for labels, _ in series]
    assert found.counts.tolist() == [len(samples) for _, samples in series]
    flat = [sample for _, samples in series for sample in samples]
    assert found.times.tolist() == [ms for ms, _ in flat]
    assert np.array_equal(found.values, [value for _, value in flat], equal_nan=True)


def test_prometheus_own_form_is_read_in_columns() -> None:
    series = [({"__name__": "x", "a": 'b"values":[['}, [(1, 1.5), (2, math.inf), (3, -math.inf), (4, math.nan)])]
    body = json.dumps(answer(series, warnings=["slow"]), separators=(",", ":")).encode()
    compact = matrix._compact(body)
    assert compact is not None
    same(compact, matrix._plain(body))


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{}", b"null", b"<html>", b"[" * 100_000, b'{"status":"error","error":"no"}',
        b'{"status":"success","data":{"result":[{"metric":{},"values":[[1,"x"]]}]}}',
        b'{"status":"success","data":{"result":[{"metric":{},"values":[[1e300,"1"]]}]}}',
        b'{"status":"success","data":{"result":[{"metric":{},"values":[["NaN","1"]]}]}}',
        b'{"status":"success","data":{"result":[{"values":[[1,"1"]]}]}}',
        b'{"status":"success","data":{"result":[7]}}',
        b'{"status":"success","data":{"result":[{"metric":[1],"values":[[1,"1"]]}]}}',
        b'{"status":"success","data":{"result":7}}',
    ],
)  # fmt: skip
def test_what_is_no_matrix_is_a_clear_error(body: bytes) -> None:
    with pytest.raises(UserError) as raised:
        matrix_of(body)
    assert raised.value.exit_code == 3


SAMPLE = json.dumps(
    answer(
        [({"__name__": "x", "gpu": str(gpu)}, [(ms, gpu + ms / 7) for ms in range(0, 9000, 500)]) for gpu in range(4)]
    ),
    separators=(",", ":"),
).encode()


@fuzzed(SAMPLE)
def test_a_mangled_answer_is_a_matrix_or_a_clear_error(content: bytes) -> None:
    try:
        found = matrix_of(content)
    except UserError:
        return
    assert len(found.times) == len(found.values) == found.counts.sum()
    assert len(found.labels) == len(found.counts)


def test_labels_are_text_that_can_be_written() -> None:
    body = b'{"status":"success","data":{"result":[{"metric":{"a":"\\ud800","b":7},"values":[[1,"1"]]}]}}'
    assert matrix_of(body).labels == [{"a": "?", "b": "7"}]
