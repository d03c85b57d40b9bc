"""Tapes for the laws and the tests: a small cluster at work, with and without what power_throttle must find."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from detectors.contract import LogRecord
from detectors.engine.rows import KeyColumn, Rows
from detectors.laws import Examples, Fault
from detectors.signals.throttle_bits import GPU_IDLE, HW_POWER_BRAKE, SW_POWER_CAP
from detectors.tapes.gpus import START, Cluster, instant, name
from detectors.tapes.tape import Tape

GPUS = 8
HW_SLOWDOWN = 0x8


@dataclass(frozen=True)
class Brake:
    """A hardware power brake on some GPUs of a node, in seconds from the tape's start."""

    node: int
    at_s: float
    until_s: float
    gpus: Sequence[int] = tuple(range(GPUS))


@dataclass(frozen=True)
class Scene:
    """What happens on a tape. A job has all nodes; while some GPU is braked all others wait for it most of the time."""

    nodes: int = 4
    minutes: float = 8.0
    brakes: Sequence[Brake] = ()
    pauses: Sequence[tuple[float, float]] = ()
    """Checkpoints: nothing computes, clocks and power are those of idle GPUs."""
    supply_lines: bool = True
    interval_s: float = 5.0
    missing: float = 0.02
    """The part of the readings that no scrape has got."""
    violation_unit_ns: float = 1.0
    """1 where counters of throttled time count ns, 1000 where they count us."""
    models: Sequence[str] = ("NVIDIA A100-SXM4-80GB",)
    job_known: bool = True
    topology_known: bool = True
    fields: Sequence[str] = (
        "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS",
        "DCGM_FI_DEV_POWER_USAGE",
        "DCGM_FI_DEV_SM_CLOCK",
        "DCGM_FI_DEV_POWER_VIOLATION",
        "DCGM_FI_DEV_GPU_UTIL",
    )
    seed: int = 1


_MODELS = {"NVIDIA A100-SXM4-80GB": (1410.0, 400.0), "NVIDIA H100 80GB HBM3": (1980.0, 700.0)}


def tape_of(scene: Scene) -> Tape:
    """Return the scene as a tape."""
    cluster = Cluster(
        scene.nodes, GPUS, scene.minutes, scene.interval_s, 0.0, scene.missing, scene.topology_known, scene.job_known,
        scene.seed,
    )  # fmt: skip
    chance, at_s, ticks = cluster.chance("noise"), cluster.at_s, cluster.ticks
    node, gpu = np.divmod(np.arange(scene.nodes * GPUS), GPUS)
    limits = np.array([_MODELS[scene.models[n % len(scene.models)]] for n in range(scene.nodes)])[node]
    clock, power = np.tile(limits[:, 0], (ticks, 1)), np.tile(0.96 * limits[:, 1], (ticks, 1))
    power += chance.normal(0, 0.02, power.shape) * power
    # Below a fifth of the readings fall into communication, where less is drawn.
    power *= np.where(chance.random(power.shape) < 0.2, 0.7, 1.0)
    reasons = np.where(power > 0.95 * limits[:, 1], SW_POWER_CAP, 0)
    throttled = np.where(reasons > 0, 0.6, 0.1)
    util = np.full(power.shape, 100.0)

    braked = np.zeros(power.shape, bool)
    for brake in scene.brakes:
        on = (node == brake.node) & np.isin(gpu, brake.gpus)
        braked |= on[None, :] & (at_s >= brake.at_s) & (at_s < brake.until_s)
    waiting = braked.any(axis=1, keepdims=True) & ~braked
    power = np.where(waiting, np.where(chance.random(power.shape) < 0.7, 0.33, 0.9) * limits[:, 1], power)
    reasons, throttled = np.where(waiting, 0, reasons), np.where(waiting, 0.05, throttled)
    power, clock = np.where(braked, 0.375 * limits[:, 1], power), np.where(braked, 0.36 * clock, clock)
    reasons = np.where(braked, HW_SLOWDOWN | HW_POWER_BRAKE, reasons)
    throttled = np.where(braked, 1.0, throttled)
    for begin_s, end_s in scene.pauses:
        idle = (at_s >= begin_s) & (at_s < end_s)
        power, clock = np.where(idle, 0.15 * limits[:, 1], power), np.where(idle, 210.0, clock)
        reasons, util = np.where(idle, GPU_IDLE, reasons), np.where(idle, 0.0, util)
        throttled = np.where(idle, 0.0, throttled)
    violation = np.cumsum(throttled * scene.interval_s * 1e9 / scene.violation_unit_ns, axis=0)

    columns = dict(zip(Scene.fields, (reasons.astype(float), power, clock, violation, util), strict=True))
    tape = cluster.tape(
        {name: column for name, column in columns.items() if name in scene.fields},
        logs=_supply_lines(scene) if scene.supply_lines else (),
    )
    topology = _topology(scene, limits[:, 1]) if scene.topology_known else {}
    return replace(tape, rows=[*tape.rows, _supplies(scene)], topology=topology)


def _supplies(scene: Scene) -> Rows:
    """Return the state of two supplies a node, every minute."""
    minutes = int(scene.minutes)
    at_s = np.repeat(np.arange(minutes) * 60.0 + 7.0, 2 * scene.nodes)
    node = np.tile(np.repeat(np.arange(scene.nodes), 2), minutes)
    sensor = np.tile(np.array([0, 1]), minutes * scene.nodes)
    state = np.zeros(len(at_s))
    if scene.supply_lines:
        for brake in scene.brakes:
            state[(node == brake.node) & (sensor == 0) & (at_s >= brake.at_s) & (at_s < brake.until_s)] = 2
    nodes = tuple(name(number) for number in range(scene.nodes))
    keys = {"node": KeyColumn(node, nodes), "sensor": KeyColumn(sensor, ("psu1_status", "psu2_status"))}
    return Rows("bmc", instant(at_s), keys, {"state": state}, {"state": np.ones(len(state), bool)})


def _supply_lines(scene: Scene) -> list[LogRecord]:
    words = "Power Supply #0x51 | Failure detected |"
    return [
        LogRecord(int(instant(at_s - 1.5)), "sel", f"{words} {what}", "critical", name(brake.node))
        for brake in scene.brakes
        for at_s, what in ((brake.at_s, "Asserted"), (brake.until_s, "Deasserted"))
    ]


def _topology(scene: Scene, limits: Any) -> dict[str, Any]:
    return {
        "nodes": [
            {
                "name": name(node),
                "rack": f"r{node // 2:02d}",
                "gpu_model": scene.models[node % len(scene.models)],
                "power_feeds": [f"pdu-a-r{node // 2:02d}", f"pdu-b-r{node // 2:02d}"],
                "gpus": [{"gpu": gpu, "power_limit_w": float(limits[node * GPUS])} for gpu in range(GPUS)],
            }
            for node in range(scene.nodes)
        ]
    }


_WHOLE = Scene(brakes=[Brake(2, 200, 320)])
_UNSTATED = Scene(brakes=[Brake(1, 203, 330)], supply_lines=False, seed=2)
_ONE_GPU = Scene(brakes=[Brake(0, 181, 300, gpus=[5])], supply_lines=False, seed=3)

EXAMPLES = Examples(
    healthy=[tape_of(Scene(seed=4)), tape_of(Scene(pauses=[(120, 151), (300, 331)], seed=5))],
    faults=[
        Fault(tape_of(_WHOLE), {"node": name(2)}, START + 200_000),
        Fault(tape_of(_UNSTATED), {"node": name(1)}, START + 203_000),
        Fault(tape_of(_ONE_GPU), {"node": name(0), "gpu": 5}, START + 181_000),
    ],
)
