"""From series as the usual exporters name them to rows of hindcast's streams."""

import itertools
import struct
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.conftest import Sample, Series, written
from services.gateway.remote_write import Protocol, read
from services.gateway.sample_rows import Rows, SampleRows

NOW = 1_763_650_000_000
ONE = ((NOW, 1.0),)
STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]


def series(metric: str, samples: Sequence[Sample] = ONE, /, **labels: str) -> Series:
    return Series(sorted({"__name__": metric, **labels}.items()), samples)


def taken(places: SampleRows, *every: Series, protocol: Protocol = "v2") -> Rows:
    places.make_room()
    return places.rows(read(written(protocol, every), protocol, places.symbols))


def rows(found: Rows, stream: str) -> list[dict[str, object]]:
    batch = found.batches[stream]
    cells = [row | {"timestamp": row["timestamp"].timestamp() * 1000 - NOW} for row in batch.to_pylist()]
    return [{name: value for name, value in row.items() if value is not None} for row in cells]


@pytest.mark.parametrize("protocol", ["v1", "v2"])
def test_readings_of_one_scrape_are_one_row(protocol: Protocol) -> None:
    gpu = {"gpu": "3", "Hostname": "v001", "UUID": "GPU-1"}
    found = taken(
        SampleRows("vela"),
        series("DCGM_FI_DEV_SM_CLOCK", [(NOW, 1410.0), (NOW + 5000, 705.0)], **gpu),
        series("DCGM_FI_DEV_BOARD_POWER_WATTS", [(NOW, 400.5)], **gpu),
        series("DCGM_FI_DEV_SM_CLOCK", [(NOW, 1.0)], **gpu, hpc_job="a second copy"),
        protocol=protocol,
    )
    assert rows(found, "dcgm") == [
        {"timestamp": 0, "node": "v001", "gpu": 3, "DCGM_FI_DEV_POWER_USAGE": 400.5, "DCGM_FI_DEV_SM_CLOCK": 1410.0},
        {"timestamp": 5000, "node": "v001", "gpu": 3, "DCGM_FI_DEV_SM_CLOCK": 705.0},
    ]
    assert found.outcomes == {"taken": 4}


def test_counters_of_xids_are_a_column_a_code() -> None:
    gpu = {"gpu": "3", "Hostname": "v001"}
    found = taken(
        SampleRows("vela"),
        series("DCGM_EXP_XID_ERRORS_TOTAL", [(NOW, 2.0)], **gpu, xid="79"),
        series("DCGM_EXP_XID_ERRORS_TOTAL", [(NOW, 1.0)], **gpu, xid="48"),
        series("DCGM_EXP_XID_ERRORS_COUNT", [(NOW, 0.0)], **gpu, window_size_in_ms="300000"),
    )
    assert rows(found, "dcgm") == [
        {
            "timestamp": 0,
            "node": "v001",
            "gpu": 3,
            "DCGM_EXP_XID_ERRORS_TOTAL_48": 1.0,
            "DCGM_EXP_XID_ERRORS_TOTAL_79": 2.0,
        }
    ]
    assert found.outcomes == {"taken": 2, "no entity": 1}


def test_every_stream_has_its_place_and_its_unit() -> None:
    found = taken(
        SampleRows("vela"),
        series("node_infiniband_port_data_received_bytes_total", [(NOW, 400.0)], device="mlx5_0", instance="v001:9100"),
        series("node_infiniband_state_id", [(NOW, 4.0)], device="mlx5_0", instance="v001:9100"),
        series("sonic_interface_pfc_receive_packets_total", device="Ethernet0", instance="leaf1:9101", priority="3"),
        series("ipmi_power_watts", [(NOW, 250.0)], name="PSU1 In", id="9", instance="v001:9290"),
        series("hindcast_job_step_time_seconds", [(NOW, 2.5)], job_id="812", rank="-1"),
        series("hindcast_job_iteration", [(NOW, 77.0)], job_id="812", rank="-1"),
        series("hindcast_storage_waiters", node="v001", mount="/scratch"),
    )
    assert rows(found, "nic") == [
        {"timestamp": 0, "node": "v001", "nic": "mlx5_0", "port_rcv_data": 100.0, "state": 1.0}
    ]
    assert rows(found, "switch") == [
        {"timestamp": 0, "switch": "leaf1", "port": "Ethernet0", "SAI_PORT_STAT_PFC_3_RX_PKTS": 1.0}
    ]
    assert rows(found, "bmc") == [{"timestamp": 0, "node": "v001", "sensor": "PSU1 In", "unit": "W", "reading": 250.0}]
    assert rows(found, "steps") == [{"timestamp": 0, "job_id": "812", "rank": -1, "iteration": 77, "step_time_s": 2.5}]
    assert rows(found, "storage") == [{"timestamp": 0, "node": "v001", "mount": "/scratch", "waiters": 1.0}]


def test_what_has_no_place_is_passed_over_and_counted() -> None:
    gpu = {"gpu": "0", "Hostname": "v001"}
    found = taken(
        SampleRows("vela"),
        series("go_goroutines", [(NOW, 1.0), (NOW + 1, 2.0)]),
        series("DCGM_FI_DEV_SM_CLOCK", ONE, **gpu, replay="power-brake"),
        series("go_goroutines", ONE, cluster="another"),
        series("DCGM_FI_DEV_SM_CLOCK", [(NOW, STALE)], **gpu, cluster="vela", replay="live"),
        series("DCGM_FI_DEV_SM_CLOCK", Hostname="v001"),
    )
    assert found.batches == {}
    assert found.bad == []
    assert found.outcomes == {
        "unknown metric": 3, "replayed": 1, "stale": 1, "no entity": 1,
    }  # fmt: skip


def test_what_breaks_the_rules_is_named_and_the_rest_is_taken() -> None:
    gpu = {"gpu": "0", "Hostname": "v001"}
    found = taken(
        SampleRows("vela"),
        Series([("gpu", "0")], [(NOW, 1.0)]),
        Series([("__name__", "DCGM_FI_DEV_GPU_TEMP"), ("gpu", "0"), ("gpu", "1")], [(NOW, 1.0), (NOW, 2.0)]),
        Series([], []),
        series("DCGM_FI_DEV_SM_CLOCK", [(NOW, 1.0), (-5, 1.0)], **gpu),
        series("DCGM_FI_DEV_SM_CLOCK", [(NOW, 1.0)], **gpu, cluster="another"),
    )
    assert [(one.samples, one.reason) for one in found.bad] == [
        (1, "a series has no name (label __name__)"),
        (2, "a series has a label twice, or one without a name"),
        (1, "the time of a sample is before 1971, or too far ahead"),
        (1, "a series has the label cluster='another', and this gateway takes 'vela' (HINDCAST_GATEWAY_CLUSTER)"),
        (0, "a series has no name (label __name__)"),
    ]
    assert len(rows(found, "dcgm")) == 1
    assert found.outcomes == {"taken": 1, "bad": 5}


def test_a_host_that_is_known_by_address_gets_its_name() -> None:
    places = SampleRows("vela")
    port = series("node_infiniband_symbol_error_total", device="mlx5_0", instance="10.0.0.7:9100")
    assert rows(taken(places, port), "nic")[0]["node"] == "10.0.0.7"
    name = series("node_uname_info", instance="10.0.0.7:9100", nodename="v007")
    assert rows(taken(places, port, name), "nic")[0]["node"] == "v007"
    assert rows(taken(places, port), "nic")[0]["node"] == "v007"


def _pool() -> list[Series]:
    """Series of few machines and many jobs; some are of a host whose name comes by itself, some have no place."""
    found = [
        series(metric, gpu=str(gpu), Hostname=f"v{node}", UUID=f"GPU-{node}{gpu}", hpc_job=str(job))
        for metric in ("DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_GPU_TEMP", "go_goroutines")
        for node, gpu, job in itertools.product(range(2), range(2), range(3))
    ]
    found += [series("hindcast_job_step_time_seconds", job_id=f"j{job}", rank="-1") for job in range(20)]
    found += [series("ipmi_temperature_celsius", name="Temp", id=str(at), instance="v1:9290") for at in range(3)]
    port = {"device": "mlx5_0", "instance": "10.0.0.7:9100"}
    found += [series("node_uname_info", instance="10.0.0.7:9100", nodename="v7"), series("gpu_x", Hostname="v1")]
    found += [series("node_infiniband_symbol_error_total", **port), series("node_infiniband_state_id", **port)]
    return [*found, Series([("gpu", "0")], ONE), series("DCGM_FI_DEV_SM_CLOCK", gpu="0", Hostname="v0", cluster="x")]


POOL = _pool()
_request = st.tuples(st.sampled_from(["v1", "v2"]), st.lists(st.integers(0, len(POOL) - 1), min_size=1, max_size=25))


@settings(deadline=None)
@given(requests=st.lists(_request, max_size=12))
def test_what_was_evicted_comes_back_as_what_it_was(requests: list[tuple[Protocol, list[int]]]) -> None:
    small, large = SampleRows("vela", series_most=20), SampleRows("vela")
    for protocol, members in requests:
        every = [POOL[member] for member in members]
        small.make_room()
        assert small.series <= 20
        assert large.make_room() == 0
        found, expected = taken(small, *every, protocol=protocol), taken(large, *every, protocol=protocol)
        assert (found.outcomes, found.bad) == (expected.outcomes, expected.bad)
        assert found.batches.keys() == expected.batches.keys()
        for stream in found.batches:
            # Rows of one time are in no order, nor are their cells.
            one, other = ([sorted(row.items()) for row in rows(each, stream)] for each in (found, expected))
            assert sorted(map(repr, one)) == sorted(map(repr, other))


def test_those_that_are_heard_of_stay() -> None:
    places = SampleRows("vela", series_most=64)
    clocks = [series("DCGM_FI_DEV_SM_CLOCK", [(NOW, float(gpu))], gpu=str(gpu), Hostname="v1") for gpu in range(8)]
    before = rows(taken(places, *clocks), "dcgm")
    evicted = 0
    for job in range(200):
        taken(places, *clocks, series("hindcast_job_step_time_seconds", job_id=f"j{job}", rank="-1"))
        evicted += places.make_room()
        assert places.series <= 64
    # Nothing but jobs went: each makes one series.
    assert evicted == 8 + 200 - places.series
    assert rows(taken(places, *clocks), "dcgm") == before
    assert places.series == 8 + 200 - evicted


def test_of_more_machines_than_series_those_that_are_gone_are_met_anew() -> None:
    places = SampleRows("vela", series_most=16)
    port = series("node_infiniband_symbol_error_total", device="mlx5_0", instance="10.0.0.7:9100")
    first, second = (series("ipmi_temperature_celsius", name="Temp", id=at, instance="w1:9290") for at in "12")
    taken(places, first, second, series("node_uname_info", instance="10.0.0.7:9100", nodename="v007"))

    def seen() -> tuple[object, object]:
        places.make_room()
        return rows(taken(places, port), "nic")[0]["node"], rows(taken(places, second), "bmc")[0]["sensor"]

    def meet(machines: range) -> None:
        for at in machines:
            places.make_room()
            taken(places, series("node_uname_info", instance=f"10.0.1.{at}:9100", nodename=f"u{at}"))
            taken(places, series("DCGM_FI_DEV_SM_CLOCK", gpu="0", Hostname=f"u{at}"))

    meet(range(4))
    assert seen() == ("v007", "Temp #2")
    meet(range(4, 60))
    assert seen() == ("10.0.0.7", "Temp")
