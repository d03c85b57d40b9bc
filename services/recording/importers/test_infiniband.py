import json
from functools import partial
from pathlib import Path

import pytest

from services.kit.errors import UserError
from services.recording.conftest import imported, rows_in
from services.recording.importers.infiniband import convert
from services.recording.instants import format_instant
from services.recording.reader import Recording
from services.recording.validate import validate_recording
from tests.data import public
from tests.mangled import fuzzed, survives

_imported = partial(imported, convert)


PORTS = """\
CA   134  1 0x7cfe9003003b4bde 4x EDR - SW  1719 10 0x7cfe9003009ce5b0 ( 'o0001 HCA-1' - 'ib:leaf' )
CA   133  2 0x7cfe9003003b4b96 4x HDR - SW  1719 11 0x7cfe9003009ce5b0 ( 'o0002 mlx5_0' - 'ib:leaf' )
SW  1719  1 0x7cfe9003009ce5b0 2x NDR - SW  1516  7 0x7cfe900300b07320 ( 'ib:leaf' - 'ib-spine' )
SW  1719 37 0x7cfe9003009ce5b0 4x ???                                    'ib:leaf'
CA    78  1 0x946dae0300630bfe 4x HDR - SW  1719 41 0x7cfe9003009ce5b0 ( 'Mellanox Technologies Aggregation Node' - 'ib:leaf' )
"""  # noqa: E501 - lines as they are written
BLOCKS = """\
# Topology file: generated on Mon Apr  1 08:00:00 2024
switchguid=0x7cfe9003009ce5b0(7cfe9003009ce5b0)
Switch	41 "S-7cfe9003009ce5b0"		# "MF0;leaf:MQM8700/U1" enhanced port 0 lid 1719 lmc 0
[1]	"H-7cfe9003003b4bde"[1](7cfe9003003b4bde) 		# "o0001 mlx5_0" lid 134 4xHDR s=4 w=2 v=4 e=4
[25]	"S-7cfe900300b07320"[3]		# "spine" lid 1516 4xHDR s=4 w=2 v=4 e=4

caguid=0x7cfe9003003b4bde
Ca	1 "H-7cfe9003003b4bde"		# "o0001 mlx5_0"
[1](7cfe9003003b4bde) 	"S-7cfe9003009ce5b0"[1]		# lid 134 lmc 0 "MF0;leaf:MQM8700/U1" lid 1719 4xHDR s=4 w=2 v=3 e=4
"""
QUERY = """\
# Port extended counters: Lid 1719 port 10 (CapMask: 0x5300 CapMask2: 0x0000002)
PortSelect:......................10
CounterSelect:...................0x0000
PortXmitData:....................1000
PortRcvData:.....................2000
PortUnicastRcvPkts:..............30
SymbolErrorCounter:..............4
PortXmitDiscards:................5
QP1Dropped:......................0
# Port extended counters: Lid 134 port 1 (CapMask: 0x5300 CapMask2: 0x0000002)
PortXmitData:....................2000
PortRcvData:.....................1000
LinkDownedCounter:...............3
"""
PLAIN = """\
# Port counters: Lid 134 port 1 (CapMask: 0x200)
PortSelect:......................1
SymbolErrorCounter:..............7
XmtData:.........................4294967295
RcvData:.........................4294967294
XmtWait:.........................9
"""
ERRORS = """\
Errors for "o0001 HCA-1"
   GUID 0x7cfe9003003b4bde port 1: [SymbolErrorCounter == 12] [LinkDownedCounter == 3] [PortXmitWait == 7 (1.2K)]
Errors for 0x7cfe9003009ce5b0 "ib:leaf"
   GUID 0x7cfe9003009ce5b0 port ALL: [PortXmitDiscards == 99]
   GUID 0x7cfe9003009ce5b0 port 10: [PortXmitDiscards == 5]

## Summary: 3 nodes checked, 2 bad nodes found
"""
IBSTAT = """\
CA 'mlx5_0'
	CA type: MT4129
	Number of ports: 1
	Node GUID: 0x7cfe9003003b4bde
	Port 1:
		State: Active
		Physical state: LinkUp
		Rate: 400
		Base lid: 134
		Port GUID: 0x7cfe9003003b4bde
		Link layer: InfiniBand
CA 'mlx5_1'
	Port 1:
		State: Down
		Physical state: Polling
		Rate: 10
		Base lid: 65535
"""


def rows_of(recording: Recording, stream: str) -> dict[tuple[str, str], dict[str, float]]:
    rows = rows_in(recording, stream)
    first, second = ("node", "nic") if stream == "nic" else ("switch", "port")
    return {
        (row[first], row[second]): {
            name: value for name, value in row.items() if value is not None and name not in {first, second, "timestamp"}
        }
        for row in rows
    }


def test_a_sweep_with_its_wiring(tmp_path: Path) -> None:
    files = {"ibnetdiscover-p.txt": PORTS, "perfquery-20240401T080000Z.txt": QUERY}
    _, recording = _imported(tmp_path, files)
    assert rows_of(recording, "nic") == {
        ("o0001", "HCA-1"): {"port_xmit_data": 2000, "port_rcv_data": 1000, "link_downed": 3}
    }
    assert rows_of(recording, "switch") == {
        ("ib/leaf", "10"): {
            "port_xmit_data": 1000, "port_rcv_data": 2000, "unicast_rcv_packets": 30, "symbol_error": 4,
            "port_xmit_discards": 5, "SAI_PORT_STAT_IF_IN_OCTETS": 8000, "SAI_PORT_STAT_IF_OUT_OCTETS": 4000,
            "SAI_PORT_STAT_IF_IN_UCAST_PKTS": 30, "SAI_PORT_STAT_IF_OUT_DISCARDS": 5,
        }
    }  # fmt: skip
    topology = recording.topology
    assert [(node.name, nic.nic, nic.switch, nic.port, nic.gbps) for node in topology.nodes for nic in node.nics] == [
        ("o0001", "HCA-1", "ib/leaf", "10", 100), ("o0002", "mlx5_0/2", "ib/leaf", "11", 200),
    ]  # fmt: skip
    assert {(switch.name, switch.role) for switch in topology.switches} == {("ib/leaf", "leaf"), ("ib-spine", "spine")}
    assert [(link.a, link.b, link.gbps) for link in topology.links] == [("ib-spine:7", "ib/leaf:1", 200)]


def test_wiring_in_blocks(tmp_path: Path) -> None:
    _, recording = _imported(tmp_path, {"fabric.topo": BLOCKS, "q-20240401T080000Z": QUERY})
    assert rows_of(recording, "nic").keys() == {("o0001", "mlx5_0")}
    assert rows_of(recording, "switch").keys() == {("MF0;leaf/MQM8700/U1", "10")}
    assert [(link.a, link.b) for link in recording.topology.links] == [("MF0;leaf/MQM8700/U1:25", "spine:3")]


def test_counters_of_32_bits_that_have_stopped_are_null(tmp_path: Path) -> None:
    report, recording = _imported(tmp_path, {"20240401T080000Z": PLAIN}, node="o0001")
    assert rows_of(recording, "nic") == {
        ("o0001", "lid-134"): {"symbol_error": 7, "port_rcv_data": 4294967294, "port_xmit_wait": 9}
    }
    assert report.skipped == {"a 32-bit counter that has stopped at its end (use perfquery -x)": 1}


def test_errors_of_a_fabric(tmp_path: Path) -> None:
    report, recording = _imported(tmp_path, {"20240401T080000Z": ERRORS})
    assert rows_of(recording, "nic") == {
        ("o0001", "HCA-1"): {"symbol_error": 12, "link_downed": 3, "port_xmit_wait": 7}
    }
    assert rows_of(recording, "switch") == {
        ("ib/leaf", "10"): {"port_xmit_discards": 5, "SAI_PORT_STAT_IF_OUT_DISCARDS": 5}
    }
    assert report.skipped == {}


def test_states_of_a_node_and_its_counters_by_lid(tmp_path: Path) -> None:
    _, recording = _imported(tmp_path, {"a-20240401T080000Z": IBSTAT, "b-20240401T080000Z": PLAIN}, node="v1")
    assert rows_of(recording, "nic") == {
        ("v1", "mlx5_0"): {
            "state": 1, "speed_gbps": 400, "symbol_error": 7, "port_rcv_data": 4294967294, "port_xmit_wait": 9,
        },
        ("v1", "mlx5_1"): {"state": 0, "speed_gbps": 10},
    }  # fmt: skip
    assert [(nic.nic, nic.gbps) for nic in recording.topology.nodes[0].nics] == [("mlx5_0", 400), ("mlx5_1", 10)]


def test_copies_of_sysfs(tmp_path: Path) -> None:
    port = "sys/class/infiniband/mlx5_0/ports/1"
    files: dict[str, str] = {}
    for time, data in (("20240401T080000Z", "1000"), ("20240401T080030Z", "3000")):
        files |= {
            f"v041/{time}/{port}/counters/port_xmit_data": data + "\n",
            f"v041/{time}/{port}/counters/port_rcv_data": "N/A (no PMA)\n",
            f"v041/{time}/{port}/hw_counters/np_cnp_sent": "17\n",
            f"v041/{time}/{port}/hw_counters/lifespan": "12\n",
            f"v041/{time}/{port}/state": "4: ACTIVE\n",
            f"v041/{time}/{port}/rate": "400 Gb/sec (4X NDR)\n",
            f"v041/{time}/{port}/link_layer": "InfiniBand\n",
        }
    _, recording = _imported(tmp_path, files)
    rows = rows_in(recording, "nic")
    assert [(row["timestamp"].isoformat()[14:19], row["port_xmit_data"]) for row in rows] == [
        ("00:00", 1000), ("00:30", 3000),
    ]  # fmt: skip
    assert rows_of(recording, "nic") == {
        ("v041", "mlx5_0"): {"port_xmit_data": 3000, "np_cnp_sent": 17, "state": 1, "speed_gbps": 400}
    }
    assert recording.manifest.streams["nic"].interval_s == 30


def test_an_inventory_of_sysfs(tmp_path: Path) -> None:
    port = "/sys/bus/pci/devices/0000:ba:00.0/infiniband/mlx5_8/ports/1"
    inventory = {f"{port}/state": "1: DOWN\n", f"{port}/rate": "200 Gb/sec (4X HDR)\n", "/sys/x": "1", "/sys/y": 7}
    _, recording = _imported(tmp_path, {"v1-20240401T080000Z.json": json.dumps(inventory)})
    assert rows_of(recording, "nic") == {("v1", "mlx5_8"): {"state": 0, "speed_gbps": 200}}


def test_several_sweeps_in_one_file(tmp_path: Path) -> None:
    text = f"1711958400\n{PLAIN}# 2024-04-01T08:00:30Z\n{PLAIN}"
    _, recording = _imported(tmp_path, {"v1.txt": text}, node="v1")
    times = [row["timestamp"].isoformat()[11:19] for batch in recording.batches("nic") for row in batch.to_pylist()]
    assert times == ["08:00:00", "08:00:30"]


def test_a_node_and_a_switch_of_one_name(tmp_path: Path) -> None:
    line = "CA   134  1 0x7cfe9003003b4bde 4x EDR - SW  1719 10 0x7cfe9003009ce5b0 ( 'same HCA-1' - 'same' )\n"
    _, recording = _imported(tmp_path, {"p.txt": line, "q-20240401T080000Z": QUERY})
    assert [node.name for node in recording.topology.nodes] == ["same (node)"]
    assert rows_of(recording, "nic").keys() == {("same (node)", "HCA-1")}


def test_nothing_usable(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("nothing\n")
    with pytest.raises(UserError, match="in no form that is known"):
        convert(tmp_path / "a", tmp_path / "out")
    (tmp_path / "a").write_text(PORTS)
    with pytest.raises(UserError, match="nothing in the source"):
        convert(tmp_path / "a", tmp_path / "out")


@pytest.mark.parametrize(
    ("source", "made"),
    [
        ("fixtures-network/infiniband_exporter", {"nic": 2, "switch": 3}),
        ("fixtures-network/infiniband_exporter/perfquery", {"switch": 5}),
        ("fixtures-network/infiniband_exporter/perfquery-rcv-error", {"switch": 5}),
        ("fixtures-nvidia/gpud/components/accelerator/nvidia/infiniband/class", {"nic": 8}),
        ("fixtures-nvidia/meta-gcm", {"nic": 64}),
    ],
)
def test_real_dumps(tmp_path: Path, source: str, made: dict[str, int]) -> None:
    report = convert(public(source), tmp_path / "out", start="2024-04-01T08:00:00Z")
    assert {what: count for what, count in report.made.items() if count} == made
    assert validate_recording(tmp_path / "out") == []
    assert format_instant(Recording.open(tmp_path / "out").manifest.start) == "2024-04-01T08:00:00Z"


def test_a_real_fabric_in_blocks(tmp_path: Path) -> None:
    path = public("fixtures-megatron/superbench/ib_traffic_topo_aware_ibnetdiscover.txt")
    query = QUERY.replace("Lid 1719", "Lid 556").replace("Lid 134", "Lid 1181")
    _, recording = _imported(tmp_path, {"fabric.txt": path.read_text(), "q-20240401T080000Z": query})
    topology = recording.topology
    assert rows_of(recording, "nic").keys() == {("RMD701091901003", "ibp11s0f0")}
    assert rows_of(recording, "switch").keys() == {("MF0;rmd70-0101-0919-01ib0/MQM8700/U1", "10")}
    assert len(topology.nodes) == 10
    nic = topology.nodes[0].nics[0]
    assert (nic.switch, nic.port, nic.gbps) == ("MF0;rmd70-0101-0919-01ib0/MQM8700/U1", "1", 200)
    assert sum(switch.role == "leaf" for switch in topology.switches) == 5
    assert all(link.gbps == 200 for link in topology.links)


SAMPLE = (PLAIN + ERRORS + "1711958400\n" + QUERY + IBSTAT).encode()


WIRING = (PORTS + BLOCKS).encode()


@fuzzed(SAMPLE)
def test_mangled_dumps(content: bytes) -> None:
    survives(convert, {"q-20240401T080000Z": content, "ibnetdiscover": b"# Topology file\n" + WIRING})


@fuzzed(WIRING)
def test_mangled_wiring(content: bytes) -> None:
    survives(convert, {"q-20240401T080000Z": SAMPLE, "ibnetdiscover": b"# Topology file\n" + content})


@fuzzed(b'{"/sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)"}')
def test_mangled_sysfs(content: bytes) -> None:
    survives(convert, {"v1.json": content})


@fuzzed(b"1000\n")
def test_mangled_counters(content: bytes) -> None:
    port = "v1/infiniband/mlx5_0/ports/1"
    survives(convert, {f"{port}/counters/port_xmit_data": content, f"{port}/state": content})
