"""Imports line protocol as Telegraf writes it: nvidia_smi, amd_rocm_smi, ipmi_sensor, infiniband, prometheus.

Fields and tags of these inputs become the series of the exporters that give the same readings; measurements of
`prometheus` inputs are such series already, in either of Telegraf's forms.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

from services.recording.importers.contract import Draft, Progress, Report, silent
from services.recording.importers.parts.moments import plausible
from services.recording.importers.parts.series.series_intake import SeriesIntake
from services.recording.importers.parts.source_files import SourceFiles, node_by_path, number_of, where

_KEY = r"(?:[^\s,=\\]|\\.)+"
_PAIR = rf'{_KEY}=(?:"(?:[^"\\]|\\.)*"|[^\s,"]+)'
_LINE = re.compile(
    rf"(?P<name>(?:[^\s,\\]|\\.)+)(?P<tags>(?:,{_KEY}={_KEY})*) "
    rf"(?P<fields>{_PAIR}(?:,{_PAIR})*)(?: (?P<at>\d{{10,19}}))?"
)
_TAG = re.compile(rf",(?P<name>{_KEY})=(?P<value>{_KEY})")
_FIELD = re.compile(rf'(?:^|,)(?P<name>{_KEY})=(?P<value>"(?:[^"\\]|\\.)*"|[^\s,"]+)')
_ESCAPED = re.compile(r"\\(.)")
_NVIDIA = {
    "temperature_gpu": "GPU_TEMP", "power_draw": "POWER_USAGE", "utilization_gpu": "GPU_UTIL",
    "utilization_memory": "MEM_COPY_UTIL", "clocks_current_sm": "SM_CLOCK", "clocks_current_memory": "MEM_CLOCK",
    "memory_used": "FB_USED", "memory_free": "FB_FREE", "memory_reserved": "FB_RESERVED",
    "power_limit": "POWER_MGMT_LIMIT", "pcie_link_gen_current": "PCIE_LINK_GEN",
    "pcie_link_width_current": "PCIE_LINK_WIDTH", "retired_pages_multiple_single_bit": "RETIRED_SBE",
    "retired_pages_double_bit": "RETIRED_DBE",
    "remapped_rows_correctable": "CORRECTABLE_REMAPPED_ROWS",
    "remapped_rows_uncorrectable": "UNCORRECTABLE_REMAPPED_ROWS",
}  # fmt: skip
_AMD = {
    "temperature_sensor_junction": "gpu_junction_temperature", "temperature_sensor_memory": "gpu_memory_temperature",
    "power_draw": "gpu_package_power", "utilization_gpu": "gpu_gfx_activity", "utilization_memory": "gpu_umc_activity",
}  # fmt: skip
_AMD_CLOCKS = {"clocks_current_sm": "system", "clocks_current_memory": "memory"}
_IPMI = {
    "degrees_c": "ipmi_temperature_celsius", "watts": "ipmi_power_watts", "rpm": "ipmi_fan_speed_rpm",
    "volts": "ipmi_voltage_volts", "amps": "ipmi_current_amperes",
}  # fmt: skip
_VALUES = ("gauge", "counter", "value", "untyped")
_DIGITS = {10: 1e-3, 13: 1, 16: 1e3, 19: 1e6}
"""Digits of a time by its precision: what divides it to ms."""
Sample = tuple[str, dict[str, str], float]


def convert(
    source: Annotated[Path, "a file of line protocol (.gz too), or a folder of them"],
    out: Path,
    *,
    node: Annotated[str, "the node, for lines without a tag host (else the file's or folder's name)"] = "",
    cluster: Annotated[str, "name of the cluster"] = "imported",
    progress: Progress = silent,
) -> Report:
    """Convert line protocol into a recording at ``out``.

    UserError: the source does not exist, nothing in it has a place in a recording, or ``out`` exists.
    """
    report = Report()
    files = SourceFiles(source, report, progress)
    with Draft(out, report) as draft:
        intake = SeriesIntake(draft, report)
        for path in files.paths:
            fallback = node or node_by_path(path, files.root)
            for number, line in files.lines(path):
                if line.strip() and not line.startswith("#"):
                    _take(intake, line, fallback, report, where(path, number))
        topology = intake.finish()
        draft.imported(
            topology,
            cluster,
            title=f"Telegraf's readings of {len(topology.nodes)} nodes",
            summary="What Telegraf gathered. What was wrong, if anything, is not known.",
            document="InfluxDB line protocol",
        )
    return report


def recognise(_name: str, head: str) -> str | None:
    """Return why a file is taken for line protocol, None where it is none."""
    lines = [line for line in head.splitlines()[:20] if line.strip() and not line.startswith("#")]
    known = sum((match := _LINE.fullmatch(line)) is not None and match["at"] is not None for line in lines)
    return "InfluxDB line protocol" if lines and 2 * known > len(lines) else None


def _take(intake: SeriesIntake, line: str, fallback: str, report: Report, place: str) -> None:
    match = _LINE.fullmatch(line.strip())
    if match is None:
        report.skip("a line that is no line protocol", place)
        return
    digits = match["at"] or ""
    at = round(int(digits) / _DIGITS[len(digits)]) if len(digits) in _DIGITS else -1
    if not plausible(at):
        report.skip("a line without a time that can be read", place)
        return
    tags = {_plain(tag["name"]): _plain(tag["value"]) for tag in _TAG.finditer(match["tags"])}
    fields = {_plain(one["name"]): one["value"] for one in _FIELD.finditer(match["fields"])}
    labels = {**tags, "node": tags.get("host") or tags.get("node") or fallback}
    for metric, own, value in _samples(_plain(match["name"]), labels, fields):
        intake.take(metric, own, [at], [value], place)


def _samples(name: str, labels: dict[str, str], fields: Mapping[str, str]) -> Iterator[Sample]:
    """Yield the samples of a line as the series of an exporter, with their labels and values."""
    numbers = {field: number for field, text in fields.items() if (number := number_of(text.rstrip("iu"))) is not None}
    if name == "nvidia_smi":
        labels |= {"gpu": labels.get("index", ""), "modelName": labels.get("name", "")}
    for field, value in numbers.items():
        if name == "nvidia_smi":
            yield f"DCGM_FI_DEV_{_NVIDIA[field]}" if field in _NVIDIA else f"nvidia_smi_{field}", labels, value
        elif name == "amd_rocm_smi":
            clock = _AMD_CLOCKS.get(field)
            metric = "gpu_clock" if clock else _AMD.get(field, f"amd_rocm_smi_{field}")
            yield metric, labels | ({"clock_type": clock} if clock else {}), value
        elif name == "ipmi_sensor":
            if field == "value":
                yield _IPMI.get(labels.get("unit", ""), "ipmi_sensor_value"), labels, value
        elif name == "infiniband":
            yield f"node_infiniband_{field}_total", labels, value
        elif name == "prometheus" or field not in _VALUES:
            yield field, labels, value
        else:
            yield name, labels, value


def _plain(text: str) -> str:
    return _ESCAPED.sub(r"\1", text)
