"""What amd-smi prints, made as its commands build and print it, of releases 6.3 to 7: what is written is read."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.errors import UserError
from services.recording.conftest import rows_in
from services.recording.importers.amd_smi import convert, recognise
from services.recording.importers.contract import Report
from services.recording.importers.heap import convert as convert_heap
from services.recording.reader import Recording
from services.recording.validate import validate_recording
from tests.mangled import FUZZ, fuzzed, survives

START = 1_711_958_400  # 2024-04-01T08:00:00Z
Reading = dict[str, float | None]

METRIC: dict[str, tuple[str, str, str]] = {
    # DCGM's field: the group and name under which metric prints the same, its unit in JSON
    "DEV_POWER_USAGE": ("power", "socket_power", "W"),
    "DEV_GPU_UTIL": ("usage", "gfx_activity", "%"),
    "DEV_MEM_COPY_UTIL": ("usage", "umc_activity", "%"),
    "DEV_GPU_TEMP": ("temperature", "hotspot", "C"),
    "DEV_MEMORY_TEMP": ("temperature", "mem", "C"),
    "DEV_PCIE_LINK_WIDTH": ("pcie", "width", ""),
    "DEV_PCIE_REPLAY_COUNTER": ("pcie", "replay_count", ""),
    "DEV_ECC_SBE_VOL_TOTAL": ("ecc", "total_correctable_count", ""),
    "DEV_ECC_DBE_VOL_TOTAL": ("ecc", "total_uncorrectable_count", ""),
    "DEV_FB_TOTAL": ("mem_usage", "total_vram", "MB"),
    "DEV_FB_USED": ("mem_usage", "used_vram", "MB"),
    "DEV_FB_FREE": ("mem_usage", "free_vram", "MB"),
}
CLOCKS = {"DEV_SM_CLOCK": ("gfx_0", "clk"), "DEV_MAX_SM_CLOCK": ("gfx_0", "max_clk"), "DEV_MEM_CLOCK": ("mem_0", "clk")}
MONITOR = {
    "DEV_POWER_USAGE": "power_usage", "DEV_GPU_TEMP": "hotspot_temperature", "DEV_MEMORY_TEMP": "memory_temperature",
    "DEV_SM_CLOCK": "gfx_clk", "DEV_GPU_UTIL": "gfx", "DEV_MEM_COPY_UTIL": "mem", "DEV_MEM_CLOCK": "mem_clock",
    "DEV_ECC_SBE_VOL_TOTAL": "single_bit_ecc", "DEV_ECC_DBE_VOL_TOTAL": "double_bit_ecc",
    "DEV_PCIE_REPLAY_COUNTER": "pcie_replay", "DEV_ENFORCED_POWER_LIMIT": "max_power",
}  # fmt: skip
LIMITS = {"ppt": 0x04, "socket_thermal": 0x20, "vr_thermal": 0x40, "prochot": 0x08}
WHOLE = st.one_of(st.none(), st.integers(0, 2000).map(float))
FIELDS = [*METRIC, *CLOCKS, "DEV_ENFORCED_POWER_LIMIT"]
SINGLE: list[list[Reading]] = [[dict.fromkeys(FIELDS, 5.0)]]


@st.composite
def samples(draw: st.DrawFn) -> list[list[Reading]]:
    gpus, moments = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    known = st.fixed_dictionaries(dict.fromkeys(FIELDS, WHOLE))
    return [[draw(known) for _ in range(gpus)] for _ in range(moments)]


def shown(value: float | None, unit: str, *, units: bool) -> Any:
    if value is None:
        return "N/A"
    whole = int(value) if value == int(value) else value
    return {"value": whole, "unit": unit} if units and unit else whole


def metric(gpu: int, reading: Reading, *, units: bool, held: Sequence[str] = ()) -> dict[str, Any]:
    """Return a GPU's entry as metric builds it: groups in its order, N/A where the driver has nothing."""
    entry: dict[str, Any] = {"gpu": gpu, "usage": {}, "power": {}, "clock": {}, "temperature": {"edge": "N/A"}}
    for name, (group, key, unit) in METRIC.items():
        entry.setdefault(group, {})[key] = shown(reading[name], unit, units=units)
    entry["power"] |= {"gfx_voltage": "N/A", "throttle_status": "UNTHROTTLED", "power_management": "ENABLED"}
    entry["usage"]["vcn_activity"] = ["N/A"] * 4
    for index in range(8):
        entry["clock"][f"gfx_{index}"] = {"clk": "N/A", "max_clk": "N/A", "clk_locked": "N/A"}
    entry["clock"]["mem_0"] = {"clk": "N/A"}
    for name, (clock, key) in CLOCKS.items():
        entry["clock"][clock][key] = shown(reading[name], "MHz", units=units)
    entry["pcie"] |= {"speed": shown(32, "GT/s", units=units), "max_packet_size": "N/A"}
    entry["fan"] = {"speed": 0, "max": 255, "rpm": "N/A", "usage": "N/A"}
    entry["energy"] = {"total_energy_consumption": shown(12.5, "J", units=units)}
    entry["throttle"] = {f"{limit}_violation_status": "NOT ACTIVE" for limit in LIMITS} | {
        f"{limit}_violation_activity": shown(7.0 if limit in held else 0.0, "%", units=units) for limit in LIMITS
    }
    return entry


def flattened(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry as the CSV has it: names of groups are gone, those of clocks' members stay before the dot."""
    row: dict[str, Any] = {}
    for key, value in entry.items():
        if not isinstance(value, dict):
            row[key] = value
            continue
        for name, inner in value.items():
            row |= (
                {f"{name}_{part}": deep for part, deep in inner.items()} if isinstance(inner, dict) else {name: inner}
            )
    return row


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue() + "\n"


def metric_json(taken: list[list[Reading]], *, wrapped: bool) -> str:
    """Return what ``metric --watch --json`` prints: a document each time, in a dict since release 7."""
    documents = []
    for moment, gpus in enumerate(taken):
        stamp = {"timestamp": START + 5 * moment}
        entries = [stamp | metric(gpu, reading, units=True) for gpu, reading in enumerate(gpus)]
        documents.append(json.dumps({"gpu_data": entries} if wrapped else entries, indent=4))
    return "\n".join(documents)


def metric_csv(taken: list[list[Reading]]) -> str:
    return "".join(
        as_csv(
            [
                {"timestamp": START + 5 * moment} | flattened(metric(gpu, reading, units=False))
                for gpu, reading in enumerate(gpus)
            ]
        )
        for moment, gpus in enumerate(taken)
    )


def monitor_csv(taken: list[list[Reading]], *, memory: str = "") -> str:
    rows = []
    for moment, gpus in enumerate(taken):
        for gpu, reading in enumerate(gpus):
            row: dict[str, Any] = {"timestamp": START + 5 * moment, "gpu": gpu}
            row |= {column: shown(reading[name], "", units=False) for name, column in MONITOR.items()}
            if memory:
                row |= {"vram_used": 2048, "vram_total": 4096, memory: 50}
            else:
                row |= {"vram_used": 2.0, "vram_total": 4.0}
            rows.append(row | {"pcie_bw": 12})
    return as_csv(rows)


def read(text: str, **options: Any) -> tuple[list[list[dict[str, float]]], list[int], Report]:
    """Return the readings by moment and GPU, the moments in seconds, and the report."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "g7.txt").write_text(text)
        report = convert(Path(folder) / "g7.txt", Path(folder) / "out", **options)
        assert validate_recording(Path(folder) / "out") == []
        rows = rows_in(Path(folder) / "out")
    times = sorted({int(row["timestamp"].timestamp()) for row in rows})
    found: list[list[dict[str, float]]] = [[] for _ in times]
    for row in rows:
        values = {name.removeprefix("DCGM_FI_"): value for name, value in row.items() if value is not None}
        found[times.index(int(row["timestamp"].timestamp()))].append(values)
    return found, times, report


def same(found: list[list[dict[str, float]]], taken: list[list[Reading]], fields: Sequence[str]) -> bool:
    kept = [[{name: gpu[name] for name in fields if name in gpu} for gpu in moment] for moment in found]
    wanted = [[{name: gpu[name] for name in fields if gpu[name] is not None} for gpu in moment] for moment in taken]
    return kept == wanted


@given(taken=samples(), wrapped=st.booleans(), table=st.booleans())
@FUZZ
def test_whatever_metric_prints_is_read(taken: list[list[Reading]], wrapped: bool, table: bool) -> None:
    found, times, report = read(metric_csv(taken) if table else metric_json(taken, wrapped=wrapped))
    assert times == [START + 5 * moment for moment in range(len(taken))]
    assert same(found, taken, [*METRIC, *CLOCKS])
    for gpu in (gpu for moment in found for gpu in moment):
        assert gpu["DEV_TOTAL_ENERGY_CONSUMPTION"] == pytest.approx(12_500)  # mJ
        assert gpu["DEV_CLOCK_THROTTLE_REASONS"] == 0
        assert gpu.get("DEV_PCIE_LINK_GEN") == (None if table else 5)  # in the table a fan's speed has the same name
    assert set(report.skipped) == {"a reading that no field of DCGM holds"}
    (note,) = (note for note in report.notes if note.startswith("no field"))
    assert note == f"no field of DCGM holds {'max, speed' if table else 'fan.max, fan.speed'}"


@given(taken=samples(), memory=st.sampled_from(["", "vram_free", "vram_percent"]))
@FUZZ
def test_whatever_monitor_prints_is_read_but_memory_in_an_unknown_unit(taken: list[list[Reading]], memory: str) -> None:
    found, times, report = read(monitor_csv(taken, memory=memory))
    assert times == [START + 5 * moment for moment in range(len(taken))]
    assert same(found, taken, list(MONITOR))
    assert {gpu.get("DEV_FB_USED") for moment in found for gpu in moment} == {2048 if memory else None}
    assert any("pcie_bw" in note and ("vram_used" in note) != bool(memory) for note in report.notes)


@pytest.mark.parametrize("word", ["activity", "percent"])
def test_limits_become_the_reasons_for_held_down_clocks(word: str) -> None:
    reading: Reading = dict.fromkeys(FIELDS, 1.0)
    text = json.dumps([metric(0, reading, units=True, held=["ppt", "vr_thermal"])]).replace("_activity", f"_{word}")
    found, _, _ = read(text.replace(f"gfx_{word}", "gfx_activity"), start="2024-04-01T08:00:00Z")
    assert found[0][0]["DEV_CLOCK_THROTTLE_REASONS"] == LIMITS["ppt"] | LIMITS["vr_thermal"]


def test_the_edges_temperature_stands_where_no_hot_spot_is_read() -> None:
    entry = metric(0, dict.fromkeys(FIELDS, 50.0) | {"DEV_GPU_TEMP": None}, units=True)
    entry["temperature"]["edge"] = {"value": 41, "unit": "C"}
    assert read(json.dumps([entry]), start="2024-04-01T08:00:00Z")[0][0][0]["DEV_GPU_TEMP"] == 41
    entry["temperature"]["hotspot"] = {"value": 61, "unit": "C"}
    assert read(json.dumps([entry]), start="2024-04-01T08:00:00Z")[0][0][0]["DEV_GPU_TEMP"] == 61


def test_static_and_list_say_what_the_gpus_are(tmp_path: Path) -> None:
    folder = tmp_path / "bundle" / "n7" / "amd-smi"
    folder.mkdir(parents=True)
    static = {
        "gpu": 0,
        "asic": {"market_name": "AMD Instinct MI300X", "asic_serial": "0x1", "oam_id": 2},
        "bus": {"bdf": "0000:05:00.0", "max_pcie_width": 16, "max_pcie_speed": {"value": 32, "unit": "GT/s"}},
        "limit": {
            "max_power": {"value": 750, "unit": "W"},
            "ppt0": {"socket_power_limit": {"value": 700, "unit": "W"}},
        },
    }
    (folder / "static.json").write_text(json.dumps({"gpu_data": [static]}))
    (folder / "list.json").write_text(json.dumps([{"gpu": 0, "bdf": "0000:05:00.0", "uuid": "11ff", "kfd_id": 1}]))
    (folder / "metric.json").write_text(metric_json(SINGLE, wrapped=True))
    report = convert_heap(tmp_path / "bundle", tmp_path / "out")
    assert [(row.kind.split(":")[0], row.nodes) for row in report.files] == [("amd-smi", "n7")], str(report)
    (node,) = Recording.open(tmp_path / "out").topology.nodes
    assert node.gpu_model == "AMD Instinct MI300X"
    assert node.gpus[0].model_dump(exclude_unset=True) == {
        "gpu": 0, "uuid": "11ff", "pci_bus_id": "0000:05:00.0", "pcie_width": 16, "pcie_gen": 5, "power_limit_w": 700,
    }  # fmt: skip


def test_prints_that_nothing_dates_are_not_dated_by_their_file(tmp_path: Path) -> None:
    text = metric_json(SINGLE * 2, wrapped=False).replace('"timestamp"', '"seq"')
    (tmp_path / "g7.json").write_text(text)
    with pytest.raises(UserError, match="these cannot be known"):
        convert(tmp_path / "g7.json", tmp_path / "out")
    found, times, _ = read(text, start="2024-04-01T08:00:00Z", every=2)
    assert times == [START, START + 2]
    assert len(found) == 2


def test_tables_of_processes_and_parts_of_gpus_are_counted() -> None:
    text = (
        monitor_csv(SINGLE)
        .replace("\n", ",xcp\n", 1)
        .replace(",12\r", ",12,0\r")
        .replace("pcie_bw\r,xcp", "pcie_bw,xcp\r")
    )
    part = text.splitlines()[1].removesuffix("0") + "3"
    processes = f"timestamp,gpu,name,pid\n{START},0,python3,77\n"
    _, _, report = read(text.rstrip() + f"\n{part}\n{processes}")
    assert report.skipped["a row of a part of a GPU (xcp)"] == 1
    assert report.skipped["a row of no table of metric or monitor"] == 1


def test_files_are_known_by_how_they_begin() -> None:
    assert recognise("x", metric_json(SINGLE, wrapped=True)) == "JSON of amd-smi"
    assert recognise("x", metric_csv(SINGLE)) == recognise("x", monitor_csv(SINGLE)) == "a table of amd-smi"
    assert recognise("x", '[{"gpu": 0, "process_list": []}]') is None
    assert recognise("x", "index, power.draw [W]\n0, 3 W\n") is None


@fuzzed(metric_json(SINGLE * 2, wrapped=True).encode())
def test_mangled_json(content: bytes) -> None:
    survives(convert, {"g7.json": content})


@fuzzed(monitor_csv(SINGLE * 2).encode())
def test_mangled_tables(content: bytes) -> None:
    survives(convert, {"g7.csv": content})
