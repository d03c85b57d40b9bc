"""The heat map: health of every GPU over time."""

import numpy as np
from numpy.typing import NDArray

from services.api.recordings.columns import KEYS, Buckets, chunks
from services.api.recordings.library import Window
from services.api.recordings.models import Heatmap, HeatRow
from services.api.runs.models import Finding
from services.kit.entities import Entities
from services.kit.times import parse_time
from services.recording.reader import Recording
from services.recording.schema import STREAMS
from services.recording.stream_file import open_stream

_UTILISATION = "DCGM_FI_DEV_GPU_UTIL"
_IDLE_PERCENT = 10.0
"""As in detectors/power_throttle: below it a GPU is not at work."""
_LETTERS = np.frombuffer(b"-.oitp", dtype=np.uint8)
_NOTHING, _IDLE, _WELL = 0, 1, 2
_SEVERITIES = {"info": 3, "ticket": 4, "page": 5}
_MOST_CELLS = 8_000_000


def heatmap(recording: Recording, window: Window, points: int, run: str | None, findings: list[Finding]) -> Heatmap:
    """Return the health of every GPU: what is there to read, how busy it is, and the worst finding that is open.

    `findings` are those of `run`; a node's are those of all its GPUs.
    """
    gpus = [(node, gpu.gpu) for node in recording.topology.nodes for gpu in node.gpus]
    points = max(1, min(points, _MOST_CELLS // max(1, len(gpus))))
    buckets = Buckets.over(window, points)
    rows = {(node.name, gpu): row for row, (node, gpu) in enumerate(gpus)}
    cells = _readings(recording, window, buckets, rows)
    of_node: dict[str, list[int]] = {}
    for (name, _), row in rows.items():
        of_node.setdefault(name, []).append(row)
    for finding in findings:
        node, gpu = finding.entity.get("node"), finding.entity.get("gpu")
        hit = (
            of_node.get(str(node), [])
            if gpu is None
            else [rows[place] for place in [(str(node), int(gpu))] if place in rows]
        )
        first = max(0, (parse_time(finding.detected_at) - buckets.start) // buckets.ms)
        last = buckets.count - 1
        if finding.resolved_at is not None:
            last = min(last, (parse_time(finding.resolved_at) - buckets.start) // buckets.ms)
        if hit and first <= last:
            part = np.ix_(np.array(hit), np.arange(first, last + 1))
            cells[part] = np.maximum(cells[part], _SEVERITIES[finding.severity])
    return Heatmap(
        recording=recording.manifest.name,
        run=run,
        from_ms=window.start,
        to_ms=window.end,
        bucket_ms=buckets.ms,
        times=buckets.times,
        rows=[HeatRow(node=node.name, gpu=gpu, rack=node.rack) for node, gpu in gpus],
        cells=[row.tobytes().decode("ascii") for row in _LETTERS[cells]],
    )


def _readings(
    recording: Recording, window: Window, buckets: Buckets, rows: dict[tuple[str, int], int]
) -> NDArray[np.uint8]:
    """Return whether each GPU (row) was read in each bucket, and was at work where it says how busy it is."""
    cells = np.zeros((len(rows), buckets.count), dtype=np.uint8)
    if "dcgm" not in recording.streams():
        return cells
    with open_stream(recording.path / STREAMS["dcgm"].file) as file:
        names = file.schema_arrow.names
    field = _UTILISATION if _UTILISATION in names else next((n for n in names if n.startswith("DCGM_")), None)
    if field is None:
        return cells
    table = Entities(KEYS["dcgm"])
    for chunk in chunks(recording, "dcgm", field, window, table):
        place = np.array([rows.get((str(keys[0]), int(keys[1])), -1) for keys in table.keys], dtype=np.int64)
        row = place[chunk.entities]
        known = row >= 0
        idle = chunk.values[known] < _IDLE_PERCENT if field == _UTILISATION else np.zeros(int(known.sum()), dtype=bool)
        flat = row[known] * buckets.count + buckets.of(chunk.times[known])
        np.maximum.at(cells.reshape(-1), flat, np.where(idle, _IDLE, _WELL).astype(np.uint8))
    # Readings come less often than buckets where the window is short: a reading holds until the next is overdue.
    interval = recording.manifest.streams["dcgm"].interval_s
    hold = int(np.ceil(1.5 * interval * 1000 / buckets.ms)) if interval else 1
    read = cells.copy()
    for shift in range(1, min(hold, buckets.count)):
        gap = cells[:, shift:] == _NOTHING
        cells[:, shift:] = np.where(gap, read[:, :-shift], cells[:, shift:])
    # The last bucket may be little more than the window's end: nobody is silent by then whose reading was not due.
    if buckets.count > 1 and window.end - buckets.times[-1] < (1.5 * interval * 1000 if interval else buckets.ms / 2):
        cells[:, -1] = np.where(cells[:, -1] == _NOTHING, cells[:, -2], cells[:, -1])
    return cells
