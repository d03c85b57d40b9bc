"""Event logs as ipmitool and vendors' tools print them, over versions and locales: what is written is read."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.errors import UserError
from services.recording.conftest import imported
from services.recording.importers.sel import convert
from services.recording.importers.test_sel import SDR
from services.recording.model import Event
from services.recording.reader import Recording
from tests.mangled import FUZZ, fuzzed, survives

ZURICH = ZoneInfo("Europe/Zurich")
START = datetime(2024, 4, 1, 8, tzinfo=UTC)


class Entry(NamedTuple):
    after_s: int
    sensor: str
    number: int
    what: str
    asserted: bool

    def local(self) -> datetime:
        return (START + timedelta(seconds=self.after_s)).astimezone(ZURICH)


LOCALES: dict[str, Callable[[datetime], tuple[str, str]]] = {
    # ipmitool 1.8.18 writes m/d/Y; 1.8.19 the locale's %x and %X, and the zone's name.
    "1.8.18": lambda at: (at.strftime("%m/%d/%Y"), at.strftime("%H:%M:%S")),
    "C": lambda at: (at.strftime("%m/%d/%y"), at.strftime("%H:%M:%S %Z")),
    "en_US": lambda at: (at.strftime("%m/%d/%Y"), at.strftime("%I:%M:%S %p %Z")),
    "de_DE": lambda at: (at.strftime("%d.%m.%Y"), at.strftime("%H:%M:%S %Z")),
    "sv_SE": lambda at: (at.strftime("%Y-%m-%d"), at.strftime("%H:%M:%S %Z")),
}


def listed(entries: Sequence[Entry], locale: str) -> str:
    lines = []
    for number, entry in enumerate(entries, 1):
        date, clock = LOCALES[locale](entry.local())
        state = "Asserted" if entry.asserted else "Deasserted"
        lines.append(f"{number:4x} | {date} | {clock} | {entry.sensor} #0x{entry.number:02x} | {entry.what} | {state}")
    return "\n".join(lines) + "\n"


def verbose(entries: Sequence[Entry], locale: str) -> str:
    blocks = []
    for number, entry in enumerate(entries, 1):
        date, clock = LOCALES[locale](entry.local())
        direction = "Assertion Event" if entry.asserted else "Deassertion Event"
        fields = {
            "Record Type": "02", "Timestamp": f"{date} {clock}", "Generator ID": "0020", "EvM Revision": "04",
            "Sensor Type": entry.sensor, "Sensor Number": f"{entry.number:02x}",
            "Event Type": "Sensor-specific Discrete", "Event Direction": direction, "Event Data": "01ffff",
            "Description": entry.what,
        }  # fmt: skip
        lines = [f"SEL Record ID          : {number:04x}", *(f" {name:<22}: {text}" for name, text in fields.items())]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n\n"


def getsel(entries: Sequence[Entry]) -> str:
    """Return what `racadm getsel` prints."""
    records = [
        f"Record:      {number}\nDate/Time:   {entry.local():%m/%d/%Y %H:%M:%S}\nSource:      system\n"
        f"Severity:    Critical\nDescription: {entry.sensor}: {entry.what}.\n{'-' * 79}\n"
        for number, entry in enumerate(entries, 1)
    ]
    return "".join(records)


def lclog(entries: Sequence[Entry]) -> str:
    """Return what `racadm lclog view` prints."""
    records = [
        f"SeqNumber       = {number}\nMessage ID      = PSU0003\nCategory        = System Health\n"
        f"AgentID         = SEL\nSeverity        = Critical\n"
        f"Timestamp       = {entry.local():%Y-%m-%d %H:%M:%S}\nMessage Arg   1 = 1\n"
        f"Message         = {entry.sensor}: {entry.what}.\nFQDD            = PSU.Slot.1\n{'-' * 79}\n"
        for number, entry in enumerate(entries, 1)
    ]
    return "".join(records)


ENTRIES = st.lists(
    st.builds(
        Entry,
        st.integers(0, 10**7),  # before the hour in autumn that comes twice
        st.sampled_from(["Power Supply", "Fan", "Temperature", "Event Logging Disabled"]),
        st.integers(0, 255),
        st.sampled_from(["Failure detected", "Log area reset/cleared", "Correctable ECC", "Fully Redundant"]),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


def events_of(text: str) -> list[Event]:
    with TemporaryDirectory() as folder:
        report, recording = imported(convert, Path(folder), {"v1.txt": text}, timezone="Europe/Zurich")
        assert not report.skipped
        return list(recording.events())


def times(entries: Sequence[Entry]) -> list[int]:
    return sorted(round((START + timedelta(seconds=entry.after_s)).timestamp() * 1000) for entry in entries)


@pytest.mark.parametrize("write", [listed, verbose])
def test_dates_of_a_british_locale_are_known_by_those_that_no_month_fits(
    write: Callable[[Sequence[Entry], str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LOCALES, "en_GB", lambda at: (at.strftime("%d/%m/%y"), at.strftime("%H:%M:%S %Z")))
    entries = [Entry(86_400 * day, "PSU1", 81, "Failure detected", asserted=True) for day in (0, 2, 11, 14)]
    assert [event.timestamp for event in events_of(write(entries, "en_GB"))] == times(entries)


@pytest.mark.parametrize("write", [listed, verbose])
@given(entries=ENTRIES, locale=st.sampled_from(list(LOCALES)))
@FUZZ
def test_what_ipmitool_writes_is_read(
    write: Callable[[Sequence[Entry], str], str], entries: list[Entry], locale: str
) -> None:
    found = events_of(write(entries, locale))
    assert [event.timestamp for event in found] == times(entries)
    lines = [line.strip() for line in listed(entries, locale).splitlines()]
    assert sorted(event.message for event in found) == sorted(lines), "both forms give the line of `sel list`"
    assert {event.severity for event in found if "Failure detected | Asserted" in event.message} <= {"critical"}


@pytest.mark.parametrize("write", [getsel, lclog])
@given(entries=ENTRIES)
@FUZZ
def test_what_racadm_writes_is_read(write: Callable[[Sequence[Entry]], str], entries: list[Entry]) -> None:
    found = events_of(write(entries))
    assert [event.timestamp for event in found] == times(entries)
    words = sorted(f"{entry.sensor}: {entry.what}." for entry in entries)
    assert sorted(event.message.split(" | ")[-2] for event in found) == words
    assert {event.severity for event in found} == {"critical"}, "as the vendor says"


def test_an_ilo_record_and_sensors_behind_it(tmp_path: Path) -> None:
    text = (
        "/system1/log1/record2\n  Properties\n    number=2\n    severity=Caution\n    date=04/01/2024\n    time=08:41\n"
        "    description=System Power Supply: General Failure (Power Supply 2)\n  Verbs\n"
    )
    (tmp_path / "v8-20240401T080000Z.txt").write_text(text + SDR)
    report = convert(tmp_path / "v8-20240401T080000Z.txt", tmp_path / "out")
    (event,) = Recording.open(tmp_path / "out").events()
    assert (event.timestamp, event.severity) == (times([Entry(2460, "", 0, "", True)])[0], "warning")
    assert report.made["bmc"] == 7


@pytest.mark.parametrize(
    ("zone", "reason"), [("CST", "CST, which is several zones"), ("XYZ", "zone that is not known")]
)
def test_a_zone_that_cannot_be_known_is_reported(tmp_path: Path, zone: str, reason: str) -> None:
    (tmp_path / "v1.txt").write_text(f"1 | 04/01/2024 | 10:17:29 AM {zone} | Fan #0x30 | Failure detected | Asserted\n")
    with pytest.raises(UserError, match=reason):
        convert(tmp_path / "v1.txt", tmp_path / "out")


MANY = [Entry(60 * number, "Power Supply", 0x51, "Failure detected", number % 2 == 0) for number in range(4)]


@fuzzed((verbose(MANY, "de_DE") + getsel(MANY) + lclog(MANY)).encode())
def test_mangled_records(content: bytes) -> None:
    survives(convert, {"v1.txt": content})
