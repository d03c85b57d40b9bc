"""The GPUs of this machine through NVML, NVIDIA's management library: readings as DCGM would name them.

Units are DCGM's: W, MHz, degrees Celsius, MiB, mJ, ns, KiB/s. A reading and the field it becomes mean the same;
profiling fields (``DCGM_FI_PROF_*``) are there from Hopper on, for which NVML has GPM.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import pynvml

from services.kit.errors import ServerError
from services.record.gpm import Gpm
from services.record.sensors import Xid
from services.recording.model import Gpu

_MIB = 2**20
_FIELDS = {  # nvmlFieldValue ids, and what their integers are divided by
    "DCGM_FI_DEV_MEMORY_TEMP": (pynvml.NVML_FI_DEV_MEMORY_TEMP, 1.0),
    "DCGM_FI_DEV_POWER_USAGE_INSTANT": (pynvml.NVML_FI_DEV_POWER_INSTANT, 1000.0),
}


class Nvml:
    """Every GPU that the driver shows. UserError: there is no driver, or no GPU."""

    def __init__(self) -> None:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise ServerError(
                f"NVML, the NVIDIA driver's management library, can't be used: {error}",
                remedy="run this on a machine with an NVIDIA GPU and its driver (libnvidia-ml.so.1)",
            ) from error
        self._handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
        if not self._handles:
            pynvml.nvmlShutdown()
            raise ServerError("the NVIDIA driver shows no GPU", remedy="check nvidia-smi")
        names = sorted({_text(pynvml.nvmlDeviceGetName(handle)) for handle in self._handles})
        self.model = ", ".join(name if name.startswith("NVIDIA") else f"NVIDIA {name}" for name in names)
        self.driver = _text(pynvml.nvmlSystemGetDriverVersion())
        self._without: list[set[str]] = [set() for _ in self._handles]
        self._gpm = [_gpm(handle) for handle in self._handles]
        self._events = self._listen()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def gpus(self) -> Sequence[Gpu]:
        """What each GPU should be: its link at its best, its default power limit."""
        return [_identity(number, handle) for number, handle in enumerate(self._handles)]

    def read(self) -> Sequence[Mapping[str, float]]:
        """Return one reading of every GPU; what it once refused as not supported is not asked again."""
        each = zip(self._handles, self._without, self._gpm, strict=True)
        return [self._read(handle, without, gpm) for handle, without, gpm in each]

    def xids(self) -> Sequence[Xid]:
        """Return the XID errors since the last call."""
        found: list[Xid] = []
        while self._events is not None:
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
            except pynvml.NVMLError:  # a timeout: nothing has happened
                break
            bus = _text(pynvml.nvmlDeviceGetPciInfo(event.device).busId)
            gpus = [gpu.gpu for gpu in self.gpus if gpu.pci_bus_id == bus.lower()]
            found += [Xid(gpu, int(event.eventData)) for gpu in gpus]
        return found

    def close(self) -> None:
        """Let go of the driver."""
        if self._events is not None:
            pynvml.nvmlEventSetFree(self._events)
        for gpm in self._gpm:
            if gpm is not None:
                gpm.close()
        pynvml.nvmlShutdown()

    def _read(self, handle: Any, without: set[str], gpm: Gpm | None) -> dict[str, float]:
        reading: dict[str, float] = {}
        if gpm is not None:
            with contextlib.suppress(pynvml.NVMLError):  # as below: this time only
                reading |= gpm.read()
        for group, ask in _READINGS.items():
            if group in without:
                continue
            try:
                reading |= ask(handle)
            except pynvml.NVMLError_NotSupported:
                without.add(group)
            except pynvml.NVMLError:
                # This time only: a GPU that is being reset answers again, one that is lost goes on to be missing.
                continue
        return reading

    def _listen(self) -> Any | None:
        events = pynvml.nvmlEventSetCreate()
        try:
            for handle in self._handles:
                pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
        except pynvml.NVMLError:  # GeForce and vGPU have no events
            pynvml.nvmlEventSetFree(events)
            return None
        return events


def _gpm(handle: Any) -> Gpm | None:
    try:
        return Gpm(handle)
    except pynvml.NVMLError:  # older than Hopper, or not permitted
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _identity(number: int, handle: Any) -> Gpu:
    known: dict[str, Any] = {"gpu": number, "uuid": _text(pynvml.nvmlDeviceGetUUID(handle))}
    for name, ask in (
        ("pci_bus_id", lambda: _text(pynvml.nvmlDeviceGetPciInfo(handle).busId).lower()),
        ("pcie_gen", lambda: int(pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))),
        ("pcie_width", lambda: int(pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle))),
        ("power_limit_w", lambda: pynvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) / 1000),
    ):
        try:
            known[name] = ask()
        except pynvml.NVMLError:
            continue
    return Gpu(**known)


def _one(field: str, function: str, *arguments: Any, scale: float = 1.0) -> Callable[[Any], dict[str, float]]:
    return lambda handle: {field: float(getattr(pynvml, function)(handle, *arguments)) * scale}


def _utilisation(handle: Any) -> dict[str, float]:
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    return {"DCGM_FI_DEV_GPU_UTIL": float(rates.gpu), "DCGM_FI_DEV_MEM_COPY_UTIL": float(rates.memory)}


def _memory(handle: Any) -> dict[str, float]:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return {"DCGM_FI_DEV_FB_USED": memory.used / _MIB, "DCGM_FI_DEV_FB_FREE": memory.free / _MIB}


def _remapped(handle: Any) -> dict[str, float]:
    correctable, uncorrectable, pending, failed = pynvml.nvmlDeviceGetRemappedRows(handle)
    return {
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": float(correctable),
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": float(uncorrectable),
        "DCGM_FI_DEV_ROW_REMAP_PENDING": float(bool(pending)),
        "DCGM_FI_DEV_ROW_REMAP_FAILURE": float(bool(failed)),
    }


def _fields(handle: Any) -> dict[str, float]:
    answers = pynvml.nvmlDeviceGetFieldValues(handle, [number for number, _ in _FIELDS.values()])
    return {
        name: float(answer.value.uiVal) / divisor
        for (name, (_, divisor)), answer in zip(_FIELDS.items(), answers, strict=True)
        if answer.nvmlReturn == pynvml.NVML_SUCCESS
    }


def _violation(field: str, policy: int) -> Callable[[Any], dict[str, float]]:
    return lambda handle: {field: float(pynvml.nvmlDeviceGetViolationStatus(handle, policy).violationTime)}


def _errors(field: str, kind: int) -> Callable[[Any], dict[str, float]]:
    return _one(field, "nvmlDeviceGetTotalEccErrors", kind, pynvml.NVML_VOLATILE_ECC)


_READINGS: dict[str, Callable[[Any], dict[str, float]]] = {
    "utilisation": _utilisation,
    "memory": _memory,
    "remapped rows": _remapped,
    "fields": _fields,
    "temperature": _one("DCGM_FI_DEV_GPU_TEMP", "nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU),
    "power": _one("DCGM_FI_DEV_POWER_USAGE", "nvmlDeviceGetPowerUsage", scale=1e-3),
    "energy": _one("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "nvmlDeviceGetTotalEnergyConsumption"),
    "limit": _one("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "nvmlDeviceGetEnforcedPowerLimit", scale=1e-3),
    "sm clock": _one("DCGM_FI_DEV_SM_CLOCK", "nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM),
    "memory clock": _one("DCGM_FI_DEV_MEM_CLOCK", "nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM),
    "reasons": _one("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "nvmlDeviceGetCurrentClocksEventReasons"),
    "link generation": _one("DCGM_FI_DEV_PCIE_LINK_GEN", "nvmlDeviceGetCurrPcieLinkGeneration"),
    "link width": _one("DCGM_FI_DEV_PCIE_LINK_WIDTH", "nvmlDeviceGetCurrPcieLinkWidth"),
    "replays": _one("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "nvmlDeviceGetPcieReplayCounter"),
    "pcie tx": _one("DCGM_FI_DEV_PCIE_TX_THROUGHPUT", "nvmlDeviceGetPcieThroughput", pynvml.NVML_PCIE_UTIL_TX_BYTES),
    "pcie rx": _one("DCGM_FI_DEV_PCIE_RX_THROUGHPUT", "nvmlDeviceGetPcieThroughput", pynvml.NVML_PCIE_UTIL_RX_BYTES),
    "sbe": _errors("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
    "dbe": _errors("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
    "power violation": _violation("DCGM_FI_DEV_POWER_VIOLATION", pynvml.NVML_PERF_POLICY_POWER),
    "thermal violation": _violation("DCGM_FI_DEV_THERMAL_VIOLATION", pynvml.NVML_PERF_POLICY_THERMAL),
}
"""What is asked of a GPU, by what is then known as not supported; each gives readings by DCGM field."""
