"""Profiling readings of Hopper and later through NVML's GPM, GPU performance monitoring: means between two samples."""

from collections.abc import Mapping
from typing import Any

import pynvml

_MIB = 2**20
_METRICS = {  # GPM's metric, and what its value is multiplied by: percent to a share, MiB/s to bytes/s
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": (pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL, 0.01),
    "DCGM_FI_PROF_SM_ACTIVE": (pynvml.NVML_GPM_METRIC_SM_UTIL, 0.01),
    "DCGM_FI_PROF_SM_OCCUPANCY": (pynvml.NVML_GPM_METRIC_SM_OCCUPANCY, 0.01),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": (pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL, 0.01),
    "DCGM_FI_PROF_DRAM_ACTIVE": (pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL, 0.01),
    "DCGM_FI_PROF_PCIE_TX_BYTES": (pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC, _MIB),
    "DCGM_FI_PROF_PCIE_RX_BYTES": (pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC, _MIB),
    "DCGM_FI_PROF_NVLINK_TX_BYTES": (pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, _MIB),
    "DCGM_FI_PROF_NVLINK_RX_BYTES": (pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, _MIB),
}


class Gpm:
    """The last sample of one GPU. NVMLError_NotSupported: it is older than Hopper, or has the feature turned off."""

    def __init__(self, handle: Any) -> None:
        if not pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        self._handle = handle
        self._last = pynvml.nvmlGpmSampleAlloc()
        self._next = pynvml.nvmlGpmSampleAlloc()
        pynvml.nvmlGpmSampleGet(handle, self._last)

    def read(self) -> Mapping[str, float]:
        """Return means since the last call by DCGM field; what the GPU does not know (no NVLink) is left out."""
        pynvml.nvmlGpmSampleGet(self._handle, self._next)
        asked = pynvml.c_nvmlGpmMetricsGet_t()
        asked.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(_METRICS)
        asked.sample1, asked.sample2 = self._last, self._next
        for place, (metric, _) in enumerate(_METRICS.values()):
            asked.metrics[place].metricId = metric
        pynvml.nvmlGpmMetricsGet(asked)
        self._last, self._next = self._next, self._last
        return {
            field: asked.metrics[place].value * scale
            for place, (field, (_, scale)) in enumerate(_METRICS.items())
            if asked.metrics[place].nvmlReturn == pynvml.NVML_SUCCESS
        }

    def close(self) -> None:
        """Free the samples."""
        pynvml.nvmlGpmSampleFree(self._last)
        pynvml.nvmlGpmSampleFree(self._next)
