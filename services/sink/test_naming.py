import pytest

from services.kit.series import table
from services.sink.intake import telemetry_topics
from services.sink.naming import Naming

TOPOLOGY = {
    "nodes": [
        {
            "name": "v001",
            "gpu_model": "NVIDIA A100-SXM4-80GB",
            "gpus": [{"gpu": 0, "uuid": "GPU-aa", "pci_bus_id": "00000000:07:00.0"}],
            "nics": [{"nic": "mlx5_0"}],
        },
        {"name": "login", "gpus": []},
    ],
    "switches": [{"name": "tor-1"}],
}


def naming(stream: str, topology: dict[str, object] | None = None) -> Naming:
    return Naming(table().streams[stream], "vela", "r1", TOPOLOGY if topology is None else topology)


def series(stream: str, key: tuple[str, ...], column: str) -> str:
    labels = naming(stream).of_series(key, column)
    own = {name: value for name, value in labels.items() if name not in ("cluster", "replay")}
    assert (labels["cluster"], labels["replay"]) == ("vela", "r1")
    return own.pop("__name__") + str(dict(sorted(own.items())))


def braced(metric: str, **labels: str) -> str:
    return metric + str(dict(sorted(labels.items())))


GPU = {
    "Hostname": "v001", "UUID": "GPU-aa", "device": "nvidia0", "gpu": "0", "instance": "v001:9400",
    "job": "dcgm-exporter", "modelName": "NVIDIA A100-SXM4-80GB", "pci_bus_id": "00000000:07:00.0",
}  # fmt: skip
NIC = {"device": "mlx5_0", "instance": "v001:9100", "job": "node-exporter", "port": "1"}
PSU = {"id": "PSU1", "instance": "v001:9290", "job": "ipmi-exporter", "name": "PSU1"}
PORT = {"device": "Ethernet8", "instance": "tor-1:9101", "job": "sonic-exporter", "switch": "tor-1"}
JOB = {"job": "training", "job_id": "812", "rank": "-1"}
MOUNT = {"instance": "v001:9112", "job": "storage-client", "mount": "/scale", "node": "v001"}


@pytest.mark.parametrize(
    ("stream", "key", "column", "want"),
    [
        ("dcgm", ("v001", "0"), "DCGM_FI_DEV_GPU_TEMP", braced("DCGM_FI_DEV_GPU_TEMP", **GPU)),
        (
            "nic",
            ("v001", "mlx5_0"),
            "port_xmit_data",
            braced("node_infiniband_port_data_transmitted_bytes_total", **NIC),
        ),
        ("nic", ("v001", "mlx5_0"), "new_counter", braced("node_infiniband_new_counter_total", **NIC)),
        ("bmc", ("v001", "PSU1", "W"), "reading", braced("ipmi_power_watts", **PSU)),
        ("bmc", ("v001", "PSU1", "W"), "state", braced("ipmi_power_state", **PSU)),
        ("bmc", ("v001", "PSU1", "furlong"), "reading", braced("ipmi_sensor_value", **PSU)),
        (
            "switch",
            ("tor-1", "Ethernet8"),
            "SAI_PORT_STAT_IF_IN_OCTETS",
            braced("sonic_interface_receive_bytes_total", **PORT),
        ),
        (
            "switch",
            ("tor-1", "Ethernet8"),
            "SAI_PORT_STAT_PFC_3_RX_PKTS",
            braced("sonic_interface_pfc_receive_packets_total", priority="3", **PORT),
        ),
        ("steps", ("812", "-1", ""), "step_time_s", braced("hindcast_job_step_time_seconds", **JOB)),
        ("storage", ("v001", "/scale"), "read_bytes", braced("hindcast_storage_read_bytes_total", **MOUNT)),
    ],
)
def test_names(stream: str, key: tuple[str, ...], column: str, want: str) -> None:
    assert series(stream, key, column) == want


def test_without_a_topology_the_rows_name_what_they_can() -> None:
    labels = naming("dcgm", {}).of_series(("v001", "0"), "DCGM_FI_DEV_GPU_TEMP")
    assert labels == {
        "__name__": "DCGM_FI_DEV_GPU_TEMP", "gpu": "0", "device": "nvidia0", "Hostname": "v001",
        "job": "dcgm-exporter", "instance": "v001:9400", "cluster": "vela", "replay": "r1",
    }  # fmt: skip


def test_an_xid_is_a_series_of_its_code() -> None:
    labels = naming("dcgm").of_code(("v001", "0"), "DCGM_FI_DEV_XID_ERRORS", 79)
    assert (labels["err_code"], labels["err_msg"]) == ("79", "GPU has fallen off the bus")
    unknown = naming("dcgm").of_code(("v001", "0"), "DCGM_FI_DEV_XID_ERRORS", 999)
    assert unknown["err_code"] == "999"
    assert "err_msg" not in unknown


def test_who_must_report() -> None:
    assert list(naming("dcgm").expected) == ["v001"]
    assert list(naming("bmc").expected) == ["v001", "login"]
    assert list(naming("switch").expected) == ["tor-1"]
    assert list(naming("steps").expected) == []
    assert naming("dcgm").of_target("v001") == {
        "__name__": "up", "job": "dcgm-exporter", "instance": "v001:9400", "cluster": "vela", "replay": "r1",
    }  # fmt: skip


def test_every_telemetry_topic_has_names() -> None:
    assert set(telemetry_topics().values()) == set(table().streams)
    assert len(telemetry_topics()) == 6


def test_ports_of_infiniband_follow_the_kernel() -> None:
    rule, _ = table().streams["nic"].column("state")
    assert [rule.scale * state + rule.offset for state in (0, 1)] == [1, 4]
