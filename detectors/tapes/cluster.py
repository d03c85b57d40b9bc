"""A small cluster at work, in every stream, for the examples and tests of detectors that watch more than GPUs.

Nodes have a NIC a rail; NIC k of every node hangs on leaf k, leaves on two spines. One synchronous job has all nodes.
What goes wrong is made by taking rows out (`without`) and by computing columns anew (`changed`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from detectors.contract import BoolArray, FloatArray, Instant, IntArray, Kind, LogRecord
from detectors.engine.rows import KeyColumn, Rows
from detectors.fleet.fleet import KEYS, Job, JobEvent
from detectors.tapes.tape import Tape, take

START: Final[Instant] = 1_711_958_400_000
"""2024-04-01T08:00:00Z."""
SPINES: Final = 2
_UPLINK = 100


@dataclass(frozen=True)
class Scene:
    """What the cluster is like; times in seconds from the tape's start."""

    nodes: int = 4
    gpus: int = 2
    nics: int = 2
    minutes: float = 6.0
    interval_s: float = 5.0
    bmc_interval_s: float = 60.0
    step_s: float = 5.0
    kinds: Sequence[Kind] = ("bmc", "switch", "nic", "steps", "dcgm")
    missing: float = 0.01
    """The part of the scrapes that get lost; a scrape is all of a node's, or of a switch's, readings of a kind."""
    collected_s: float = 0.0
    """Where not 0: the exporter collects only so often, and repeats itself in between."""
    working: bool = True
    """Whether a job runs; else the nodes are idle."""
    spares: int = 0
    """Nodes at the end that the job does not have."""
    pauses: Sequence[tuple[float, float]] = ()
    """Checkpoints: no steps, no traffic of the job."""
    bursts: Sequence[tuple[float, float]] = ()
    """Stretches in which every port marks and pauses a lot, as in a checkpoint's incast."""
    logs: Sequence[LogRecord] = ()
    seed: int = 1


def name(node: int) -> str:
    """Return the name of a node."""
    return f"v{node + 1:03d}"


def line(at_s: float, source: str, message: str, *, node: str | None = None, severity: str = "error") -> LogRecord:
    """Return a log line."""
    return LogRecord(START + int(at_s * 1000), source, message, severity, node)


def tape_of(scene: Scene) -> Tape:
    """Return the scene as a tape."""
    makers: dict[Kind, Callable[[Scene, np.random.Generator], Rows]] = {
        "bmc": _bmc, "switch": _switch, "nic": _nic, "steps": _steps, "dcgm": _dcgm,
    }  # fmt: skip
    rows = [makers[kind](scene, np.random.default_rng([scene.seed, n])) for n, kind in enumerate(scene.kinds)]
    nodes = tuple(name(node) for node in range(scene.nodes - scene.spares))
    job = Job("812", nodes, START - 60_000, scene.gpus)
    jobs = [JobEvent(job.start, "start", job)] if scene.working else []
    logs = sorted(scene.logs, key=lambda record: record.at)
    return Tape(START, START + int(scene.minutes * 60_000), rows, logs, jobs, topology(scene))


def topology(scene: Scene) -> dict[str, Any]:
    """Return the scene's machines and cables."""
    leaves = [f"leaf-{rail + 1}" for rail in range(scene.nics)]
    return {
        "nodes": [
            {
                "name": name(node),
                "rack": f"r{node // 4:02d}",
                "pod": "su1",
                "gpus": [{"gpu": gpu} for gpu in range(scene.gpus)],
                "nics": [
                    {"nic": f"mlx5_{rail}", "switch": leaves[rail], "port": f"Ethernet{node}", "gbps": 400}
                    for rail in range(scene.nics)
                ],
            }
            for node in range(scene.nodes)
        ],
        "switches": [
            *({"name": leaf, "role": "leaf", "pod": "su1"} for leaf in leaves),
            *({"name": f"spine-{spine + 1}", "role": "spine"} for spine in range(SPINES)),
        ],
        "links": [
            {"a": f"{leaf}:Ethernet{_UPLINK + spine}", "b": f"spine-{spine + 1}:Ethernet{rail}", "gbps": 400}
            for rail, leaf in enumerate(leaves)
            for spine in range(SPINES)
        ],
    }


def seconds(rows: Rows) -> FloatArray:
    """Return the rows' times in seconds from the tape's start."""
    return np.asarray((rows.times - START) / 1000)


def key_of(rows: Rows, key: str) -> Any:
    """Return a key column, spelt out."""
    column = rows.keys[key]
    return np.array(column.categories)[column.codes]


def where(rows: Rows, since_s: float = 0.0, until_s: float = 1e9, **keys: Any) -> BoolArray:
    """Return which rows lie in a stretch and belong to the entities with `keys` (a value, or several)."""
    at = seconds(rows)
    chosen = (at >= since_s) & (at < until_s)
    for key, value in keys.items():
        chosen &= np.isin(key_of(rows, key), value)
    return np.asarray(chosen)


def without(tape: Tape, kind: Kind, since_s: float = 0.0, until_s: float = 1e9, **keys: Any) -> Tape:
    """Return the tape without the rows of a kind that `where` chooses."""
    return replace(
        tape,
        rows=[
            take(rows, np.flatnonzero(~where(rows, since_s, until_s, **keys))) if rows.kind == kind else rows
            for rows in tape.rows
        ],
    )


def changed(tape: Tape, kind: Kind, field: str, change: Callable[[Rows, FloatArray], Any]) -> Tape:
    """Return the tape with a column computed anew from the rows and what it was."""

    def anew(rows: Rows) -> Rows:
        values = dict(rows.values) | {field: np.asarray(change(rows, rows.values[field]), float)}
        return Rows(rows.kind, rows.times, rows.keys, values, dict(rows.valid))

    return replace(tape, rows=[anew(rows) if rows.kind == kind else rows for rows in tape.rows])


def growing(tape: Tape, kind: Kind, field: str, rate: float, since_s: float, until_s: float, **keys: Any) -> Tape:
    """Return the tape with a counter of some entities growing by `rate` a second more in a stretch."""

    def more(rows: Rows, values: FloatArray) -> FloatArray:
        spent = np.clip(seconds(rows) - since_s, 0.0, until_s - since_s)
        return np.asarray(values + np.where(where(rows, **keys), np.floor(rate * spent), 0.0))

    return changed(tape, kind, field, more)


def _grid(scene: Scene, owners: int, each: int, interval_s: float, chance: np.random.Generator) -> tuple[Any, ...]:
    """Return (times in s, when collected in s, owner, part) of the rows that got through, in order of time."""
    ticks = int(scene.minutes * 60 / interval_s)
    phase = chance.uniform(0.05, 0.9, owners) * interval_s
    at = np.arange(ticks)[:, None] * interval_s + phase + chance.normal(0, 0.004, (ticks, owners))
    tick, owner = np.nonzero(chance.random((ticks, owners)) >= scene.missing)
    part = np.tile(np.arange(each), len(tick))
    times, owner = np.repeat(at[tick, owner], each), np.repeat(owner, each)
    order = np.argsort(times, kind="stable")
    times, owner, part = times[order], owner[order], part[order]
    collected = np.floor(times / scene.collected_s) * scene.collected_s if scene.collected_s else times
    return times, collected, owner, part


def _busy(scene: Scene, at: FloatArray) -> BoolArray:
    busy = np.full(at.shape, scene.working)
    for begin_s, end_s in scene.pauses:
        busy &= (at < begin_s) | (at >= end_s)
    return busy


def _noise(at: FloatArray, entity: IntArray, seed: int) -> FloatArray:
    """Return noise in [0, 1) that is the same for the same moment and entity: a cached reading repeats it."""
    mixed = np.sin(np.floor(at * 1000) * 12.9898 + entity * 78.233 + seed * 37.719) * 43758.5453
    return np.asarray(mixed - np.floor(mixed))


def _rows(
    kind: Kind, at_s: FloatArray, codes: Sequence[IntArray], names: Sequence[Any], columns: Mapping[str, Any]
) -> Rows:
    keys = {key: KeyColumn(code, tuple(of)) for key, code, of in zip(KEYS[kind], codes, names, strict=True)}
    values = {field: np.asarray(np.broadcast_to(column, at_s.shape), float).copy() for field, column in columns.items()}
    valid = {field: np.isfinite(column) for field, column in values.items()}
    return Rows(kind, START + (at_s * 1000).astype(np.int64), keys, values, valid)


def _dcgm(scene: Scene, chance: np.random.Generator) -> Rows:
    at, read, node, gpu = _grid(scene, scene.nodes, scene.gpus, scene.interval_s, chance)
    noise = _noise(read, node * scene.gpus + gpu, scene.seed)
    busy = _busy(scene, read) & (node < scene.nodes - scene.spares)
    power = np.where(busy, 380 + 20 * noise, 60 + noise)
    columns = {
        "DCGM_FI_DEV_POWER_USAGE": power,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": np.floor(1e6 + read * 1000 * np.where(busy, 390, 60)),
        "DCGM_FI_DEV_GPU_TEMP": np.where(busy, 60 + np.floor(2 * noise), 33),
        "DCGM_FI_DEV_GPU_UTIL": np.where(busy, 100, 0),
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": np.where(busy, 0.4 + 0.1 * noise, 0.0),
    }
    names = [name(number) for number in range(scene.nodes)]
    return _rows("dcgm", at, (node, gpu), (names, range(scene.gpus)), columns)


def _nic(scene: Scene, chance: np.random.Generator) -> Rows:
    at, read, node, nic = _grid(scene, scene.nodes, scene.nics, scene.interval_s, chance)
    entity = node * scene.nics + nic
    moved = np.floor(_moved(scene, read) * (1 + 0.02 * (entity % 5)))
    columns: dict[str, Any] = {"state": 1.0, "port_xmit_data": 2.5e9 * moved, "port_rcv_data": 2.4e9 * moved}
    quiet = (
        "link_downed", "symbol_error", "link_error_recovery", "port_rcv_errors", "local_link_integrity_errors",
        "rx_crc_errors_phy",
    )  # fmt: skip
    columns |= dict.fromkeys(quiet, 0.0)
    columns |= {field: np.floor(50 * moved) for field in ("port_xmit_wait", "np_cnp_sent", "rp_cnp_handled")}
    names = [name(number) for number in range(scene.nodes)]
    return _rows("nic", at, (node, nic), (names, [f"mlx5_{rail}" for rail in range(scene.nics)]), columns)


def _moved(scene: Scene, at: FloatArray) -> FloatArray:
    """Return for how many seconds the job has worked by `at`."""
    if not scene.working:
        return np.zeros(at.shape)
    spent = at.copy()
    for begin_s, end_s in scene.pauses:
        spent -= np.clip(at - begin_s, 0, end_s - begin_s)
    return spent


def _switch(scene: Scene, chance: np.random.Generator) -> Rows:
    hosts = np.arange(scene.nodes)
    ports = [(f"leaf-{rail + 1}", f"Ethernet{host}") for rail in range(scene.nics) for host in hosts]
    ports += [(f"leaf-{r + 1}", f"Ethernet{_UPLINK + s}") for r in range(scene.nics) for s in range(SPINES)]
    ports += [(f"spine-{s + 1}", f"Ethernet{r}") for s in range(SPINES) for r in range(scene.nics)]
    switches = sorted({switch for switch, _ in ports})
    labels = sorted({port for _, port in ports})
    owner_of = np.array([switches.index(switch) for switch, _ in ports])
    label_of = np.array([labels.index(port) for _, port in ports])
    at, read, tick_owner, part = _grid(scene, len(switches), len(ports), scene.interval_s, chance)
    own = owner_of[part] == tick_owner
    at, read, port = at[own], read[own], part[own]
    moved = _moved(scene, read) * (1 + 0.02 * (port % 5))
    burst = sum((np.clip(read - begin, 0, end - begin) for begin, end in scene.bursts), np.zeros(read.shape))
    columns: dict[str, Any] = {
        "oper_up": 1.0,
        "SAI_PORT_STAT_IF_IN_OCTETS": np.floor(9e9 * moved),
        "SAI_PORT_STAT_IF_OUT_OCTETS": np.floor(9.1e9 * moved),
        "SAI_PORT_STAT_PFC_3_RX_PKTS": np.floor(3 * moved + 8000 * burst),
        "SAI_PORT_STAT_PFC_3_TX_PKTS": np.floor(4 * moved + 8000 * burst),
        "SAI_PORT_STAT_ECN_MARKED_PACKETS": np.floor(30 * moved * (1 + port % 3) + 20_000 * burst),
    }
    columns |= dict.fromkeys(("SAI_PORT_STAT_IF_IN_ERRORS", "SAI_PORT_STAT_IF_OUT_DISCARDS"), 0.0)
    columns["SAI_PORT_STAT_IF_IN_FEC_NOT_CORRECTABLE_FRAMES"] = 0.0
    return _rows("switch", at, (owner_of[port], label_of[port]), (switches, labels), columns)


def _bmc(scene: Scene, chance: np.random.Generator) -> Rows:
    at, read, node, sensor = _grid(scene, scene.nodes, 2, scene.bmc_interval_s, chance)
    noise = _noise(read, node, scene.seed)
    busy = _busy(scene, read) & (node < scene.nodes - scene.spares)
    reading = np.where(sensor == 0, np.where(busy, 5000 + 100 * noise, 1500 + 30 * noise), np.round(24 + noise))
    names = [name(number) for number in range(scene.nodes)]
    columns = {"reading": reading, "state": 0.0}
    return _rows("bmc", at, (node, sensor), (names, ("node_power", "inlet_temp")), columns)


def _steps(scene: Scene, chance: np.random.Generator) -> Rows:
    ends = np.arange(2.0, scene.minutes * 60, scene.step_s)
    ends = ends[_busy(scene, ends)] + chance.normal(0, 0.01, int(_busy(scene, ends).sum()))
    ranks = (scene.nodes - scene.spares) * scene.gpus
    at, rank = np.repeat(ends, ranks), np.tile(np.arange(ranks), len(ends))
    return _rows("steps", at, (np.zeros_like(rank), rank), (("812",), range(ranks)), {"step_time_s": scene.step_s})
