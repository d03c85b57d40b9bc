"""DCGM's view of the GPUs: puts activity, power, clocks, temperatures and counters into its fields.

Field names are those that dcgm-exporter emits; units as DCGM gives them (mJ, ns, MiB, bytes per second).
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from services.recording.schema import TIMESTAMP, name_column
from services.synth.collector import Beats, to_ms
from services.synth.effects import Effects, Floats
from services.synth.job import Run, Workload
from services.synth.power import PowerModel
from services.synth.profile import ClusterProfile
from services.synth.thermal import ThermalModel

_SENSOR_WINDOW_S = 1.0  # POWER_USAGE and GPU_UTIL look back about a second
_CONTEXT_MIB = 1450  # CUDA context and NCCL buffers, before any model is there
_DRIVER_MIB = 4
_CHECKPOINT_BYTES_S = 1.9e9  # per GPU and direction while a checkpoint moves over PCIe
_IDLE_PCIE_BYTES_S = 4.0e5
_VIOLATION_STEP_NS = 1e3  # the driver counts microseconds
_LAUNCH_GAPS = 0.003  # mean share of time between two kernels, when none runs
_SBE_PER_GPU_DAY = 0.012  # corrected single-bit errors of a healthy HBM stack, estimated
_REPLAYS_PER_GPU_DAY = 0.25  # far below DCGM's own bar of 16 a minute
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
        gpus = profile.gpu_count
        uptime_s = np.repeat(rng.uniform(9, 70, profile.nodes), profile.node.gpus) * 86400
        self._energy_mj = np.floor(uptime_s * rng.uniform(220, 290, gpus) * 1000)
        self._violation_ns = np.floor(uptime_s * rng.uniform(0.02, 0.35, gpus) * 1e9)
        self._thermal_ns = np.where(rng.random(gpus) < 0.03, np.floor(rng.exponential(4e9, gpus)), 0.0)
        self._sbe = rng.poisson(_SBE_PER_GPU_DAY * uptime_s / 86400).astype(np.float64)
        self._replays = np.where(rng.random(gpus) < 0.12, np.floor(rng.exponential(25, gpus)), 0.0)
        self._correctable_rows = (rng.random(gpus) < 0.015).astype(np.float64)
        self._uncorrectable_rows = (rng.random(gpus) < 0.006).astype(np.float64)
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
        kept = np.flatnonzero(np.repeat(beats.kept, per_node, axis=1).ravel())
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
        profile, gpu, rng = self._profile, self._profile.gpu, self._rng
        interval = profile.collector_interval_s
        now = self._workload.activity(times, _SENSOR_WINDOW_S)
        mean = self._workload.activity(times, interval)
        reading = self._power.read(now, times, _SENSOR_WINDOW_S, rng)
        power = self._power.mean_power(mean, times, interval)
        chip, hbm = self._thermal.advance(power, times, interval)
        self.hottest = chip.reshape(len(times), profile.nodes, profile.node.gpus).max(axis=2)

        holder = self._workload.running(times)
        clock = reading.sm_clock_mhz / gpu.sm_clock_mhz
        bound = self._of_runs(holder, lambda run: run.spec.training.clock_bound)
        speed = 1.0 / (1.0 - bound + bound / clock)
        work = mean.busy * self._efficiency * (1 + 0.012 * rng.standard_normal(mean.busy.shape))
        moving = np.where(mean.copying > 0, mean.copying * _CHECKPOINT_BYTES_S, 0.0)
        at = np.repeat(times, profile.node.gpus, axis=1)
        loading = (holder > 0) & (at < self._of_runs(holder, lambda run: run.loading[1]) + interval)
        chatter = _IDLE_PCIE_BYTES_S * (1 + 0.2 * rng.random(mean.busy.shape))
        pcie = self._of_runs(holder, lambda run: run.spec.training.pcie_gb_s * 1e9) * work * speed
        nvlink = self._of_runs(holder, lambda run: run.spec.training.nvlink_gb_s * 1e9) * work * speed
        tensor = self._of_runs(holder, lambda run: run.spec.training.tensor_active) * work
        dram = self._of_runs(holder, lambda run: run.spec.training.dram_active) * work * speed
        launched = 1.0 - np.minimum(rng.exponential(_LAUNCH_GAPS, mean.busy.shape), 0.05)
        kernels = np.clip(now.busy + now.collective, 0.0, 1.0) * launched
        held = now.resident > 0
        used = self._frame_buffer(holder, at)
        uneven = 1 + 0.004 * rng.standard_normal((2, *power.shape))
        zeros = np.zeros_like(power)
        values = {
            "DCGM_FI_DEV_SM_CLOCK": reading.sm_clock_mhz,
            "DCGM_FI_DEV_MEM_CLOCK": zeros + gpu.mem_clock_mhz,
            "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": reading.reasons.astype(np.float64),
            "DCGM_FI_DEV_MEMORY_TEMP": np.round(hbm),
            "DCGM_FI_DEV_GPU_TEMP": np.round(chip),
            "DCGM_FI_DEV_POWER_USAGE": np.round(reading.power_w, 3),
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": self._counted("_energy_mj", power * interval * 1e3),
            "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": zeros + gpu.power_limit_w,
            "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": self._events("_replays", _REPLAYS_PER_GPU_DAY, power.shape),
            "DCGM_FI_DEV_PCIE_LINK_GEN": zeros + gpu.pcie_gen,
            "DCGM_FI_DEV_PCIE_LINK_WIDTH": zeros + gpu.pcie_width,
            "DCGM_FI_DEV_GPU_UTIL": np.round(100 * kernels),
            "DCGM_FI_DEV_MEM_COPY_UTIL": np.round(100 * np.clip(1.15 * dram + 0.03 * now.collective, 0, 1)),
            "DCGM_FI_DEV_XID_ERRORS": self._xids(at),
            "DCGM_FI_DEV_POWER_VIOLATION": _coarse(
                self._counted("_violation_ns", self._power.capped_share(mean, times, interval) * interval * 1e9),
                _VIOLATION_STEP_NS,
            ),
            "DCGM_FI_DEV_THERMAL_VIOLATION": zeros + self._thermal_ns,
            "DCGM_FI_DEV_FB_USED": used,
            "DCGM_FI_DEV_FB_FREE": gpu.fb_total_mib - gpu.fb_reserved_mib - used,
            "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": self._events("_sbe", _SBE_PER_GPU_DAY, power.shape),
            "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": zeros,
            "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": zeros + self._uncorrectable_rows,
            "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": zeros + self._correctable_rows,
            "DCGM_FI_DEV_ROW_REMAP_FAILURE": zeros,
            "DCGM_FI_DEV_ROW_REMAP_PENDING": zeros,
            "DCGM_FI_PROF_GR_ENGINE_ACTIVE": np.round(launched * np.clip(mean.busy + mean.collective, 0, 1), 4),
            "DCGM_FI_PROF_SM_ACTIVE": np.round(0.91 * work + 0.13 * mean.collective, 4),
            "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": np.round(tensor, 4),
            "DCGM_FI_PROF_DRAM_ACTIVE": np.round(dram + 0.03 * mean.collective + 0.02 * mean.copying, 4),
            "DCGM_FI_PROF_PCIE_TX_BYTES": _coarse(pcie + np.where(loading, 0.0, moving) + chatter, 1e5),
            "DCGM_FI_PROF_PCIE_RX_BYTES": _coarse(
                pcie * uneven[0] + np.where(loading, moving, 0.0) + chatter * 1.4, 1e5
            ),
            "DCGM_FI_PROF_NVLINK_TX_BYTES": _coarse(nvlink, 1e7),
            "DCGM_FI_PROF_NVLINK_RX_BYTES": _coarse(nvlink * uneven[1], 1e7),
        }
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
        return shown

    def _frame_buffer(self, holder: NDArray[np.int64], at: Floats) -> Floats:
        full = self._of_runs(holder, lambda run: run.spec.training.fb_used_mib) + self._fb_extra
        begin = self._of_runs(holder, lambda run: run.loading[0])
        length = self._of_runs(holder, lambda run: run.loading[1] - run.loading[0])
        progress = np.clip(np.divide(at - begin, length, out=np.ones_like(at), where=length > 0), 0.0, 1.0)
        return np.where(holder > 0, np.round(_CONTEXT_MIB + progress * (full - _CONTEXT_MIB)), _DRIVER_MIB)

    def _counted(self, counter: str, increments: Floats) -> Floats:
        values = getattr(self, counter) + np.cumsum(increments, axis=0)
        setattr(self, counter, values[-1].copy())
        return np.asarray(np.floor(values))

    def _events(self, counter: str, per_day: float, shape: tuple[int, ...]) -> Floats:
        mean = per_day * self._profile.collector_interval_s / 86400
        return self._counted(counter, self._rng.poisson(mean, shape).astype(np.float64))

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
