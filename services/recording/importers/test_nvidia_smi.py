from datetime import UTC
from pathlib import Path

import pytest

from services.kit.errors import UserError
from services.recording.conftest import rows_in
from services.recording.importers.nvidia_smi import convert
from services.recording.importers.parts.machines.smi_log import SmiLog, SmiProblem, logs_of_text, logs_of_xml
from services.recording.reader import Recording
from tests.data import public
from tests.mangled import fuzzed, survives

XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <timestamp>Mon Apr  1 {time} 2024</timestamp>
  <attached_gpus>2</attached_gpus>
  {gpus}
</nvidia_smi_log>
"""
GPU = """<gpu id="00000000:{bus}:00.0">
    <product_name>NVIDIA H100 80GB HBM3</product_name>
    <uuid>GPU-{bus}</uuid>
    <minor_number>{minor}</minor_number>
    <pci>
      <pci_bus_id>00000000:{bus}:00.0</pci_bus_id>
      <pci_gpu_link_info>
        <pcie_gen><max_link_gen>5</max_link_gen><current_link_gen>1</current_link_gen></pcie_gen>
        <link_widths><max_link_width>16x</max_link_width><current_link_width>8x</current_link_width></link_widths>
      </pci_gpu_link_info>
      <replay_counter>150</replay_counter>
    </pci>
    <clocks_event_reasons>
      <clocks_event_reason_gpu_idle>Not Active</clocks_event_reason_gpu_idle>
      <clocks_event_reason_hw_slowdown>Active</clocks_event_reason_hw_slowdown>
      <clocks_event_reason_hw_power_brake_slowdown>Active</clocks_event_reason_hw_power_brake_slowdown>
    </clocks_event_reasons>
    <clocks_event_reasons_counters>
      <clocks_event_reasons_counters_sw_power_cap>7015 us</clocks_event_reasons_counters_sw_power_cap>
    </clocks_event_reasons_counters>
    <ecc_errors><volatile>
      <sram_correctable>1</sram_correctable><dram_correctable>2</dram_correctable>
      <sram_uncorrectable_parity>3</sram_uncorrectable_parity><sram_uncorrectable_secded>4</sram_uncorrectable_secded>
      <dram_uncorrectable>N/A</dram_uncorrectable>
    </volatile></ecc_errors>
    <remapped_rows>
      <remapped_row_corr>1</remapped_row_corr><remapped_row_pending>Yes</remapped_row_pending>
      <remapped_row_failure>No</remapped_row_failure>
    </remapped_rows>
    <temperature><gpu_temp>41 C</gpu_temp><memory_temp>N/A</memory_temp></temperature>
    <gpu_power_readings><average_power_draw>312.50 W</average_power_draw>
      <instant_power_draw>[Unknown Error]</instant_power_draw>
      <current_power_limit>650.00 W</current_power_limit><requested_power_limit>700.00 W</requested_power_limit>
      <default_power_limit>700.00 W</default_power_limit></gpu_power_readings>
    <clocks><sm_clock>345 MHz</sm_clock></clocks>
    <supported_clocks><supported_mem_clock><value>2619 MHz</value></supported_mem_clock></supported_clocks>
  </gpu>"""


def document(time: str = "08:00:00", gpus: tuple[tuple[str, int], ...] = (("18", 1), ("2A", 0))) -> str:
    return XML.format(time=time, gpus="".join(GPU.format(bus=bus, minor=minor) for bus, minor in gpus))


def test_a_log_becomes_rows_under_the_fields_of_dcgm(tmp_path: Path) -> None:
    (tmp_path / "n7.xml").write_text(document("08:00:00") + document("08:00:10"))
    report = convert(tmp_path / "n7.xml", tmp_path / "mine")
    found = rows_in(tmp_path / "mine")
    assert [(row["timestamp"].isoformat(), row["node"], row["gpu"]) for row in found] == [
        ("2024-04-01T08:00:00+00:00", "n7", 0), ("2024-04-01T08:00:00+00:00", "n7", 1),
        ("2024-04-01T08:00:10+00:00", "n7", 0), ("2024-04-01T08:00:10+00:00", "n7", 1),
    ]  # fmt: skip
    wanted = {
        "SM_CLOCK": 345, "GPU_TEMP": 41, "POWER_USAGE": 312.5, "ENFORCED_POWER_LIMIT": 650, "POWER_MGMT_LIMIT": 700,
        "PCIE_LINK_GEN": 1, "PCIE_LINK_WIDTH": 8, "PCIE_MAX_LINK_GEN": 5, "PCIE_REPLAY_COUNTER": 150,
        "CLOCK_THROTTLE_REASONS": 0x88, "POWER_VIOLATION": 7_015_000, "ECC_SBE_VOL_TOTAL": 3, "ECC_DBE_VOL_TOTAL": 7,
        "CORRECTABLE_REMAPPED_ROWS": 1, "ROW_REMAP_PENDING": 1, "ROW_REMAP_FAILURE": 0,
    }  # fmt: skip
    assert {name: found[0][f"DCGM_FI_DEV_{name}"] for name in wanted} == wanted
    assert not {"DCGM_FI_DEV_MEMORY_TEMP", "DCGM_FI_DEV_POWER_USAGE_INSTANT"} & found[0].keys()
    assert dict(report.skipped) == {"a reading that is no number: gpu_power_readings/instant_power_draw": 4}
    recording = Recording.open(tmp_path / "mine")
    gpu = recording.topology.nodes[0].gpus[0]
    assert (gpu.uuid, gpu.pci_bus_id, gpu.pcie_gen, gpu.pcie_width, gpu.power_limit_w) == (
        "GPU-18", "00000000:18:00.0", 5, 16, 700
    )  # fmt: skip
    assert recording.manifest.streams["dcgm"].interval_s == 10


def test_a_gpu_keeps_its_number_when_another_is_lost(tmp_path: Path) -> None:
    (tmp_path / "n7.xml").write_text(document("08:00:00") + document("08:00:10", (("2A", 0),)))
    convert(tmp_path / "n7.xml", tmp_path / "mine")
    assert [(row["gpu"]) for row in rows_in(tmp_path / "mine")] == [0, 1, 1]


def test_a_time_zone_is_taken_off(tmp_path: Path) -> None:
    (tmp_path / "n7.xml").write_text(document("10:00:00"))
    convert(tmp_path / "n7.xml", tmp_path / "mine", timezone="Europe/Zurich", node="other")
    (row, _) = rows_in(tmp_path / "mine")
    assert (row["timestamp"].astimezone(UTC).hour, row["node"]) == (8, "other")


def test_logs_of_a_loop_go_on_through_the_hour_that_comes_twice(tmp_path: Path) -> None:
    text = "".join(document(time, (("18", 0),)) for time in ("02:59:30", "02:00:00"))
    (tmp_path / "n7.xml").write_text(text.replace("Mon Apr  1", "Sun Oct 27"))
    convert(tmp_path / "n7.xml", tmp_path / "mine", timezone="Europe/Zurich")
    first, second = (row["timestamp"] for row in rows_in(tmp_path / "mine"))
    assert (second - first).total_seconds() == 30


BOMB = (
    '<?xml version="1.0"?><!DOCTYPE nvidia_smi_log [<!ENTITY a "aaaaaaaaaa">'
    + "".join(f'<!ENTITY {chr(98 + n)} "{f"&{chr(97 + n)};" * 10}">' for n in range(9))
    + "]><nvidia_smi_log><timestamp>&j;</timestamp></nvidia_smi_log>"
)
REFUSED = {
    "entities": (BOMB, "declarations of its own"),
    "outside": (
        '<!DOCTYPE nvidia_smi_log [<!ENTITY x SYSTEM "file:///etc/hostname">]><nvidia_smi_log>&x;</nvidia_smi_log>',
        "declarations of its own",
    ),
    "depth": ("<nvidia_smi_log>" + "<a>" * 5000 + "</a>" * 5000 + "</nvidia_smi_log>", "nested deeper"),
    "cut": (document()[:-300], "no well-formed XML"),
    "gpus": ("<nvidia_smi_log>" + '<gpu id="x"/>' * 600 + "</nvidia_smi_log>", "more GPUs"),
    "fields": (
        '<nvidia_smi_log><gpu id="x">' + "".join(f"<a{n}>1</a{n}>" for n in range(30_000)) + "</gpu></nvidia_smi_log>",
        "more fields",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_nvidia_smi_wrote_is_left_out(tmp_path: Path, case: str) -> None:
    text, reason = REFUSED[case]
    (found,) = logs_of_xml(text)
    assert isinstance(found, SmiProblem)
    assert reason in found.reason
    (tmp_path / "bad.xml").write_text(text)
    with pytest.raises(UserError, match=reason):
        convert(tmp_path / "bad.xml", tmp_path / "mine")


def test_text_has_the_same_readings_as_xml(tmp_path: Path) -> None:
    text = """
==============NVSMI LOG==============

Timestamp                                 : Mon Apr  1 08:00:00 2024
Attached GPUs                             : 1
GPU 00000000:18:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    GPU UUID                              : GPU-18
    PCI
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 1
    Clocks Event Reasons
        Idle                              : Not Active
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Not Active
            HW Power Brake Slowdown       : Active
    Temperature
        GPU Current Temp                  : 41 C
    GPU Power Readings
        Average Power Draw                : 312.50 W
    Clocks
        SM                                : 345 MHz
    Max Clocks
        SM                                : 1980 MHz
"""
    (log,) = logs_of_text(text)
    assert isinstance(log, SmiLog)
    assert len(log.gpus) == 1
    (tmp_path / "n7.txt").write_text(text)
    convert(tmp_path / "n7.txt", tmp_path / "mine")
    (row,) = rows_in(tmp_path / "mine")
    wanted = {
        "SM_CLOCK": 345, "MAX_SM_CLOCK": 1980, "GPU_TEMP": 41, "POWER_USAGE": 312.5, "PCIE_LINK_GEN": 1,
        "CLOCK_THROTTLE_REASONS": 0x88,
    }  # fmt: skip
    assert {name: row[f"DCGM_FI_DEV_{name}"] for name in wanted} == wanted


def test_every_schema_in_the_fixtures_is_read(tmp_path: Path) -> None:
    report = convert(public("fixtures-nvidia/telegraf"), tmp_path / "mine")
    assert (report.read["logs"], report.made["dcgm"], dict(report.skipped)) == (5, 5, {})
    found = {row["node"]: row for row in rows_in(tmp_path / "mine")}
    columns = (
        "GPU_TEMP",
        "POWER_USAGE",
        "ENFORCED_POWER_LIMIT",
        "SM_CLOCK",
        "PCIE_LINK_WIDTH",
        "CLOCK_THROTTLE_REASONS",
    )
    read = {node: tuple(row[f"DCGM_FI_DEV_{name}"] for name in columns) for node, row in found.items()}
    assert read == {
        "a100-sxm4-v12": (27, pytest.approx(67.03), 500, 1275, 16, 0),
        "a10g": (17, pytest.approx(25.58), 300, 210, 8, 1),
        "tesla-t4": (40, pytest.approx(26.78), 70, 585, 8, 0),
        "rtx-3080-v13": (27, pytest.approx(139.62), 320, 1950, 16, 0),
        "rtx-4000-sff-ada-v13": (38, pytest.approx(8.81), 70, 210, 16, 1),
    }


def test_the_text_of_eight_a100_is_read(tmp_path: Path) -> None:
    report = convert(public("fixtures-nvidia/azhpc"), tmp_path / "mine", node="n1")
    assert report.made["dcgm"] == 8
    found = rows_in(tmp_path / "mine")
    assert [row["DCGM_FI_DEV_POWER_USAGE"] for row in found[:2]] == [pytest.approx(55.63), pytest.approx(56.96)]
    assert {row["DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_MAX"] for row in found} == {640}


@fuzzed(document().encode())
def test_mangled_xml_gives_a_clean_recording_or_a_clear_error(content: bytes) -> None:
    survives(convert, {"n1.xml": content, "n2.xml": document("08:00:30").encode()})


TEXT = b"""==============NVSMI LOG==============
Timestamp                                 : Mon Apr  1 08:00:00 2024
Attached GPUs                             : 2
GPU 00000000:18:00.0
    GPU UUID                              : GPU-18
    ECC Errors
        Volatile
            DRAM Correctable              : 4
    Temperature
        GPU Current Temp                  : 41 C
GPU 00000000:2A:00.0
    Minor Number                          : 1
    Power Readings
        Power Draw                        : 312.50 W
"""


@fuzzed(TEXT)
def test_mangled_text_gives_a_clean_recording_or_a_clear_error(content: bytes) -> None:
    survives(convert, {"n1.txt": content})
