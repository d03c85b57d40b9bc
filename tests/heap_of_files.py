"""Writes the incident of `heap_scenario` as an SRE has it in the morning: forty files, each as its tool writes it.

Two zones: what prints local times does so in Zurich's (CEST), the others in UTC. The clocks of three BMCs are off.
"""

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from services.kit.series import table
from services.recording.conftest import written
from services.recording.reader import Recording

ZONE = ZoneInfo("Europe/Zurich")
EVERY_MS = 15_000
CLOCKS_OFF_S = {("sel", "v002"): 240, ("sel", "v004"): -180, ("kernel", "v006"): 260}
"""By how much a clock is ahead: of two BMCs, and of a node's own."""
FIELDS = {
    # DCGM's field, and what nvidia-smi --query-gpu calls it
    "DCGM_FI_DEV_GPU_TEMP": "temperature.gpu",
    "DCGM_FI_DEV_MEMORY_TEMP": "temperature.memory",
    "DCGM_FI_DEV_POWER_USAGE": "power.draw [W]",
    "DCGM_FI_DEV_SM_CLOCK": "clocks.current.sm [MHz]",
    "DCGM_FI_DEV_GPU_UTIL": "utilization.gpu [%]",
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": "clocks_event_reasons.active",
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "ecc.errors.uncorrected.volatile.total",
    "DCGM_FI_DEV_ROW_REMAP_PENDING": "remapped_rows.pending",
    "DCGM_FI_DEV_XID_ERRORS": "",
}
PCI = tuple(f"00000000:{bus}:00.0" for bus in ["07", "0F", "47", "4E", "87", "90", "B7", "BD"])
Sample = tuple[int, str, int, dict[str, float]]
"""Time in ms, node, GPU, readings by DCGM's field."""


def write_heap(incident: Path, folder: Path) -> Path:
    """Write the files below `folder`, and return it."""
    recording = Recording.open(incident)
    samples: dict[str, list[Sample]] = {}
    for sample in _gpus(recording):
        samples.setdefault(sample[1], []).append(sample)
    files: dict[str, str] = {
        **{f"{node}/metrics.om": _openmetrics(samples[node]) for node in ("v001", "v002", "v003")},
        "tsdb/v004-dump.txt": _dump(samples["v004"]),
        "v005-nvidia-smi.csv": _smi(samples["v005"]),
        "telegraf/v006.out": _telegraf(samples["v006"]),
        "grafana/v007 GPUs-data-2024-04-01 11_10_00.csv": _grafana(samples["v007"]),
        "prometheus/v008.json": _matrix(samples["v008"]),
        **{f"nodes/{node}-node-exporter.prom": text for node, text in _exported(recording, "nic").items()},
        "ipmi-exporter.prom": "".join(_exported(recording, "bmc").values()),
        "slurm-812.out": _training(recording),
        "sacct.txt": _sacct(recording),
        "notes.md": "It began shortly after ten, we think.\n",
        "hosts": "".join(f"10.0.0.{number} v{number:03d}.lab.example v{number:03d}\n" for number in range(1, 9)),
        "v001/nvidia-bug-report.log": _bug_report(samples["v001"]),
        **_logs(recording),
    }
    return written(folder, files)


def _gpus(recording: Recording) -> Iterator[Sample]:
    seen: dict[tuple[str, int], int] = {}
    for batch in recording.batches("dcgm", columns=list(FIELDS)):
        for row in batch.to_pylist():
            at = round(row["timestamp"].timestamp() * 1000)
            key = row["node"], row["gpu"]
            if at - seen.get(key, 0) < EVERY_MS - 2500:
                continue
            seen[key] = at
            yield at, *key, {name: row[name] for name in FIELDS if row[name] is not None}


def _local(at: int, form: str) -> str:
    return datetime.fromtimestamp(at / 1000, ZONE).strftime(form)


def _labels(node: str, gpu: int) -> str:
    model = "NVIDIA A100-SXM4-80GB"
    return f'gpu="{gpu}",UUID="GPU-{node}-{gpu}",pci_bus_id="{PCI[gpu]}",modelName="{model}",Hostname="{node}"'


def _openmetrics(samples: list[Sample]) -> str:
    lines = []
    for name in FIELDS:
        lines.append(f"# TYPE {name} gauge\n")
        lines += [
            f"{name}{{{_labels(node, gpu)}}} {values[name]:g} {at / 1000:.3f}\n"
            for at, node, gpu, values in samples
            if name in values
        ]
    return "".join([*lines, "# EOF\n"])


def _dump(samples: list[Sample]) -> str:
    return "".join(
        f'{{__name__="{name}", {_labels(node, gpu)}}} {value:g} {at}\n'
        for at, node, gpu, values in samples
        for name, value in values.items()
    )


def _smi(samples: list[Sample]) -> str:
    lines = [", ".join(["timestamp", "index", "uuid", *filter(None, FIELDS.values())])]
    for at, node, gpu, values in samples:
        cells = [_local(at, "%Y/%m/%d %H:%M:%S.") + f"{at % 1000:03d}", str(gpu), f"GPU-{node}-{gpu}"]
        for name, column in FIELDS.items():
            value = values.get(name)
            if not column:
                continue
            unit = column.partition("[")[2].rstrip("]")
            plain = "" if value is None else f"{value:.2f} {unit}" if unit == "W" else f"{value:g} {unit}".strip()
            if value is not None and "reasons" in column:
                plain = f"0x{int(value):016x}"
            cells.append("[N/A]" if value is None else plain)
        lines.append(", ".join(cells))
    return "\n".join(lines) + "\n"


def _telegraf(samples: list[Sample]) -> str:
    return "".join(
        f"prometheus,host={node}.lab.example,gpu={gpu},UUID=GPU-{node}-{gpu},pci_bus_id={PCI[gpu]} "
        + ",".join(f"{name}={value:g}" for name, value in values.items())
        + f" {at}000000\n"
        for at, node, gpu, values in samples
    )


def _grafana(samples: list[Sample]) -> str:
    names = [(name, gpu) for name in list(FIELDS)[:5] for gpu in range(8)]
    quoted = [f'{name}{{Hostname="v007", gpu="{gpu}"}}'.replace('"', '""') for name, gpu in names]
    lines = ['"Time",' + ",".join(f'"{name}"' for name in quoted)]
    rows: dict[int, dict[tuple[str, int], float]] = {}
    for at, _, gpu, values in samples:
        rows.setdefault(at, {}).update({(name, gpu): value for name, value in values.items()})
    for at, cells in sorted(rows.items()):
        shown = [f"{cells[key]:g}" if key in cells else "" for key in names]
        lines.append(",".join([_local(at, "%Y-%m-%d %H:%M:%S.%f")[:-3], *shown]))
    return "\n".join(lines) + "\n"


def _matrix(samples: list[Sample]) -> str:
    series: dict[tuple[str, int], list[list[Any]]] = {}
    for at, _, gpu, values in samples:
        for name, value in values.items():
            series.setdefault((name, gpu), []).append([at / 1000, f"{value:g}"])
    result = [
        {"metric": {"__name__": name, "Hostname": "v008", "gpu": str(gpu), "UUID": f"GPU-v008-{gpu}"}, "values": values}
        for (name, gpu), values in series.items()
    ]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})


def _exported(recording: Recording, stream: str) -> dict[str, str]:
    """Return by node the text of node_exporter or ipmi_exporter, each line with its time."""
    rules, found = table().streams[stream], dict[str, list[str]]()
    for batch in recording.batches(stream):
        for row in batch.to_pylist():
            at = round(row["timestamp"].timestamp() * 1000)
            lines = found.setdefault(row["node"], [])
            if stream == "bmc":
                metric = rules.by_unit.get(row["unit"], {}).get("reading")
                if metric and row["reading"] is not None:
                    lines.append(f'{metric}{{name="{row["sensor"]}",node="{row["node"]}"}} {row["reading"]:g} {at}\n')
                continue
            for name, rule in rules.columns.items():
                if row.get(name) is not None:
                    value = row[name] * rule.scale + rule.offset
                    lines.append(f'{rule.metric}{{device="{row["nic"]}",port="1"}} {value:.0f} {at}\n')
    return {node: "".join(lines) for node, lines in found.items() if node.startswith("v")}


def _training(recording: Recording) -> str:
    lines = ["using world size: 64, data-parallel-size: 64, tensor-model-parallel size: 1\n"]
    for batch in recording.batches("steps"):
        for row in batch.to_pylist():
            if row["rank"] == -1:
                at = round(row["timestamp"].timestamp() * 1000)
                lines.append(
                    f" [{_local(at, '%Y-%m-%d %H:%M:%S.%f')}] iteration {row['iteration']:8d}/  150000 | elapsed time "
                    f"per iteration (ms): {1000 * row['step_time_s']:.1f} | lm loss: {row['loss'] or 1.9:.6E} |\n"
                )
    return "".join(lines)


def _sacct(recording: Recording) -> str:
    lines = ["JobID|JobName|User|State|ExitCode|Submit|Start|End|NodeList|AllocTRES"]
    for job in recording.jobs():
        times = [_local(at, "%Y-%m-%dT%H:%M:%S") if at else "Unknown" for at in (job.submit, job.start, job.end)]
        nodes = ",".join(job.nodes)
        lines.append(f"{job.job_id}|{job.name}|{job.user}|{job.state}|1:0|{'|'.join(times)}|{nodes}|gres/gpu=64,node=8")
    return "\n".join(lines) + "\n"


def _bug_report(samples: list[Sample]) -> str:
    at, node, gpu, values = samples[0]
    rule = "_" * 44
    return (
        f"{rule}\n\nStart of NVIDIA bug report log file.\n\nuname: Linux {node} 5.15.0-105-generic x86_64\n\n{rule}\n\n"
        f"/usr/bin/nvidia-smi --query\n\n==============NVSMI LOG==============\n\n"
        f"Timestamp                 : {_local(at - 1000, '%a %b %e %H:%M:%S %Y')}\nAttached GPUs             : 8\n"
        f"GPU {PCI[gpu]}\n    GPU UUID              : GPU-{node}-{gpu}\n    Minor Number          : {gpu}\n"
        f"    Temperature\n        GPU Current Temp  : {values['DCGM_FI_DEV_GPU_TEMP']:g} C\n"
    )


def _logs(recording: Recording) -> dict[str, str]:
    """Return the files of logs: dmesg -T and the SELs in local time, the journal and Loki's lines with their own."""
    start = recording.manifest.start
    files: dict[str, list[str]] = {f"logs/v{number:03d}-dmesg.txt": [] for number in range(1, 5)}
    loki: dict[tuple[str, str], list[list[str]]] = {}
    cleared = _sel(start + 1000, "Event Logging Disabled #0x10 | Log area reset/cleared")
    sel = {f"v{number:03d}": [cleared] for number in range(1, 9)}
    journal = []
    for lines in files.values():
        lines.append(f"[{_local(start + 5000, '%a %b %e %H:%M:%S %Y')}] TCP: eth0: Driver has suspect GRO.\n")
    for event in recording.events():
        node = event.node or "head"
        at = event.timestamp + CLOCKS_OFF_S.get((event.source, node), 0) * 1000
        if event.source == "sel":
            body = event.message.split("|", 3)[3].strip()
            sel[node].append(_sel(at, body))
        elif event.source == "scheduler":
            loki.setdefault(("slurmctld", "head"), []).append([f"{at}000000", event.message])
        elif event.source == "kernel" and node == "v008":
            loki.setdefault(("systemd-journal", node), []).append([f"{at}000000", event.message])
        elif event.source == "kernel" and f"logs/{node}-dmesg.txt" in files:
            files[f"logs/{node}-dmesg.txt"].append(f"[{_local(at, '%a %b %e %H:%M:%S %Y')}] {event.message}\n")
        elif event.source == "kernel" and node.startswith("v"):
            entry = {"__REALTIME_TIMESTAMP": f"{at}000", "_HOSTNAME": node, "_TRANSPORT": "kernel", "PRIORITY": "4"}
            journal.append(json.dumps(entry | {"MESSAGE": event.message}) + "\n")
    streams = [{"stream": {"job": job, "host": host}, "values": lines} for (job, host), lines in loki.items()]
    answer = {"status": "success", "data": {"resultType": "streams", "result": streams}}
    fabric = {
        f"fabric/v{number:03d}-fabricmanager.log": (
            f"[{_local(start + 3000, '%b %d %Y %H:%M:%S')}] [INFO] [tid 7] Fabric Manager - Getting configuration.\n"
        )
        for number in range(1, 5)
    }
    return {
        **{name: "".join(lines) for name, lines in files.items()},
        **{f"bmc/{node}-bmc.sel": "".join(lines) for node, lines in sel.items()},
        "journal.json": "".join(journal),
        "loki.json": json.dumps(answer),
        **fabric,
    }


def _sel(at: int, body: str) -> str:
    return f"  1a | {_local(at, '%m/%d/%Y')} | {_local(at, '%H:%M:%S')} | {body}\n"
