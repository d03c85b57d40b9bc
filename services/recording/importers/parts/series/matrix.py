"""What a Prometheus answers: samples of many series, read in columns from its JSON."""

import json
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from numpy.typing import NDArray

from services.kit.errors import ServerError, UserError
from services.recording.importers.parts.source_files import clean

Ints = NDArray[np.int64]

_METRIC, _VALUES = b'{"metric":', b'"values":[['
_LATEST_S = 1e11
"""Times beyond are no times: the year 5138."""


@dataclass(frozen=True)
class Matrix:
    """Samples of n series: `labels` of each, `counts` (n,) samples each, then all `times` (epoch ms) and `values`."""

    labels: list[dict[str, str]]
    counts: Ints
    times: Ints
    values: NDArray[np.float64]


def words_of(body: bytes) -> str:
    """Return what an answer that is no success says."""
    try:
        answer = json.loads(body)
        known = answer if isinstance(answer, dict) else {}
        text = str(known.get("error") or known.get("message") or answer)  # message: of a Kubernetes API server
    except (ValueError, RecursionError):
        text = body[:500].decode("utf-8", "replace")
    return " ".join(text.split())[:300]


def document_of(body: bytes, url: str = "the server") -> dict[str, Any]:
    """Return an answer that says success; UserError for any other."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict) or answer.get("status") != "success":
        raise ServerError(
            f"{url} answers with something that is no query result: {words_of(body)[:120]}",
            remedy="give the address of a Prometheus or Thanos query API",
        )
    return answer


def matrix_of(body: bytes) -> Matrix:
    """Return the samples of an answer that is a matrix; UserError if it is none.

    Prometheus' own compact form is read in columns; any other form of the same JSON as JSON.
    """
    compact = _compact(body)
    return _plain(body) if compact is None else compact


def _compact(body: bytes) -> Matrix | None:
    """Return the samples where every series is ``{"metric":{…},"values":[[t,"v"],…]}``; None for other forms.

    Inside a JSON string every quote is escaped, so the marks searched for cannot be part of a label.
    """
    if not body.startswith(b'{"status":"success"'):
        return None
    labels: list[dict[str, str]] = []
    blocks: list[bytes] = []
    decoder = json.JSONDecoder()
    at = 0
    while (begin := body.find(_VALUES, at)) >= 0:
        head = body.find(_METRIC, at, begin)
        end = body.find(b"]]", begin)
        if head < 0 or end < 0:
            return None
        try:
            named, _ = decoder.raw_decode(body[head + len(_METRIC) : begin].decode())
        except (ValueError, RecursionError):
            return None
        if not isinstance(named, dict):
            return None
        labels.append(_texts(named))
        blocks.append(body[begin + len(_VALUES) : end])
        at = end
    if body.count(_METRIC) != len(labels) or not labels:
        return None
    counts = np.array([block.count(b"],[") + 1 for block in blocks], np.int64)
    return _columns(labels, counts, b"\n".join(blocks).replace(b"],[", b"\n"))


def _texts(labels: dict[Any, Any]) -> dict[str, str]:
    """Return labels as text that can be written: JSON may hold halves of characters."""
    return {clean(str(name)): clean(str(value)) for name, value in labels.items()}


def _columns(labels: list[dict[str, str]], counts: Ints, lines: bytes) -> Matrix | None:
    try:
        table = pyarrow.csv.read_csv(
            BytesIO(lines),
            read_options=pyarrow.csv.ReadOptions(column_names=["time", "value"], use_threads=False),
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values=False),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types={"time": pa.float64(), "value": pa.string()}, null_values=[], strings_can_be_null=False
            ),
        )
        value: Any = table.column("value").combine_chunks()
        values = np.asarray(_numbers(value), dtype=np.float64)
    except (pa.ArrowInvalid, ValueError):
        return None
    stamps = table.column("time").to_numpy()
    if table.num_rows != counts.sum() or not (np.abs(stamps) < _LATEST_S).all():
        return None
    return Matrix(labels, counts, np.rint(stamps * 1000).astype(np.int64), values)


def _numbers(texts: Any) -> Any:
    """Return texts as doubles; Arrow does not read Go's ``+Inf``."""
    return pc.replace_substring_regex(texts, r"^\+", "").cast(pa.float64()).to_numpy(zero_copy_only=False)


def _plain(body: bytes) -> Matrix:
    data = document_of(body).get("data")
    result = data.get("result") if isinstance(data, dict) else None
    labels: list[dict[str, str]] = []
    counts: list[int] = []
    flat: list[tuple[float, float]] = []
    try:
        for item in result or ():
            samples = [(float(at), float(value)) for at, value in item.get("values", ())]
            labels.append(_texts(item["metric"]))
            counts.append(len(samples))
            flat += samples
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise _no_sample(str(error)) from error
    pairs = np.array(flat, np.float64).reshape(-1, 2)
    if not (np.abs(pairs[:, 0]) < _LATEST_S).all():
        raise _no_sample("its time is none")
    return Matrix(labels, np.array(counts, np.int64), np.rint(pairs[:, 0] * 1000).astype(np.int64), pairs[:, 1])


def _no_sample(problem: str) -> UserError:
    return ServerError(
        f"the server's answer holds what is no sample: {problem}",
        remedy="give the address of a Prometheus or Thanos query API",
    )
