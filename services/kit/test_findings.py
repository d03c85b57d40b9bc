"""What `to_json` writes is read as it was; what is no finding is named."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.contract import Finding
from services.kit.findings import finding_in, finding_record_of
from services.kit.wire import CLOSED, NDJSON, SHADOW, Origin, WireError

ORIGIN = Origin("vela", "drill", 2, 5_000)
BRAKE = Finding(
    "0123456789abcdef", "power_throttle", "power_throttle", {"gpu": 4, "node": "v003"}, "firing", 1_700_000_000_000,
    1_700_000_015_000, "page", 0.9731, "the brake is on", "look at the supply", {"gpus": 8, "power_w": 151.25},
)  # fmt: skip
FIGURES = st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False), st.text())


@dataclass
class Written:
    """A record of the findings topic."""

    value: bytes | None
    headers: Iterable[tuple[str, bytes]] = ()
    topic: str = "findings"
    partition: int = 0
    offset: int = 0
    timestamp: int = 0
    key: bytes | None = None


@given(
    st.integers(0, 4_000_000_000_000), st.integers(0, 10**9), st.floats(0, 1), st.text(),
    st.dictionaries(st.text(), FIGURES), st.dictionaries(st.text(), st.one_of(st.integers(-(2**53), 2**53), st.text())),
)  # fmt: skip
def test_what_is_written_is_read_and_written_again_as_the_same_bytes(
    onset: int,
    delay: int,
    score: float,
    words: str,
    evidence: dict[str, float | int | str],
    entity: dict[str, str | int],
) -> None:
    finding = replace(
        BRAKE, started_at=onset, detected_at=onset + delay, score=score, summary=words, evidence=evidence, entity=entity
    )
    line = finding.to_json()
    read = finding_in(line)
    assert read.to_json() == line
    assert finding_in(read.to_json()) == read
    assert (read.started_at, read.detected_at, read.summary) == (onset, onset + delay, words)


def test_a_record_says_whose_it_is_and_when_as_shifted() -> None:
    headers = [*ORIGIN.headers(NDJSON), (SHADOW, b"1"), (CLOSED, b"closed by ada")]
    one = finding_record_of(Written(BRAKE.to_json().encode(), headers))
    assert one.finding == BRAKE
    assert one.origin == ORIGIN
    assert (one.onset_ms, one.reported_ms) == (BRAKE.started_at + 5_000, BRAKE.detected_at + 5_000)
    assert (one.shadow, one.closed, one.incident) == (True, "closed by ada", None)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"not json", "value: Invalid JSON"),
        (b"[]", "value: "),
        (b"", "no value"),
        (None, "no value"),
        (b"{}", "id: Field required"),
        (b'{"started_at": "yesterday"}', "started_at: Value error, 'yesterday' is not an RFC 3339 time"),
        (b'{"started_at": 5}', "started_at: Value error, 5 is not an RFC 3339 time"),
        (b'{"fault": "gremlins"}', "fault: Value error, no such fault"),
        (b'{"entity": 3}', "entity: "),
        (b'{"state": "perhaps"}', "state: Input should be 'firing' or 'resolved'"),
        (replace(BRAKE, detected_at=1).to_json().encode(), "before started_at"),
    ],
)
def test_an_unreadable_finding_is_named(value: bytes | None, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        finding_record_of(Written(value, ORIGIN.headers(NDJSON)))


def test_a_field_that_a_later_version_adds_is_passed_over() -> None:
    assert finding_in(json.dumps(BRAKE.document() | {"later": [1]})) == BRAKE


def test_a_record_without_origin_is_refused() -> None:
    with pytest.raises(WireError, match="unknown schema"):
        finding_record_of(Written(BRAKE.to_json().encode()))
