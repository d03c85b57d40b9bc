"""Times as text: one parser, which cuts what is finer than a millisecond."""

import pytest

from services.kit.errors import UserError
from services.kit.times import format_time, parse_instant, parse_time


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("2024-04-01T08:00:00.9999Z", "2024-04-01T08:00:00.999Z"),
        ("2024-04-01T10:00:00.0005+02:00", "2024-04-01T08:00:00.000Z"),
        ("1969-12-31T23:59:59.9995Z", "1969-12-31T23:59:59.999Z"),
    ],
)
def test_what_is_finer_than_a_millisecond_is_cut_off_wherever_it_is_read(text: str, written: str) -> None:
    assert format_time(parse_time(text)) == written
    assert parse_instant(text) == parse_time(text)


@pytest.mark.parametrize("text", ["yesterday", "2024-04-01T08:00:00", ""])
def test_what_is_no_instant_is_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(UserError, match="time") as refused:
        parse_time(text)
    assert "2024-04-01T08:00:00Z" in str(refused.value.remedy)
