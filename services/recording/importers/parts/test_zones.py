from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.errors import UserError
from services.recording.importers.parts.zones import ZoneError, placed, zone_of

ZONES = (
    "Europe/Zurich",
    "Europe/London",
    "America/New_York",
    "America/Los_Angeles",
    "Asia/Tokyo",
    "Australia/Adelaide",
)
MOMENTS = st.datetimes(datetime(2020, 1, 1), datetime(2029, 12, 31)).map(lambda moment: moment.replace(tzinfo=UTC))  # noqa: DTZ001


@given(moment=MOMENTS, name=st.sampled_from(ZONES))
def test_what_a_machine_writes_with_its_zones_name_is_the_same_instant(moment: datetime, name: str) -> None:
    here = moment.astimezone(ZoneInfo(name))
    plain, word = here.replace(tzinfo=None, fold=0), here.tzname()
    assert word is not None
    if word == "PST":
        with pytest.raises(ZoneError, match="PST, which is several zones"):
            placed(plain, word, UTC)
    else:
        assert placed(plain, word, UTC) == moment
    assert placed(plain, word, ZoneInfo(name)) == moment


@pytest.mark.parametrize("zone", ["America/Chicago", "Asia/Shanghai"])
def test_a_name_of_several_zones_is_that_of_the_option(zone: str) -> None:
    january = datetime(2024, 1, 1, 12)  # noqa: DTZ001
    assert placed(january, "CST", zone_of(zone)).utcoffset() == ZoneInfo(zone).utcoffset(january)


def test_what_is_no_zone_is_no_time() -> None:
    with pytest.raises(ZoneError, match="not known"):
        placed(datetime(2024, 1, 1), "XYZ", UTC)  # noqa: DTZ001
    assert placed(datetime(2024, 1, 1), None, zone_of("cest")).utcoffset() == timedelta(hours=2)  # noqa: DTZ001
    for text in ("Mars", "+25:00", "../etc/passwd", ""):
        with pytest.raises(UserError, match="--timezone"):
            zone_of(text)
