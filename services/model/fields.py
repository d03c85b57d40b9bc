"""What the model looks at: the readings of a GPU and the times of its rank, with the least spread peers are given."""

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from detectors.contract import FloatArray

Kind = Literal["gauge", "counter", "step"]


@dataclass(frozen=True, slots=True)
class Field:
    """One reading. Peers that all say the same are given a spread of `floor`, or of `share` of their median."""

    name: str
    kind: Kind
    unit: str
    floor: float
    share: float = 0.0


FIELDS: Final = (
    # Two steps of the SM clock; a sensor of whole degrees on GPUs that cooling reaches unlike, some 5 K (judgement).
    Field("DCGM_FI_DEV_SM_CLOCK", "gauge", "MHz", 30),
    Field("DCGM_FI_DEV_GPU_TEMP", "gauge", "C", 3),
    Field("DCGM_FI_DEV_MEMORY_TEMP", "gauge", "C", 3),
    # Means over a minute of what swings within every step differ by some hundredths between healthy GPUs (judgement).
    Field("DCGM_FI_DEV_POWER_USAGE", "gauge", "W", 5, 0.03),
    Field("DCGM_FI_DEV_GPU_UTIL", "gauge", "%", 3),
    Field("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "%", 3),
    Field("DCGM_FI_DEV_FB_USED", "gauge", "MiB", 500, 0.02),
    Field("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gauge", "ratio", 0.02),
    Field("DCGM_FI_PROF_SM_ACTIVE", "gauge", "ratio", 0.02),
    Field("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge", "ratio", 0.02),
    Field("DCGM_FI_PROF_DRAM_ACTIVE", "gauge", "ratio", 0.02),
    Field("DCGM_FI_PROF_PCIE_TX_BYTES", "gauge", "bytes/s", 1e8, 0.05),
    Field("DCGM_FI_PROF_PCIE_RX_BYTES", "gauge", "bytes/s", 1e8, 0.05),
    Field("DCGM_FI_PROF_NVLINK_TX_BYTES", "gauge", "bytes/s", 1e9, 0.05),
    Field("DCGM_FI_PROF_NVLINK_RX_BYTES", "gauge", "bytes/s", 1e9, 0.05),
    # Counters are read as the logarithm of their growth in a window, plus one: 1 is a growth of 1.7.
    Field("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "log growth", 1),
    Field("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "counter", "log growth", 1),
    Field("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "counter", "log growth", 1),
    Field("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "counter", "log growth", 1),
    Field("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "counter", "log growth", 1),
    # Ranks scatter by 0.6 to 2 % from step to step (public trace of a 3D-parallel job, as in detectors/straggler). What
    # one computes longer the others wait: all three are measured by the whole step, or victims would look novel.
    Field("compute_s", "step", "s", 0.01, 0.02),
    Field("comm_wait_s", "step", "s", 0.01, 0.02),
    Field("data_wait_s", "step", "s", 0.01, 0.02),
)
NAMES: Final = tuple(field.name for field in FIELDS)
UTILISATION: Final = NAMES.index("DCGM_FI_DEV_GPU_UTIL")


def columns(kind: Kind) -> tuple[int, ...]:
    """Return the places in `FIELDS` of what is of a kind."""
    return tuple(place for place, field in enumerate(FIELDS) if field.kind == kind)


def spread_floor(middle: FloatArray) -> FloatArray:
    """Return the least spread of peers whose medians are `middle` (fields,)."""
    floors = np.array([field.floor for field in FIELDS])
    shares = np.array([field.share for field in FIELDS])
    usual = np.abs(np.nan_to_num(middle))
    steps = list(columns("step"))
    usual[steps] = usual[steps].sum()
    return np.asarray(np.maximum(floors, shares * usual))
