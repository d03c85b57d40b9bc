"""congestion on what fabrics do: incasts, elephants, switches that pause; and bursts that are everybody's."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detectors.congestion.detector import Congestion
from detectors.congestion.examples import (
    AT_S,
    DROPPED,
    END_S,
    MARKED,
    OTHERS,
    PORT,
    RX,
    SCENE,
    TX,
    WAITS,
    full_fabric,
    incast,
    infiniband,
    pausing_switch,
)
from detectors.contract import Finding
from detectors.spec import configure
from detectors.tapes.cluster import START, Scene, changed, growing, seconds, tape_of, where, without
from detectors.tapes.tape import Tape, play

OCTETS = "SAI_PORT_STAT_IF_OUT_OCTETS"


def run(tape: Tape, **overrides: Any) -> list[Finding]:
    return play(tape, [(Congestion, configure(Congestion.config_type, Congestion.spec, overrides))])[0]


def entities(tape: Tape, **overrides: Any) -> list[dict[str, str | int]]:
    return [dict(finding.entity) for finding in run(tape, **overrides) if finding.state == "firing"]


def test_the_congested_port_is_named_and_none_of_its_victims_until_it_is_calm() -> None:
    fired, resolved = run(incast(tape_of(replace(SCENE, minutes=9))))
    assert (fired.state, resolved.state, fired.id) == ("firing", "resolved", resolved.id)
    assert dict(fired.entity) == PORT
    assert abs((fired.started_at - START) / 1000 - AT_S) <= 12
    assert END_S < (resolved.detected_at - START) / 1000 <= END_S + 300
    evidence = fired.evidence
    assert evidence["by"] == "marks and drops"
    assert int(evidence["ports_hot"]) > 5
    assert evidence["far_end"] == "v003"
    assert float(evidence["ecn_marks_per_s"]) > 100 * float(evidence["ecn_marks_per_s_median"])
    assert float(evidence["drops_per_s"]) == pytest.approx(300, rel=0.3)


def test_a_switch_that_pauses_on_all_its_ports_is_named_itself() -> None:
    assert entities(pausing_switch(tape_of(SCENE))) == [{"switch": "leaf-2"}]


def test_a_switch_most_of_whose_ports_pause_is_congested_by_less_than_one_port_is() -> None:
    """As one whose line card forwards at half its rate: each port pauses for a twentieth of the time."""
    leaf: dict[str, Any] = {"switch": "leaf-2"}
    tape = tape_of(replace(SCENE, minutes=16))
    assert entities(growing(tape, "switch", TX, 1000, 600, 800, **leaf)) == [leaf]
    assert entities(growing(tape, "switch", TX, 250, 600, 800, **leaf)) == []
    assert entities(growing(tape, "switch", TX, 1000, 600, 800, **leaf, port=["Ethernet0", "Ethernet1"])) == []
    assert entities(growing(tape, "switch", TX, 1000, 600, 800)) == [], "of all switches it is load"


def test_marks_alone_alert_nobody() -> None:
    all_mark = growing(tape_of(SCENE), "switch", MARKED, 50_000, AT_S, END_S, switch="leaf-2")
    assert run(all_mark) == []
    assert run(growing(tape_of(SCENE), "switch", MARKED, 50_000, AT_S, END_S, **PORT)) == []


def test_what_a_port_has_shown_since_it_was_first_seen_is_a_property_reported_once() -> None:
    tape = growing(tape_of(replace(SCENE, minutes=25)), "switch", DROPPED, 5, 0, 1500, **PORT)
    (finding,) = run(tape)
    assert (dict(finding.entity), finding.severity, finding.state) == (PORT, "info", "firing")
    assert float(finding.evidence["drops_per_s"]) == pytest.approx(5, rel=0.2)


def test_ports_that_differ_for_good_are_nothing() -> None:
    chance = np.random.default_rng(5)
    tape = tape_of(replace(SCENE, nodes=8, minutes=20))
    for port in range(8):
        for leaf in ("leaf-1", "leaf-2", "leaf-3"):
            rate = 60 * chance.lognormal(0, 1.2)
            for field in (RX, TX, MARKED):
                scale = 100 if field == MARKED else 1
                tape = growing(tape, "switch", field, rate * scale, 0, 1200, switch=leaf, port=f"Ethernet{port}")
    assert run(tape) == []


def test_a_host_that_pauses_its_port_is_the_end_of_the_chain() -> None:
    tape = growing(tape_of(SCENE), "switch", RX, 5000, AT_S, END_S, **PORT)
    tape = growing(tape, "switch", TX, 3000, AT_S, END_S, switch="leaf-1", port=OTHERS[-1])
    tape = growing(tape, "switch", RX, 3000, AT_S, END_S, switch="spine-1", port="Ethernet0")
    (fired,) = [finding for finding in run(tape) if finding.state == "firing"]
    assert (dict(fired.entity), fired.evidence["by"]) == (PORT, "pauses from its host")


def test_a_host_that_has_just_stopped_pausing_is_the_end_of_the_chain_that_others_still_show() -> None:
    tape = growing(tape_of(SCENE), "switch", RX, 5000, AT_S, AT_S + 60, **PORT)
    tape = growing(tape, "switch", TX, 3000, AT_S, AT_S + 60, switch="leaf-1", port=OTHERS)
    tape = growing(tape, "switch", RX, 90, 0, END_S, switch="leaf-1", port=OTHERS[0])
    tape = growing(tape, "switch", RX, 3000, AT_S, AT_S + 110, switch="spine-1", port="Ethernet0")
    assert entities(tape) == [PORT]


def test_an_elephant_on_an_uplink_is_named_at_the_uplink_that_marks() -> None:
    uplink = {"switch": "leaf-3", "port": "Ethernet101"}
    tape = growing(tape_of(SCENE), "switch", MARKED, 30_000, AT_S, END_S, switch="leaf-3", port="Ethernet101")
    tape = growing(tape, "switch", TX, 2000, AT_S, END_S, switch="leaf-3", port=["Ethernet0", "Ethernet1"])
    assert entities(tape) == [uplink]


@pytest.mark.parametrize("interval_s", [5.0, 15.0, 30.0, 60.0])
def test_the_cadence_does_not_matter(interval_s: float) -> None:
    scene = replace(SCENE, interval_s=interval_s, minutes=max(7.0, 14 * interval_s / 60), missing=0.02)
    at_s = max(5.3 * interval_s, AT_S)
    tape = incast(tape_of(scene), at_s, at_s + 600)
    (fired,) = [finding for finding in run(tape) if finding.state == "firing"]
    assert dict(fired.entity) == PORT
    assert (fired.detected_at - START) / 1000 - at_s <= max(120, 5.5 * interval_s)


def test_counters_collected_every_30_s_and_scraped_every_5_s_still_suffice() -> None:
    def cached(rows: Any, values: Any) -> Any:
        tape_s = seconds(rows)
        keys = rows.keys["switch"].codes * 10_000 + rows.keys["port"].codes
        out = values.copy()
        for key in set(keys.tolist()):
            own = keys == key
            held: dict[int, float] = {}
            for at, value in zip(tape_s[own], values[own], strict=True):
                held.setdefault(int(at // 30), value)
            out[own] = [held[int(at // 30)] for at in tape_s[own]]
        return out

    tape = incast(tape_of(replace(SCENE, minutes=8)), AT_S, 330)
    octets = ("SAI_PORT_STAT_IF_IN_OCTETS", OCTETS)
    for field in (RX, TX, MARKED, "SAI_PORT_STAT_IF_OUT_DISCARDS", *octets):
        tape = changed(tape, "switch", field, cached)
    assert entities(tape) == [PORT]


def test_a_job_that_begins_and_pauses_its_ports_unevenly_is_load() -> None:
    chance = np.random.default_rng(3)
    tape = tape_of(replace(SCENE, nodes=12, minutes=14, pauses=[(0, 240)]))
    for leaf in ("leaf-1", "leaf-2", "leaf-3"):
        for port in range(12):
            rate = 1200 * chance.lognormal(0, 1)
            tape = growing(tape, "switch", RX, rate, 240, 900, switch=leaf, port=f"Ethernet{port}")
    assert entities(tape) == []
    storm = growing(tape, "switch", RX, 11_000, 500, 900, **PORT)
    assert entities(storm) == [PORT]


def test_a_port_that_always_waits_ten_times_as_long_as_the_others_does_so_in_the_next_job_too() -> None:
    """One job's words hardly wait; those of the next wait a thousand times longer, at all ports alike."""
    times = [0, 900, 1020, 2400]
    octets, waits = np.cumsum([0, 900 * 1.4e9, 120 * 1e5, 1380 * 1.8e9]), np.cumsum([0, 900 * 40, 0, 1380 * 7e5])

    def waited(rows: Any, _: Any) -> Any:
        here = [np.array(rows.keys[key].categories)[rows.keys[key].codes] == name for key, name in PORT.items()]
        return np.floor(np.interp(seconds(rows), times, waits) * np.where(np.logical_and(*here), 10, 1))

    tape = infiniband(tape_of(replace(SCENE, minutes=40)))
    carried = changed(tape, "switch", OCTETS, lambda rows, _: np.interp(seconds(rows), times, octets))
    tape = changed(carried, "switch", WAITS, waited)
    assert run(tape) == []
    assert entities(growing(tape, "switch", WAITS, 4e7, 1600, 2400, **PORT)) == [PORT]


def test_what_a_port_waits_at_more_load_than_it_learnt_its_habit_at_is_load() -> None:
    """One job works for five minutes, nobody for ten; then another that sends more, for which one port waits more."""
    octets = np.cumsum([0.0, 300 * 6e9, 600 * 1e5, 1500 * 1e10])

    def carried(rows: Any, _: Any) -> Any:
        return np.interp(seconds(rows), [0, 300, 900, 2400], octets)

    tape = infiniband(tape_of(replace(SCENE, minutes=40)), ticks_per_s=1e4)
    tape = changed(tape, "switch", OCTETS, carried)
    tape = growing(tape, "switch", WAITS, 8e6, 900, 2400, **PORT)
    assert {finding.severity for finding in run(tape)} <= {"info"}
    (fired,) = [one for one in run(growing(tape, "switch", WAITS, 3e7, 1500, 2400, **PORT)) if one.severity != "info"]
    assert dict(fired.entity) == PORT
    assert 0 < (fired.detected_at - START) / 1000 - 1500 <= 200


def test_a_nic_waits_in_proportion_to_what_it_sends_until_it_waits_more_for_each_word() -> None:
    """A node is idle, works, and is idle again, in turns of five minutes; each NIC waits for two words in a hundred."""
    moved, one = np.cumsum([0, *([300 * 5e4, 300 * 1.2e9] * 5)]), {"node": "v003", "nic": "mlx5_0"}

    def sent(rows: Any, values: Any) -> Any:
        return np.where(where(rows, 0, 1e9, **one), np.interp(seconds(rows), np.arange(11) * 300.0, moved), values)

    tape = changed(tape_of(replace(SCENE, nodes=8, minutes=50, kinds=("nic",))), "nic", "port_xmit_data", sent)
    for node in ("v001", "v002", "v004", "v005", "v006", "v007", "v008"):
        tape = growing(tape, "nic", WAITS, 5e7, 0, 3000, node=node)
    for begin in range(300, 3000, 600):
        tape = growing(tape, "nic", WAITS, 2.5e7, begin, begin + 300, **one)
    assert entities(tape) == []
    assert entities(growing(tape, "nic", WAITS, 1e8, 2100, 2400, **one)) == [PORT]


def test_bursts_are_nothing_short_or_everywhere() -> None:
    assert entities(incast(tape_of(SCENE), until_s=AT_S + 40)) == []
    assert entities(tape_of(replace(SCENE, bursts=[(60, 320)]))) == []
    tape = tape_of(replace(SCENE, minutes=12))
    for since_s in range(60, 700, 150):
        tape = incast(tape, since_s, since_s + 35)
    assert entities(tape) == []


def test_two_congestions_one_after_the_other_are_two_findings_and_a_stutter_is_one() -> None:
    tape = incast(incast(tape_of(replace(SCENE, minutes=18)), 122, 250), 600, 760)
    assert [finding.state for finding in run(tape)] == ["firing", "resolved", "firing", "resolved"]
    tape = incast(incast(tape_of(replace(SCENE, minutes=11)), 122, 250), 275, 330)
    assert [finding.state for finding in run(tape)] == ["firing", "resolved"]


def test_without_peers_a_port_is_held_against_its_habit() -> None:
    tape = growing(tape_of(replace(SCENE, nodes=2, nics=1, minutes=9)), "switch", DROPPED, 40, 300, 500,
                   switch="leaf-1", port="Ethernet1")  # fmt: skip
    assert entities(tape) == [{"switch": "leaf-1", "port": "Ethernet1"}]


def test_nics_without_credits_speak_for_their_switch_where_it_does_not_report() -> None:
    scene = replace(SCENE, nodes=8, kinds=("nic",))
    one = growing(tape_of(scene), "nic", "port_xmit_wait", 2e8, AT_S, END_S, node="v003", nic="mlx5_0")
    assert entities(one) == [PORT]
    rail = growing(tape_of(scene), "nic", "port_xmit_wait", 2e8, AT_S, END_S, nic="mlx5_1")
    assert entities(rail) == [{"switch": "leaf-2"}]


def test_a_full_fabric_is_load_and_an_uplink_that_waits_alone_is_not() -> None:
    full = full_fabric(infiniband(tape_of(replace(SCENE, minutes=8))), until_s=400)
    assert entities(full) == []
    # The bar keeps the busy leaf's one cable silent, the comparison within the switch the other leaf's hosts.
    uplink: dict[str, Any] = {"switch": "leaf-1", "port": "Ethernet101"}
    assert entities(full, wait_ticks_per_s=2e6) == [uplink]  # the end of the cable that waits more
    assert entities(growing(full, "switch", WAITS, 2e7, AT_S, END_S, **uplink)) == [uplink]


@pytest.mark.parametrize("interval_s", [5.0, 30.0, 60.0])
def test_a_port_without_credits_is_named_whatever_the_cadence(interval_s: float) -> None:
    scene = replace(SCENE, interval_s=interval_s, minutes=max(7.0, 14 * interval_s / 60))
    at_s = max(5.3 * interval_s, AT_S)
    tape = growing(infiniband(tape_of(scene)), "switch", WAITS, 2e7, at_s, at_s + 600, **PORT)
    (fired,) = [finding for finding in run(tape) if finding.state == "firing"]
    assert dict(fired.entity) == PORT
    assert float(fired.evidence["waits_per_s"]) == pytest.approx(2e7, rel=0.3)
    assert (fired.detected_at - START) / 1000 - at_s <= max(110, 200 * interval_s / 60)


def test_counters_that_are_reset_or_start_late_are_nothing() -> None:
    tape = tape_of(SCENE)
    assert entities(changed(tape, "switch", MARKED, lambda rows, v: v + (seconds(rows) < AT_S) * 1e9)) == []
    assert entities(without(tape, "switch", 0, AT_S, switch="leaf-1")) == []


def test_lost_scrapes_are_nothing() -> None:
    for seed in range(3):
        assert entities(tape_of(Scene(nodes=4, gpus=1, minutes=15, missing=0.08, kinds=SCENE.kinds, seed=seed))) == []


@pytest.mark.parametrize("working", [True, False])
def test_a_host_that_is_paused_sends_into_the_congestion_of_its_job(working: bool) -> None:
    """How the switches between them are paused nobody reads."""
    scene = replace(SCENE, minutes=8, working=working)
    tape = growing(
        growing(tape_of(scene), "switch", MARKED, 40_000, 122, 420, **PORT), "switch", DROPPED, 300, 122, 420, **PORT
    )
    sender: dict[str, Any] = {"switch": "leaf-3", "port": "Ethernet0"}
    assert entities(growing(tape, "switch", TX, 6000, 180, 420, **sender)) == ([PORT] if working else [PORT, sender])
