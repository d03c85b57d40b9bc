import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.exporters import exporters
from services.recording.conftest import imported, rows_in
from services.recording.importers.dcgm_text import convert
from services.recording.importers.parts.series.amd_series import NAMES, column_of, folded
from services.recording.importers.parts.series.known_series import KNOWN_METRICS, reading_of, stream_of
from services.recording.reader import Recording

GPU = (
    'card_series="AMD Instinct MI300X",gpu_id="{gpu}",gpu_partition_id="0",hostname="n1",serial_number="69225100{gpu}"'
)
_AMD_NAMES = NAMES.removeprefix("(?:amd_)?(?:").removesuffix(")").split("|")
SCRAPE = """\
# HELP gpu_package_power Current socket power in Watts
# TYPE gpu_package_power gauge
gpu_package_power{GPU} 748
gpu_energy_consumed{GPU} 1.4e+12
gpu_junction_temperature{GPU} 76
gpu_memory_temperature{GPU} 51
gpu_clock{GPU,clock_index="0",clock_type="GPU_CLOCK_TYPE_SYSTEM"} 1533
gpu_clock{GPU,clock_index="8",clock_type="memory"} 1292
gpu_clock{GPU,clock_index="2",clock_type="GPU_CLOCK_TYPE_VIDEO"} 900
gpu_gfx_activity{GPU,job_id="130"} 97
gpu_ecc_uncorrect_total{GPU} 2
pcie_speed{GPU} 32
pcie_max_speed{GPU} 64
gpu_violation_ppt_residency_percentage{GPU} 30
gpu_violation_socket_thermal_residency_percentage{GPU} 0
gpu_violation_vr_thermal_residency_percentage{GPU} 5
gpu_xgmi_link_tx{GPU,link_index="0"} 100
gpu_xgmi_link_tx{GPU,link_index="1"} 50
gpu_xgmi_link_rx{GPU,link_index="0"} 25
gpu_prof_tensor_active_percent{GPU} 40
gpu_nodes_total{hostname="n1"} 8
"""


def rows(tmp_path: Path, text: str) -> list[dict[str, Any]]:
    return rows_in(imported(convert, tmp_path, {"n1-20240401T080000Z.prom": text})[1])


@pytest.mark.parametrize("prefix", ["", "amd_"])
def test_a_scrape_of_amds_exporter_is_read_under_dcgms_names(tmp_path: Path, prefix: str) -> None:
    lines = [line.replace("{GPU", "{" + GPU.format(gpu=3)) for line in SCRAPE.splitlines()]
    text = "\n".join(line if line.startswith("#") else prefix + line for line in lines) + "\n"
    (row,) = rows(tmp_path, text)
    assert (row.pop("node"), row.pop("gpu")) == ("n1", 3)
    row.pop("timestamp")
    assert {name.removeprefix("DCGM_FI_"): value for name, value in row.items()} == {
        "DEV_POWER_USAGE": 748,
        "DEV_TOTAL_ENERGY_CONSUMPTION": 1.4e9,
        "DEV_GPU_TEMP": 76,
        "DEV_MEMORY_TEMP": 51,
        "DEV_SM_CLOCK": 1533,
        "DEV_MEM_CLOCK": 1292,
        "DEV_GPU_UTIL": 97,
        "DEV_ECC_DBE_VOL_TOTAL": 2,
        "DEV_PCIE_LINK_GEN": 5,
        "DEV_PCIE_MAX_LINK_GEN": 6,
        "DEV_CLOCK_THROTTLE_REASONS": 0x44,
        "DEV_NVLINK_BANDWIDTH_TOTAL": 175,
        "PROF_PIPE_TENSOR_ACTIVE": pytest.approx(0.4),
    }
    recording = Recording.open(tmp_path / "out")
    assert recording.topology.nodes[0].gpu_model == "AMD Instinct MI300X"
    assert [job.job_id for job in recording.jobs()] == ["130"]


def test_partitions_of_a_gpu_are_distinguished_from_it(tmp_path: Path) -> None:
    whole = "gpu_gfx_activity{" + GPU.format(gpu=0) + "} 90\n"
    (row,) = rows(tmp_path, whole.replace('partition_id="0"', 'partition_id="1"').replace(" 90", " 7") + whole)
    assert row["DCGM_FI_DEV_GPU_UTIL"] == 90


@given(name=st.from_regex(f"^(?:{NAMES})$", fullmatch=True), part=st.sampled_from(["system", "memory", "0", "video"]))
def test_every_name_that_is_asked_for_has_a_place(name: str, part: str) -> None:
    assert re.fullmatch(KNOWN_METRICS, name)
    assert stream_of(name) == "dcgm"
    found = reading_of(name, (("clock_type", part),)) or reading_of(name, (("link_index", part),))
    assert found is not None or name.endswith("gpu_clock")
    assert column_of(f"{name}_of_another") is None


def test_coverage_names_the_exporters_field_of_each_column() -> None:
    from_amd = {column for name in _AMD_NAMES for part in ("system", "memory") if (column := made_of(name, part))}
    assert from_amd == set(exporters().amd)
    assert exporters().source("dcgm.DCGM_FI_DEV_GPU_TEMP", amd=True).startswith("device-metrics-exporter: GPU_JUNCTION")
    assert exporters().source("dcgm.DCGM_FI_DEV_XID_ERRORS", amd=True).startswith("nothing")
    assert exporters().source("dcgm.DCGM_FI_DEV_GPU_TEMP").startswith("dcgm-exporter")


def made_of(metric: str, part: str) -> str | None:
    """Return the column that a metric alone comes to."""
    found = column_of(metric, part)
    if found is None:
        return None
    batch = pa.RecordBatch.from_pydict({"gpu": pa.array([0], pa.uint8()), found[0]: pa.array([32.0])})
    return folded(batch).schema.names[1]
