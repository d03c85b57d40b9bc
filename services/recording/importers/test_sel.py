from functools import partial
from pathlib import Path

import pytest

from services.kit.errors import UserError
from services.recording.conftest import imported, rows_in
from services.recording.importers.parts.machines.sel_lines import severity_of
from services.recording.importers.sel import convert
from services.recording.instants import format_instant
from services.recording.model import Event
from services.recording.reader import Recording
from tests.mangled import fuzzed, survives

_imported = partial(imported, convert)

SEL = """\
   1 | Pre-Init  |0000000013| Power Supply #0x51 | Presence detected | Asserted
   2 | Pre-Init Time-stamp   | Power Unit #0x01 | Fully Redundant | Asserted
   3 | 04/01/2024 | 08:00:02 | Event Logging Disabled #0x07 | Log area reset/cleared | Asserted
   4 | 04/01/2024 | 08:41:07 | Power Supply #0x51 | Failure detected | Asserted
   5 | 04/01/2024 | 08:41:07 | Power Unit #0x01 | Redundancy Lost | Asserted
  1a | 04/01/2024 | 08:50:00 | Temperature #0x30 | Upper Critical going high | Asserted | Reading 45 > Threshold 44 degrees C
  1b | 04/01/2024 | 08:55:00 | Temperature #0x30 | Upper Critical going high | Deasserted
  1c | 04/01/2024 | 08:56:00 | Memory #0x87 | Correctable ECC | Asserted
  1d | OEM record c0 | 000137 | 1a2b3c4d5e
"""  # noqa: E501 - lines as they are written

SDR = """\
Inlet Temp       | 25 degrees C      | ok
Exhaust Temp     | 104 degrees F     | nc
Fan1             | 4,800 RPM         | ok
Fan2             | no reading        | ns
PSU1 Input       | 1260 Watts        | ok
PSU1 Status      | 0x01              | ok
12V              | 11.2 Volts        | cr
Fan Speed        | 40 percent        | ok
Airflow          | 12 CFM            | ok
"""
ELIST = """\
Temp             | 04h | ok  |  3.1 | 41 degrees C
Temp             | 05h | ok  |  3.2 | 43 degrees C
PS1 Status       | 77h | ok  | 10.1 | Presence detected, Failure detected
PS2 Status       | 78h | ok  | 10.2 | Presence detected
PS Redundancy    | 79h | ok  |  7.1 | Fully Redundant
Pwr Consumption  | 70h | ok  |  7.1 | 2310 Watts
Current 1        | 6Ah | ok  | 10.1 | 5.40 Amps
GPU1 Temp        | 7Ah | ns  | 11.1 | Disabled
"""
SENSOR = """\
CPU1 Temp        | 41.000     | degrees C  | ok    | 0.000     | 0.000     | 0.000     | 90.000    | 95.000    | 100.000
FAN1             | 300.000    | RPM        | lcr   | 300.000   | 500.000   | 700.000   | 25300.000 | 25400.000 | 25500.000
PS1 Status       | 0x1        | discrete   | 0x0100| na        | na        | na        | na        | na        | na
FAN9             | na         |            | na    | na        | na        | na        | na        | na        | na
"""  # noqa: E501 - lines as they are written


def rows_of(recording: Recording) -> dict[str, tuple[float, str, int | None]]:
    rows = rows_in(recording, "bmc")
    return {row["sensor"]: (row["reading"], row["unit"], row["state"]) for row in rows}


def events_of(recording: Recording) -> list[Event]:
    return list(recording.events())


def test_an_event_log(tmp_path: Path) -> None:
    report, recording = _imported(tmp_path, {"v041.sel": SEL})
    events = events_of(recording)
    assert {(event.source, event.node) for event in events} == {("sel", "v041")}
    found = [(format_instant(event.timestamp)[11:19], event.severity) for event in events]
    assert found == [
        ("08:00:02", "info"), ("08:00:02", "info"), ("08:00:02", "info"), ("08:41:07", "critical"),
        ("08:41:07", "critical"), ("08:50:00", "critical"), ("08:55:00", "info"), ("08:56:00", "warning"),
        ("08:56:00", "info"),
    ]  # fmt: skip
    assert events[3].message == "4 | 04/01/2024 | 08:41:07 | Power Supply #0x51 | Failure detected | Asserted"
    assert report.skipped == {}
    assert "3 log records were put at the record after it" in str(recording.manifest.source["notes"])


def test_sensors_with_the_decimals_of_a_german_locale(tmp_path: Path) -> None:
    text = SENSOR.replace(".000", ",000").replace("41,000 ", "41,500 ", 1)
    _, recording = _imported(tmp_path, {"v1/sensor-20240401T080000Z": text})
    assert rows_of(recording) == {"CPU1 Temp": (41.5, "Cel", 0), "FAN1": (300, "RPM", 2), "PS1 Status": (0, "state", 0)}


@pytest.mark.parametrize(
    ("line", "zone", "time"),
    [
        ("1 | 03/20/21 | 00:58:40 | A | B | Asserted", "UTC", "2021-03-20T00:58:40Z"),
        ("1 | 03/20/2021 | 01:58:40 PM UTC | A | B | Asserted", "+02:00", "2021-03-20T13:58:40Z"),
        ("1 | 03/20/2021 | 12:58:40 AM | A | B | Asserted", "+02:00", "2021-03-19T22:58:40Z"),
        ("1 | 03/20/2021 | 00:58:40 -0530 | A | B | Asserted", "UTC", "2021-03-20T06:28:40Z"),
        ("1 | 2021-03-20 | 00:58:40 | A | B | Asserted", "Europe/Zurich", "2021-03-19T23:58:40Z"),
        ("17 | Mar-20-2021 | 00:58:40 | PS 1 | Power Supply | AC lost", "UTC", "2021-03-20T00:58:40Z"),
        ("1,03/20/2021,00:58:40,A,B,Asserted", "UTC", "2021-03-20T00:58:40Z"),
    ],
)
def test_forms_of_dates(tmp_path: Path, line: str, zone: str, time: str) -> None:
    _, recording = _imported(tmp_path, {"a.txt": line}, timezone=zone)
    assert [format_instant(event.timestamp) for event in events_of(recording)] == [time]


def test_sensors_as_sdr_prints_them(tmp_path: Path) -> None:
    report, recording = _imported(tmp_path, {"v041-sdr-20240401T080000Z.txt": SDR})
    assert rows_of(recording) == {
        "Inlet Temp": (25, "Cel", 0), "Exhaust Temp": (pytest.approx(40), "Cel", 1), "Fan1": (4800, "RPM", 0),
        "PSU1 Input": (1260, "W", 0), "PSU1 Status": (0, "state", 0), "12V": (11.2, "V", 2), "Fan Speed": (40, "%", 0),
    }  # fmt: skip
    assert report.skipped == {
        "a sensor without a reading": 1, "a sensor in a unit that the format does not have": 1,
    }  # fmt: skip
    assert [node.name for node in recording.topology.nodes] == ["v041"]
    assert format_instant(recording.manifest.start) == "2024-04-01T08:00:00Z"


def test_sensors_as_sdr_elist_and_sensor_print_them(tmp_path: Path) -> None:
    files = {"v1/elist-20240401T080000Z": ELIST, "v1/sensor-20240401T080000Z": SENSOR}
    report, recording = _imported(tmp_path, files)
    assert rows_of(recording) == {
        "Temp": (41, "Cel", 0), "Temp #2": (43, "Cel", 0), "PS1 Status": (2, "state", 2), "PS2 Status": (0, "state", 0),
        "PS Redundancy": (0, "state", 0), "Pwr Consumption": (2310, "W", 0), "Current 1": (5.4, "A", 0),
        "CPU1 Temp": (41, "Cel", 0), "FAN1": (300, "RPM", 2),
    }  # fmt: skip
    assert report.skipped == {
        "a sensor without a reading": 2, "a row of this time and entity was there already": 1,
    }  # fmt: skip


def test_hosts_before_the_lines_and_dumps_in_one_file(tmp_path: Path) -> None:
    lines = ["# 2024-04-01T08:00:00Z", "v1: Inlet Temp | 25 degrees C | ok", "v2: Inlet Temp | 26 degrees C | ok"]
    lines += ["1711958460", "v1: Inlet Temp | 27 degrees C | ok"]
    lines += [f"v2: {line}" for line in SEL.splitlines()]
    _, recording = _imported(tmp_path, {"all.txt": "\n".join(lines)})
    rows = rows_in(recording, "bmc")
    assert [(row["timestamp"].isoformat()[11:19], row["node"], row["reading"]) for row in rows] == [
        ("08:00:00", "v1", 25), ("08:00:00", "v2", 26), ("08:01:00", "v1", 27),
    ]  # fmt: skip
    assert {event.node for event in events_of(recording)} == {"v2"}
    assert recording.manifest.streams["bmc"].interval_s == 60


def test_dumps_that_only_options_date(tmp_path: Path) -> None:
    files = {"v1/a.txt": SDR, "v1/b.txt": SDR, "v2/a.txt": SDR}
    _, recording = _imported(tmp_path, files, start="2024-04-01T08:00:00Z", every=30)
    rows = rows_in(recording, "bmc")
    assert {(row["timestamp"].isoformat()[14:19], row["node"]) for row in rows if row["sensor"] == "12V"} == {
        ("00:00", "a"), ("00:00", "b"), ("00:30", "a"),
    }  # fmt: skip


def test_the_skew_of_a_clock_is_reported_and_not_corrected(tmp_path: Path) -> None:
    _, recording = _imported(tmp_path, {"v041.sel": SEL}, clock_skew_s=-12.5)
    assert recording.manifest.model_dump()["clock_skew_s"] == {"v041": -12.5}
    assert format_instant(events_of(recording)[3].timestamp) == "2024-04-01T08:41:07Z"


def test_a_log_dumped_twice_is_taken_once(tmp_path: Path) -> None:
    report, recording = _imported(tmp_path, {"v1/sel-20240401": SEL, "v1/sel-20240402": SEL})
    assert len(events_of(recording)) == 9
    assert report.skipped == {"a log record that an earlier dump of the log had": 9}


def test_what_is_no_record(tmp_path: Path) -> None:
    text = "SEL has no entries\n 1 | 02/30/2024 | 08:00:00 | A | B | Asserted\n | 3 Volts | ok\n" + SDR
    report, _ = _imported(tmp_path, {"v1-20240401T080000Z.txt": text})
    assert report.skipped["a line that is neither a log record nor a sensor"] == 1
    assert report.skipped["a time that cannot be"] == 1
    assert report.skipped["a sensor without a name"] == 1


def test_nothing_usable(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(SEL.splitlines()[0])
    with pytest.raises(UserError, match="with none in its log that has one"):
        convert(tmp_path / "a", tmp_path / "out")
    with pytest.raises(UserError, match="--clock-skew-s"):
        convert(tmp_path / "a", tmp_path / "out", clock_skew_s=float("nan"))
    with pytest.raises(UserError, match="--every without --start"):
        convert(tmp_path / "a", tmp_path / "out", every=3)


@pytest.mark.parametrize(
    ("record", "severity"),
    [
        ("Power Supply #0x51 | Power Supply AC lost | Asserted", "critical"),
        ("Power Supply #0x51 | Presence detected | Deasserted", "warning"),
        ("Memory | Uncorrectable ECC | Asserted", "critical"),
        ("Processor #0x0a | Throttled | Asserted", "warning"),
        ("Fan #0x41 | Lower Non-critical going low | Asserted", "warning"),
        ("Fan #0x41 | Lower Non-recoverable going low | Asserted", "critical"),
        ("System Firmware Error #0x11 | No usable system memory | Asserted", "error"),
        ("System ACPI Power State | S0/G0: working | Asserted", "info"),
    ],
)
def test_severities(record: str, severity: str) -> None:
    assert severity_of(record) == severity


@fuzzed((SEL + "2024-04-01T08:00:00Z\n" + SDR + ELIST + SENSOR).encode())
def test_mangled_output(content: bytes) -> None:
    survives(convert, {"v1-20240401T080000Z.txt": content})
