import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from services.kit.errors import UserError
from services.recording.conftest import imported, rows_in
from services.recording.importers.redfish import convert
from services.recording.instants import format_instant
from services.recording.reader import Recording
from services.recording.validate import validate_recording
from tests.data import public
from tests.mangled import fuzzed, survives

_imported = partial(imported, convert)

V1 = "/redfish/v1"
OK, WARNING = {"State": "Enabled", "Health": "OK"}, {"State": "Enabled", "Health": "Warning"}


def body(kind: str, uri: str, **fields: Any) -> dict[str, Any]:
    return {"@odata.type": f"#{kind}.v1_6_0.{kind}", "@odata.id": V1 + uri, **fields}


def sensor(chassis: str, name: str, reading: Any, units: str, **more: Any) -> dict[str, Any]:
    uri = f"/Chassis/{chassis}/Sensors/{name}"
    return body("Sensor", uri, Id=name, Reading=reading, ReadingUnits=units, Status=more.pop("Status", OK), **more)


METRICS = body(
    "ProcessorMetrics",
    "/Systems/HGX_Baseboard_0/Processors/GPU_SXM_3/ProcessorMetrics",
    OperatingSpeedMHz=1965,
    PCIeErrors={"ReplayCount": 7, "L0ToRecoveryCount": 3},
    PowerLimitThrottleDuration="P1DT1H1M1.5S",
    ThermalLimitThrottleDuration="PT0S",
    Oem={"Nvidia": {"SMActivityPercent": 50.0, "ThrottleReasons": ["HWSlowdown", "HWPowerBrakeSlowdown"]}},
)
PROCESSOR = body(
    "Processor",
    "/Systems/HGX_Baseboard_0/Processors/GPU_SXM_3",
    ProcessorType="GPU",
    Model="H100",
    UUID="509665AD-b600-ac93-3616-d754b23d636d",
    SystemInterface={"PCIe": {"LanesInUse": 8, "MaxLanes": 16, "MaxPCIeType": "Gen5", "PCIeType": "Gen4"}},
)
THERMAL = body(
    "Thermal",
    "/Chassis/1/Thermal",
    Temperatures=[
        {"Name": "01-Inlet Ambient", "ReadingCelsius": 19, "Status": OK},
        {"Name": "GPU", "ReadingCelsius": None, "Status": {"State": "Absent"}},
    ],
    Fans=[
        {"FanName": "Fan 1", "Reading": 17760, "ReadingUnits": "RPM", "Status": WARNING},
        {"FanName": "Fan 2", "CurrentReading": 17, "Units": "Percent", "Status": OK},
    ],
)
POWER = body(
    "Power",
    "/Chassis/1/Power",
    PowerControl=[{"Name": "System Power Control", "PowerConsumedWatts": 429}],
    Voltages=[{"Name": "VRM1", "ReadingVolts": 12, "Status": OK}],
    PowerSupplies=[
        {"Name": "PS1 Status", "MemberId": "0", "PowerInputWatts": 900, "LineInputVoltage": 206, "Status": OK},
        {"Name": "PS2 Status", "MemberId": "1", "PowerInputWatts": 0, "Status": {"Health": "Critical"}},
    ],
    Redundancy=[{"Name": "PSU Redundancy", "Status": {"Health": "Critical", "State": "Enabled"}}],
)
ENTRY = body(
    "LogEntry",
    "/Systems/1/LogServices/SEL/Entries/7",
    Id="7",
    Created="2024-04-01T10:41+02:00",
    Severity="Critical",
    SensorType="Power Supply / Converter",
    SensorNumber=81,
    Message="Power supply failure detected",
    EntryCode="Assert",
)


def bmc(recording: Recording) -> dict[str, tuple[float, str, int | None]]:
    rows = rows_in(recording, "bmc")
    return {row["sensor"]: (row["reading"], row["unit"], row["state"]) for row in rows}


def test_sensors_of_a_tree_and_copies_of_their_readings(tmp_path: Path) -> None:
    environment = body(
        "EnvironmentMetrics", "/Chassis/1/EnvironmentMetrics",
        PowerWatts={"Reading": 374, "DataSourceUri": f"{V1}/Chassis/1/Sensors/TotalPower"},
        TemperatureCelsius={"Reading": 39, "DataSourceUri": f"{V1}/Chassis/1/Sensors/NotHere"},
        FanSpeedsPercent=[{"DeviceName": "Fan #1", "Reading": 45, "SpeedRPM": 1900}],
    )  # fmt: skip
    members = [
        sensor("1", "TotalPower", 374.5, "W"), sensor("1", "Energy", 1, "kWh"),
        sensor("1", "TLIMIT", 58, "Cel", ReadingBasis="Headroom"),
        sensor("1", "Gone", 1, "W", Status={"State": "Absent"}), sensor("1", "Hot", 91, "Cel", Status=WARNING),
    ]  # fmt: skip
    tree = "v041-20240401T080000Z/redfish/v1/Chassis"
    files = {
        f"{tree}/1/Sensors/index.json": {"@odata.type": "#SensorCollection.SensorCollection", "Members": members},
        f"{tree}/2/Sensors/Hot/index.json": sensor("2", "Hot", 30, "Cel"),
        f"{tree}/1/EnvironmentMetrics/index.json": environment,
    }
    report, recording = _imported(tmp_path, files)
    assert bmc(recording) == {
        "TotalPower": (374.5, "W", 0), "Hot": (91, "Cel", 1), "2/Hot": (30, "Cel", 0), "NotHere": (39, "Cel", None),
        "Fan #1": (1900, "RPM", None), "TLIMIT headroom": (58, "Cel", 0),
    }  # fmt: skip
    assert report.skipped == {
        "a sensor without a reading": 1, "a sensor in a unit that the format does not have": 1,
    }  # fmt: skip
    assert [node.name for node in recording.topology.nodes] == ["v041"]
    assert format_instant(recording.manifest.start) == "2024-04-01T08:00:00Z"


def test_the_older_thermal_and_power_resources(tmp_path: Path) -> None:
    files = {"v041/thermal-20240401T080000Z.json": THERMAL, "v041/power-20240401T080000Z.json": POWER}
    _, recording = _imported(tmp_path, files)
    assert bmc(recording) == {
        "01-Inlet Ambient": (19, "Cel", 0), "Fan 1": (17760, "RPM", 1), "Fan 2": (17, "%", 0),
        "System Power Control": (429, "W", None), "VRM1": (12, "V", 0),
        "PS1 Status": (0, "state", 0), "PS1 Input Power": (900, "W", 0), "PS1 Input Voltage": (206, "V", 0),
        "PS2 Status": (2, "state", 2), "PS2 Input Power": (0, "W", 2), "PSU Redundancy": (2, "state", 2),
    }  # fmt: skip


def test_gpus_of_a_baseboard(tmp_path: Path) -> None:
    memory = body(
        "Memory", "/Systems/HGX_Baseboard_0/Memory/GPU_SXM_3_DRAM_0",
        Oem={"Nvidia": {"RowRemappingFailed": False, "RowRemappingPending": True}},
    )  # fmt: skip
    rows = body(
        "MemoryMetrics", "/Systems/HGX_Baseboard_0/Memory/GPU_SXM_3_DRAM_0/MemoryMetrics", OperatingSpeedMHz=2619,
        Oem={"Nvidia": {"RowRemapping": {"UncorrectableRowRemappingCount": 2, "NoAvailabilityBankCount": 1}}},
    )  # fmt: skip
    host = body("ProcessorMetrics", "/Systems/System_0/Processors/GPU_3/ProcessorMetrics", OperatingSpeedMHz=0)
    members = {"@odata.type": "#X.X", "Members": [METRICS, PROCESSOR, {"@odata.id": "/a"}, memory, rows, host]}
    _, recording = _imported(tmp_path, {"v041/20240401T080000Z.json": members})
    found = rows_in(recording)
    assert len(found) == 1
    assert {name.removeprefix("DCGM_FI_"): value for name, value in found[0].items() if name.startswith("DCGM")} == {
        "DEV_SM_CLOCK": 1965, "DEV_PCIE_REPLAY_COUNTER": 7, "DEV_POWER_VIOLATION": 90_061_500_000_000,
        "DEV_THERMAL_VIOLATION": 0, "PROF_SM_ACTIVE": 0.5, "DEV_CLOCK_THROTTLE_REASONS": 0x88,
        "DEV_PCIE_LINK_GEN": 4, "DEV_PCIE_LINK_WIDTH": 8, "DEV_PCIE_MAX_LINK_GEN": 5, "DEV_PCIE_MAX_LINK_WIDTH": 16,
        "DEV_ROW_REMAP_FAILURE": 0, "DEV_ROW_REMAP_PENDING": 1, "DEV_MEM_CLOCK": 2619,
        "DEV_UNCORRECTABLE_REMAPPED_ROWS": 2, "DEV_BANKS_REMAP_ROWS_AVAIL_NONE": 1,
    }  # fmt: skip
    node = recording.topology.nodes[0]
    gpu = node.gpus[0]
    assert (node.gpu_model, gpu.gpu, gpu.uuid) == ("H100", 3, "GPU-509665ad-b600-ac93-3616-d754b23d636d")
    assert (gpu.pcie_gen, gpu.pcie_width) == (5, 16)


@pytest.mark.parametrize(("reasons", "skipped"), [(["NA"], 0), (["HWSlowdown", "Gremlins"], 1), ([], 0), ("x", 0)])
def test_reasons_that_say_nothing_are_null(tmp_path: Path, reasons: Any, skipped: int) -> None:
    metrics = {**METRICS, "Oem": {"Nvidia": {"ThrottleReasons": reasons}}}
    report, recording = _imported(tmp_path, {"a-20240401T080000Z.json": metrics})
    columns = [name for batch in recording.batches("dcgm") for name in batch.schema.names]
    assert "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS" not in columns
    assert sum(report.skipped.values()) == skipped


def test_log_entries_by_the_clock_of_the_bmc(tmp_path: Path) -> None:
    unset = {**ENTRY, "Id": "1", "Created": "1970-01-01T00:00:09Z", "Severity": "OK"}
    broken = {**ENTRY, "Id": "2", "Created": "yesterday"}
    entries = {"@odata.type": "#LogEntryCollection.LogEntryCollection", "Members": [ENTRY, unset, broken, ENTRY]}
    report, recording = _imported(tmp_path, {"v041/sel-20240401T090000Z.json": entries}, clock_skew_s=3)
    found = [(format_instant(event.timestamp), event.severity, event.message) for event in recording.events()]
    text = "Power Supply / Converter #0x51 | Power supply failure detected | Assert"
    assert found == [
        ("2024-04-01T08:41:00Z", "critical", f"7 | 2024-04-01T10:41+02:00 | {text}"),
        ("2024-04-01T09:00:00Z", "info", f"1 | 1970-01-01T00:00:09Z | {text}"),
    ]
    assert report.skipped == {"a time that cannot be": 1, "a log entry that an earlier tree had": 1}
    assert recording.manifest.model_dump()["clock_skew_s"] == {"v041": 3}


def test_trees_that_options_or_headers_date(tmp_path: Path) -> None:
    one = {"Chassis/1/Sensors/P/index.json": sensor("1", "P", 10, "W")}
    files = {f"{tree}/redfish/v1/{name}": value for tree in ("v1/a", "v1/b") for name, value in one.items()}
    _, recording = _imported(tmp_path, files, node="v1", start="2024-04-01T08:00:00Z", every=60)
    rows = rows_in(recording, "bmc")
    assert [row["timestamp"].isoformat()[11:19] for row in rows] == ["08:00:00", "08:01:00"]


def test_a_body_with_its_http_headers(tmp_path: Path) -> None:
    kept = {"headers": {"Date": "Mon, 01 Apr 2024 08:00:00 GMT"}, "body": sensor("1", "P", 10, "W")}
    _, recording = _imported(tmp_path, {"v1/power.json": kept})
    assert format_instant(recording.manifest.start) == "2024-04-01T08:00:00Z"


def test_nothing_usable(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"@odata.type": "#Chassis.v1_0_0.Chassis"}')
    with pytest.raises(UserError, match="holds nothing for a recording"):
        convert(tmp_path / "a.json", tmp_path / "out")
    with pytest.raises(UserError, match="--clock-skew-s"):
        convert(tmp_path / "a.json", tmp_path / "out", clock_skew_s=1e10)


@pytest.mark.parametrize(
    ("source", "made"),
    [
        ("dmtf-public-rackmount1", {"bmc": 52, "events": 3}),
        ("lambdalabs/gb300_happypath", {"dcgm": 4}),
        ("lambdalabs/powershelf_delta", {"bmc": 130}),
        ("lambdalabs/powershelf_liteon", {"bmc": 78}),
        ("telegraf/dell", {"bmc": 26}),
        ("telegraf/hp", {"bmc": 25}),
        ("lambdalabs", {"bmc": 209, "dcgm": 11}),
    ],
)
def test_real_trees(tmp_path: Path, source: str, made: dict[str, int]) -> None:
    report = convert(public(f"fixtures-redfish/{source}"), tmp_path / "out", start="2024-04-01T08:00:00Z")
    assert {what: count for what, count in report.made.items() if count} == made
    assert validate_recording(tmp_path / "out") == []


def test_a_host_does_not_overrule_its_baseboard(tmp_path: Path) -> None:
    convert(public("fixtures-redfish/lambdalabs/gb300_happypath"), tmp_path / "out", start="2024-04-01T08:00:00Z")
    rows = rows_in(tmp_path / "out")
    # The host's copy of the same memory says 0 of GPU 0.
    assert {row["gpu"]: row["DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS"] for row in rows}[0] == 1


SAMPLE = json.dumps([METRICS, PROCESSOR, THERMAL, POWER, ENTRY, sensor("1", "P", 10, "W")]).encode()


@fuzzed(SAMPLE)
def test_mangled_bodies(content: bytes) -> None:
    files = {"v1/a-20240401T080000Z.json": content, "v2/b.json": json.dumps(POWER).encode()}
    survives(convert, files)
