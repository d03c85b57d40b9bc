"""A recording as a cluster of AMD's GPUs would have made it: what device-metrics-exporter has no metric for is gone."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.recording.degrade import degrade_recording
from services.recording.importers.dcgm_text import convert
from services.recording.merge import merge_recordings
from services.recording.reader import Recording, times_of

Floats = NDArray[np.float64]


def _times(factor: float) -> Callable[[Floats], Floats]:
    return lambda values: values * factor


def _percent(bit: int) -> Callable[[Floats], Floats]:
    return lambda reasons: np.where(np.isfinite(reasons), 100.0 * (reasons.astype(np.int64) & bit > 0), np.nan)


def _speed(generation: Floats) -> Floats:
    known = np.array([np.nan, 2.5, 5, 8, 16, 32, 64])
    return np.asarray(known[np.nan_to_num(generation).astype(np.int64).clip(0, 6)])


_REASONS = "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"
METRICS: tuple[tuple[str, str, str, Callable[[Floats], Floats]], ...] = (
    # metric, labels of its own, DCGM's field, and the metric's value by the field's
    ("gpu_package_power", "", "DCGM_FI_DEV_POWER_USAGE", _times(1)),
    ("gpu_energy_consumed", "", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", _times(1000)),
    ("gpu_junction_temperature", "", "DCGM_FI_DEV_GPU_TEMP", _times(1)),
    ("gpu_memory_temperature", "", "DCGM_FI_DEV_MEMORY_TEMP", _times(1)),
    ("gpu_gfx_activity", "", "DCGM_FI_DEV_GPU_UTIL", _times(1)),
    ("gpu_clock", ',clock_index="0",clock_type="system"', "DCGM_FI_DEV_SM_CLOCK", _times(1)),
    ("gpu_clock", ',clock_index="8",clock_type="memory"', "DCGM_FI_DEV_MEM_CLOCK", _times(1)),
    ("gpu_used_vram", "", "DCGM_FI_DEV_FB_USED", _times(1)),
    ("gpu_ecc_uncorrect_total", "", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", _times(1)),
    ("gpu_ecc_correct_total", "", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", _times(1)),
    ("pcie_replay_count", "", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", _times(1)),
    ("pcie_speed", "", "DCGM_FI_DEV_PCIE_LINK_GEN", _speed),
    ("gpu_violation_ppt_residency_percentage", "", _REASONS, _percent(0x004)),
    ("gpu_violation_processor_hot_residency_percentage", "", _REASONS, _percent(0x088)),
    ("gpu_violation_socket_thermal_residency_percentage", "", _REASONS, _percent(0x060)),
    ("gpu_prof_tensor_active_percent", "", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", _times(100)),
    ("gpu_prof_gui_util_percent", "", "DCGM_FI_PROF_GR_ENGINE_ACTIVE", _times(100)),
)


def scrapes(recording: Recording) -> Iterator[str]:
    """Yield the exporter's samples of a recording's GPUs, each with its time."""
    for batch in recording.batches("dcgm"):
        nodes, gpus, times = batch.column("node").to_pylist(), batch.column("gpu").to_pylist(), times_of(batch)
        labels = [
            f'card_model="Instinct MI300X",gpu_id="{gpu}",gpu_partition_id="0",hostname="{node}"'
            for node, gpu in zip(nodes, gpus, strict=True)
        ]
        for metric, own, field, of in METRICS:
            if field not in batch.schema.names:
                continue
            column: Any = batch.column(field)
            values = of(column.cast("float64").to_numpy(zero_copy_only=False))
            for label, at, value in zip(labels, times.tolist(), values.tolist(), strict=True):
                if value == value:
                    yield f"{metric}{{{label}{own}}} {value:g} {at}\n"


def in_amds_names(source: Path, folder: Path) -> Path:
    """Return a recording below `folder` that is `source` with the GPUs as AMD's exporter reports them.

    Kernels' lines go too: NVIDIA's driver wrote them.
    """
    folder.mkdir()
    recording = Recording.open(source)
    with (folder / "metrics.txt").open("w") as file:
        file.writelines(scrapes(recording))
    convert(folder / "metrics.txt", folder / "gpus", cluster=recording.manifest.cluster.name)
    rest = degrade_recording(recording, folder / "rest", ["dcgm", "kernel-logs", "fabric-manager-logs"])
    merge_recordings([Recording.open(rest), Recording.open(folder / "gpus")], folder / "amd")
    return folder / "amd"
