"""What arrived in a recording, as `detectors.coverage` asks for it: each field and log source, on how many entities."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np
import pyarrow.parquet as pq

from detectors.coverage import Row, Seen, additions, closing, coverage, csv_lines
from detectors.engine.engine import Choice
from detectors.exporters import exporters
from detectors.fleet.jobs import FIELDS
from detectors.registry import discover
from services.kit.entities import Entities
from services.recording.faults import FAULTS
from services.recording.model import Topology
from services.recording.reader import Recording
from services.recording.schema import STREAMS
from services.recording.stream_file import open_stream

_OF: Final = {"bmc": ("node",), "switch": ("switch",), "steps": ("job_id",)}
"""Whose readings a field's are, where it is not all of the keys: one sensor of a node has a state, another none."""


_AMD = re.compile(r"\bAMD\b|\bInstinct\b|\bMI[23]\d\d[A-Z]?\b")


def seen_in(recording: Recording) -> Seen:
    """Return what arrived. UserError: a stream cannot be read.

    A column of which the file's statistics say that it has no gap, or nothing else, is not read.
    """
    shares: dict[str, float] = {f"logs.{event.source}": 1.0 for event in recording.events()}
    for kind in recording.streams():
        shares |= _of_stream(recording, kind, _expected(recording, kind))
    intervals = {kind: info.interval_s for kind, info in recording.manifest.streams.items() if info.interval_s}
    return seen_of(shares, recording.topology, listed=next(iter(recording.jobs()), None) is not None, every_s=intervals)


def seen_of(arrived: Mapping[str, float], topology: Topology, *, listed: bool, every_s: Mapping[str, float]) -> Seen:
    """Return what is seen where these shares of streams and logs arrive of these machines; `listed`: jobs are named."""
    shares = dict(arrived)
    shares["topology.links"] = float(bool(topology.links))
    shares["topology.nics"] = float(any(nic.switch is not None for node in topology.nodes for nic in node.nics))
    gpus = [gpu for node in topology.nodes for gpu in node.gpus]
    shares["topology.pcie"] = sum(bool(gpu.pcie_gen or gpu.pcie_width) for gpu in gpus) / max(len(gpus), 1)
    named = shares.get("steps.ranks", 0.0) > 0
    found = any(shares.get(f"dcgm.{field}") for field in FIELDS)
    shares["jobs"] = float(listed or named or found)
    models = {node.gpu_model for node in topology.nodes if node.gpu_model}
    amd = bool(models) and all(_AMD.search(model) for model in models)
    return Seen(shares, every_s, inferred_jobs=found and not listed and not named, amd=amd)


def _expected(recording: Recording, kind: str) -> int:
    """Return how many should report, by the topology; 0 where it does not say."""
    topology = recording.topology
    match kind:
        case "dcgm":
            return sum(len(node.gpus) for node in topology.nodes)
        case "nic":
            return sum(len(node.nics) for node in topology.nodes)
        case "switch":
            return len(topology.switches)
        case "bmc":
            return len(topology.nodes)
    return 0


def _of_stream(recording: Recording, kind: str, expected: int) -> dict[str, float]:
    """Return the shares of one stream's fields, and under the kind alone that of its entities."""
    with open_stream(recording.path / STREAMS[kind].file) as file:
        whole, mixed = _by_statistics(file, kind)
    entities = Entities(_OF.get(kind, STREAMS[kind].key_names))
    ranks: set[int] = set()
    reporting: dict[str, set[int]] = {name: set() for name in mixed}
    for batch in recording.batches(kind, columns=mixed):
        numbers = entities.of(batch)
        for name in mixed:
            valid: Any = batch.column(name).is_valid().to_numpy(zero_copy_only=False)
            reporting[name].update(np.unique(numbers[valid]).tolist())
        if kind == "steps":
            ranks.update(np.unique(numbers[np.asarray(batch.column("rank")) >= 0]).tolist())
    count = max(expected, len(entities.keys))
    shares = {f"{kind}.{name}": len(entities.keys) / count for name in whole} if count else {}
    shares |= {f"{kind}.{name}": len(found) / count for name, found in reporting.items() if found}
    if kind == "steps" and ranks:
        shares["steps.ranks"] = len(ranks) / count
    return shares | ({kind: len(entities.keys) / count} if count else {})


def _by_statistics(file: pq.ParquetFile, kind: str) -> tuple[list[str], list[str]]:
    """Return the columns that have a value in every row, and those that must be looked at; the others have none."""
    whole, mixed = [], []
    metadata = file.metadata
    for place, name in enumerate(file.schema_arrow.names):
        if name == "timestamp" or name in STREAMS[kind].key_names:
            continue
        nulls = 0
        for group in range(metadata.num_row_groups):
            statistics = metadata.row_group(group).column(place).statistics
            missing = None if statistics is None else statistics.null_count
            if missing is None:
                mixed.append(name)
                break
            nulls += missing
        else:
            if nulls == 0:
                whole.append(name)
            elif nulls < metadata.num_rows:
                mixed.append(name)
    return whole, mixed


def coverage_of(choices: Sequence[Choice], seen: Seen) -> tuple[Row, ...]:
    """Return the matrix of those detectors that run, and of those that are switched off, in the order of `FAULTS`."""
    specs = [kind.spec for kind, _ in choices]
    running = {spec.name for spec in specs}
    rows = coverage(specs, seen, [kind.spec for name, kind in discover().items() if name not in running])
    order = {fault: place for place, fault in enumerate(FAULTS)}
    return tuple(sorted(rows, key=lambda row: order.get(row.fault, len(order))))


def coverage_json(rows: Sequence[Row], seen: Seen) -> dict[str, Any]:
    """Return the matrix as JSON can say it, with what would add what and the lines for dcgm-exporter."""
    words = exporters()
    return {
        "intervals_s": dict(seen.intervals_s),
        "inferred_jobs": seen.inferred_jobs,
        "faults": [
            {
                "fault": row.fault,
                "detector": row.detector,
                "verdict": row.verdict,
                "blind_share": round(row.blind_share, 4) if row.verdict not in {"off", "undeclared"} else None,
                "levels": [asdict(level) | {"share": round(level.share, 4)} for level in row.levels],
                "lacks": list(dict.fromkeys(words.words(need) for need in row.gains[-1].lacks)) if row.gains else [],
            }
            for row in rows
        ],
        "additions": [
            {
                "needs": list(one.needs),
                "from": list(dict.fromkeys(words.source(need, amd=seen.amd) for need in one.needs)),
                "gives": [{"fault": fault, "sees": gain.sees, "within_s": gain.within_s} for fault, gain in one.gives],
            }
            for one in additions(rows)
        ],
        "csv": csv_lines(rows, seen),
        "closing": closing(rows),
    }
