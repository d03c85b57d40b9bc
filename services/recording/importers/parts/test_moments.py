from datetime import UTC
from pathlib import Path

import pytest

from services.kit.errors import UserError
from services.recording.importers.parts.moments import (
    DumpClock,
    dump_clock,
    instant_option,
    interval_s,
    time_in_name,
)
from services.recording.importers.parts.zones import zone_of
from services.recording.instants import format_instant


@pytest.mark.parametrize(
    ("name", "time"),
    [
        ("sdr-20240401T080000Z.txt", "2024-04-01T08:00:00Z"),
        ("sdr_2024-04-01_08-00-00", "2024-04-01T08:00:00Z"),
        ("2024-04-01T08:00:00+02:00.json", "2024-04-01T06:00:00Z"),
        ("dump.20240401080000.json", "2024-04-01T08:00:00Z"),
        ("leaf1-1711958400.json", "2024-04-01T08:00:00Z"),
        ("leaf1-1711958400250.json", "2024-04-01T08:00:00.250Z"),
        ("20249901T080000Z", None),
        ("20240231T080000Z", None),
        ("20240401", None),
        ("0x1711958400aa.out", None),
        ("0x7cfe9003009ce5b0-1.out", None),
        ("node12", None),
    ],
)
def test_times_in_names(name: str, time: str | None) -> None:
    found = time_in_name(name)
    assert (None if found is None else format_instant(found)) == time


def test_a_name_without_a_zone_is_read_in_the_zone_given() -> None:
    assert time_in_name("2024-07-01_08-00-00", zone_of("Europe/Zurich")) == time_in_name("20240701T060000Z")


@pytest.mark.parametrize("text", ["Mars/Base", "+25:00", "+01:99", "../../etc/passwd", "\x00", ""])
def test_zones_that_are_none(text: str) -> None:
    with pytest.raises(UserError, match="--timezone"):
        zone_of(text)


def test_what_gives_the_time_of_a_dump(tmp_path: Path) -> None:
    folder = tmp_path / "20240401T080000Z" / "v1"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text("{}")
    assert DumpClock(tmp_path).of(folder / "a.json") == (time_in_name("20240401T080000Z"), "name")
    (tmp_path / "b.json").write_text("{}")
    assert DumpClock(tmp_path).of(tmp_path / "b.json")[1] == "mtime"
    clock = dump_clock(tmp_path, "2024-04-01T09:00:00Z", 30, "UTC")
    assert clock.of(folder / "a.json", 2) == (time_in_name("20240401T090100Z"), "option")


@pytest.mark.parametrize(
    ("at", "every"), [("", 5.0), ("2024-04-01", 0.0), ("2024-04-01T08:00:00Z", -1.0), ("1900-01-01T00:00:00Z", 0.0)]
)
def test_bad_options_of_time(at: str, every: float) -> None:
    with pytest.raises(UserError):
        dump_clock(Path(), at, every, "UTC")
    assert instant_option("", "--start") is None


def test_the_interval_is_the_median_of_each_entitys_own() -> None:
    assert interval_s([{0, 1000, 2000, 3000, 60_000}]) == 1
    assert interval_s([{0, 30_000, 60_000}, {300, 30_300}]) == 30
    assert interval_s([{0}, {5}]) is None
    assert zone_of("utc") is UTC
