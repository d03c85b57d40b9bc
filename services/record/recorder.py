"""Records this machine's GPUs into a recording, 1 to 10 times a second, until it is to stop."""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from services.kit.errors import UserError
from services.record.sensors import Sensors
from services.recording.model import Event, Node, Topology
from services.recording.schema import TIMESTAMP, name_column
from services.recording.writer import RecordingWriter

_BATCH_TICKS = 100
"""Ticks that are held in memory before they are written."""
XID = "DCGM_FI_DEV_XID_ERRORS"


@dataclass(frozen=True)
class Plan:
    """What is recorded: how often (Hz), for how long (seconds, None: until it is to stop), and its story."""

    node: str
    hz: float = 1.0
    duration_s: float | None = None
    title: str = ""
    summary: str = ""
    cluster: str = "local"


@dataclass
class Recorded:
    """What came of it: ticks taken, ticks that were due but could not be taken in time, XID errors seen."""

    ticks: int = 0
    missed: int = 0
    xids: int = 0


@dataclass
class _Ticks:
    """Readings that wait to be written: `rows` of (milliseconds, GPU, readings by field)."""

    rows: list[tuple[int, int, dict[str, float]]] = field(default_factory=list)
    ticks: int = 0

    def batch(self, node: str, fields: list[str]) -> pa.RecordBatch:
        columns = {
            "timestamp": pa.array([at for at, _, _ in self.rows], pa.int64()).cast(TIMESTAMP),
            "node": name_column(np.zeros(len(self.rows), np.int32), [node]),
            "gpu": pa.array([gpu for _, gpu, _ in self.rows], pa.uint8()),
        }
        for name in fields:
            columns[name] = pa.array([reading.get(name) for _, _, reading in self.rows], pa.float64())
        return pa.RecordBatch.from_pydict(columns)


def record(
    sensors: Sensors,
    out: Path,
    plan: Plan,
    stop: threading.Event,
    *,
    clock: Callable[[], float] = time.time,
    progress: Callable[[Recorded], None] | None = None,
) -> Recorded:
    """Record until `plan.duration_s` has passed or `stop` is set; then the recording is complete.

    A tick that is over time is left out and counted, never made up. UserError: `out` exists, or `plan.hz` is not
    within 1 to 10, or nothing was recorded.
    """
    if not 1 <= plan.hz <= 10:
        raise UserError(f"--hz {plan.hz:g}: must be within 1 and 10", remedy="NVML's own sensors are no faster")
    done = Recorded()
    first = sensors.read()
    fields = sorted({name for reading in first for name in reading} | {XID})
    last_xid = [0.0] * len(first)
    waiting, events = _Ticks(), list[Event]()
    start_s = clock()
    number, last_ms = 0, 0
    with RecordingWriter(out) as writer:
        while not stop.is_set() and (plan.duration_s is None or number < plan.duration_s * plan.hz):
            due_s = start_s + number / plan.hz
            if stop.wait(max(0.0, due_s - clock())):
                break
            late = math.floor((clock() - due_s) * plan.hz)
            if late >= 1:
                done.missed += late
                number += late
            at_ms = max(round(clock() * 1000), last_ms + 1)
            for xid in sensors.xids():
                last_xid[xid.gpu] = float(xid.code)
                done.xids += 1
                bus = sensors.gpus[xid.gpu].pci_bus_id or ""
                events.append(
                    Event(
                        timestamp=at_ms,
                        source="kernel",
                        node=plan.node,
                        severity="error",
                        message=f"NVRM: Xid (PCI:{bus.removesuffix('.0')[-10:]}): {xid.code}, reported by NVML",
                    )
                )
            for gpu, reading in enumerate(sensors.read()):
                waiting.rows.append((at_ms, gpu, {**reading, XID: last_xid[gpu]}))
            waiting.ticks += 1
            done.ticks += 1
            number, last_ms = number + 1, at_ms
            if waiting.ticks >= _BATCH_TICKS:
                writer.write("dcgm", waiting.batch(plan.node, fields), interval_s=1 / plan.hz)
                waiting = _Ticks()
            if progress is not None:
                progress(done)
        if waiting.rows:
            writer.write("dcgm", waiting.batch(plan.node, fields), interval_s=1 / plan.hz)
        if not done.ticks:
            raise UserError("stopped before the first reading: nothing is recorded", remedy="let it run longer")
        writer.write_events(events)
        topology = Topology(nodes=[Node(name=plan.node, gpu_model=sensors.model, gpus=list(sensors.gpus))])
        writer.finish(_header(out, plan, sensors, done, round(start_s * 1000), last_ms), topology)
    return done


def _header(out: Path, plan: Plan, sensors: Sensors, done: Recorded, start: int, end: int) -> dict[str, object]:
    return {
        "name": out.resolve().name,
        "title": plan.title or f"{len(sensors.gpus)} x {sensors.model} on {plan.node}",
        "summary": plan.summary or "Recorded on one machine through NVML.",
        "origin": "captured",
        "source": {"document": f"NVML, driver {sensors.driver}", "missed_ticks": done.missed},
        "start": start,
        "end": end,
        "cluster": {"name": plan.cluster},
    }
