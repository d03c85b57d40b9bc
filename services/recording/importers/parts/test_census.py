from services.recording.importers.parts.census import Census, Place
from services.recording.importers.parts.known_series import RENAMED_FIELDS, reading_of, stream_of


def placed(census: Census, metric: str, **labels: str) -> Place:
    place = census.place(metric, labels)
    assert isinstance(place, Place), place
    return place


def test_old_new_and_older_field_names_are_one_column() -> None:
    for name in ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS", "dcgm_gpu_temp"):
        found = reading_of(name)
        assert found is not None
        assert (found.stream, found.column) == ("dcgm", "DCGM_FI_DEV_GPU_TEMP")
    assert stream_of("dcgm_no_such_field") is None
    assert stream_of("DCGM_EXP_XID_ERRORS_COUNT") is None
    assert stream_of("node_cpu_seconds_total") is None
    assert not set(RENAMED_FIELDS.values()) & set(RENAMED_FIELDS), "a classic name is not renamed again"


def test_a_ports_counter_has_the_kernels_name() -> None:
    for metric, column in (
        ("node_infiniband_port_data_received_bytes_total", "port_rcv_data"),
        ("node_infiniband_multicast_packets_received_total", "multicast_rcv_packets"),
        ("node_infiniband_multicast_rcv_packets_total", "multicast_rcv_packets"),
    ):
        found = reading_of(metric)
        assert found is not None
        assert (found.stream, found.column) == ("nic", column)
    assert reading_of("node_infiniband_info") is None


def test_both_spellings_of_host_and_gpu_are_read() -> None:
    census = Census()
    old = placed(census, "DCGM_FI_DEV_GPU_TEMP", gpu="0", UUID="GPU-a", Hostname="n1", modelName="H100")
    new = placed(census, "DCGM_FI_DEV_GPU_TEMP", gpu="0", UUID="GPU-a", hostname="n1", pci_bus_id="00000000:18:00.0")
    assert old.key == new.key == ("n1", 0)
    (node,) = census.topology().nodes
    assert node.model_dump(exclude_none=True, exclude_defaults=True) == {
        "name": "n1",
        "gpu_model": "H100",
        "gpus": [{"gpu": 0, "uuid": "GPU-a", "pci_bus_id": "00000000:18:00.0"}],
    }


def test_a_pods_name_is_not_taken_for_a_node() -> None:
    census = Census(hosts={"10.0.0.7": "n7"})
    pod = {"gpu": "0", "UUID": "GPU-a", "Hostname": "nvidia-dcgm-exporter-x7k2p"}
    assert placed(census, "DCGM_FI_DEV_GPU_TEMP", **pod, instance="10.0.0.7:9400").key == ("n7", 0)
    assert placed(census, "DCGM_FI_DEV_GPU_TEMP", **pod, node="k8s-3").key == ("k8s-3", 0)


def test_a_pod_started_anew_has_the_same_gpus() -> None:
    census = Census()
    labels = {"gpu": "0", "UUID": "GPU-a"}
    first = placed(census, "DCGM_FI_DEV_GPU_TEMP", **labels, Hostname="dcgm-exporter-aaaaa")
    assert placed(census, "DCGM_FI_DEV_GPU_TEMP", **labels, Hostname="dcgm-exporter-bbbbb").key == first.key


def test_links_switch_chips_and_mig_instances_are_left_out_with_a_reason() -> None:
    census = Census()
    gpu = {"gpu": "0", "UUID": "GPU-a", "Hostname": "n1"}
    assert "one link" in str(census.place("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L0", {**gpu, "nvlink": "0"}))
    assert "one link" in str(census.place("DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT", {"nvswitch": "0"}))
    assert "MIG" in str(census.place("DCGM_FI_PROF_SM_ACTIVE", {**gpu, "GPU_I_ID": "1"}))
    assert placed(census, "DCGM_FI_DEV_GPU_TEMP", **gpu, GPU_I_ID="1").key == ("n1", 0)
    assert "no GPU" in str(census.place("DCGM_FI_DEV_GPU_TEMP", {"Hostname": "n1", "gpu": "many"}))
    assert "no node" in str(census.place("DCGM_FI_DEV_GPU_TEMP", {"gpu": "0"}))


def test_an_address_becomes_a_name_where_node_exporter_told_it() -> None:
    census = Census(hosts={"10.0.0.7": "n7", "fd00::7": "n7"})
    metric = "node_infiniband_port_data_received_bytes_total"
    assert placed(census, metric, device="mlx5_0", port="1", instance="10.0.0.7:9100").key == ("n7", "mlx5_0")
    assert placed(census, metric, device="mlx5_0", port="2", instance="[fd00::7]:9100").key == ("n7", "mlx5_0:2")
    assert placed(census, metric, device="mlx5_0", port="1", instance="10.0.0.8:9100").key == ("10.0.0.8", "mlx5_0")


def test_sensors_of_one_name_are_told_apart_by_their_number() -> None:
    census = Census()
    first = placed(census, "ipmi_temperature_celsius", instance="n1:9290", name="Temp", id="4")
    second = placed(census, "ipmi_temperature_celsius", instance="n1:9290", name="Temp", id="5")
    state = placed(census, "ipmi_temperature_state", instance="n1:9290", name="Temp", id="5")
    assert (first.key, second.key, state.key) == (
        ("n1", "Temp", "Cel"), ("n1", "Temp #5", "Cel"), ("n1", "Temp #5", "Cel")
    )  # fmt: skip
    power = placed(census, "ipmi_dcmi_power_consumption_current_watts", instance="n1:9290")
    assert power.key == ("n1", "dcmi_power", "W")


def test_a_switchs_controller_is_no_node() -> None:
    census = Census()
    placed(census, "sonic_interface_receive_bytes_total", instance="leaf-1:9101", device="Ethernet0")
    placed(census, "ipmi_temperature_celsius", instance="leaf-1:9290", name="ASIC")
    topology = census.topology()
    assert [switch.name for switch in topology.switches] == ["leaf-1"]
    assert topology.nodes == []
