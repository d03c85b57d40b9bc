import os
from pathlib import Path
from typing import Any

import pytest

from services.kit.errors import UserError
from services.recording.conftest import rows_in, written
from services.recording.embedded import findings_of
from services.recording.importers.dcgm_text import convert
from services.recording.reader import Recording
from tests.mangled import fuzzed, survives

START = 1_711_958_400_000  # 2024-04-01T08:00:00Z
OLD = 'gpu="{gpu}",UUID="GPU-{gpu}",device="nvidia{gpu}",modelName="NVIDIA A100-SXM4-80GB",Hostname="{host}"'
NEW = (
    'gpu="{gpu}",UUID="GPU-{gpu}",pci_bus_id="00000000:{gpu}7:00.0",device="nvidia{gpu}"'
    ',modelName="NVIDIA H100 80GB HBM3",hostname="{host}",DCGM_FI_DRIVER_VERSION="550.54"'
)


def scrape(labels: str, host: str, temp: float = 40, names: tuple[str, str] = ("GPU_TEMP", "POWER_USAGE")) -> str:
    """Return what an exporter of two GPUs answers."""
    lines = []
    for name, value in zip(names, (temp, temp * 10 + 0.5), strict=True):
        lines += [f"# HELP DCGM_FI_DEV_{name} Some text {{with}} braces.", f"# TYPE DCGM_FI_DEV_{name} gauge"]
        for gpu in range(2):
            lines.append(f"DCGM_FI_DEV_{name}{{{labels.format(gpu=gpu, host=host)}}} {value + gpu}")
    return "\n".join(lines) + "\n"


def ms(row: dict[str, Any]) -> int:
    at: float = row["timestamp"].timestamp()
    return round(at * 1000)


def test_old_and_new_exporters_become_the_same_columns(tmp_path: Path) -> None:
    files = {
        "n1/metrics-20240401T080000Z.prom": scrape(OLD, "n1", 40),
        "n1/metrics-20240401T080030Z.prom": scrape(NEW, "n1", 41, ("GPU_TEMP_CELSIUS", "BOARD_POWER_WATTS")),
        "n2/metrics-20240401T080000Z.prom": scrape(NEW, "n2", 50),
    }
    report = convert(written(tmp_path / "source", files), tmp_path / "mine")
    found = [
        (ms(r) - START, r["node"], r["gpu"], r["DCGM_FI_DEV_GPU_TEMP"], r["DCGM_FI_DEV_POWER_USAGE"])
        for r in rows_in(tmp_path / "mine")
    ]
    assert sorted(found) == [
        (0, "n1", 0, 40, 400.5), (0, "n1", 1, 41, 401.5), (0, "n2", 0, 50, 500.5), (0, "n2", 1, 51, 501.5),
        (30_000, "n1", 0, 41, 410.5), (30_000, "n1", 1, 42, 411.5),
    ]  # fmt: skip
    assert (report.read["files"], report.read["samples"], report.skipped) == (3, 12, {})
    recording = Recording.open(tmp_path / "mine")
    assert recording.manifest.streams["dcgm"].interval_s == 30
    first = recording.topology.nodes[0]
    assert (first.gpu_model, first.gpus[0].uuid, first.gpus[0].pci_bus_id) == (
        "NVIDIA A100-SXM4-80GB", "GPU-0", "00000000:07:00.0"
    )  # fmt: skip
    assert recording.manifest.source["notes"] == ["files' times are those in their names (UTC)"]


def test_counters_of_xids_raise_what_the_kernels_log_would(tmp_path: Path) -> None:
    counted = 'DCGM_EXP_XID_ERRORS_TOTAL{{{},xid="{}"}} {}\n'
    gpu = NEW.format(gpu=1, host="n1")
    files = {}
    for tick in range(20):
        text = scrape(NEW, "n1")
        text += counted.format(gpu, 13, 1) if tick >= 4 else ""
        text += counted.format(gpu, 95, 1) if tick >= 12 else ""
        files[f"n1/metrics-20240401T08{tick // 2:02}{tick % 2 * 30:02}Z.prom"] = text
    report = convert(written(tmp_path / "source", files), tmp_path / "mine")
    assert report.skipped == {}
    recorded = rows_in(tmp_path / "mine")
    assert sum(row["DCGM_EXP_XID_ERRORS_TOTAL_95"] == 1 for row in recorded) == 8
    fired = [one for one in findings_of(Recording.open(tmp_path / "mine")) if one.state == "firing"]
    assert [(one.fault, dict(one.entity)) for one in fired] == [("ecc_uncorrectable", {"node": "n1", "gpu": 1})]
    assert fired[0].started_at == START + 345_000, "between the scrapes of 5:30 and 6:00"
    assert (fired[0].evidence["xid"], fired[0].evidence["xid_seen_in"]) == (95, "DCGM_EXP_XID_ERRORS_TOTAL")


def test_a_sample_for_every_job_on_a_gpu_is_one_reading_and_the_jobs_are_kept(tmp_path: Path) -> None:
    head = 'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-0",Hostname="n1"'
    files = {
        f"m-{second}.prom": f'{head},hpc_job="812"}} 97\n{head},hpc_job="813"}} 97\n'
        for second in (1711958400, 1711958430)
    }
    report = convert(written(tmp_path / "source", files), tmp_path / "mine")
    assert [row["DCGM_FI_DEV_GPU_UTIL"] for row in rows_in(tmp_path / "mine")] == [97, 97]
    assert (
        report.skipped["another sample had that reading already (dcgm-exporter repeats it for every job on a GPU)"] == 2
    )
    assert [job.job_id for job in Recording.open(tmp_path / "mine").jobs()] == ["812", "813"]
    assert report.skipped["a job's GPU is another job's at the same time"] == 1


def test_a_new_xid_is_the_same_column_and_blanks_are_nothing(tmp_path: Path) -> None:
    head = 'DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-0",Hostname="n1"'
    blank = 'DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-0",Hostname="n1"} 9223372036854775792\n'
    nan = 'DCGM_FI_DEV_MEMORY_TEMP{gpu="0",UUID="GPU-0",Hostname="n1"} NaN\n'
    files = {
        "m-1711958400.prom": f'{head},err_code="0",err_msg="No Error"}} 0\n' + blank + nan,
        "m-1711958430.prom": f'{head},err_code="79",err_msg="GPU has fallen off the bus"}} 79\n',
    }
    report = convert(written(tmp_path / "source", files), tmp_path / "mine")
    found = rows_in(tmp_path / "mine")
    assert [row["DCGM_FI_DEV_XID_ERRORS"] for row in found] == [0, 79]
    assert not {"DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_MEMORY_TEMP"} & found[0].keys()
    assert report.skipped == {"a reading that is not there (blank or NaN)": 2}


def test_an_exporters_pod_is_not_the_node(tmp_path: Path) -> None:
    files = {
        "worker7/metrics-1711958400.prom": scrape(OLD, "dcgm-exporter-x2k4p"),
        "worker7/metrics-1711958430.prom": scrape(OLD, "dcgm-exporter-q9z8y"),
    }
    convert(written(tmp_path / "source", files), tmp_path / "mine")
    assert {row["node"] for row in rows_in(tmp_path / "mine")} == {"worker7"}
    files = {
        f"metrics-{second}.txt": scrape(OLD, f"dcgm-exporter-{second}"[:19]) for second in (1711958400, 1711958430)
    }
    convert(written(tmp_path / "b" / "source", files), tmp_path / "theirs", node="n9")
    assert {row["node"] for row in rows_in(tmp_path / "theirs")} == {"n9"}


@pytest.mark.parametrize("stamp", ["1711958400123", "1711958400.123", "1.711958400123e9"])
def test_lines_may_have_times_of_their_own(tmp_path: Path, stamp: str) -> None:
    text = f'DCGM_FI_DEV_GPU_TEMP{{gpu="0",Hostname="n1"}} 41 {stamp} # {{trace_id="x"}} 1\n# EOF\n'
    convert(written(tmp_path / "source", {"dump.txt": text}), tmp_path / "mine")
    assert [ms(row) for row in rows_in(tmp_path / "mine")] == [START + 123]


def test_times_can_be_given_and_are_never_those_of_copied_files(tmp_path: Path) -> None:
    names = [f"{number}.prom" for number in range(1, 12)]
    source = written(
        tmp_path / "source", {f"n1/{name}": scrape(OLD, "n1").replace("} 41", f"}} {name[:-5]}") for name in names}
    )
    convert(source, tmp_path / "given", start="2024-04-01T08:00:00Z", every=15)
    temperatures = {ms(row): row["DCGM_FI_DEV_GPU_TEMP"] for row in rows_in(tmp_path / "given")}
    assert temperatures == {START + number * 15_000: number + 1 for number in range(11)}, "in order of their numbers"
    with pytest.raises(UserError, match=r"n1/2\.prom: the second of several dumps.* cannot be known") as refused:
        convert(source, tmp_path / "guessed")
    assert "--every 15" in (refused.value.remedy or "")
    with pytest.raises(UserError, match="all at --start"):
        convert(source, tmp_path / "half", start="2024-04-01T08:00:00Z")
    for number, name in enumerate(names):
        os.utime(source / "n1" / name, (1_711_958_400 + number * 30,) * 2)
    convert(source, tmp_path / "modified", start="mtime")
    assert sorted({ms(row) for row in rows_in(tmp_path / "modified")}) == [START + n * 30_000 for n in range(11)]


def test_files_called_by_their_number_are_scrapes_of_one_node(tmp_path: Path) -> None:
    source = written(
        tmp_path / "source", {f"s{number}.prom": scrape(OLD, "dcgm-exporter-x2k4p") for number in (1, 2, 3)}
    )
    with pytest.raises(UserError, match="cannot be known"):
        convert(source, tmp_path / "guessed")
    convert(source, tmp_path / "given", start="2024-04-01T08:00:00Z", every=15)
    assert {row["node"] for row in rows_in(tmp_path / "given")} == {"s1"}
    assert sorted({ms(row) for row in rows_in(tmp_path / "given")}) == [START, START + 15_000, START + 30_000]


def test_one_scrape_without_a_time_is_that_of_its_files_last_change_and_says_so(tmp_path: Path) -> None:
    source = written(tmp_path / "source", {"n1.prom": scrape(OLD, "n1")})
    os.utime(source / "n1.prom", (1_711_958_400,) * 2)
    convert(source, tmp_path / "mine")
    assert {ms(row) for row in rows_in(tmp_path / "mine")} == {START}
    assert "last change" in Recording.open(tmp_path / "mine").manifest.source["notes"][0]


def test_other_exporters_in_the_folder_are_taken_too(tmp_path: Path) -> None:
    text = (
        'node_infiniband_port_data_received_bytes_total{device="mlx5_0",port="1"} 4e+12\n'
        'node_infiniband_state_id{device="mlx5_0",port="1"} 4\n'
        'ipmi_power_watts{id="1",name="PSU1"} 1200\nnode_load1 3\n'
    )
    report = convert(written(tmp_path / "source", {"n1/dcgm_metrics_1711958400.prom": text}), tmp_path / "mine")
    (nic,) = rows_in(tmp_path / "mine", "nic")
    assert (nic["node"], nic["nic"], nic["port_rcv_data"], nic["state"]) == ("n1", "mlx5_0", 1e12, 1)
    (sensor,) = rows_in(tmp_path / "mine", "bmc")
    assert (sensor["node"], sensor["sensor"], sensor["reading"], sensor["unit"]) == ("n1", "PSU1", 1200, "W")
    assert report.skipped == {"the metric has no place in a recording (samples)": 1}


def test_bad_lines_are_counted_and_the_rest_is_taken(tmp_path: Path) -> None:
    good = 'DCGM_FI_DEV_GPU_TEMP{gpu="0",Hostname="n1"} 41\n'
    bad = (
        'DCGM_FI_DEV_GPU_TEMP{gpu="1",Hostname="n1"} warm\nDCGM_FI_DEV_GPU_TEMP{gpu="2"\n!\n' + good.strip() + " soon\n"
    )
    report = convert(written(tmp_path / "source", {"m-1711958400.prom": bad + good}), tmp_path / "mine")
    assert len(rows_in(tmp_path / "mine")) == 1
    assert dict(report.skipped) == {
        "a value that is no number": 1,
        "a line that is no sample": 2,
        "a time that is none": 1,
    }
    assert report.first["a value that is no number"].endswith("m-1711958400.prom: line 1")


def test_nothing_of_use_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing in the source"):
        convert(written(tmp_path / "source", {"x.prom": "node_load1 3\n"}), tmp_path / "mine")
    with pytest.raises(UserError, match="no such file"):
        convert(tmp_path / "nowhere", tmp_path / "mine")


SAMPLE = (
    scrape(NEW, "n1")
    + 'DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-0",hostname="n1",err_code="79",hpc_job="8"} 79 1711958400123\n'
    + 'hindcast_job_iteration{job_id="1",rank="0",node="n1"} 7\nhindcast_job_loss{job_id="1",rank="0",node="n1"} NaN\n'
    + 'sonic_interface_pfc_receive_packets_total{device="Ethernet0",switch="s",priority="3"} 1e+10\n'
).encode()


@fuzzed(SAMPLE)
def test_mangled_scrapes_give_a_clean_recording_or_a_clear_error(content: bytes) -> None:
    survives(convert, {"n1/m-1711958400.prom": content, "n1/m-1711958430.prom": SAMPLE})
