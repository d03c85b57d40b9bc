import re

import pytest

from services.recording.importers.parts.series.census import Census, Place
from services.recording.importers.parts.series.known_series import KNOWN_METRICS, RENAMED_FIELDS, reading_of, stream_of


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
    assert stream_of("DCGM_EXP_P2P_STATUS") is None
    assert stream_of("node_cpu_seconds_total") is None
    assert not set(RENAMED_FIELDS.values()) & set(RENAMED_FIELDS), "a classic name is not renamed again"


@pytest.mark.parametrize("metric", ["DCGM_EXP_XID_ERRORS_TOTAL", "DCGM_EXP_XID_ERRORS_COUNT"])
def test_counters_of_xids_have_a_column_a_code(metric: str) -> None:
    census = Census()
    labels = {"Hostname": "n1", "gpu": "3", "window_size_in_ms": "300000"}
    place = placed(census, metric, **labels, xid="79")
    assert (place.reading.stream, place.reading.column, place.key) == ("dcgm", f"{metric}_79", ("n1", 3))
    assert re.fullmatch(KNOWN_METRICS, metric), "servers are asked for it"
    # The exporter gives a GPU without any a series without a code; 0 stands for no error, and texts are no codes.
    for code in ("", "0", "79x", "12345"):
        assert isinstance(census.place(metric, labels | ({"xid": code} if code else {})), str)
    assert isinstance(census.place(metric, labels), str)


@pytest.mark.parametrize(
    ("metric", "sample", "column", "value"),
    [
        ("DCGM_FI_DEV_SM_CLOCK_HERTZ", 1.98e9, "DCGM_FI_DEV_SM_CLOCK", 1980),
        ("DCGM_FI_DEV_MEMORY_CLOCK_HERTZ", 2.619e9, "DCGM_FI_DEV_MEM_CLOCK", 2619),
        ("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", 12.5, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 12_500),
        ("DCGM_FI_DEV_FB_USED_BYTES", 80 << 30, "DCGM_FI_DEV_FB_USED", 81_920),
        ("DCGM_FI_DEV_FAN_SPEED_RATIO", 0.5, "DCGM_FI_DEV_FAN_SPEED", 50),
    ],
)
def test_fields_in_base_units_are_the_classic_ones(metric: str, sample: float, column: str, value: float) -> None:
    found = reading_of(metric)
    assert found is not None
    assert (found.stream, found.column) == ("dcgm", column)
    assert (sample - found.offset) / found.scale == pytest.approx(value)


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


OF_A_NODE = (
    ("DCGM_FI_DEV_GPU_TEMP", {"gpu": "0", "hostname": "s1"}),
    ("node_infiniband_port_data_received_bytes_total", {"device": "mlx5_0", "instance": "s1:9100"}),
    ("hindcast_storage_read_bytes_total", {"node": "s1", "mount": "/data"}),
    ("hindcast_job_loss", {"job_id": "1", "rank": "0", "node": "s1"}),
)
OF_A_SWITCH = ("sonic_interface_pfc_receive_packets_total", {"device": "Ethernet0", "switch": "s1", "priority": "3"})


@pytest.mark.parametrize("of_a_node", OF_A_NODE, ids=lambda one: one[0])
def test_a_machine_is_a_node_or_a_switch_and_not_both(of_a_node: tuple[str, dict[str, str]]) -> None:
    for first, second, kinds in ((of_a_node, OF_A_SWITCH, (1, 0)), (OF_A_SWITCH, of_a_node, (0, 1))):
        census = Census()
        placed(census, first[0], **first[1])
        assert "that of a node and of a switch" in str(census.place(*second))
        found = census.topology()
        assert (len(found.nodes), len(found.switches)) == kinds


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


def test_what_is_not_kept_is_forgotten_and_met_anew() -> None:
    census = Census()
    for name in ("n1", "n2"):
        gpu = placed(census, "DCGM_FI_DEV_GPU_TEMP", gpu="0", UUID=f"GPU-{name}", Hostname=name)
        for nic in ("mlx5_0", "mlx5_1"):
            port = placed(census, "node_infiniband_symbol_error_total", device=nic, instance=f"{name}:9100")
        for number in ("3", "4"):
            heat = placed(census, "ipmi_temperature_celsius", name="Temp", id=number, instance=f"{name}:9290")
        mount = placed(census, "hindcast_storage_waiters", node=name, mount=f"/{name}")
    link = placed(census, "sonic_interface_pfc_receive_packets_total", device="e0", instance="leaf1:9101", priority="3")
    step = placed(census, "hindcast_job_step_time_seconds", job_id="7", rank="0", node="n3")
    places = (gpu, port, heat, mount, link, step)
    whole = {(one.reading.stream, one.key) for one in places}
    census.keep(whole)
    assert [(node.name, [nic.nic for nic in node.nics or []]) for node in census.topology().nodes] == [
        ("n2", ["mlx5_1"]), ("n3", [])
    ]  # fmt: skip
    assert [switch.name for switch in census.topology().switches or []] == ["leaf1"]
    assert [mount.mount for mount in census.topology().mounts or []] == ["/n2"]

    def called(name: str, number: str) -> object:
        labels = {"name": "Temp", "id": number, "instance": f"{name}:9290"}
        found = census.look("ipmi_temperature_celsius", labels)
        assert isinstance(found, Place)
        return found.key[1]

    assert [called("n2", "4"), called("n2", "3")] == ["Temp #4", "Temp"]
    assert [called("n1", "4"), called("n1", "3")] == ["Temp", "Temp #3"]
    assert placed(census, "DCGM_FI_DEV_SM_CLOCK", gpu="0", UUID="GPU-n2").key == ("n2", 0)
    assert census.look("DCGM_FI_DEV_SM_CLOCK", {"gpu": "0", "UUID": "GPU-n1"}) == "the labels name no node"
    held = census.held
    census.keep(set())
    assert (census.held, held > 0) == (0, True)


def test_machines_that_are_forgotten_are_met_anew_when_they_come_back() -> None:
    census = Census()
    for name in ("n1", "n2"):
        placed(census, "DCGM_FI_DEV_GPU_TEMP", gpu="0", UUID=f"GPU-{name}", Hostname=name)
        placed(census, "ipmi_temperature_celsius", name="Temp", id="3", instance=f"{name}:9290")
        placed(census, "hindcast_storage_waiters", node=name, mount=f"/{name}")
    placed(census, "sonic_interface_pfc_receive_packets_total", device="e0", instance="leaf1:9101", priority="3")
    both = census.held
    census.forget({"n1", "/n1", "leaf1"})
    assert [node.name for node in census.topology().nodes] == ["n2"]
    assert ([one.mount for one in census.topology().mounts or []], census.topology().switches) == (["/n2"], [])
    assert census.held == both // 2
    placed(census, "DCGM_FI_DEV_GPU_TEMP", gpu="0", UUID="GPU-n1", Hostname="n1")
    assert [node.name for node in census.topology().nodes] == ["n1", "n2"]


def test_links_and_switch_chips_are_left_out_with_a_reason() -> None:
    census = Census()
    gpu = {"gpu": "0", "UUID": "GPU-a", "Hostname": "n1"}
    assert "one link" in str(census.place("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L0", {**gpu, "nvlink": "0"}))
    assert "one link" in str(census.place("DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT", {"nvswitch": "0"}))
    assert "no GPU" in str(census.place("DCGM_FI_DEV_GPU_TEMP", {"Hostname": "n1", "gpu": "many"}))
    assert "no node" in str(census.place("DCGM_FI_DEV_GPU_TEMP", {"gpu": "0"}))


def test_the_instances_of_a_gpu_are_distinguished_and_its_own_readings_are_one() -> None:
    census = Census()
    gpu = {"gpu": "0", "UUID": "GPU-a", "Hostname": "n1", "GPU_I_PROFILE": "1g.10gb"}
    one, two = (placed(census, "DCGM_FI_PROF_SM_ACTIVE", **gpu, GPU_I_ID=number) for number in ("1", "7"))
    assert (one.key, one.reading.column, two.reading.column) == (
        ("n1", 0), "DCGM_FI_PROF_SM_ACTIVE_MIG1", "DCGM_FI_PROF_SM_ACTIVE_MIG7"
    )  # fmt: skip
    assert reading_of(one.reading.column) == one.reading, "it comes back from a server under that name"
    heat = placed(census, "DCGM_FI_DEV_GPU_TEMP", **gpu, GPU_I_ID="7")
    assert (heat.key, heat.reading.column, heat.part) == (("n1", 0), "DCGM_FI_DEV_GPU_TEMP", True)
    assert "MIG" in str(census.place("DCGM_FI_PROF_SM_ACTIVE", {**gpu, "GPU_I_ID": "x"}))


NAMED = {"gpu": "0", "UUID": "GPU-a"}
POD = "nvidia-dcgm-exporter-x7k2p"


@pytest.mark.parametrize(
    ("labels", "node", "job"),
    [
        # dcgm-exporter itself, with and without NODE_NAME, before Prometheus
        ({"Hostname": "worker7", "pod": "llm-0", "namespace": "ml", "container": "main"}, "worker7", "ml/llm-0"),
        ({"Hostname": POD, "pod": "llm-worker-3", "namespace": "ml", "container": "m", "node": "w7"}, "w7", "ml/llm"),
        ({"hostname": "gpu-metrics-7x9kq", "nodename": "w7"}, "w7", None),
        # scraped by the operator: the exporter's own labels go before, the user's pod stands aside
        (
            {"Hostname": POD, "pod": POD, "namespace": "gpu-operator", "container": "nvidia-dcgm-exporter",
             "instance": "10.0.0.7:9400", "exported_pod": "llm-0", "exported_namespace": "ml"},
            "10.0.0.7", "ml/llm-0",
        ),
        (
            {"Hostname": "w7", "pod": "gpu-metrics-7x9kq", "namespace": "monitoring", "container": "dcgm-exporter",
             "instance": "10.0.0.7:9400"},
            "w7", None,
        ),
        ({"Hostname": "exporter-of-gpus-7x9kq", "pod": "exporter-of-gpus-7x9kq", "instance": "w7"}, "w7", None),
        # a host may well be called as a pod is
        ({"Hostname": "gpu-node-bcdfg", "instance": "10.0.0.7:9400"}, "gpu-node-bcdfg", None),
        ({"Hostname": "w7", "hpc_job": "812", "pod": "llm-0", "namespace": "ml"}, "w7", "812"),
    ],
)  # fmt: skip
def test_nodes_and_pods_as_kubernetes_labels_them(labels: dict[str, str], node: str, job: str | None) -> None:
    found = placed(Census(), "DCGM_FI_DEV_GPU_TEMP", **NAMED, **labels)
    assert (found.key, found.job) == ((node, 0), job)


def test_a_pods_name_is_used_where_nothing_else_names_the_node() -> None:
    census = Census(hosts={"dcgm-exporter-aaaaa": "w1"})
    assert placed(census, "DCGM_FI_DEV_GPU_TEMP", **NAMED, Hostname="dcgm-exporter-aaaaa").key == ("w1", 0)
    assert census.notes() == []
    other = {"gpu": "0", "UUID": "GPU-b", "Hostname": POD}
    assert placed(census, "DCGM_FI_DEV_GPU_TEMP", **other).key == (POD, 0)
    assert POD in census.notes()[0]


def test_an_address_becomes_a_name_where_node_exporter_has_it() -> None:
    census = Census(hosts={"10.0.0.7": "n7", "fd00::7": "n7"})
    metric = "node_infiniband_port_data_received_bytes_total"
    assert placed(census, metric, device="mlx5_0", port="1", instance="10.0.0.7:9100").key == ("n7", "mlx5_0")
    assert placed(census, metric, device="mlx5_0", port="2", instance="[fd00::7]:9100").key == ("n7", "mlx5_0:2")
    assert placed(census, metric, device="mlx5_0", port="1", instance="10.0.0.8:9100").key == ("10.0.0.8", "mlx5_0")


def test_what_a_prometheus_has_of_another_is_of_the_machines_that_that_one_scraped() -> None:
    census = Census({"10.0.0.6": "v006"})
    labels = {"device": "mlx5_0", "instance": "prometheus-rack-7:9090"}
    found = [
        census.place("node_infiniband_symbol_error_total", labels | {"exported_instance": f"{host}:9100"})
        for host in ("v005", "10.0.0.6", "[2001:db8::5]")
    ]
    nodes = [place.key[0] for place in found if isinstance(place, Place)]
    assert nodes == ["v005", "v006", "2001:db8::5"]


def test_sensors_of_one_name_are_distinguished_by_their_number() -> None:
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
