from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.recording.instants import format_instant, parse_instant, parse_offset, resolve_instant


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


def test_offsets_count_from_the_start() -> None:
    assert parse_offset("+01:30:00") == 5_400_000
    assert resolve_instant("+00:00:01.5", 1000) == 2500
    with pytest.raises(ValueError, match=r"\+01:30:00"):
        parse_offset("+90")
