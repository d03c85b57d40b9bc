"""Whether each fault of the network shows on the culprit, and not on its peers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.kit.errors import UserError
from services.recording.validate import validate_recording
from services.synth.conftest import Telemetry, write_files
from services.synth.make import make_recording
from tests.small import braked_vela

SAI = "SAI_PORT_STAT_"
UNCORRECTABLE = SAI + "IF_IN_FEC_NOT_CORRECTABLE_FRAMES"
CORRECTABLE = SAI + "IF_IN_FEC_CORRECTABLE_FRAMES"
PFC_RX, PFC_TX, ECN, DISCARDS = (
    SAI + name for name in ("PFC_3_RX_PKTS", "PFC_3_TX_PKTS", "ECN_MARKED_PACKETS", "IF_OUT_DISCARDS")
)
HEALTHY = (180.0, 290.0)
LENGTH_S = 270.0


def truth(number: int, fault: str) -> dict[str, Any]:
    return {"id": f"f{number}", "fault": fault, "within_s": 120, "incident": f"i{number}", "root": True}


FAULTS: list[tuple[str, dict[str, Any]]] = [
    ("link_down", {"kind": "link_down", "node": "t02", "nic": 1}),
    ("link_flap", {"kind": "link_flap", "node": "t03", "nic": 2, "every_s": 60, "down_s": 10}),
    ("link_errors", {"kind": "link_errors", "node": "t05", "nic": 0, "errors_per_s": 30, "speed_share": 0.5}),
    ("link_errors", {"kind": "link_errors", "switch": "tor-01b", "uplink": 2, "errors_per_s": 20, "end": "upper"}),
    ("fabric_congestion", {"kind": "pfc_storm", "node": "t06", "nic": 3, "share": 0.95}),
    ("fabric_congestion", {"kind": "elephant_flows", "switch": "tor-01c", "flows": 1, "share": 0.2, "direction": "up"}),
    ("fabric_congestion", {"kind": "ecn_misconfigured", "switch": "tor-02a"}),
    ("link_down", {"kind": "spine_loss", "switch": "spine-2"}),
    ("telemetry_gap", {"kind": "switch_telemetry_loss", "switch": "tor-02b"}),
]
"""Each acts for 270 s, 5 minutes after the one before."""


def span(number: int) -> tuple[float, float]:
    begin = 300.0 * (number + 1)
    return begin, begin + LENGTH_S


def inside(number: int) -> tuple[float, float]:
    """Return a stretch well inside a fault: counters are read every 10 s."""
    begin, end = span(number)
    return begin + 15, end - 15


def recording(folder: Any, faults: list[dict[str, Any]], minutes: int, **network: Any) -> Telemetry:
    scenario, profile = braked_vela()
    small = {"spines": 2, "links_per_spine": 2, "nic_interval_s": 10, "switch_interval_s": 10}
    job = scenario["jobs"][0]
    training = job["training"] | {"launch_s": 10, "load_s": 10, "warm_up": [1.5], "checkpoint_every": 10_000}
    training |= {"collective_s": 0.9, "pcie_gb_s": 12, "log_every": 50}
    path = write_files(
        folder,
        {
            "duration": minutes * 60.0,
            "jobs": [job | {"nodes": "all", "submit": 5.0, "start": 10.0, "training": training}],
            "happenings": faults,
            "distractors": [],
        },
        {"nodes": 8, "nodes_per_rack": 4, "network": profile["network"] | small | network},
    )
    return Telemetry(make_recording(path, folder / "out" / "tiny-brake"))


@pytest.fixture(scope="module")
def roce(tmp_path_factory: pytest.TempPathFactory) -> Telemetry:
    faults = [
        entry | {"at": span(number)[0], "until": span(number)[1], "truth": truth(number, fault)}
        for number, (fault, entry) in enumerate(FAULTS)
    ]
    dirty = {"kind": "dirty_optics", "switch": "tor-02d", "uplink": 1, "at": 0, "until": 3300, "decades": 2.5}
    return recording(tmp_path_factory.mktemp("roce"), [*faults, dirty], 55)


@pytest.fixture(scope="module")
def infiniband(tmp_path_factory: pytest.TempPathFactory) -> Telemetry:
    faults = [
        {"kind": "adaptive_routing_lost", "switch": "tor-01a", "at": 300, "until": 570},
        {"kind": "link_errors", "node": "t04", "nic": 1, "errors_per_s": 40, "at": 600, "until": 870, "ramp_s": 200},
    ]
    given = [entry | {"truth": truth(n, ("fabric_congestion", "link_errors")[n])} for n, entry in enumerate(faults)]
    return recording(tmp_path_factory.mktemp("ib"), given, 15, fabric="infiniband", routing="adaptive")


class Counts:
    """What the entities of a stream counted in a stretch, per second."""

    def __init__(self, made: Telemetry, stream: str, column: str, stretch: tuple[float, float]) -> None:
        keys = ("node", "nic") if stream == "nic" else ("switch", "port")
        seconds = made.seconds(stream)
        first, second = (np.array(made.column(stream, key)).astype(str) for key in keys)
        values = made.column(stream, column)
        pick = (seconds >= stretch[0]) & (seconds < stretch[1])
        self.rates: dict[tuple[str, str], float] = {}
        for owner, part in sorted(set(zip(first[pick].tolist(), second[pick].tolist(), strict=True))):
            mine = pick & (first == owner) & (second == part)
            gauge = column in {"state", "oper_up", "speed_gbps"}
            length = float(np.ptp(seconds[mine])) or 1.0
            self.rates[owner, part] = float(values[mine].mean() if gauge else np.ptp(values[mine]) / length)

    def __getitem__(self, entity: tuple[str, str]) -> float:
        return self.rates[entity]

    def but(self, *entities: tuple[str, str]) -> np.ndarray:
        return np.array([rate for entity, rate in self.rates.items() if entity not in entities])

    def of(self, owner: str) -> np.ndarray:
        return np.array([rate for (name, _), rate in self.rates.items() if name == owner])


def cable(made: Telemetry, node: str, nic: int) -> tuple[tuple[str, str], tuple[str, str]]:
    entry = next(one for one in made.recording.topology.nodes if one.name == node).nics[nic]
    assert entry.switch is not None
    assert entry.port is not None
    return (node, entry.nic), (entry.switch, entry.port)


def label(made: Telemetry, name: str) -> Any:
    return next(one for one in made.recording.labels() if one.id == name)


def lines(made: Telemetry, node: str, stretch: tuple[float, float]) -> list[str]:
    start = made.recording.manifest.start
    return [
        event.message
        for event in made.recording.events()
        if event.node == node and stretch[0] <= (event.timestamp - start) / 1000 <= stretch[1] + 2
    ]


def usual_step(made: Telemetry, stretch: tuple[float, float]) -> float:
    seconds, rank = made.seconds("steps"), made.column("steps", "rank")
    pick = (seconds >= stretch[0]) & (seconds < stretch[1]) & (rank == -1)
    return float(np.median(made.column("steps", "step_time_s")[pick]))


def test_all_of_it_is_valid(roce: Telemetry, infiniband: Telemetry) -> None:
    assert validate_recording(roce.recording.path) == []
    assert validate_recording(infiniband.recording.path) == []


def test_a_lost_port_is_down_at_both_ends_and_its_neighbour_carries_twice_as_much(roce: Telemetry) -> None:
    nic, port = cable(roce, "t02", 1)
    stretch = inside(0)
    assert Counts(roce, "nic", "state", stretch)[nic] == 0
    assert Counts(roce, "nic", "speed_gbps", stretch)[nic] == 0
    assert (Counts(roce, "nic", "state", stretch).but(nic) == 1).all()
    assert Counts(roce, "switch", "oper_up", stretch)[port] == 0
    assert (Counts(roce, "switch", "oper_up", stretch).but(port) == 1).all()
    sent = Counts(roce, "nic", "port_xmit_data", stretch)
    assert sent[nic] == 0
    assert sent["t02", "mlx5_0"] == pytest.approx(2 * sent["t02", "mlx5_2"], rel=0.1)
    assert usual_step(roce, stretch) == pytest.approx(usual_step(roce, HEALTHY) + 0.9, rel=0.05)
    assert any("Link down" in line for line in lines(roce, "t02", span(0)))
    assert any("Lost carrier" in line for line in lines(roce, "t02", span(0)))
    assert any("oper state set from up to down" in line for line in lines(roce, port[0], span(0)))
    found = label(roce, "f0")
    assert found.entity == {"node": "t02", "nic": "mlx5_1"}
    assert found.also == [{"switch": port[0], "port": port[1]}]
    assert found.impact["step_time_factor"] > 1.1


def test_a_flapping_port_counts_its_downs_and_comes_back(roce: Telemetry) -> None:
    nic, _ = cable(roce, "t03", 2)
    stretch = (span(1)[0] - 10, span(1)[1] + 10)
    downs = Counts(roce, "nic", "link_downed", stretch)
    assert 3 <= downs[nic] * (stretch[1] - stretch[0]) <= 8
    assert (downs.but(nic) == 0).all()
    assert 0.5 < Counts(roce, "nic", "state", stretch)[nic] < 1
    written = lines(roce, "t03", stretch)
    ups, falls = (sum(text in line for line in written) for text in ("Link up", "Link down"))
    assert ups == falls >= 3


def test_errors_show_at_the_end_that_hears_them(roce: Telemetry) -> None:
    nic, _ = cable(roce, "t05", 0)
    symbols = Counts(roce, "nic", "symbol_error", inside(2))
    assert symbols[nic] == pytest.approx(30, rel=0.2)
    assert (symbols.but(nic) == 0).all()
    assert Counts(roce, "nic", "out_of_sequence", inside(2))[nic] > 10
    assert Counts(roce, "nic", "speed_gbps", inside(2))[nic] == 50
    assert label(roce, "f2").entity == {"node": "t05", "nic": "mlx5_0"}


def test_errors_of_an_uplink_are_corrected_long_before_they_are_lost(roce: Telemetry) -> None:
    found = label(roce, "f3")
    port = (found.entity["switch"], found.entity["port"])
    assert port[0].startswith("spine")
    lost = Counts(roce, "switch", UNCORRECTABLE, inside(3))
    assert lost[port] == pytest.approx(20, rel=0.2)
    assert (lost.but(port) == 0).all()
    before, now = (Counts(roce, "switch", CORRECTABLE, stretch)[port] for stretch in (HEALTHY, inside(3)))
    assert now > 100 * max(before, 0.01)


def test_dirty_optics_correct_and_lose_nothing(roce: Telemetry) -> None:
    corrected, lost = (Counts(roce, "switch", column, HEALTHY) for column in (CORRECTABLE, UNCORRECTABLE))
    assert corrected.of("tor-02d").max() > 30 * np.median(corrected.of("tor-01d"))
    assert lost.of("tor-02d").max() == 0


def test_a_storm_is_heard_on_one_port_and_passed_on_to_those_who_feed_it(roce: Telemetry) -> None:
    _, port = cable(roce, "t06", 3)
    heard, sent = (Counts(roce, "switch", column, inside(4)) for column in (PFC_RX, PFC_TX))
    assert heard[port] > 2000
    of_hosts = [rate for entity, rate in sent.rates.items() if entity[0] == port[0] and entity != port]
    assert min(of_hosts) > 500
    assert np.median(sent.of("tor-01a")) < 1
    assert heard[port] > 2 * max(rate for entity, rate in heard.rates.items() if entity != port)
    assert usual_step(roce, inside(4)) > 1.3 * usual_step(roce, HEALTHY)
    written = lines(roce, port[0], span(4))
    assert any("PFC storm on port" in line for line in written)
    assert any("storm restored" in line for line in written)
    assert label(roce, "f4").entity == {"switch": port[0], "port": port[1]}


def test_elephants_mark_and_pause_on_their_uplink(roce: Telemetry) -> None:
    marks = {stretch: Counts(roce, "switch", ECN, stretch) for stretch in (HEALTHY, inside(5))}
    hot = max((rate, entity) for entity, rate in marks[inside(5)].rates.items())[1]
    assert hot[0] == "tor-01c"
    assert marks[inside(5)][hot] > 5 * marks[HEALTHY][hot]
    moved = Counts(roce, "switch", SAI + "IF_OUT_OCTETS", inside(5))
    assert moved[hot] == max(moved.of("tor-01c"))
    assert Counts(roce, "nic", "rp_cnp_handled", inside(5))["t01", "mlx5_2"] > 0


def test_a_leaf_without_ecn_marks_nothing_and_pauses(roce: Telemetry) -> None:
    stretch = inside(6)
    marks, pauses = (Counts(roce, "switch", column, stretch) for column in (ECN, PFC_TX))
    assert marks.of("tor-02a").max() == 0
    assert marks.of("tor-01a").max() > 0
    assert pauses.of("tor-02a").max() > 100
    assert pauses.of("tor-02b").max() < 1
    dropped = Counts(roce, "switch", DISCARDS, stretch)
    assert dropped.of("tor-02a").sum() > 0
    assert dropped.of("tor-01a").sum() == 0


def test_a_lost_spine_takes_its_links_and_fills_the_other(roce: Telemetry) -> None:
    stretch = inside(7)
    up = Counts(roce, "switch", "oper_up", stretch)
    assert not any(owner == "spine-2" for owner, _ in up.rates)
    leaves = sorted({owner for owner, _ in up.rates if owner.startswith("tor")})
    assert all((up.of(leaf) == 0).sum() == 2 for leaf in leaves)
    before, now = (Counts(roce, "switch", ECN, at).of("spine-1").mean() for at in (HEALTHY, stretch))
    assert now > 10 * before
    found = label(roce, "f7")
    named = [found.entity, *found.also]
    assert {
        "switch": "tor-02c",
        "port": next(p for (o, p), v in up.rates.items() if o == "tor-02c" and v == 0),
    } in named
    follows = label(roce, "f7-congestion")
    assert (follows.fault, follows.optional, follows.incident) == ("fabric_congestion", True, "i7")
    after = Counts(roce, "switch", "oper_up", (span(7)[1] + 15, span(7)[1] + 60))
    assert (after.but() == 1).all()


def test_a_switch_that_is_not_heard_goes_on(roce: Telemetry) -> None:
    silent, before = (Counts(roce, "switch", "oper_up", stretch) for stretch in (inside(8), HEALTHY))
    assert {owner for owner, _ in before.rates} - {owner for owner, _ in silent.rates} == {"tor-02b"}
    words = Counts(roce, "nic", "port_xmit_data", inside(8))
    assert words["t06", "mlx5_1"] == pytest.approx(words["t06", "mlx5_0"], rel=0.15)
    assert usual_step(roce, inside(8)) == pytest.approx(usual_step(roce, HEALTHY), rel=0.02)


def test_infiniband_has_credits_and_no_pauses(infiniband: Telemetry) -> None:
    assert not {PFC_RX, PFC_TX, ECN} & set(infiniband.table("switch").column_names)
    assert "port_xmit_wait" in infiniband.table("switch").column_names
    assert not {"np_cnp_sent", "rp_cnp_handled"} & set(infiniband.table("nic").column_names)


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "pfc_storm", "node": "t04", "nic": 1, "share": 0.9},
        {"kind": "ecn_misconfigured", "switch": "tor-01a"},
    ],
)
def test_infiniband_can_have_no_fault_of_pauses_or_marks(fault: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"InfiniBand.*no {fault['kind']}"):
        recording(tmp_path, [fault | {"at": 60, "until": 120}], 5, fabric="infiniband")


def test_static_routing_makes_some_uplinks_of_the_leaf_wait(infiniband: Telemetry) -> None:
    before, now = (Counts(infiniband, "switch", "port_xmit_wait", at) for at in (HEALTHY, (315.0, 555.0)))
    ratio = {entity: now[entity] / before[entity] for entity in now.rates}
    hot = {entity for entity, value in ratio.items() if value > 4}
    assert hot
    assert {owner for owner, _ in hot} == {"tor-01a"}
    assert usual_step(infiniband, (315.0, 555.0)) == pytest.approx(usual_step(infiniband, HEALTHY) + 0.18, rel=0.03)


def test_symbol_errors_grow_and_the_link_recovers_now_and_then(infiniband: Telemetry) -> None:
    early, late = (
        Counts(infiniband, "nic", "symbol_error", at)["t04", "mlx5_1"] for at in ((600.0, 690.0), (800.0, 868.0))
    )
    assert 0 < early < 0.4 * late
    assert late == pytest.approx(40, rel=0.2)
    recovered = Counts(infiniband, "nic", "link_error_recovery", (600.0, 868.0))
    assert recovered["t04", "mlx5_1"] > 0
    assert (recovered.but(("t04", "mlx5_1")) == 0).all()
