"""Logs and scrapes made as their tools write them, over forms, locales and zones: what is written is read."""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.recording.conftest import imported, rows_in
from services.recording.importers import dcgm_text, kernel_log, redfish
from services.recording.importers.test_kernel_log import XID
from tests.mangled import FUZZ

START = datetime(2024, 4, 1, 8, tzinfo=UTC)
ZURICH = ZoneInfo("Europe/Zurich")


class Line(NamedTuple):
    after_s: int
    text: str

    @property
    def at(self) -> datetime:
        return START + timedelta(seconds=self.after_s)


LINES = st.lists(
    st.builds(
        Line,
        st.integers(0, 10**6),
        st.sampled_from([XID, "mlx5_core 0000:41:00.1: Link down", "EDAC MC0: 1 CE memory read error", "x: y=[z] {w}"]),
    ),
    min_size=1,
    max_size=12,
).map(lambda lines: sorted(lines, key=lambda line: line.after_s))


def local(line: Line) -> datetime:
    return line.at.astimezone(ZURICH)


FORMS: dict[str, tuple[Callable[[Line], str], dict[str, Any]]] = {
    # How a tool on a machine in Zurich writes a line of the kernel's, and the options that importing it takes.
    "dmesg -T": (lambda line: f"[{local(line):%a %b %e %H:%M:%S %Y}] {line.text}", {"timezone": "Europe/Zurich"}),
    "dmesg --time-format iso": (lambda line: f"{local(line):%Y-%m-%dT%H:%M:%S},000000+02:00 {line.text}", {}),
    "dmesg": (lambda line: f"[{line.after_s:5d}.000000] {line.text}", {"boot": "2024-04-01T08:00:00Z"}),
    "journalctl": (
        lambda line: f"{local(line):%b %d %H:%M:%S} g7 kernel: {line.text}", {"timezone": "CEST", "year": 2024},
    ),
    "journalctl -o short-full": (lambda line: f"{local(line):%a %Y-%m-%d %H:%M:%S %Z} g7 kernel: {line.text}", {}),
    "journalctl -o short-iso": (lambda line: f"{local(line):%Y-%m-%dT%H:%M:%S%z} g7 kernel: {line.text}", {}),
    "journalctl -o json": (
        lambda line: json.dumps(
            {"__REALTIME_TIMESTAMP": f"{round(line.at.timestamp())}000000", "_HOSTNAME": "g7", "_TRANSPORT": "kernel",
             "MESSAGE": line.text}
        ), {},
    ),
    "syslog with a zone": (
        lambda line: f"{local(line):%b %e %H:%M:%S %Z} g7 kernel: [ 12.345678] {line.text}", {"year": 2024},
    ),
    "syslog in English": (
        lambda line: f"{local(line):%b %e %I:%M:%S %p %Z} g7 kernel: {line.text}", {"year": 2024},
    ),
    "ISO with a zone": (lambda line: f"{local(line):%Y-%m-%d %H:%M:%S %Z} g7 kernel: {line.text}", {}),
}  # fmt: skip


def milliseconds(lines: Sequence[Line]) -> list[int]:
    return [round(line.at.timestamp() * 1000) for line in lines]


@pytest.mark.parametrize("form", FORMS)
@given(lines=LINES)
@FUZZ
def test_every_form_of_a_kernels_log_is_read(form: str, lines: list[Line]) -> None:
    write, options = FORMS[form]
    text = "\n".join(map(write, lines)) + "\n"
    with TemporaryDirectory() as folder:
        report, recording = imported(kernel_log.convert, Path(folder), {"dmesg-g7.txt": text}, **options)
        events = list(recording.events())
    assert not report.skipped
    assert [event.timestamp for event in events] == milliseconds(lines)
    assert sorted(event.message for event in events) == sorted(line.text for line in lines)
    assert {event.node for event in events} == {"g7"}
    assumed = any("name no zone" in note for note in report.notes)
    assert assumed == ("timezone" in options), "what was assumed is reported, and only then"


VENDORS: dict[str, Callable[[Line], dict[str, Any]]] = {
    "iDRAC": lambda line: {
        "@odata.type": "#LogEntry.v1_6_1.LogEntry", "Id": str(line.after_s), "Created": f"{local(line).isoformat()}",
        "Message": line.text, "MessageId": "PSU0003", "Severity": "Critical", "EntryType": "SEL",
    },
    "iLO": lambda line: {
        "@odata.type": "#LogEntry.v1_1_0.LogEntry", "Id": str(line.after_s), "Created": f"{line.at:%Y-%m-%dT%H:%M:%SZ}",
        "Message": line.text, "OemRecordFormat": "Hpe-IML", "Severity": "Critical", "EntryType": "Oem",
    },
    "OpenBMC": lambda line: {
        "Id": str(line.after_s), "Created": f"{line.at:%Y-%m-%dT%H:%M:%S+00:00}", "Message": line.text,
        "EntryType": "Event", "Severity": "Critical",
    },
    "an event service": lambda line: {
        "EventId": str(line.after_s), "EventTimestamp": f"{line.at:%Y-%m-%dT%H:%M:%SZ}", "Message": line.text,
        "MessageId": "ResourceEvent.1.0.ResourceErrorsDetected", "MessageSeverity": "Critical", "EventType": "Alert",
    },
}  # fmt: skip
HOLDERS = {
    "Members": {"@odata.type": "#LogEntryCollection.LogEntryCollection"},
    "Events": {"@odata.type": "#Event.v1_7_0.Event", "Id": "1", "Name": "Events"},
    "value": {},
}


@pytest.mark.parametrize("vendor", VENDORS)
@given(lines=LINES, holder=st.sampled_from(list(HOLDERS)))
@FUZZ
def test_the_event_logs_of_vendors_are_read(vendor: str, lines: list[Line], holder: str) -> None:
    lines = list({line.after_s: line for line in lines}.values())
    document = {**HOLDERS[holder], holder: [VENDORS[vendor](line) for line in lines]}
    with TemporaryDirectory() as folder:
        report, recording = imported(redfish.convert, Path(folder), {"v9.json": json.dumps(document)})
        events = list(recording.events())
    assert not report.skipped
    assert [event.timestamp for event in events] == milliseconds(lines)
    assert all(line.text in event.message for line, event in zip(lines, events, strict=True))
    assert {(event.node, event.source, event.severity) for event in events} == {("v9", "sel", "critical")}


def exposition(taken: list[dict[str, float]], release: str, *, timed: bool) -> str:
    """Return what dcgm-exporter of a release exposes of a node's GPUs, with each scrape's time where `timed`."""
    host = {"2": "Hostname", "3": "Hostname", "4": "hostname"}[release]
    lines = []
    for moment, values in enumerate(taken):
        stamp = f" {round((START + timedelta(seconds=15 * moment)).timestamp() * 1000)}" if timed else ""
        for name, value in values.items():
            lines += [f"# HELP {name} x", f"# TYPE {name} gauge"]
            for gpu in range(2):
                labels = (
                    f'gpu="{gpu}",UUID="GPU-{gpu}",device="nvidia{gpu}",modelName="NVIDIA H100 80GB HBM3",{host}="g7"'
                )
                labels += ',pci_bus_id="00000000:18:00.0"' if release != "2" else ""
                lines.append(f"{name}{{{labels}}} {value + gpu:g}{stamp}")
    return "\n".join(lines) + "\n"


FIELDS = ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_XID_ERRORS")


@given(
    taken=st.lists(
        st.fixed_dictionaries(dict.fromkeys(FIELDS, st.integers(0, 4000).map(float))), min_size=1, max_size=4
    ),
    release=st.sampled_from(["2", "3", "4"]),
)
@FUZZ
def test_what_dcgm_exporter_exposes_is_read(taken: list[dict[str, float]], release: str) -> None:
    text = exposition(taken, release, timed=True)
    with TemporaryDirectory() as folder:
        report, recording = imported(dcgm_text.convert, Path(folder), {"scrapes.prom": text})
        rows = rows_in(recording)
    assert not report.skipped
    found = [({name: row[name] for name in FIELDS}, row["gpu"], row["node"]) for row in rows]
    assert found == [({n: v + gpu for n, v in values.items()}, gpu, "g7") for values in taken for gpu in range(2)]
    assert rows[-1]["timestamp"] == START + timedelta(seconds=15 * (len(taken) - 1))
