"""Management controllers: power supplies, node power, air and fans, once a minute per node."""

import numpy as np
import pyarrow as pa

from services.recording.schema import TIMESTAMP, name_column
from services.synth.cluster.profile import ClusterProfile
from services.synth.physics.effects import Effects, Floats
from services.synth.physics.power import PowerModel
from services.synth.physics.scatter import Scatter
from services.synth.physics.thermal import ThermalModel
from services.synth.physics.workload import Workload
from services.synth.telemetry.collector import Beats, to_ms

_WINDOW_S = 1.0
_FAN_FLOOR_C, _FAN_CEILING_C = 38.0, 85.0  # the fan curve's ends, by the hottest GPU
_AIR_K_PER_W = 0.0036  # what node power adds to the exhaust's temperature
_NOMINAL, _WARNING, _CRITICAL = 0, 1, 2
_STANDBY_W = 90.0  # a machine that is off: its controller, and supplies that idle
INLET_WARNING_C, INLET_CRITICAL_C = 35.0, 42.0
"""Upper limits of the air that a server takes in: ASHRAE class A2 allows 35 degrees, A3 and short excursions 40; the
bars are as servers' controllers have them, estimated."""
_SUPPLY_STEP_W, _FAN_STEP_RPM = 4, 75  # resolution of the sensors


class BmcModel:
    """Makes the bmc stream."""

    def __init__(
        self,
        profile: ClusterProfile,
        power: PowerModel,
        thermal: ThermalModel,
        workload: Workload,
        effects: Effects,
        rng: np.random.Generator,
    ) -> None:
        self._profile, self._power, self._thermal = profile, power, thermal
        self._workload, self._effects, self._rng = workload, effects, rng
        self._scatter = Scatter(rng, profile.conditions, profile.bmc_interval_s)
        self._balance = 0.5 + 0.012 * rng.standard_normal(profile.nodes)  # two supplies never share exactly
        self._fan_trim = 1 + 0.01 * rng.standard_normal((profile.nodes, profile.node.fans))

    def rows(self, beats: Beats, hottest: Floats, first_tick: int, start_ms: int) -> pa.RecordBatch:
        """Return the rows of some ticks, ordered by timestamp.

        ``hottest`` is the hottest GPU's temperature per DCGM tick and node, from tick ``first_tick`` on.
        """
        times, nodes = beats.times, self._profile.nodes
        tick = np.floor(times / self._profile.collector_interval_s).astype(np.int64) - first_tick
        hot = hottest[np.clip(tick, 0, len(hottest) - 1), np.arange(nodes)]
        sensors = self._sensors(times, hot)
        names = [name for name, _, _, _ in sensors]
        count, rows = len(names), times.size * len(names)
        stamps = np.repeat(to_ms(times, start_ms).ravel(), count)
        kept = np.flatnonzero(np.repeat(beats.kept.ravel(), count))
        order = kept[np.argsort(stamps[kept], kind="stable")]
        node_codes = np.repeat(np.tile(np.arange(nodes, dtype=np.int32), len(times)), count)
        sensor_codes = np.tile(np.arange(count, dtype=np.int32), rows // count)
        units = sorted({unit for _, unit, _, _ in sensors})
        unit_codes = np.tile(np.array([units.index(unit) for _, unit, _, _ in sensors], dtype=np.int32), rows // count)
        readings = np.stack([reading.ravel() for _, _, reading, _ in sensors], axis=1).ravel()
        states = np.stack([state.ravel() for _, _, _, state in sensors], axis=1).ravel()
        return pa.RecordBatch.from_pydict(
            {
                "timestamp": pa.array(stamps[order]).cast(TIMESTAMP),
                "node": name_column(node_codes[order], self._profile.node_names),
                "sensor": name_column(sensor_codes[order], names),
                "reading": pa.array(readings[order].astype(np.float64)),
                "unit": name_column(unit_codes[order], units),
                "state": pa.array(states[order].astype(np.uint8)),
            }
        )

    def _sensors(self, times: Floats, hot: Floats) -> list[tuple[str, str, Floats, Floats]]:
        """Return (sensor, unit, reading, state) with arrays of shape (ticks, nodes)."""
        node, rng, shape, noise = self._profile.node, self._rng, times.shape, self._profile.noise
        activity = self._workload.activity(times, _WINDOW_S)
        each = self._power.read(activity, times, _WINDOW_S, self._scatter).power_w
        if self._effects.of("gpu.lost"):
            each[self._effects.acting("gpu.lost", np.repeat(times, node.gpus, axis=1))] = 0.0
        gpu_w = each.reshape(*shape, node.gpus).sum(axis=2)
        load = (activity.busy + activity.collective + 0.6 * activity.copying).reshape(*shape, node.gpus).mean(axis=2)
        speed = np.clip((hot - _FAN_FLOOR_C) / (_FAN_CEILING_C - _FAN_FLOOR_C), 0.0, 1.0)
        fan_w = node.fan_full_w * (0.15 + 0.85 * speed) ** 3
        host_w = node.host_idle_w + (node.host_busy_w - node.host_idle_w) * load
        input_w = (
            gpu_w + host_w * (1 + noise * 0.01 * self._scatter.normal("host", shape)) + fan_w
        ) / node.psu_efficiency
        down = self._effects.acting("node.down", times)
        input_w[down] = _STANDBY_W
        share = np.stack([np.broadcast_to(self._balance, shape), np.broadcast_to(1 - self._balance, shape)]).copy()
        failed = self._effects.acting_on("node.psu_failed", times, 2)
        share[failed] = 0.0
        share[failed[::-1]] = 1.0
        share[failed] = 0.0
        lost = failed.any(axis=0)
        nominal = np.full(shape, _NOMINAL)
        inlet = self._thermal.inlet(times) + noise * 0.15 * self._scatter.normal("inlet", shape)
        sensors: list[tuple[str, str, Floats, Floats]] = []
        for psu in (0, 1):
            state = np.where(failed[psu], _CRITICAL, _NOMINAL)
            watts = np.round(share[psu] * input_w / _SUPPLY_STEP_W) * _SUPPLY_STEP_W
            sensors.append((f"psu{psu + 1}_input_power", "W", watts, state))
            sensors.append((f"psu{psu + 1}_status", "state", state.astype(np.float64), state))
        redundancy = np.where(lost, _CRITICAL, _NOMINAL)
        sensors.append(("psu_redundancy", "state", redundancy.astype(np.float64), redundancy))
        sensors.append(("node_power", "W", np.round(input_w * ~failed.all(axis=0)), nominal))
        warm = np.where(inlet >= INLET_WARNING_C, float(_WARNING), float(_NOMINAL))
        warm[inlet >= INLET_CRITICAL_C] = _CRITICAL
        sensors.append(("inlet_temp", "Cel", np.round(inlet), warm))
        sensors.append(("exhaust_temp", "Cel", np.round(inlet + _AIR_K_PER_W * input_w), nominal))
        modules = self._modules(times)
        sensors.append(("dimm_status", "state", modules, modules))
        still = self._effects.acting_on("node.fan_failed", times, node.fans)
        speed = np.where(still.any(axis=0), 1.0, speed) * ~down  # the others go as fast as they can
        rpm = node.fan_idle_rpm + (node.fan_full_rpm - node.fan_idle_rpm) * speed
        for fan in range(node.fans):
            turning = rpm * self._fan_trim[:, fan] * (1 + noise * 0.004 * rng.standard_normal(shape))
            turning[still[fan]] = 0.0
            state = np.where(still[fan], _CRITICAL, _NOMINAL)
            sensors.append((f"fan{fan + 1}", "RPM", np.round(turning / _FAN_STEP_RPM) * _FAN_STEP_RPM, state))
        return sensors

    def _modules(self, times: Floats) -> Floats:
        """Return the state of the memory modules: (ticks, nodes)."""
        state = np.zeros(times.shape)
        for effect in self._effects.of("node.dimm_state"):
            on = effect.course.level(times[:, effect.columns]) > 0
            state[:, effect.columns] = np.maximum(state[:, effect.columns], np.where(on, effect.size, 0.0))
        return state
