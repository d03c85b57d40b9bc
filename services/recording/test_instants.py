from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.times import parse_instant
from services.recording.instants import format_instant, parse_offset, resolve_instant, resolve_past


@given(st.integers(0, 4_102_444_800_000))
def test_every_instant_survives_being_written(ms: int) -> None:
    assert parse_instant(format_instant(ms)) == ms


def test_milliseconds_are_written_only_where_there_are_any() -> None:
    assert format_instant(1_711_958_400_000) == "2024-04-01T08:00:00Z"
    assert format_instant(1_711_958_400_040) == "2024-04-01T08:00:00.040Z"


@pytest.mark.parametrize("value", ["2024-04-01T08:00:00", "yesterday", 1_711_958_400, None, datetime(2024, 4, 1)])  # noqa: DTZ001 - a time without a zone is the point
def test_a_time_without_a_zone_or_shape_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"time"):
        parse_instant(value)


def test_other_zones_are_converted() -> None:
    assert parse_instant("2024-04-01T10:00:00+02:00") == parse_instant(datetime(2024, 4, 1, 8, tzinfo=UTC))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("+1h30m", 5400), ("+90m", 5400), ("+2d", 172_800), ("+45s", 45), ("+1.5s", 1.5), ("+05:00", 300)],
)
def test_offsets_have_units_or_colons(text: str, seconds: float) -> None:
    assert parse_offset(text) == seconds * 1000


@pytest.mark.parametrize("text", ["+", "-", "+5", "+5x", "+1m2h", "5m", "+-5m", "+ 5m", "+99999999999h"])
def test_what_is_no_offset_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an offset"):
        parse_offset(text)


def test_a_minus_counts_from_the_end_where_there_is_one() -> None:
    assert resolve_instant("-5m", 1000, 1_000_000) == 700_000
    assert resolve_instant("-00:00:01", 1000, 9000) == 8000
    with pytest.raises(ValueError, match="is not an RFC 3339 time"):
        resolve_instant("-5m", 1000)


@pytest.mark.parametrize(
    ("text", "ago_s"), [("now", 0), ("-2h", 7200), ("now-2h", 7200), ("-00:01:00", 60), ("1970-01-02T00:00:00Z", 0)]
)
def test_the_past_is_counted_from_now(text: str, ago_s: int) -> None:
    assert resolve_past(text, 86_400_000) == 86_400_000 - ago_s * 1000


@pytest.mark.parametrize("text", ["tomorrow", "+2h", "now+2h", "-2", "now-", "2024-04-01T08:00:00"])
def test_what_is_no_time_in_the_past_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not an|no time zone"):
        resolve_past(text, 86_400_000)


def test_offsets_count_from_the_start() -> None:
    assert parse_offset("+01:30:00") == 5_400_000
    assert resolve_instant("+00:00:01.5", 1000) == 2500
    with pytest.raises(ValueError, match=r"\+01:30:00"):
        parse_offset("+90")
