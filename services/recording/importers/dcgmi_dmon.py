"""Imports what `dcgmi dmon` printed, any of its columns.

It prints no times: ``--start`` and ``--every`` (what ``dcgmi dmon -d`` was given, in seconds) say them. Columns are
known by the tags that DCGM heads them with; one that is not known is named and left out.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

from services.recording.importers.contract import Draft, Progress, Report, silent
from services.recording.importers.parts.moments import DumpClock, dump_clock
from services.recording.importers.parts.source_files import SourceFiles, node_by_path, number_of, where
from services.recording.importers.parts.stream_rows import StreamRows
from services.recording.model import Gpu, Node, Topology

TAGS: Mapping[str, str] = {
    # The tag of a column (dcgm_fields.cpp): the field's name without DCGM_FI_.
    "SMCLK": "DEV_SM_CLOCK", "MMCLK": "DEV_MEM_CLOCK", "SMMAX": "DEV_MAX_SM_CLOCK", "MMMAX": "DEV_MAX_MEM_CLOCK",
    "DVCCTR": "DEV_CLOCK_THROTTLE_REASONS", "TMPTR": "DEV_GPU_TEMP", "MMTMP": "DEV_MEMORY_TEMP",
    "GMMOT": "DEV_MEM_MAX_OP_TEMP", "GGMOT": "DEV_GPU_MAX_OP_TEMP", "SDTMP": "DEV_SLOWDOWN_TEMP",
    "SHTMP": "DEV_SHUTDOWN_TEMP", "POWER": "DEV_POWER_USAGE", "TOTEC": "DEV_TOTAL_ENERGY_CONSUMPTION",
    "PMLMT": "DEV_POWER_MGMT_LIMIT", "EPLMT": "DEV_ENFORCED_POWER_LIMIT", "GPUTL": "DEV_GPU_UTIL",
    "MCUTL": "DEV_MEM_COPY_UTIL", "ECUTL": "DEV_ENC_UTIL", "DCUTL": "DEV_DEC_UTIL", "FBTTL": "DEV_FB_TOTAL",
    "FBFRE": "DEV_FB_FREE", "FBUSD": "DEV_FB_USED", "PSTAT": "DEV_PSTATE", "FANSP": "DEV_FAN_SPEED",
    "XIDER": "DEV_XID_ERRORS", "PVIOL": "DEV_POWER_VIOLATION", "TVIOL": "DEV_THERMAL_VIOLATION",
    "SBVIO": "DEV_SYNC_BOOST_VIOLATION", "BLVIO": "DEV_BOARD_LIMIT_VIOLATION", "RVIOL": "DEV_RELIABILITY_VIOLATION",
    "ESVTL": "DEV_ECC_SBE_VOL_TOTAL", "EDVTL": "DEV_ECC_DBE_VOL_TOTAL", "ESATL": "DEV_ECC_SBE_AGG_TOTAL",
    "EDATL": "DEV_ECC_DBE_AGG_TOTAL", "RPSBE": "DEV_RETIRED_SBE", "RPDBE": "DEV_RETIRED_DBE",
    "RPPEN": "DEV_RETIRED_PENDING", "RPCTR": "DEV_PCIE_REPLAY_COUNTER", "TXTPT": "DEV_PCIE_TX_THROUGHPUT",
    "RXTPT": "DEV_PCIE_RX_THROUGHPUT", "PCIMG": "DEV_PCIE_MAX_LINK_GEN", "PCIMW": "DEV_PCIE_MAX_LINK_WIDTH",
    "PCILG": "DEV_PCIE_LINK_GEN", "PCILW": "DEV_PCIE_LINK_WIDTH", "NFELT": "DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    "NDELT": "DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "GRACT": "PROF_GR_ENGINE_ACTIVE", "SMACT": "PROF_SM_ACTIVE",
    "SMOCC": "PROF_SM_OCCUPANCY", "TENSO": "PROF_PIPE_TENSOR_ACTIVE", "DRAMA": "PROF_DRAM_ACTIVE",
    "FP64A": "PROF_PIPE_FP64_ACTIVE", "FP32A": "PROF_PIPE_FP32_ACTIVE", "FP16A": "PROF_PIPE_FP16_ACTIVE",
    "PCITX": "PROF_PCIE_TX_BYTES", "PCIRX": "PROF_PCIE_RX_BYTES", "NVLTX": "PROF_NVLINK_TX_BYTES",
    "NVLRX": "PROF_NVLINK_RX_BYTES",
}  # fmt: skip
_HEAD = re.compile(r"\s*#\s*Entity\s+(?P<tags>\S.*)")
_ROW = re.compile(r"\s*(?P<kind>GPU|GPU-I|GPU-CI|CI|Switch|Link|CPU|CPU Core)\s+(?P<number>[\d/]+)\s+(?P<cells>\S.*)")
_UNITS = re.compile(r"\s*I[Dd](?:\s.*)?")


def convert(
    source: Annotated[Path, "a file of `dcgmi dmon` output, or a folder of them"],
    out: Path,
    *,
    start: Annotated[str, "time of the first row (RFC 3339): dcgmi prints none"] = "",
    every: Annotated[float, "seconds between rows of a GPU, what -d was given (its default is 1)"] = 0.0,
    node: Annotated[str, "the node; else the file's or folder's name"] = "",
    cluster: Annotated[str, "name of the cluster"] = "imported",
    progress: Progress = silent,
) -> Report:
    """Convert what was printed into a recording at ``out``; each file begins at ``start``.

    UserError: the source does not exist, ``start`` or ``every`` is missing, nothing could be imported, or ``out``
    exists.
    """
    report = Report()
    files = SourceFiles(source, report, progress)
    clock = dump_clock(files.root, start, every, "UTC")
    gpus: dict[str, set[int]] = {}
    with Draft(out, report) as draft:
        rows = StreamRows(draft, "dcgm")
        for path in files.paths:
            name = node or node_by_path(path, files.root)
            for at, gpu, values in _rows(files, path, clock, report):
                gpus.setdefault(name, set()).add(gpu)
                rows.add(at, (name, gpu), dict(values))
        rows.finish()
        nodes = [Node(name=name, gpus=[Gpu(gpu=gpu) for gpu in sorted(known)]) for name, known in sorted(gpus.items())]
        draft.imported(
            Topology(nodes=nodes),
            cluster,
            title=f"dcgmi dmon of {len(nodes)} nodes",
            summary="Readings that dcgmi dmon printed. What was wrong, if anything, is not known.",
            document="dcgmi dmon",
            notes=["dcgmi prints no times: they are counted from --start, each moment --every after the one before"],
        )
    return report


def _rows(
    files: SourceFiles, path: Path, clock: DumpClock, report: Report
) -> Iterator[tuple[int, int, dict[str, float]]]:
    """Yield time, GPU and readings by column; the next moment begins where a GPU comes again."""
    tags: list[str] = []
    moment, inside = 0, set[int]()
    for number, line in files.lines(path):
        head, row = _HEAD.fullmatch(line), _ROW.fullmatch(line)
        if head is not None:
            if tags != (tags := head["tags"].split()):
                for tag in set(tags) - set(TAGS):
                    report.skip(f"a column whose tag is not known: {tag}", where(path, number))
            continue
        problem = _problem(line, row, tags)
        if row is None or problem:
            if problem:
                report.skip(problem, where(path, number))
            continue
        gpu = int(row["number"])
        if gpu in inside:
            moment, inside = moment + 1, set()
        inside.add(gpu)
        report.read["rows"] += 1
        values = {}
        for tag, cell in zip(tags, row["cells"].split(), strict=True):
            reading = number_of(cell)
            if tag in TAGS and reading is not None:
                values[f"DCGM_FI_{TAGS[tag]}"] = reading
            elif tag in TAGS and cell != "N/A":
                report.skip(f"a reading that is no number: {tag}", where(path, number))
        yield clock.row(path, moment), gpu, values


def _problem(line: str, row: re.Match[str] | None, tags: list[str]) -> str:
    """Return why a line is no row of a GPU; nothing where it is one, or says nothing at all."""
    if row is None:
        return "a line that is no row of dcgmi dmon" if line.strip() and not _UNITS.fullmatch(line) else ""
    if row["kind"] != "GPU":
        return "a row of no whole GPU (MIG instance, switch, CPU)"
    if len(row["cells"].split()) != len(tags) or not row["number"].isdecimal():
        return "a row with more or fewer columns than its header"
    return "a GPU beyond the 256 that a node may have" if int(row["number"]) > 255 else ""


def recognise(_name: str, head: str) -> str | None:
    """Return why a file is taken for what ``dcgmi dmon`` printed, None where it is none."""
    return "a table of dcgmi dmon" if any(map(_HEAD.fullmatch, head.splitlines()[:5])) else None
