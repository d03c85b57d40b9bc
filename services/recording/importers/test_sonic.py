import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from services.kit.errors import UserError
from services.recording.conftest import imported, rows_in
from services.recording.importers.sonic import convert, switch_by_path
from services.recording.instants import format_instant
from services.recording.reader import Recording
from services.recording.validate import validate_recording
from tests.data import public
from tests.mangled import fuzzed, survives

_imported = partial(imported, convert)

IN, ECN, PFC = "SAI_PORT_STAT_IF_IN_OCTETS", "SAI_PORT_STAT_ECN_MARKED_PACKETS", "SAI_PORT_STAT_PFC_3_RX_PKTS"

DATABASE: dict[str, Any] = {
    "COUNTERS_PORT_NAME_MAP": {"Ethernet0": "oid:0x1", "Ethernet8": "oid:0x2"},
    "COUNTERS_QUEUE_NAME_MAP": {"Ethernet0:3": "oid:0xa", "Ethernet0:4": "oid:0xb", "Ethernet8:3": "oid:0xc"},
    "COUNTERS:oid:0x1": {IN: "18446744073709551615", PFC: "17", "SAI_PORT_STAT_IF_IN_ERRORS": "N/A", "EST_X": "1"},
    "COUNTERS:oid:0x2": {IN: "2000", ECN: "5"},
    "COUNTERS:oid:0x9": {IN: "1"},
    "COUNTERS:oid:0xa": {"SAI_QUEUE_STAT_WRED_ECN_MARKED_PACKETS": "100", "PFC_WD_QUEUE_STATS_DEADLOCK_DETECTED": "2"},
    "COUNTERS:oid:0xb": {"SAI_QUEUE_STAT_WRED_ECN_MARKED_PACKETS": "11"},
    "COUNTERS:oid:0xc": {"SAI_QUEUE_STAT_WRED_ECN_MARKED_PACKETS": "999"},
    "RATES:oid:0x1": {"RX_BPS": "1"},
}
APPLICATION: dict[str, Any] = {
    "PORT_TABLE:Ethernet0": {"oper_status": "up", "speed": "400000"},
    "PORT_TABLE:Ethernet8": {"oper_status": "down", "speed": "400000"},
    "LLDP_ENTRY_TABLE:Ethernet0": {"lldp_rem_sys_name": "spine1", "lldp_rem_port_id": "Ethernet64"},
}


def rows_of(recording: Recording) -> dict[tuple[str, str, str], dict[str, Any]]:
    rows = rows_in(recording, "switch")
    keys = {"switch", "port", "timestamp"}
    return {
        (row["switch"], row["port"], row["timestamp"].isoformat()[11:19]): {
            name: value for name, value in row.items() if value is not None and name not in keys
        }
        for row in rows
    }


def test_a_dump_of_the_counters_database(tmp_path: Path) -> None:
    report, recording = _imported(tmp_path, {"leaf1/20240401T080000Z.json": [DATABASE, APPLICATION]})
    assert rows_of(recording) == {
        ("leaf1", "Ethernet0", "08:00:00"): {
            IN: 2.0**64, PFC: 17, ECN: 111, "PFC_WD_QUEUE_STATS_DEADLOCK_DETECTED": 2, "oper_up": 1,
        },
        ("leaf1", "Ethernet8", "08:00:00"): {IN: 2000, ECN: 5, "oper_up": 0},
    }  # fmt: skip
    assert report.skipped == {"counters of a port that no name map names": 1}


def test_a_dump_as_redis_dump_wraps_it_has_its_own_time(tmp_path: Path) -> None:
    wrapped = {
        key: {"type": "hash", "ttl": -0.001, "expireat": 1711958400.499, "value": value}
        for key, value in {**DATABASE, **APPLICATION}.items()
    }
    _, recording = _imported(tmp_path, {"leaf1/dump.json": wrapped})
    assert rows_of(recording).keys() == {("leaf1", "Ethernet0", "08:00:00"), ("leaf1", "Ethernet8", "08:00:00")}
    assert rows_of(recording)["leaf1", "Ethernet0", "08:00:00"]["oper_up"] == 1
    assert format_instant(recording.manifest.start) == "2024-04-01T08:00:00.500Z"


def test_parts_of_a_dump_in_several_files_and_several_dumps(tmp_path: Path) -> None:
    counters = {key: value for key, value in DATABASE.items() if key.startswith("COUNTERS:")}
    files = {
        "leaf1/20240401T080000Z/COUNTERS.json": counters,
        "leaf1/20240401T080000Z/NAME_MAP.json": {"COUNTERS_PORT_NAME_MAP": DATABASE["COUNTERS_PORT_NAME_MAP"]},
        "leaf1/20240401T080000Z/PORT_TABLE.json": APPLICATION,
        "leaf1/20240401T080030Z/COUNTERS.json": counters,
    }  # fmt: skip
    _, recording = _imported(tmp_path, files)
    assert {(port, time) for _, port, time in rows_of(recording)} == {
        ("Ethernet0", "08:00:00"), ("Ethernet8", "08:00:00"), ("Ethernet0", "08:00:30"), ("Ethernet8", "08:00:30"),
    }  # fmt: skip
    assert recording.manifest.streams["switch"].interval_s == 30
    assert [switch.name for switch in recording.topology.switches] == ["leaf1"]


def test_answers_over_gnmi(tmp_path: Path) -> None:
    notification = [{
        "source": "leaf1:8080", "timestamp": 1711958400250000000,
        "updates": [{"Path": "COUNTERS/Ethernet*", "values": {"COUNTERS/Ethernet*": {
            "Ethernet0": {IN: "5"}, "Ethernet8": {IN: "6"}, "Ethernet16": {}}}}],
    }]  # fmt: skip
    config = {"DEVICE_METADATA": {"localhost": {"hostname": "leaf7", "type": "LeafRouter"}}}
    _, recording = _imported(tmp_path, {"a.json": [notification, config]})
    assert rows_of(recording) == {
        ("leaf7", "Ethernet0", "08:00:00"): {IN: 5}, ("leaf7", "Ethernet8", "08:00:00"): {IN: 6},
    }  # fmt: skip
    assert [(switch.name, switch.role) for switch in recording.topology.switches] == [("leaf7", "leaf")]


def test_a_port_that_only_the_file_names_and_its_queues(tmp_path: Path) -> None:
    files = {
        "COUNTERS:Ethernet8.json": {IN: "7"},
        "COUNTERS:Ethernet8:Queues.json": {
            "Ethernet8:3": {"SAI_QUEUE_STAT_WRED_ECN_MARKED_PACKETS": "2"},
            "Ethernet8:4": {"SAI_QUEUE_STAT_WRED_ECN_MARKED_PACKETS": "3"},
            "Ethernet8:4:periodic": {"SAI_QUEUE_STAT_SHARED_WATERMARK_BYTES": "3"},
        },
    }
    _, recording = _imported(tmp_path, files, start="2024-04-01T08:00:00Z", switch="leaf1")
    assert rows_of(recording) == {("leaf1", "Ethernet8", "08:00:00"): {IN: 7, ECN: 5}}


def test_interfaces_of_openconfig(tmp_path: Path) -> None:
    counters = {"in-octets": "10", "out-discards": "3", "in-pkts": "9"}
    interface = {"name": "Ethernet0", "state": {"oper-status": "UP", "counters": counters}}
    document = {"openconfig-interfaces:interfaces": {"interface": [interface]}}
    _, recording = _imported(tmp_path, {"leaf1/20240401T080000Z.json": document})
    assert rows_of(recording) == {
        ("leaf1", "Ethernet0", "08:00:00"): {IN: 10, "SAI_PORT_STAT_IF_OUT_DISCARDS": 3, "oper_up": 1}
    }


def test_cables_between_imported_switches(tmp_path: Path) -> None:
    far = {
        "COUNTERS_PORT_NAME_MAP": {"Ethernet64": "oid:0x1"}, "COUNTERS:oid:0x1": {IN: "1"},
        "LLDP_ENTRY_TABLE:Ethernet64": {"lldp_rem_sys_name": "leaf1", "lldp_rem_port_id": "Ethernet0"},
        "LLDP_ENTRY_TABLE:Ethernet72": {"lldp_rem_sys_name": "server9", "lldp_rem_port_id": "ens1"},
    }  # fmt: skip
    _, recording = _imported(
        tmp_path, {"leaf1/20240401T080000Z.json": [DATABASE, APPLICATION], "spine1/20240401T080000Z.json": far}
    )
    assert [(link.a, link.b, link.gbps) for link in recording.topology.links] == [
        ("leaf1:Ethernet0", "spine1:Ethernet64", 400)
    ]


def test_dumps_that_only_options_date(tmp_path: Path) -> None:
    files = {"leaf1/a.json": DATABASE, "leaf1/b.json": DATABASE, "leaf2/a.json": DATABASE}
    _, recording = _imported(tmp_path, {f"x/{name}": value for name, value in files.items()}, start="2024-04-01T08:00:00Z", every=10, switch="s")  # fmt: skip  # noqa: E501
    assert {time for _, _, time in rows_of(recording)} == {"08:00:00", "08:00:10", "08:00:20"}


def test_nothing_usable(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}')
    with pytest.raises(UserError, match="without counters of ports"):
        convert(tmp_path / "a.json", tmp_path / "out")
    (tmp_path / "a.json").write_text("[" * 100_000)
    with pytest.raises(UserError, match="no JSON"):
        convert(tmp_path / "a.json", tmp_path / "out")


def test_switches_by_the_files_they_come_in() -> None:
    root = Path("dumps")
    assert switch_by_path(root / "leaf1" / "counters_db.json", root) == "leaf1"
    assert switch_by_path(root / "leaf1-20240401T080000Z.json", root) == "leaf1"
    assert switch_by_path(root / "leaf1" / "COUNTERS:Ethernet68.txt", root) == "leaf1"


@pytest.mark.parametrize(
    ("source", "rows"),
    [
        ("sonic-utilities/t1/counter_db.json", 34),
        ("sonic-utilities", 57),
        ("sonic-gnmi/db_dump.json", 33),
        ("sonic-gnmi/interfaces.json", 33),
        ("sonic-gnmi/COUNTERS:Ethernet68.txt", 1),
        ("sonic-gnmi/COUNTERS:Ethernet_wildcard_expected.txt", 2),
    ],
)
def test_real_dumps(tmp_path: Path, source: str, rows: int) -> None:
    report = convert(public(f"fixtures-network/{source}"), tmp_path / "out")
    assert report.made["switch"] == rows
    assert validate_recording(tmp_path / "out") == []


def test_a_folder_of_all_kinds_of_real_answers(tmp_path: Path) -> None:
    report = convert(public("fixtures-network/sonic-gnmi"), tmp_path / "out", start="mtime")
    assert report.made["switch"] > 60
    assert validate_recording(tmp_path / "out") == []


@fuzzed(json.dumps([DATABASE, APPLICATION, {"timestamp": 1711958400250000000, "updates": []}]).encode())
def test_mangled_dumps(content: bytes) -> None:
    survives(convert, {"leaf1/a.json": content, "leaf1/b-20240401T080000Z.json": json.dumps(DATABASE).encode()})
