"""Series and lines as other tools save them: Prometheus' and Loki's answers, promtool, Telegraf, Grafana."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.kit.times import parse_instant
from services.recording.conftest import imported, rows_in
from services.recording.importers import dcgm_text, grafana_csv, line_protocol, query_result
from services.recording.importers.contract import Report
from tests.mangled import fuzzed, survives

START = parse_instant("2024-04-01T08:00:00Z")
S = START // 1000
MATRIX = json.dumps(
    {
        "status": "success",
        "data": {
            "resultType": "matrix",
            "result": [
                {
                    "metric": {"__name__": "DCGM_FI_DEV_GPU_TEMP", "Hostname": "n1", "gpu": "0", "UUID": "GPU-a"},
                    "values": [[S, "41"], [S + 15.5, "42"]],
                },
                {"metric": {"Hostname": "n1"}, "values": [[S, "1"]]},
            ],
        },
    }
)
STREAMS = json.dumps(
    {
        "status": "success",
        "data": {
            "resultType": "streams",
            "result": [
                {
                    "stream": {"host": "n1", "job": "systemd-journal", "level": "error"},
                    "values": [[f"{S}000000000", "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus."]],
                },
                {
                    "stream": {"app": "slurmctld", "host": "head"},
                    "values": [[f"{S + 1}000000000", "error: Nodes n1 not responding, setting DOWN"]],
                },
                {
                    "stream": {"filename": "/var/log/syslog"},
                    "values": [[f"{S + 2}000000000", "Apr  1 08:00:02 n2 kernel: mlx5_core: link down"]],
                },
            ],
        },
    }
)
LOGCLI = json.dumps({"labels": '{host="n1"}', "line": "NVRM: Xid", "timestamp": "2024-04-01T08:00:00.5Z"}) + "\n"
EXPLORE = json.dumps([{"line": "NVRM: Xid", "timestamp": f"{S}500000000", "fields": {"host": "n1"}}])
DUMP = (
    f'{{__name__="DCGM_FI_DEV_GPU_TEMP", Hostname="n1", gpu="0"}} 41 {START}\n'
    f'{{__name__="DCGM_FI_DEV_GPU_TEMP", Hostname="n1", gpu="0"}} 42 {START + 15_500}\n'
)
OPENMETRICS = (
    "# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n"
    f'DCGM_FI_DEV_GPU_TEMP{{Hostname="n1",gpu="0"}} 41 {S}\n'
    f'DCGM_FI_DEV_GPU_TEMP{{Hostname="n1",gpu="0"}} 42 {S + 15}.5\n# EOF\n'
)
TELEGRAF = (
    f'nvidia_smi,host=n1,index=0,name=NVIDIA\\ H100 temperature_gpu=41i,fan_speed=3i,cuda="12.4" {S}000000000\n'
    f"prometheus,gpu=0,host=n1 DCGM_FI_DEV_GPU_TEMP=42 {S + 15}500000000\n"
)
AMD = f"amd_rocm_smi,gpu_id=0,host=n1,name=amd temperature_sensor_junction=41,clocks_current_sm=1500i {S}000000000\n"
IPMI = f"ipmi_sensor,host=n1,name=psu1,unit=watts,status_code=ok status=1i,value=1200 {S}000000000\n"
GRAFANA = (
    '"Time","DCGM_FI_DEV_GPU_TEMP{Hostname=""n1"", gpu=""0""}","GPU 1"\n'
    "2024-04-01 10:00:00,41 °C,40\n2024-04-01 10:00:15.500,42,41\n2024-04-01 10:00:30,1.2 K,\n"
)


@pytest.mark.parametrize(
    ("convert", "text", "options"),
    [
        (query_result.convert, MATRIX, {}),
        (dcgm_text.convert, DUMP, {}),
        (dcgm_text.convert, OPENMETRICS, {}),
        (line_protocol.convert, TELEGRAF, {}),
        (grafana_csv.convert, GRAFANA, {"timezone": "+02:00"}),
    ],
    ids=["matrix", "promtool", "openmetrics", "telegraf", "grafana"],
)
def test_one_series_comes_in_the_same_from_every_tool(
    tmp_path: Path, convert: Callable[..., Report], text: str, options: dict[str, str]
) -> None:
    _, recording = imported(convert, tmp_path, {"saved": text}, **options)
    rows = rows_in(recording)
    found = [
        (round(row["timestamp"].timestamp() * 1000) - START, row["node"], row["gpu"], row["DCGM_FI_DEV_GPU_TEMP"])
        for row in rows
    ]
    assert found == [(0, "n1", 0, 41), (15_500, "n1", 0, 42)]


def test_lines_of_a_loki_are_events_of_their_machines(tmp_path: Path) -> None:
    report, recording = imported(query_result.convert, tmp_path, {"saved": STREAMS})
    assert [(e.timestamp - START, e.node, e.source, e.severity) for e in recording.events()] == [
        (0, "n1", "kernel", "critical"), (1000, "head", "scheduler", "error"), (2000, "n2", "kernel", "warning"),
    ]  # fmt: skip
    assert [node.name for node in recording.topology.nodes] == ["head", "n1", "n2"]
    assert next(iter(recording.events())).message.startswith("NVRM: Xid")
    assert report.read["lines"] == 3


@pytest.mark.parametrize("text", [LOGCLI, EXPLORE])
def test_lines_that_logcli_or_grafana_saved(tmp_path: Path, text: str) -> None:
    _, recording = imported(query_result.convert, tmp_path, {"saved": text})
    (event,) = recording.events()
    assert (event.timestamp, event.node, event.message) == (START + 500, "n1", "NVRM: Xid")


def test_what_has_no_place_is_counted_and_never_guessed(tmp_path: Path) -> None:
    report, _ = imported(line_protocol.convert, tmp_path / "a", {"saved": TELEGRAF + "!!\n"})
    assert report.skipped["the metric has no place in a recording (samples)"] == 1
    assert report.skipped["a line that is no line protocol"] == 1
    report, _ = imported(grafana_csv.convert, tmp_path / "b", {"saved": GRAFANA})
    assert report.first[grafana_csv._OWN_LEGEND].endswith("'GPU 1'")
    assert report.skipped[grafana_csv._SCALED] == 1
    assert "3 times name no zone and were taken as UTC" in "\n".join(report.notes)


def test_commas_before_decimals_and_the_hour_that_comes_twice_in_grafanas_tables(tmp_path: Path) -> None:
    lines = ["sep=;", 'Time;"DCGM_FI_DEV_POWER_USAGE{gpu=""0"", Hostname=""n1""}"', "2026-10-25 02:59:45;612,5"]
    lines += ["2026-10-25 02:00:00;1.012,25 W", "2026-10-25 02:00:15;0,981", "2026-10-25 02:00:30;613.5"]
    rows = rows_in(imported(grafana_csv.convert, tmp_path, {"saved": "\n".join(lines)}, timezone="Europe/Zurich")[1])
    assert [row["DCGM_FI_DEV_POWER_USAGE"] for row in rows] == [612.5, 1012.25, 0.981, 613.5]
    assert [row["timestamp"].strftime("%H:%M:%S") for row in rows] == ["00:59:45", "01:00:00", "01:00:15", "01:00:30"]


@pytest.mark.parametrize(
    "form", ["{0}\n{1}\n{2}", "[{0}, {1}, {2}]", "HTTP/1.1 200 OK\r\nDate: x\r\n\r\n{0}{1}{2}", "{0}{1}{2}{"]
)
def test_answers_that_were_appended_to_one_file_are_all_read(tmp_path: Path, form: str) -> None:
    second = MATRIX.replace("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_MEMORY_TEMP")
    refused = json.dumps({"status": "error", "errorType": "timeout", "error": "query timed out"})
    text = form.replace("{0}", MATRIX).replace("{1}", refused).replace("{2}", second)
    report, recording = imported(query_result.convert, tmp_path, {"saved": text})
    assert {"DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_MEMORY_TEMP"} <= rows_in(recording)[0].keys()
    assert report.skipped["an answer without a result: the server refused the query"] == 1
    assert report.skipped["what is no JSON, and all behind it"] == form.endswith("}{")


def test_telegrafs_other_inputs(tmp_path: Path) -> None:
    _, recording = imported(line_protocol.convert, tmp_path, {"saved": AMD + IPMI})
    (gpu,) = rows_in(recording)
    assert (gpu["DCGM_FI_DEV_GPU_TEMP"], gpu["DCGM_FI_DEV_SM_CLOCK"]) == (41, 1500)
    (sensor,) = rows_in(recording, "bmc")
    assert (sensor["node"], sensor["sensor"], sensor["reading"], sensor["unit"]) == ("n1", "psu1", 1200, "W")


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (query_result, MATRIX), (query_result, STREAMS), (query_result, LOGCLI), (query_result, EXPLORE),
        (dcgm_text, DUMP), (dcgm_text, OPENMETRICS), (line_protocol, TELEGRAF), (grafana_csv, GRAFANA),
    ],
)  # fmt: skip
def test_each_form_is_recognised_by_its_own_importer(module: Any, text: str) -> None:
    modules = (query_result, dcgm_text, line_protocol, grafana_csv)
    assert [one for one in modules if one.recognise("saved", text)] == [module]


@fuzzed(*(text.encode() for text in (MATRIX, STREAMS, LOGCLI, EXPLORE)))
def test_mangled_answers(content: bytes) -> None:
    survives(query_result.convert, {"saved": content})


@fuzzed(TELEGRAF.encode(), AMD.encode(), IPMI.encode())
def test_mangled_line_protocol(content: bytes) -> None:
    survives(line_protocol.convert, {"saved": content})


@fuzzed(GRAFANA.encode())
def test_mangled_tables(content: bytes) -> None:
    survives(grafana_csv.convert, {"saved": content})


@fuzzed(DUMP.encode(), OPENMETRICS.encode())
def test_mangled_dumps(content: bytes) -> None:
    survives(dcgm_text.convert, {"saved": content})
