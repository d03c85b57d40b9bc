"""The NVML binding's answers as DCGM fields. The driver is not there where tests run: its answers are given here, as an
H100 with driver 580.159 gave them."""

import ctypes
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from services.kit.errors import UserError
from services.record.nvml import Nvml

ANSWERS: dict[str, Any] = {
    "nvmlInit": None,
    "nvmlShutdown": None,
    "nvmlDeviceGetCount": 1,
    "nvmlDeviceGetHandleByIndex": "gpu0",
    "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
    "nvmlSystemGetDriverVersion": b"570.86",
    "nvmlDeviceGetUUID": "GPU-1",
    "nvmlDeviceGetPciInfo": SimpleNamespace(busId=b"00000000:1B:00.0"),
    "nvmlDeviceGetMaxPcieLinkGeneration": 5,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=98, memory=41),
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=1024 * 2**20, free=2 * 2**20),
    "nvmlDeviceGetRemappedRows": (1, 2, 1, 0),
    "nvmlDeviceGetTemperature": 61,
    "nvmlDeviceGetPowerUsage": 512_300,
    "nvmlDeviceGetTotalEnergyConsumption": 9_000_000,
    "nvmlDeviceGetClockInfo": 1980,
    "nvmlDeviceGetCurrentClocksEventReasons": 0x4,
    "nvmlDeviceGetPcieReplayCounter": 150,
    "nvmlEventSetCreate": "events",
    "nvmlEventSetFree": None,
    "nvmlDeviceRegisterEvents": None,
}
FIELD_ANSWERS = [
    SimpleNamespace(nvmlReturn=pynvml.NVML_SUCCESS, value=SimpleNamespace(uiVal=55)),
    SimpleNamespace(nvmlReturn=pynvml.NVML_ERROR_NOT_SUPPORTED, value=SimpleNamespace(uiVal=0)),
]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Answer as a driver with one H100 would, and count what it is asked; all else is not supported."""
    asked: dict[str, int] = {}

    def answering(name: str) -> Any:
        def answer(*_args: Any) -> Any:
            asked[name] = asked.get(name, 0) + 1
            if name == "nvmlDeviceGetFieldValues":
                return FIELD_ANSWERS
            if name not in ANSWERS:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return ANSWERS[name]

        return answer

    for name in [name for name in dir(pynvml) if name.startswith(("nvmlDevice", "nvmlInit", "nvmlSystem", "nvmlEv"))]:
        if callable(getattr(pynvml, name)) and not isinstance(getattr(pynvml, name), type):
            monkeypatch.setattr(pynvml, name, answering(name))
    monkeypatch.setattr(pynvml, "nvmlShutdown", answering("nvmlShutdown"))
    return asked


def test_a_gpu_is_known_by_what_it_should_be(driver: dict[str, int]) -> None:
    with Nvml() as sensors:
        (gpu,) = sensors.gpus
        assert (gpu.uuid, gpu.pci_bus_id, gpu.pcie_gen, gpu.pcie_width) == ("GPU-1", "00000000:1b:00.0", 5, 16)
        assert gpu.power_limit_w == 700
        assert (sensors.model, sensors.driver) == ("NVIDIA H100 80GB HBM3", "570.86")
    assert driver["nvmlShutdown"] == 1


def test_readings_have_the_names_and_units_of_dcgm(driver: dict[str, int]) -> None:
    with Nvml() as sensors:
        (reading,) = sensors.read()
        assert reading["DCGM_FI_DEV_POWER_USAGE"] == pytest.approx(512.3)
        assert reading["DCGM_FI_DEV_FB_USED"] == 1024
        assert reading["DCGM_FI_DEV_MEMORY_TEMP"] == 55
        assert reading["DCGM_FI_DEV_ROW_REMAP_PENDING"] == 1
        assert reading["DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"] == 4
        assert "DCGM_FI_DEV_POWER_USAGE_INSTANT" not in reading
        assert "DCGM_FI_DEV_POWER_VIOLATION" not in reading


@pytest.fixture
def hopper(driver: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer GPM, too: percent and MiB/s, as means between a sample and the next one."""
    answers = {pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: 54.8, pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC: 28.0}
    taken: list[int] = []

    def means(asked: Any) -> None:
        assert [ctypes.addressof(one.contents) for one in (asked.sample1, asked.sample2)] == taken[-2:]
        for metric in asked.metrics[: asked.numMetrics]:
            metric.nvmlReturn = 0 if metric.metricId in answers else pynvml.NVML_ERROR_NOT_SUPPORTED
            metric.value = answers.get(metric.metricId, 0.0)

    monkeypatch.setattr(pynvml, "nvmlGpmQueryDeviceSupport", lambda _handle: SimpleNamespace(isSupportedDevice=1))
    monkeypatch.setattr(pynvml, "nvmlGpmSampleAlloc", lambda: ctypes.pointer(pynvml.struct_c_nvmlGpmSample_t()))
    monkeypatch.setattr(pynvml, "nvmlGpmSampleFree", lambda _sample: None)
    monkeypatch.setattr(pynvml, "nvmlGpmSampleGet", lambda _, one: taken.append(ctypes.addressof(one.contents)))
    monkeypatch.setattr(pynvml, "nvmlGpmMetricsGet", means)


def test_from_hopper_on_profiling_fields_are_means_since_the_last_reading(hopper: None) -> None:
    with Nvml() as sensors:
        sensors.read()
        (reading,) = sensors.read()
    assert reading["DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"] == pytest.approx(0.548)
    assert reading["DCGM_FI_PROF_PCIE_RX_BYTES"] == 28 * 2**20
    assert "DCGM_FI_PROF_NVLINK_RX_BYTES" not in reading, "a GPU without NVLink"


def test_what_is_not_supported_is_asked_once(driver: dict[str, int]) -> None:
    with Nvml() as sensors:
        sensors.read()
        before = driver["nvmlDeviceGetViolationStatus"]
        sensors.read()
        assert driver["nvmlDeviceGetViolationStatus"] == before
        assert driver["nvmlDeviceGetPowerUsage"] == 2


def test_a_machine_without_the_driver_is_refused() -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        with pytest.raises(UserError, match="libnvidia-ml") as caught:
            Nvml()
        assert caught.value.exit_code == 3
    else:
        pynvml.nvmlShutdown()
        pytest.skip("this machine has an NVIDIA driver")
