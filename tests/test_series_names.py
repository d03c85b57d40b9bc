"""What the sink names a series, the importers of scrapes and of Prometheus read back to the same column and entity."""

from typing import Any

import pytest

from services.kit.series import table
from services.recording.importers.parts.series.census import Census, Place
from services.sink.naming import Naming

TOPOLOGY: dict[str, Any] = {
    "nodes": [
        {
            "name": "n01",
            "gpu_model": "NVIDIA H100 80GB HBM3",
            "gpus": [{"gpu": 3, "uuid": "GPU-3", "pci_bus_id": "00000000:1B:00.0"}],
            "nics": [{"nic": "mlx5_0"}],
        }
    ],
    "switches": [{"name": "leaf-1"}],
}
ENTITIES = {
    "dcgm": (("n01", "3"), ("n01", 3)),
    "nic": (("n01", "mlx5_0"), ("n01", "mlx5_0")),
    "switch": (("leaf-1", "Ethernet8"), ("leaf-1", "Ethernet8")),
    "storage": (("n01", "/scale"), ("n01", "/scale")),
    "steps": (("812", "7", "n01"), ("812", 7, "n01")),
}
OTHERS = {  # columns that series.yaml does not list
    "dcgm": ["DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"],
    "nic": ["lifespan", "rx_read_requests"],
    "switch": [
        "SAI_PORT_STAT_IF_IN_UCAST_PKTS", "SAI_PORT_STAT_PFC_3_RX_PKTS", "SAI_PORT_STAT_PFC_0_TX_PKTS",
        "SAI_PORT_STAT_IF_IN_FEC_CODEWORD_ERRORS_S15", "SAI_PORT_STAT_ETHER_STATS_JABBERS", "speed_gbps",
    ],
    "storage": ["open_files"],
    "steps": ["learning_rate"],
}  # fmt: skip


def _columns() -> list[tuple[str, str]]:
    listed = [(name, column) for name, stream in table().streams.items() for column in stream.columns]
    return [one for one in listed if one[0] != "bmc"] + [(name, c) for name, more in OTHERS.items() for c in more]


@pytest.mark.parametrize(("stream", "column"), _columns())
def test_a_column_comes_back_from_its_series(stream: str, column: str) -> None:
    naming = Naming(table().streams[stream], "vela", "r1", TOPOLOGY)
    key, entity = ENTITIES[stream]
    rule, _ = naming.column(column)
    labels = naming.of_code(key, column, 79) if rule.code else naming.of_series(key, column)
    place = Census().place(labels.pop("__name__"), labels)
    assert isinstance(place, Place), place
    assert (place.reading.stream, place.reading.column, place.key) == (stream, column, entity)
    assert (place.reading.scale, place.reading.offset) == (rule.scale, rule.offset)


@pytest.mark.parametrize("unit", table().streams["bmc"].by_unit)
@pytest.mark.parametrize("column", ["reading", "state"])
def test_a_sensor_comes_back_with_its_unit(unit: str, column: str) -> None:
    naming = Naming(table().streams["bmc"], "vela", "r1", TOPOLOGY)
    labels = naming.of_series(("n01", "PSU1 Input", unit), column)
    place = Census().place(labels.pop("__name__"), labels)
    assert isinstance(place, Place), place
    assert (place.reading.stream, place.reading.column, place.key) == ("bmc", column, ("n01", "PSU1 Input", unit))


def test_the_gpu_is_known_by_its_labels() -> None:
    census = Census()
    labels = Naming(table().streams["dcgm"], "vela", "r1", TOPOLOGY).of_series(("n01", "3"), "DCGM_FI_DEV_GPU_TEMP")
    census.place(labels.pop("__name__"), labels)
    (node,) = census.topology().nodes
    assert (node.name, node.gpu_model) == ("n01", "NVIDIA H100 80GB HBM3")
    assert [(gpu.gpu, gpu.uuid, gpu.pci_bus_id) for gpu in node.gpus] == [(3, "GPU-3", "00000000:1B:00.0")]
