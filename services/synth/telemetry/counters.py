"""The nic and switch streams: what ports have counted by the time each is read.

Counters go on from where they were before the recording, and never back. RoCE fabrics give SONiC's PFC and ECN columns
and the NICs' CNPs; InfiniBand fabrics have neither, and give `port_xmit_wait` for both instead, with the columns of the
switch stream that mean the same (IF_IN_ERRORS: symbol errors, IF_OUT_DISCARDS: xmit discards) under their SAI names.
A machine that crashes keeps its links: its adapters have power.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from services.recording.schema import TIMESTAMP, name_column
from services.synth.cluster.fabric import Fabric
from services.synth.cluster.profile import ClusterProfile
from services.synth.physics.effects import Effect, Effects, Floats, Ints
from services.synth.physics.network import Counted, Network
from services.synth.physics.traffic import GRID_S, Traffic
from services.synth.physics.workload import Workload
from services.synth.randomness import generator
from services.synth.telemetry.collector import Beats, to_ms

_Names = tuple[NDArray[np.int32], list[str]]
_TRIED, _TRIED_EVERY_S = 0.1, (3600.0, 20_000.0)  # of unused ports somebody tries a few now and then
_WORD = 4.0  # bytes in a word of port_xmit_data
_SAI = "SAI_PORT_STAT_"
_PORT_COLUMNS = {
    "corrected": _SAI + "IF_IN_FEC_CORRECTABLE_FRAMES",
    "uncorrectable": _SAI + "IF_IN_FEC_NOT_CORRECTABLE_FRAMES",
    "errors": _SAI + "IF_IN_ERRORS",
    "discards": _SAI + "IF_OUT_DISCARDS",
    "pfc_rx": _SAI + "PFC_3_RX_PKTS",
    "pfc_tx": _SAI + "PFC_3_TX_PKTS",
    "ecn": _SAI + "ECN_MARKED_PACKETS",
    "wait": "port_xmit_wait",
}
_NIC_COLUMNS = {
    "symbols": "symbol_error",
    "recoveries": "link_error_recovery",
    "disorder": "out_of_sequence",
    "timeouts": "local_ack_timeout_err",
    "cnp_sent": "np_cnp_sent",
    "cnp_handled": "rp_cnp_handled",
    "wait": "port_xmit_wait",
}


@dataclass
class _Counter:
    """One counter of many entities: its values at the grid's points of the stretch, shape (steps + 1, entities)."""

    now: Floats
    by: Floats

    @classmethod
    def at(cls, begin: Floats) -> "_Counter":
        return cls(begin, begin[None, :])

    def add(self, counted: Floats) -> None:
        self.by = self.now + np.concatenate([np.zeros((1, counted.shape[1])), np.cumsum(counted, axis=0)])
        self.now = self.by[-1].copy()

    def read(self, step: Ints, part: Floats, columns: Ints) -> Floats:
        """Return whole counts between the grid's points: at `step` and a `part` of the next, (ticks, entities)."""
        low = self.by[step, columns]
        high = self.by[np.minimum(step + 1, len(self.by) - 1), columns]
        return np.asarray(np.floor(low + part * (high - low)))


class Ports:
    """Makes the nic and switch streams; must be asked for its stretches in order."""

    def __init__(
        self, profile: ClusterProfile, fabric: Fabric, workload: Workload, effects: Effects, seed: int
    ) -> None:
        self._fabric, self._effects = fabric, effects
        self._traffic = Traffic(profile, fabric, workload, effects, seed)
        self._network = Network(fabric, effects, seed, profile.conditions)
        chance = generator(seed, "ports before")
        ports, nics = len(fabric.port_cable), fabric.hosts
        days = chance.uniform(12, 90, 1)[0]
        moved = chance.uniform(0.05, 0.2, (2, nics)) * fabric.host_gbps * 1e9 / 8 * 86400 * days
        ports_moved = chance.uniform(0.05, 0.2, (2, ports)) * fabric.gbps[fabric.port_cable] * 1e9 / 8 * 86400 * days
        self._nic = {"tx": _Counter.at(np.floor(moved[0])), "rx": _Counter.at(np.floor(moved[1]))}
        self._port = {"in": _Counter.at(np.floor(ports_moved[0])), "out": _Counter.at(np.floor(ports_moved[1]))}
        for name in _NIC_COLUMNS:
            self._nic[name] = _Counter.at(_before(name, nics, chance))
        for name in _PORT_COLUMNS:
            self._port[name] = _Counter.at(_before(name, ports, chance))
        self._downed = np.where(chance.random(nics) < 0.06, chance.integers(1, 7, nics), 0).astype(np.float64)
        flapped = profile.conditions.generator("flapped before")
        often = flapped.random(nics) < profile.conditions.number("ports.flapped_share")
        self._downed += np.where(often, flapped.integers(10, 400, nics), 0)
        self._spare = _Spare(profile, fabric)
        self._nic_names = sorted({fabric.nic(int(number)) for number in fabric.host_number})
        self._port_names = sorted({*fabric.port_names, *self._spare.names})
        place = {name: code for code, name in enumerate(self._port_names)}
        names = [*fabric.port_names, *self._spare.names]
        self._port_codes = np.array([place[name] for name in names], dtype=np.int32)
        nic_place = {name: code for code, name in enumerate(self._nic_names)}
        self._nic_codes = np.array([nic_place[fabric.nic(int(n))] for n in fabric.host_number], dtype=np.int32)
        self._begin = 0.0
        self._nic_kinds: list[str] = []
        self._port_kinds: list[str] = []

    def advance(self, begin: float, end: float) -> None:
        """Count what happens from `begin` to `end` (seconds), a whole number of grid steps or the recording's end."""
        steps = int(np.ceil((end - begin) / GRID_S - 1e-9))
        grid: Floats = np.asarray(begin + GRID_S * np.arange(1.0, steps + 1.0), dtype=np.float64)
        load = self._traffic.over(grid)
        counted: Counted = self._network.count(
            load, grid, self._traffic.weights(grid, 0), self._traffic.weights(grid, 1)
        )
        self._nic["tx"].add(load.tx)
        self._nic["rx"].add(load.rx)
        self._port["in"].add(counted.port_in)
        self._port["out"].add(counted.port_out)
        for name, values in counted.nic.items():
            self._nic[name].add(values)
        for name, values in counted.port.items():
            self._port[name].add(values)
        self._nic_kinds = [name for name in _NIC_COLUMNS if name in counted.nic]
        self._port_kinds = [name for name in _PORT_COLUMNS if name in counted.port]
        self._begin = begin

    def nics(self, beats: Beats, start_ms: int) -> pa.RecordBatch:
        """Return the nic stream's rows at machines' beats (ticks, machines) in the stretch, by timestamp."""
        fabric = self._fabric
        times = beats.times[:, fabric.host_machine]
        step, part = self._where(times)
        columns = np.broadcast_to(np.arange(fabric.hosts), times.shape)
        values = {
            "port_xmit_data": np.floor(self._nic["tx"].read(step, part, columns) / _WORD),
            "port_rcv_data": np.floor(self._nic["rx"].read(step, part, columns) / _WORD),
        }
        for name in self._nic_kinds:
            values[_NIC_COLUMNS[name]] = self._nic[name].read(step, part, columns)
        up = ~self._down(times, columns)
        values["link_downed"] = self._downed + self._downs_by(times)
        values["state"] = up.astype(np.float64)
        values["speed_gbps"] = np.where(up, fabric.host_gbps * self._speed(times), 0.0)
        kept = beats.kept[:, fabric.host_machine]
        names = (fabric.host_machine.astype(np.int32), fabric.machines), (self._nic_codes, self._nic_names)
        return _rows(("node", "nic"), names, times, kept, values, start_ms)

    def switches(self, beats: Beats, start_ms: int) -> pa.RecordBatch:
        """Return the switch stream's rows at switches' beats (ticks, switches) in the stretch, by timestamp."""
        fabric = self._fabric
        times = beats.times[:, fabric.port_switch]
        step, part = self._where(times)
        columns = np.broadcast_to(np.arange(len(fabric.port_cable)), times.shape)
        values = {
            _SAI + "IF_IN_OCTETS": self._port["in"].read(step, part, columns),
            _SAI + "IF_OUT_OCTETS": self._port["out"].read(step, part, columns),
        }
        for name in self._port_kinds:
            values[_PORT_COLUMNS[name]] = self._port[name].read(step, part, columns)
        values["oper_up"] = (~self._down(times, fabric.port_cable[columns])).astype(np.float64)
        silent = self._effects.acting("switch.unheard", beats.times) | self._effects.acting("switch.down", beats.times)
        switch = np.concatenate([fabric.port_switch, self._spare.switch])
        up = self._spare.up(beats.times)
        unused = {name: up if name == "oper_up" else np.zeros(up.shape) for name in values}
        values = {name: np.concatenate([value, unused[name]], axis=1) for name, value in values.items()}
        names = (switch.astype(np.int32), fabric.switches), (self._port_codes, self._port_names)
        return _rows(
            ("switch", "port"), names, beats.times[:, switch], (beats.kept & ~silent)[:, switch], values, start_ms
        )

    def _where(self, times: Floats) -> tuple[Ints, Floats]:
        place = (times - self._begin) / GRID_S
        step = np.clip(np.floor(place).astype(np.int64), 0, None)
        return step, np.asarray(place - step)

    def _down(self, times: Floats, cables: Ints) -> NDArray[np.bool_]:
        """Return which cables are down at times, both of shape (ticks, ends)."""
        down = np.zeros(times.shape, dtype=bool)
        for effect, hit in self._downs():
            ends = np.flatnonzero(np.isin(cables[0], hit)) if len(cables) else np.empty(0, np.int64)
            down[:, ends] |= effect.course.level(times[:, ends]) > 0
        return down

    def _downs(self) -> list[tuple[Effect, Ints]]:
        found = [(effect, effect.columns) for effect in self._effects.of("cable.down")]
        for effect in self._effects.of("switch.down"):
            cables = [self._fabric.cables_of(int(switch)) for switch in effect.columns]
            found.append((effect, np.concatenate(cables)))
        return found

    def _downs_by(self, times: Floats) -> Floats:
        """Return how often each NIC's link has gone down by its times since the recording's start."""
        count = np.zeros(times.shape)
        for effect, cables in self._downs():
            hosts = cables[cables < self._fabric.hosts]
            begins = np.array([begin for begin, _ in effect.course.spans() if begin >= 0])
            count[:, hosts] += np.searchsorted(begins, times[:, hosts], side="right")
        return count

    def _speed(self, times: Floats) -> Floats:
        share = np.ones(times.shape)
        for effect in self._effects.of("cable.speed_share"):
            hosts = effect.columns[effect.columns < self._fabric.hosts]
            on = effect.course.level(times[:, hosts]) > 0
            share[:, hosts] = np.where(on, effect.size, share[:, hosts])
        return share


class _Spare:
    """Ports of switches that nobody uses: they count nothing, and are down but where somebody tries one."""

    def __init__(self, profile: ClusterProfile, fabric: Fabric) -> None:
        conditions = profile.conditions
        chance = conditions.generator("spare ports")
        used = np.bincount(fabric.port_switch, minlength=len(fabric.switches))
        share = conditions.number("ports.spare_share")
        counts = [int(chance.binomial(int(most), share)) if share else 0 for most in used]
        self.switch: Ints = np.repeat(np.arange(len(counts)), counts)
        first, taken, most = int(used.max(initial=0)), set(fabric.port_names), max(counts, default=0)
        # A part of a cluster leaves gaps between the ports that are used: uplinks keep the numbers of the whole.
        numbers = (fabric.network.port_name(first + seat) for seat in range(most + len(taken)))
        free = [name for name in numbers if name not in taken]
        self.names = [name for count in counts for name in free[:count]]
        tried = chance.random(len(self.switch)) < _TRIED
        self._period = np.where(tried, chance.uniform(*_TRIED_EVERY_S, len(self.switch)), 1.0)
        self._part = np.where(tried, chance.uniform(0.02, 0.2, len(self.switch)), 0.0)
        self._phase = chance.random(len(self.switch))

    def up(self, times: Floats) -> Floats:
        """Return 1 where a spare port is up at its switch's ``times`` (ticks, switches), else 0: (ticks, ports)."""
        turn = (times[:, self.switch] / self._period + self._phase) % 1.0
        return (turn < self._part).astype(np.float64)


def _before(name: str, count: int, chance: np.random.Generator) -> Floats:
    """Return what a counter shows at the recording's start: mostly little, a lot where a cable was once reseated."""
    typical = {
        "corrected": 4e8,
        "disorder": 2e4,
        "cnp_sent": 3e6,
        "cnp_handled": 3e6,
        "ecn": 6e6,
        "pfc_rx": 6e3,
        "pfc_tx": 6e3,
        "wait": 8e10,
        "timeouts": 60.0,
    }
    if name in typical:
        return np.asarray(np.floor(typical[name] * np.exp(0.8 * chance.standard_normal(count))))
    share = {"symbols": 0.08, "errors": 0.08, "uncorrectable": 0.08, "discards": 0.3, "recoveries": 0.04}[name]
    scars = np.floor(np.exp(chance.uniform(0, 6, count)))
    return np.where(chance.random(count) < share, scars, 0.0)


def _rows(
    keys: tuple[str, str],
    names: tuple[_Names, _Names],
    times: Floats,
    kept: NDArray[np.bool_],
    values: dict[str, Floats],
    start_ms: int,
) -> pa.RecordBatch:
    stamps = to_ms(times, start_ms).ravel()
    pick = np.flatnonzero(kept.ravel())
    order = pick[np.argsort(stamps[pick], kind="stable")]
    ends = order % times.shape[1]
    columns: dict[str, Any] = {"timestamp": pa.array(stamps[order]).cast(TIMESTAMP)}
    for key, (codes, texts) in zip(keys, names, strict=True):
        columns[key] = name_column(codes[ends], texts)
    for name, value in values.items():
        columns[name] = pa.array(np.broadcast_to(value, times.shape).ravel()[order])
    return pa.RecordBatch.from_pydict(columns)
