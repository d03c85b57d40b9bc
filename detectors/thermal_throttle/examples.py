"""Tapes for the laws and the tests: a small cluster at work, with and without what thermal_throttle must find."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from detectors.contract import BoolArray, FloatArray, LogRecord
from detectors.engine.rows import KeyColumn, Rows
from detectors.laws import Examples, Fault
from detectors.signals.throttle_bits import SW_THERMAL
from detectors.tapes.gpus import START, Cluster, instant, name
from detectors.tapes.tape import Tape

LIMIT_C = 85.0
_FANS = ("fan1", "fan2", "fan3")

CLUSTER = Cluster(nodes=3, gpus=4, minutes=8)


@dataclass(frozen=True)
class Heat:
    """Some GPUs of a node grow hotter by `rise_k` within `ramp_s`, in seconds from the tape's start."""

    node: int
    at_s: float
    until_s: float
    gpus: Sequence[int] | None = None
    rise_k: float = 40.0
    ramp_s: float = 60.0


@dataclass(frozen=True)
class Scene:
    """What happens on a tape; a job has all nodes. At the limit the driver takes the clock down to keep it there."""

    cluster: Cluster = CLUSTER
    heats: Sequence[Heat] = ()
    pauses: Sequence[tuple[float, float]] = ()
    base_c: float = 62.0
    fans_still: Sequence[tuple[int, float, float]] = ()
    """(node, from, until): a fan of the node stands still."""
    inlets_warm: Sequence[tuple[int, float, float]] = ()
    fan_lines: bool = True
    bmc: bool = True
    collected_s: float = 0.0
    """Where not 0, the exporter collects only so often, and repeats itself in between."""
    violation_unit_ns: float = 1.0
    fields: Sequence[str] = ("GPU_TEMP", "MEMORY_TEMP", "SM_CLOCK", "POWER_USAGE", "CLOCK_THROTTLE_REASONS",
                             "THERMAL_VIOLATION", "GPU_UTIL")  # fmt: skip


def tape_of(scene: Scene) -> Tape:
    """Return the scene as a tape."""
    cluster, at = scene.cluster, scene.cluster.at_s
    read = np.floor(at / scene.collected_s) * scene.collected_s if scene.collected_s else at
    busy = ~np.any([(read >= begin) & (read < end) for begin, end in scene.pauses] or [np.zeros_like(read)], axis=0)
    noise = cluster.chance("noise").random(read.shape)
    rise, held_s = np.zeros_like(read), np.zeros_like(read)
    for heat in scene.heats:
        own = np.zeros(read.shape[1], bool)
        for gpu in range(cluster.gpus) if heat.gpus is None else heat.gpus:
            own[cluster.of(heat.node, gpu)] = True
        up = np.clip((read - heat.at_s) / heat.ramp_s, 0, 1) * (read < heat.until_s)
        rise += np.where(own, up * heat.rise_k, 0.0)
        share = max((LIMIT_C - scene.base_c) / heat.rise_k, 0.0) if heat.rise_k else 2.0
        begin = heat.at_s + heat.ramp_s * share
        if share < 1:
            held_s += np.where(own, np.clip(read, begin, heat.until_s) - begin, 0.0)
    wanted = scene.base_c + rise + 2 * noise
    held: BoolArray = busy & (wanted - 2 * noise >= LIMIT_C)
    temp = np.where(busy, np.where(held, LIMIT_C - np.round(noise), np.round(wanted)), 40.0)
    excess = np.clip(wanted - LIMIT_C, 0, 20)
    clock = np.where(busy, np.where(held, 1250 - 15 * excess, 1410 - 15 * np.round(3 * noise)), 1410)
    columns: dict[str, FloatArray] = {
        "GPU_TEMP": temp,
        "MEMORY_TEMP": np.minimum(temp + 6, 94),
        "SM_CLOCK": clock,
        "POWER_USAGE": np.where(busy, np.where(held, 320, 390 + 8 * noise), 90),
        "CLOCK_THROTTLE_REASONS": np.where(held, SW_THERMAL, np.where(busy & (noise > 0.4), 0x4, 0)),
        "THERMAL_VIOLATION": np.floor(4e9 / scene.violation_unit_ns + held_s * 0.95 * 1e9 / scene.violation_unit_ns),
        "GPU_UTIL": np.where(busy, 99, 0),
    }
    tape = cluster.tape({f"DCGM_FI_DEV_{field}": columns[field] for field in scene.fields}, logs=_lines(scene))
    facts = {"gpu_model": "NVIDIA A100-SXM4-80GB", "rack": "r01"}
    topology: Any = {"nodes": [node | facts for node in tape.topology.get("nodes", ())]}
    rows = [*tape.rows, _bmc(scene)] if scene.bmc else tape.rows
    return replace(tape, rows=rows, topology=topology if tape.topology else {})


def _lines(scene: Scene) -> list[LogRecord]:
    if not scene.fan_lines:
        return []
    return [
        LogRecord(
            int(instant(at_s)),
            "sel",
            f"  5b | 04/01/2024 | 08:01:00 | Fan #0x32 | Lower Critical going low | {state}",
            "critical",
            name(node),
        )
        for node, begin, end in scene.fans_still
        for at_s, state in ((begin + 0.4, "Asserted"), (end + 0.4, "Deasserted"))
    ]


def _bmc(scene: Scene) -> Rows:
    """Return fans and inlets, once a minute a node."""
    sensors = (*_FANS, "fan9", "inlet_temp")  # fan9's place is empty: it reads 0 all the time
    ticks = np.arange(0.0, scene.cluster.minutes * 60, 60.0)
    at, node, sensor = (
        part.ravel() for part in np.meshgrid(ticks, np.arange(scene.cluster.nodes), np.arange(5), indexing="ij")
    )
    at = at + 3.0 + node
    reading = np.select([sensor == 3, sensor == 4], [0.0, 24.0 + node % 2], 9000.0 + 75 * (node + sensor))
    state = np.zeros_like(reading)
    for where, begin, end in scene.fans_still:
        still = (node == where) & (sensor == 1) & (at >= begin) & (at < end)
        reading, state = np.where(still, 0.0, reading), np.where(still, 2.0, state)
    for where, begin, end in scene.inlets_warm:
        warm = (node == where) & (sensor == 4) & (at >= begin) & (at < end)
        reading = np.where(warm, reading + np.clip((at - begin) / 6, 0, 20), reading)
        state = np.where((sensor == 4) & (reading >= 42), 2.0, np.where((sensor == 4) & (reading >= 35), 1.0, state))
    keys = {
        "node": KeyColumn(node, tuple(name(number) for number in range(scene.cluster.nodes))),
        "sensor": KeyColumn(sensor, sensors),
    }
    values = {"reading": reading, "state": state}
    valid = {field: np.ones(len(at), bool) for field in values}
    return Rows("bmc", START + (at * 1000).astype(np.int64), keys, values, valid)


FAN = Scene(heats=[Heat(1, 122, 330, gpus=[2], ramp_s=70)], fans_still=[(1, 120, 330)])
INLET = Scene(heats=[Heat(2, 160, 330, ramp_s=30, rise_k=60)], inlets_warm=[(2, 130, 330)])
SINK = Scene(heats=[Heat(0, 150, 400, gpus=[3], ramp_s=10, rise_k=45)])
NODE = Scene(heats=[Heat(1, 150, 300, ramp_s=20)], bmc=False)

EXAMPLES = Examples(
    healthy=[
        tape_of(replace(FAN, heats=[Heat(1, 122, 330, rise_k=14)])),
        tape_of(Scene(base_c=79, pauses=[(120, 155), (300, 330)])),
        tape_of(Scene(heats=[Heat(1, 200, 232, gpus=[0], ramp_s=4)], bmc=False)),
    ],
    faults=[
        Fault(tape_of(FAN), {"node": name(1)}, START + 120_000),
        Fault(tape_of(INLET), {"node": name(2)}, START + 150_000),
        Fault(tape_of(SINK), {"node": name(0), "gpu": 3}, START + 150_000),
        Fault(tape_of(NODE), {"node": name(1)}, START + 150_000),
    ],
)
