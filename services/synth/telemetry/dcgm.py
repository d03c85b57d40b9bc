"""DCGM's view of the GPUs: puts activity, power, clocks, temperatures and counters into its fields.

Field names are those that dcgm-exporter emits; units as DCGM gives them (mJ, ns, MiB, bytes per second).
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from services.recording.schema import TIMESTAMP, name_column
from services.synth.cluster.profile import ClusterProfile
from services.synth.jobs.job import Run
from services.synth.physics import nvlink
from services.synth.physics.effects import Effect, Effects, Floats
from services.synth.physics.memory import GpuMemory
from services.synth.physics.pcie import HostLinks
from services.synth.physics.power import PowerModel
from services.synth.physics.scatter import Scatter
from services.synth.physics.thermal import ThermalModel
from services.synth.physics.workload import Workload
from services.synth.telemetry.collector import Beats, to_ms

_SENSOR_WINDOW_S = 1.0  # POWER_USAGE and GPU_UTIL look back about a second
_CONTEXT_MIB = 1450  # CUDA context and NCCL buffers, before any model is there
_DRIVER_MIB = 4
_CHECKPOINT_BYTES_S = 1.9e9  # per GPU and direction while a checkpoint moves over PCIe
_IDLE_PCIE_BYTES_S = 4.0e5
_VIOLATION_STEP_NS = 1e3  # the driver counts microseconds
_LAUNCH_GAPS = 0.003  # mean share of time between two kernels, when none runs
_WIDE = ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_POWER_VIOLATION", "DCGM_FI_DEV_THERMAL_VIOLATION")


def _coarse(values: Floats, step: float) -> Floats:
    return np.round(values / step) * step


class DcgmModel:
    """Makes the dcgm stream; must be asked for its ticks in order, as counters go on from where they were."""

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
        self._scatter = Scatter(rng, profile.conditions, profile.collector_interval_s)
        gpus = profile.gpu_count
        uptime_s = np.repeat(rng.uniform(9, 70, profile.nodes), profile.node.gpus) * 86400
        self._counters: dict[str, Floats] = {}
        energy = np.floor(uptime_s * rng.uniform(220, 290, gpus) * 1000)
        violation = np.floor(uptime_s * rng.uniform(0.02, 0.35, gpus) * 1e9)
        heat = np.where(rng.random(gpus) < 0.03, np.floor(rng.exponential(4e9, gpus)), 0.0)
        self._counters["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"] = energy
        self._counters["DCGM_FI_DEV_POWER_VIOLATION"] = violation
        self._counters["DCGM_FI_DEV_THERMAL_VIOLATION"] = heat
        self._counters["DCGM_FI_DEV_ECC_SBE_VOL_TOTAL"] = rng.poisson(1.4e-7 * uptime_s).astype(np.float64)
        self._counters["DCGM_FI_DEV_PCIE_REPLAY_COUNTER"] = np.where(
            rng.random(gpus) < 0.12, np.floor(rng.exponential(25, gpus)), 0.0
        )
        self._memory = GpuMemory.drawn(effects, gpus, rng)
        self._links = HostLinks(profile, effects)
        self._boots: list[tuple[slice, int]] = []
        self._before: Floats | None = None  # when each node was last sampled
        self._fb_extra = np.round(rng.normal(0, 160, gpus))
        self._efficiency = 1 + 0.012 * rng.standard_normal(gpus)  # where a rank sits in the pipeline
        self._previous: dict[str, Floats] = {}
        names = np.repeat(np.arange(profile.nodes, dtype=np.int32), profile.node.gpus)
        self._node_codes = names
        self._gpu_numbers = np.tile(np.arange(profile.node.gpus, dtype=np.uint8), profile.nodes)
        self.hottest: Floats = np.empty((0, profile.nodes))

    def rows(self, beats: Beats, start_ms: int) -> pa.RecordBatch:
        """Return the rows of the next ticks, ordered by timestamp; scrapes that went missing are left out.

        Leaves the hottest GPU's temperature per tick and node in ``hottest``, for the fans.
        """
        values = self._values(beats.times)
        self._repeat(values, beats)
        per_node = self._profile.node.gpus
        times = np.repeat(to_ms(beats.times, start_ms), per_node, axis=1).ravel()
        arrived = np.repeat(beats.kept, per_node, axis=1)
        if self._effects.of("gpu.lost"):
            arrived &= ~self._effects.acting("gpu.lost", np.repeat(beats.times, per_node, axis=1))
        kept = np.flatnonzero(arrived.ravel())
        order = kept[np.argsort(times[kept], kind="stable")]
        ticks = len(beats.times)
        columns = {
            "timestamp": pa.array(times[order]).cast(TIMESTAMP),
            "node": name_column(np.tile(self._node_codes, ticks)[order], self._profile.node_names),
            "gpu": pa.array(np.tile(self._gpu_numbers, ticks)[order]),
        }
        for name, value in values.items():
            columns[name] = pa.array(value.ravel()[order].astype(np.float64 if name in _WIDE else np.float32))
        return pa.RecordBatch.from_pydict(columns)

    def _values(self, times: Floats) -> dict[str, Floats]:
        profile, gpu, rng, noise = self._profile, self._profile.gpu, self._rng, self._profile.noise
        interval = profile.collector_interval_s
        now = self._workload.activity(times, _SENSOR_WINDOW_S)
        mean = self._workload.activity(times, interval)
        reading = self._power.read(now, times, _SENSOR_WINDOW_S, self._scatter)
        power = self._power.mean_power(mean, times, interval)
        self._note_boots(times)
        if self._effects.of("node.down"):
            power[np.repeat(self._effects.acting("node.down", times), profile.node.gpus, axis=1)] = 0.0
        chip, hbm = self._thermal.advance(power, times, interval)
        self.hottest = chip.reshape(len(times), profile.nodes, profile.node.gpus).max(axis=2)

        holder = self._workload.running(times)
        clock = reading.sm_clock_mhz / gpu.sm_clock_mhz
        bound = self._of_runs(holder, lambda run: run.spec.training.clock_bound)
        speed = 1.0 / (1.0 - bound + bound / clock)
        work = mean.busy * self._efficiency * (1 + noise * 0.012 * self._scatter.normal("activity", mean.busy.shape))
        moving = np.where(mean.copying > 0, mean.copying * _CHECKPOINT_BYTES_S, 0.0)
        at = np.repeat(times, profile.node.gpus, axis=1)
        loading = (holder > 0) & (at < self._of_runs(holder, lambda run: run.loading[1]) + interval)
        chatter = _IDLE_PCIE_BYTES_S * (1 + 0.2 * rng.random(mean.busy.shape))
        done = work
        if self._effects.of("gpu.work_factor"):  # it takes longer, and is no more for it
            done = work / self._effects.factor("gpu.work_factor", at, window=interval)
        pcie = self._of_runs(holder, lambda run: run.spec.training.pcie_gb_s * 1e9) * done * speed
        linked = self._of_runs(holder, lambda run: run.spec.training.nvlink_gb_s * 1e9) * done * speed
        if self._effects.of("gpu.nvlink_share"):
            linked *= self._effects.factor("gpu.nvlink_share", at, window=interval)
        for_power, for_heat = self._power.held_share(mean, times, interval)
        traffic = {
            "tx": pcie + np.where(loading, 0.0, moving) + chatter,
            "rx": pcie * (1 + noise * 0.004 * rng.standard_normal(power.shape))
            + np.where(loading, moving, 0.0)
            + 1.4 * chatter,
        }
        self._links.carried(traffic, at, interval, rng)
        tensor = self._of_runs(holder, lambda run: run.spec.training.tensor_active) * done
        dram = self._of_runs(holder, lambda run: run.spec.training.dram_active) * done * speed
        launched = 1.0 - np.minimum(rng.exponential(_LAUNCH_GAPS, mean.busy.shape), 0.05)
        kernels = np.clip(now.busy + now.collective, 0.0, 1.0) * launched
        held = now.resident > 0
        used = self._frame_buffer(holder, at)
        uneven = 1 + noise * 0.004 * rng.standard_normal(power.shape)
        before = at - interval if self._before is None else np.concatenate([self._before[None], at[:-1]])
        self._before = at[-1].copy()
        zeros = np.zeros_like(power)
        values = {
            "DCGM_FI_DEV_SM_CLOCK": reading.sm_clock_mhz,
            "DCGM_FI_DEV_MEM_CLOCK": zeros + gpu.mem_clock_mhz,
            "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": reading.reasons.astype(np.float64),
            "DCGM_FI_DEV_MEMORY_TEMP": np.round(hbm),
            "DCGM_FI_DEV_GPU_TEMP": np.round(chip),
            "DCGM_FI_DEV_POWER_USAGE": np.round(reading.power_w, 3),
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": self._counted(
                "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", power * interval * 1e3
            ),
            "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": self._effects.replaced(
                "gpu.power_limit_w", np.full(at.shape, gpu.power_limit_w), at
            ),
            "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": self._counted(
                "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", self._links.replays(at, interval, rng)
            ),
            "DCGM_FI_DEV_PCIE_LINK_GEN": self._links.generation(at, now.resident),
            "DCGM_FI_DEV_PCIE_LINK_WIDTH": self._links.width(at),
            "DCGM_FI_DEV_GPU_UTIL": np.round(100 * kernels),
            "DCGM_FI_DEV_MEM_COPY_UTIL": np.round(100 * np.clip(1.15 * dram + 0.03 * now.collective, 0, 1)),
            "DCGM_FI_DEV_XID_ERRORS": self._xids(at),
            "DCGM_FI_DEV_POWER_VIOLATION": _coarse(
                self._counted("DCGM_FI_DEV_POWER_VIOLATION", for_power * interval * 1e9), _VIOLATION_STEP_NS
            ),
            "DCGM_FI_DEV_THERMAL_VIOLATION": _coarse(
                self._counted("DCGM_FI_DEV_THERMAL_VIOLATION", for_heat * interval * 1e9), _VIOLATION_STEP_NS
            ),
            "DCGM_FI_DEV_FB_USED": used,
            "DCGM_FI_DEV_FB_FREE": gpu.fb_total_mib - gpu.fb_reserved_mib - used,
            "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": self._counted(
                "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", self._memory.corrected(at, interval, rng)
            ),
            "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": self._counted(
                "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", self._memory.uncorrected(at, before)
            ),
            "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": self._memory.remapped(at, uncorrectable=True),
            "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": self._memory.remapped(at, uncorrectable=False),
            "DCGM_FI_DEV_ROW_REMAP_FAILURE": self._effects.acting("gpu.remap_failed", at).astype(np.float64),
            "DCGM_FI_DEV_ROW_REMAP_PENDING": self._effects.acting("gpu.remap_pending", at).astype(np.float64),
            "DCGM_FI_PROF_GR_ENGINE_ACTIVE": np.round(launched * np.clip(mean.busy + mean.collective, 0, 1), 4),
            "DCGM_FI_PROF_SM_ACTIVE": np.round(0.91 * work + 0.13 * mean.collective, 4),
            "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": np.round(tensor, 4),
            "DCGM_FI_PROF_DRAM_ACTIVE": np.round(dram + 0.03 * mean.collective + 0.02 * mean.copying, 4),
            "DCGM_FI_PROF_PCIE_TX_BYTES": _coarse(traffic["tx"], 1e5),
            "DCGM_FI_PROF_PCIE_RX_BYTES": _coarse(traffic["rx"], 1e5),
            "DCGM_FI_PROF_NVLINK_TX_BYTES": _coarse(linked, 1e7),
            "DCGM_FI_PROF_NVLINK_RX_BYTES": _coarse(linked * uneven, 1e7),
        }
        for field, counted in nvlink.errors(self._effects, at, interval, rng, gpu.nvlink_gen).items():
            values[field] = self._counted(field, counted)
        values["DCGM_FI_DEV_GPU_UTIL"][~held] = 0.0
        return values

    def _of_runs(self, holder: NDArray[np.int64], constant: Callable[[Run], float]) -> Floats:
        """Return a run's constant wherever the run holds the GPU, and 0 elsewhere: shape (ticks, gpus)."""
        return np.array([0.0, *(constant(run) for run in self._workload.runs)])[holder]

    def _xids(self, at: Floats) -> Floats:
        """Return the last XID of every GPU by ``at`` (ticks, gpus): the gauge never goes back to 0."""
        shown = np.zeros_like(at)
        for effect in sorted(self._effects.of("gpu.xid"), key=lambda effect: effect.course.start):
            columns = effect.columns
            shown[:, columns] = np.where(at[:, columns] >= effect.course.start, effect.size, shown[:, columns])
        anew = [*self._effects.of("node.booted"), *self._effects.of("node.exporter_restarted")]
        for boot in sorted(anew, key=lambda effect: effect.course.start):
            for node in boot.columns:
                for gpu in range(node * self._profile.node.gpus, (node + 1) * self._profile.node.gpus):
                    shown[:, gpu] = np.where(at[:, gpu] >= boot.course.start, self._since(gpu, boot, at), shown[:, gpu])
        return shown

    def _since(self, gpu: int, boot: Effect, at: Floats) -> Floats:
        """Return a GPU's last XID since a boot by ``at`` (ticks, gpus), 0 before the first: shape (ticks,)."""
        shown = np.zeros(len(at))
        for effect in sorted(self._effects.of("gpu.xid"), key=lambda effect: effect.course.start):
            if gpu in effect.columns and effect.course.start >= boot.course.start:
                shown = np.where(at[:, gpu] >= effect.course.start, effect.size, shown)
        return shown

    def _frame_buffer(self, holder: NDArray[np.int64], at: Floats) -> Floats:
        gpu = self._profile.gpu
        wanted = self._of_runs(holder, lambda run: run.spec.training.fb_used_mib) + self._fb_extra
        full = np.minimum(wanted, gpu.fb_total_mib - gpu.fb_reserved_mib - _DRIVER_MIB)  # a job written for larger GPUs
        begin = self._of_runs(holder, lambda run: run.loading[0])
        length = self._of_runs(holder, lambda run: run.loading[1] - run.loading[0])
        progress = np.clip(np.divide(at - begin, length, out=np.ones_like(at), where=length > 0), 0.0, 1.0)
        return np.where(holder > 0, np.round(_CONTEXT_MIB + progress * (full - _CONTEXT_MIB)), _DRIVER_MIB)

    def _note_boots(self, times: Floats) -> None:
        """Note which nodes boot between these ticks and the ones before: (their GPUs, first tick after)."""
        per_node = self._profile.node.gpus
        self._boots = []
        for effect in self._effects.of("node.booted"):
            for node in effect.columns:
                tick = int(np.searchsorted(times[:, node], effect.course.start))
                new = self._before is None or self._before[node * per_node] < effect.course.start
                if tick < len(times) and new:
                    self._boots.append((slice(node * per_node, (node + 1) * per_node), tick))

    def _counted(self, counter: str, increments: Floats) -> Floats:
        """Return a counter after each tick; it goes on from the ticks before, and from 0 where a node has booted."""
        start = self._counters.get(counter, np.zeros(increments.shape[1]))
        values = start + np.cumsum(increments, axis=0)
        for gpus, tick in self._boots:
            values[tick:, gpus] -= values[tick - 1, gpus] if tick else start[gpus]
        self._counters[counter] = values[-1].copy()
        return np.asarray(np.floor(values))

    def _repeat(self, values: dict[str, Floats], beats: Beats) -> None:
        """Overwrite stale scrapes by the values of the last fresh one, in place."""
        ticks, nodes = beats.stale.shape
        fresh = np.where(beats.stale, 0, np.arange(1, ticks + 1)[:, None])
        source = np.maximum.accumulate(fresh, axis=0)  # 0 is the last tick of the stretch before
        tick, node = np.nonzero(beats.stale)
        for name, value in values.items():
            last = self._previous.get(name, value[:1])
            shaped = value.reshape(ticks, nodes, -1)
            extended = np.concatenate([last.reshape(1, nodes, -1), shaped])
            shaped[tick, node] = extended[source[tick, node], node]
            self._previous[name] = value[-1:].copy()
