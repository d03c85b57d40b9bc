"""Whether wiring, traffic and counters hang together."""

from pathlib import Path

import numpy as np
import pytest

from services.kit.errors import UserError
from services.synth import make
from services.synth.cluster.profile import ClusterProfile, load_profile
from services.synth.cluster.world import World
from services.synth.conftest import Telemetry, Write
from services.synth.library import LIBRARY
from services.synth.make import make_recording
from services.synth.physics.effects import Course, Effect, Effects
from services.synth.physics.network import EFFICIENCY
from services.synth.physics.network_felt import felt

PROFILES = sorted(path.stem for path in (LIBRARY / "profiles").glob("*.yaml"))
QUIET = {"happenings": [], "duration": "+00:10:00"}


def scaled(name: str, scale: float) -> ClusterProfile:
    profile = load_profile(LIBRARY / "profiles" / f"{name}.yaml")
    return ClusterProfile.model_validate(profile.model_dump() | {"nodes": max(1, round(profile.nodes * scale))})


def world_of(name: str, scale: float = 1.0) -> World:
    return World(scaled(name, scale), scaled(name, 1.0), 0, 3600.0)


@pytest.mark.parametrize("scale", [0.1, 1.0, 2.0])
@pytest.mark.parametrize("name", PROFILES)
def test_every_port_has_one_cable_and_every_cable_two_ends(name: str, scale: float) -> None:
    fabric = scaled(name, scale).fabric
    assert fabric is not None
    ports = list(zip(fabric.port_switch.tolist(), fabric.port_names, strict=True))
    assert len(set(ports)) == len(ports)
    nics = list(zip(fabric.host_machine.tolist(), fabric.host_number.tolist(), strict=True))
    assert len(set(nics)) == len(nics)
    ends = [str(sorted(end.items())) for cable in range(fabric.cables) for end in fabric.ends(cable)]
    assert len(set(ends)) == 2 * fabric.cables
    assert len(set(fabric.switches)) == len(fabric.switches)


@pytest.mark.parametrize("name", PROFILES)
def test_topology_is_the_fabric(name: str) -> None:
    profile = scaled(name, 1.0)
    fabric, topology = profile.fabric, profile.topology()
    assert fabric is not None
    assert [node.name for node in topology.nodes] == fabric.machines
    assert sum(len(node.nics) for node in topology.nodes) == fabric.hosts
    assert len(topology.links) == fabric.cables - fabric.hosts
    assert {switch.name for switch in topology.switches} == set(fabric.switches)


def test_a_small_copy_keeps_two_groups_and_how_tight_its_uplinks_are() -> None:
    for name in ("blue-vela", "sakuraone", "sierra", "vela"):
        tight = []
        for scale in (0.1, 1.0):
            fabric = scaled(name, scale).fabric
            assert fabric is not None
            assert len({leaf.group for leaf in fabric.leaves}) > 1
            down = float(fabric.host_gbps[fabric.host_leaf == 0].sum())
            tight.append(down / (len(fabric.uplinks(0)) * fabric.up_gbps))
        assert tight[0] == pytest.approx(tight[1], rel=0.4)


def test_switches_keep_their_place_at_another_scale_and_do_not_meet() -> None:
    world = world_of("sakuraone", 0.1)
    fabric = world.fabric
    first, second = world.switch("leaf-p1-r3"), world.switch("leaf-p2-r3")
    assert fabric.switches[first] == "leaf-p1-r3"
    assert (fabric.leaves[second].group, fabric.leaves[second].plane) == (1, 2)
    assert world.switch("spine-1") != world.switch("spine-2")
    with pytest.raises(UserError, match="no switch 'leaf-p9-r1'"):
        world.switch("leaf-p9-r1")


def test_a_profile_without_a_network_has_no_network_streams(write: Write, tmp_path: Path) -> None:
    scenario = write(QUIET, {"network": None})
    made = Telemetry(make_recording(scenario, tmp_path / "out" / "tiny-brake"))
    assert not {"nic", "switch"} & set(made.recording.streams())
    assert not made.recording.topology.switches


def test_a_fault_of_the_network_needs_one(write: Write, tmp_path: Path) -> None:
    fault = {"kind": "link_down", "node": "t02", "nic": 1, "at": 60, "until": 90}
    scenario = write(QUIET | {"happenings": [fault]}, {"network": None})
    with pytest.raises(UserError, match="has no network"):
        make_recording(scenario, tmp_path / "out" / "tiny-brake")


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Telemetry:
    from services.synth.conftest import write_files

    folder = tmp_path_factory.mktemp("network")
    return Telemetry(make_recording(write_files(folder, QUIET), folder / "out" / "tiny-brake"))


def series(made: Telemetry, stream: str, first: str, second: str, column: str) -> tuple[np.ndarray, np.ndarray]:
    keys = ("node", "nic") if stream == "nic" else ("switch", "port")
    pick = (np.array(made.column(stream, keys[0])) == first) & (np.array(made.column(stream, keys[1])) == second)
    return made.seconds(stream)[pick], made.column(stream, column)[pick]


def test_counters_never_go_back(quiet: Telemetry) -> None:
    for stream, keys in (("nic", ("node", "nic")), ("switch", ("switch", "port"))):
        names = np.char.add(*(np.array(quiet.column(stream, key)).astype(str) for key in keys))
        for column in quiet.table(stream).column_names:
            if column in {"timestamp", *keys, "state", "oper_up", "speed_gbps"}:
                continue
            values = quiet.column(stream, column)
            assert (values == np.floor(values)).all()
            for name in np.unique(names):
                assert (np.diff(values[names == name]) >= 0).all(), (column, name)


def test_both_ends_of_a_cable_count_the_same_bytes(quiet: Telemetry) -> None:
    nics = {node.name: node.nics for node in quiet.recording.topology.nodes}
    for node in ("t01", "t04"):
        for nic in nics[node]:
            assert nic.switch is not None
            assert nic.port is not None
            sent_at, words = series(quiet, "nic", node, nic.nic, "port_xmit_data")
            heard_at, octets = series(quiet, "switch", nic.switch, nic.port, "SAI_PORT_STAT_IF_IN_OCTETS")
            begin, end = 150.0, 510.0
            sent = 4 * np.diff(np.interp([begin, end], sent_at, words))
            heard = np.diff(np.interp([begin, end], heard_at, octets))
            assert heard == pytest.approx(sent, rel=0.03)
            assert 0.05 < heard[0] / (end - begin) / 12.5e9 < 0.92


def test_what_goes_up_to_the_spines_comes_down(quiet: Telemetry) -> None:
    switches = np.array(quiet.column("switch", "switch")).astype(str)
    spines = np.char.startswith(switches, "spine")
    seconds, ports = quiet.seconds("switch"), np.array(quiet.column("switch", "port"))
    moved = {"IN": 0.0, "OUT": 0.0}
    for way in moved:
        octets = quiet.column("switch", f"SAI_PORT_STAT_IF_{way}_OCTETS")
        for switch in np.unique(switches[spines]):
            for port in np.unique(ports[switches == switch]):
                pick = (switches == switch) & (ports == port)
                moved[way] += float(np.interp(540, seconds[pick], octets[pick]) - octets[pick][0])
    assert moved["IN"] > 1e11
    assert moved["OUT"] == pytest.approx(moved["IN"], rel=0.02)


def test_health_has_no_pauses_to_speak_of_and_few_marks(quiet: Telemetry) -> None:
    seconds = quiet.seconds("switch")
    for column, most in (("PFC_3_RX_PKTS", 12), ("PFC_3_TX_PKTS", 12), ("IF_OUT_DISCARDS", 0), ("IF_IN_ERRORS", 0)):
        values = quiet.column("switch", f"SAI_PORT_STAT_{column}")
        switches, ports = (np.array(quiet.column("switch", key)) for key in ("switch", "port"))
        pick = (switches == "tor-01a") & (ports == "Ethernet8")
        assert np.ptp(values[pick & (seconds > 60)]) <= most


def test_how_much_is_made_at_a_time_changes_no_counter(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: Telemetry
) -> None:
    monkeypatch.setattr(make, "_STRETCH_S", 120.0)
    parts = Telemetry(make_recording(write(QUIET), tmp_path / "out" / "tiny-brake"))
    for stream, column in (
        ("nic", "port_xmit_data"),
        ("nic", "np_cnp_sent"),
        ("switch", "SAI_PORT_STAT_IF_OUT_OCTETS"),
        ("switch", "SAI_PORT_STAT_IF_IN_FEC_CORRECTABLE_FRAMES"),
        ("switch", "SAI_PORT_STAT_ECN_MARKED_PACKETS"),
    ):
        assert np.array_equal(quiet.seconds(stream), parts.seconds(stream))
        assert np.allclose(quiet.column(stream, column), parts.column(stream, column), rtol=1e-9, atol=1.5)


def factors(world: World, effect: Effect, quantity: str = "node.collective_factor") -> dict[int, float]:
    found: dict[int, float] = {}
    for one in felt(world, Effects([effect])):
        if one.quantity == quantity:
            for node in one.columns.tolist():
                found[node] = found.get(node, 1.0) * one.size
    return found


def test_a_lost_port_doubles_the_communication_of_its_node_alone() -> None:
    world = world_of("vela")
    cable = world.fabric.host_cable(16, 2)
    lasting = factors(world, Effect("cable.down", np.array([cable]), 1.0, Course.between(60, 600)))
    assert lasting == {16: 2.0}
    brief = factors(world, Effect("cable.down", np.array([cable]), 1.0, Course.between(60, 70)))
    assert brief[16] > 2.0


def test_static_routing_gives_80_where_adaptive_gives_96() -> None:
    world = world_of("sierra")
    leaf = world.switch("tor-02a")
    slower = factors(world, Effect("switch.static", np.array([leaf]), 1.0, Course.between(60, 600)))
    assert sorted(slower) == list(range(18, 36))
    assert set(slower.values()) == {EFFICIENCY["adaptive"] / EFFICIENCY["static"]}
    assert EFFICIENCY["adaptive"] / EFFICIENCY["static"] == pytest.approx(0.96 / 0.80)


def test_a_spine_less_costs_every_node_the_same_and_little() -> None:
    world = world_of("sakuraone")
    slower = factors(world, Effect("switch.down", np.array([world.switch("spine-3")]), 1.0, Course.between(60, 600)))
    assert sorted(slower) == list(range(100))
    assert len(set(slower.values())) == 1
    assert 1.02 < slower[0] < 1.3


def test_elephants_take_8_to_17_percent_of_reading_until_the_links_are_full() -> None:
    """The brief: one to three flows cost 8 to 17 %, with four to five reading collapses."""
    world = world_of("spectrumx-storage")
    uplinks = world.fabric.uplinks(world.switch("leaf-1"))
    lost = []
    for flows in range(1, 6):
        size = 0.09125 * len(uplinks) * world.fabric.up_gbps
        effect = Effect("cable.extra_gbps", uplinks[:flows], size, Course.between(60, 600), {"direction": "down"})
        lost.append(1 - 1 / factors(world, effect, "node.data_wait_factor")[0])
    assert lost == sorted(lost)
    assert 0.04 < lost[0] < 0.08
    assert 0.08 < lost[1] < 0.17
    assert 0.14 < lost[2] < 0.19
    assert lost[3] > 0.22
    assert lost[4] > 0.45
