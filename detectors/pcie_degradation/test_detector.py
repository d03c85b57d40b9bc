"""pcie_degradation on what links do: trained down, resending, slow, and links that only look so."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detectors.contract import Finding, FloatArray
from detectors.engine.rows import Rows
from detectors.fleet.fleet import INFERRED, Job, JobEvent
from detectors.pcie_degradation.detector import PcieDegradation
from detectors.pcie_degradation.examples import (
    CLUSTER,
    LANES,
    LONGER,
    RESENDING,
    SLOW,
    TRAINED_DOWN,
    Bad,
    Scene,
    tape_of,
)
from detectors.pcie_degradation.links import Links
from detectors.spec import configure
from detectors.tapes.gpus import START, Cluster, changed, name, xid_line
from detectors.tapes.tape import Tape, play, take

REPLAYS = "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"


def run(tape: Tape) -> list[Finding]:
    config = configure(PcieDegradation.config_type, PcieDegradation.spec, {})
    return play(tape, [(PcieDegradation, config)])[0]


def changes(found: list[Finding]) -> list[tuple[str, dict[str, Any]]]:
    return [(finding.state, dict(finding.entity)) for finding in found]


def firing(tape: Tape) -> list[dict[str, Any]]:
    return [dict(finding.entity) for finding in run(tape) if finding.state == "firing"]


def gpu(node: int, number: int) -> dict[str, Any]:
    return {"node": name(node), "gpu": number}


def without(scene: Scene, *fields: str) -> Scene:
    return replace(scene, fields=[field for field in scene.fields if field not in fields])


def test_a_link_that_trains_down_with_its_evidence_and_its_end() -> None:
    fired, resolved = run(tape_of(TRAINED_DOWN))
    assert changes([fired, resolved]) == [("firing", gpu(0, 1)), ("resolved", gpu(0, 1))]
    assert fired.id == resolved.id
    assert abs(fired.started_at - START - 120_000) <= 5_000
    assert START + 360_000 < resolved.detected_at <= START + 660_000
    evidence = fired.evidence
    assert (evidence["pcie_gen"], evidence["pcie_gen_expected"], evidence["pcie_width"]) == (1, 4, 16)
    assert (evidence["signs"], evidence["job_id"]) == ("link", "812")
    assert "gen 1 x16 instead of gen 4 x16" in fired.summary


def test_lost_lanes() -> None:
    (fired,) = run(tape_of(LANES))
    assert (dict(fired.entity), fired.evidence["pcie_width"]) == (gpu(2, 3), 4)


def test_a_slow_link_that_shows_nothing_is_found_by_its_peers() -> None:
    fired, *_ = run(tape_of(SLOW))
    assert dict(fired.entity) == gpu(1, 2)
    assert float(fired.evidence["pcie_peak_gb_s"]) == pytest.approx(3.4, abs=0.1)
    assert float(fired.evidence["pcie_peak_peers_gb_s"]) > 8
    assert float(fired.evidence["pcie_peak_before_gb_s"]) > 8
    assert "of this cluster" in str(fired.evidence["by_chance"])
    assert START + 505_000 <= fired.started_at <= START + 545_000


def test_packets_sent_again_at_a_rate() -> None:
    fired, resolved = run(tape_of(RESENDING))
    assert (dict(fired.entity), fired.severity, resolved.state) == (gpu(2, 0), "ticket", "resolved")
    assert float(fired.evidence["replays_per_min"]) == pytest.approx(60, rel=0.3)
    assert fired.evidence["replays_per_min_usual"] == 0
    assert fired.evidence["replays_per_min_allowed"] == 16


@pytest.mark.parametrize(("gen", "bar"), [(3, 8), (4, 16), (5, 31), (6, 62)])
def test_the_bar_of_replays_is_dcgm_s_for_the_link_that_should_be(gen: int, bar: int) -> None:
    links = Links()
    links.grow(1)
    links.should_gen[0], links.should_width[0], links.gen[0] = gen, 16, 1
    assert links.replay_bar(np.array([0])).tolist() == [bar]


@pytest.mark.parametrize(
    "scene",
    [
        replace(TRAINED_DOWN, collected_s=30.0),
        replace(TRAINED_DOWN, cluster=replace(TRAINED_DOWN.cluster, interval_s=15.0)),
        replace(TRAINED_DOWN, cluster=replace(TRAINED_DOWN.cluster, interval_s=60.0, minutes=12)),
        replace(TRAINED_DOWN, cluster=replace(TRAINED_DOWN.cluster, missing=0.3)),
        replace(TRAINED_DOWN, cluster=replace(TRAINED_DOWN.cluster, job_known=False)),
        without(TRAINED_DOWN, "PROF_PCIE_TX_BYTES", "PROF_PCIE_RX_BYTES"),
        without(TRAINED_DOWN, "DEV_GPU_UTIL"),
    ],
    ids=["slow exporter", "every 15 s", "every 60 s", "missing scrapes", "no job", "no traffic", "no utilisation"],
)
def test_a_link_that_trains_down_with_less_to_go_on(scene: Scene) -> None:
    assert firing(tape_of(scene)) == [gpu(0, 1)]


@pytest.mark.parametrize(
    "scene",
    [
        replace(SLOW, collected_s=30.0),
        replace(SLOW, cluster=replace(SLOW.cluster, interval_s=15.0)),
        replace(SLOW, cluster=replace(SLOW.cluster, interval_s=60.0, minutes=30), bad=[Bad(1, 2, 900, 1700, gb_s=3.4)]),
        replace(SLOW, cluster=replace(SLOW.cluster, missing=0.3)),
        replace(SLOW, cluster=replace(SLOW.cluster, topology_known=False)),
        replace(SLOW, roles=(3.0, 1.0)),
        without(SLOW, "PROF_PCIE_RX_BYTES"),
        without(SLOW, "DEV_PCIE_LINK_GEN", "DEV_PCIE_LINK_WIDTH", "DEV_PCIE_REPLAY_COUNTER"),
    ],
    ids=["slow exporter", "every 15 s", "every 60 s", "missing scrapes", "no topology", "rank 0 moves more",
         "one direction", "traffic alone"],
)  # fmt: skip
def test_a_slow_link_with_less_to_go_on(scene: Scene) -> None:
    assert firing(tape_of(scene)) == [gpu(1, 2)]


def test_what_dcgm_says_is_most_counts_where_the_topology_has_nothing() -> None:
    scene = without(replace(TRAINED_DOWN, links_in_topology=False), "PROF_PCIE_TX_BYTES", "PROF_PCIE_RX_BYTES")
    tape = tape_of(scene)
    assert firing(tape) == []
    (dcgm,) = tape.rows
    field = "DCGM_FI_DEV_PCIE_MAX_LINK_GEN"
    values = dict(dcgm.values) | {field: np.full(len(dcgm.times), 4.0)}
    valid = dict(dcgm.valid) | {field: np.ones(len(dcgm.times), bool)}
    assert firing(replace(tape, rows=[Rows("dcgm", dcgm.times, dcgm.keys, values, valid)])) == [gpu(0, 1)]


def test_several_signs_are_one_finding() -> None:
    bad = Bad(0, 1, 120, 480, gb_s=3.4, gen=1, replays_per_min=60)
    assert changes(run(tape_of(Scene(bad=[bad])))) == [("firing", gpu(0, 1))]


def test_a_boot_ends_a_finding_though_the_gpu_idles_since() -> None:
    bad = Bad(0, 1, 60, 200, gen=1)
    scene = Scene(bad=[bad], pauses=[(200, 1000)], cluster=Cluster(nodes=3, gpus=4, minutes=14))
    tape = tape_of(scene)
    assert changes(run(tape)) == [("firing", gpu(0, 1))], "an idle link shows nothing"
    (dcgm,) = tape.rows
    node = np.array(dcgm.keys["node"].categories)[dcgm.keys["node"].codes]
    seconds = (dcgm.times - START) / 1000
    away = (node == name(0)) & (seconds > 210) & (seconds < 500)
    found = run(replace(tape, rows=[take(dcgm, np.flatnonzero(~away))]))
    assert changes(found) == [("firing", gpu(0, 1)), ("resolved", gpu(0, 1))]
    assert START + 600_000 <= found[1].detected_at <= START + 640_000


def quiet(scene: Scene) -> bool:
    return run(tape_of(scene)) == []


def test_idle_links_train_down_by_design() -> None:
    assert quiet(Scene(pauses=[(60, 500)]))


def test_a_link_that_flutters_is_nothing() -> None:
    flutters = [Bad(0, 0, at, at + 10, gen=1) for at in range(60, 500, 30)]
    assert quiet(Scene(bad=flutters))


def test_contention_on_a_shared_switch_is_nothing_until_it_lasts() -> None:
    shared = [Bad(1, number, 500, 1080, gb_s=4.0) for number in (0, 1)]
    assert quiet(Scene(bad=shared, cluster=LONGER))
    lasting = [replace(bad, until_s=3000) for bad in shared]
    assert firing(tape_of(Scene(bad=lasting, cluster=replace(CLUSTER, minutes=45)))) == [gpu(1, 0), gpu(1, 1)]


def test_a_gpu_that_moves_less_since_its_job_began_has_another_part_in_it() -> None:
    assert quiet(replace(SLOW, bad=[Bad(1, 2, 0, 1000, gb_s=3.4)]))


def test_a_driver_that_gives_up_on_the_link_says_so() -> None:
    tape = replace(tape_of(Scene()), logs=[xid_line(200, 1, 2, 167, "PCIE_FATAL_TIMEOUT")])
    (found,) = run(tape)
    assert (dict(found.entity), found.evidence["xid"], found.detected_at) == (gpu(1, 2), 167, START + 200_000)


def test_replays_that_a_link_has_always_had_are_its_habit() -> None:
    always = replace(RESENDING, bad=[Bad(2, 0, 0, 3600, replays_per_min=25)], cluster=replace(LONGER, minutes=60))
    assert quiet(always)


def test_a_few_packets_a_minute_that_come_by_chance_together_are_less_than_dcgm_allows() -> None:
    cluster = Cluster(nodes=3, gpus=40, minutes=60, interval_s=10.0)

    def some(at: FloatArray, nodes: Any, gpus: Any, v: FloatArray) -> FloatArray:
        more = np.cumsum(
            cluster.chance("some").poisson(3.5 / 6, len(at)) * (at > 240) * (gpus == 2) * (nodes == name(1))
        )
        return v + np.where((nodes == name(1)) & (gpus == 2), more, 0)

    tape = tape_of(Scene(cluster=cluster, fields=["DEV_PCIE_REPLAY_COUNTER"], topology_gen=3))
    assert run(changed(tape, REPLAYS, some)) == []


@pytest.mark.parametrize("interval_s", [5.0, 15.0, 30.0, 60.0])
def test_a_counter_that_jumps_now_and_then_has_no_rate_and_what_goes_on_is_found(interval_s: float) -> None:
    cluster = Cluster(nodes=3, gpus=40, minutes=105, interval_s=interval_s)
    tape = tape_of(Scene(cluster=cluster, fields=["DEV_PCIE_REPLAY_COUNTER"]))
    stray = np.sort(cluster.chance("stray").uniform(400, 6300, 100))

    def resending(rate: float) -> list[Finding]:
        """Play one link that sends a packet again now and then, jumps by 50, and goes on at a rate."""

        def counted(at: FloatArray, nodes: Any, gpus: Any, v: FloatArray) -> FloatArray:
            more = np.searchsorted(stray, at) + 50 * np.searchsorted([1800, 2420, 3700, 4500], at)
            more += np.floor(np.clip(at - 6000, 0, None) * rate / 60).astype(int)
            return v + np.where((nodes == name(1)) & (gpus == 2), more, 0)

        return run(changed(tape, REPLAYS, counted))

    assert resending(0) == []
    (fired,) = resending(40)
    assert dict(fired.entity) == gpu(1, 2)
    assert START + 6_000_000 < fired.detected_at <= START + 6_000_000 + max(85, 2 * interval_s + 45) * 1000


def test_a_gpu_that_waits_for_its_neighbour_s_copy_is_not_at_fault() -> None:
    assert quiet(Scene(bad=[Bad(1, 0, 500, 1080, gb_s=4.0)], loud=[(1, 1, 500, 1080)], cluster=LONGER))


def test_a_test_of_all_links_in_between_hides_nothing() -> None:
    loud = [(1, number, 610, 635) for number in (0, 1, 3)]
    assert firing(tape_of(replace(SLOW, loud=loud))) == [gpu(1, 2)]


def test_roles_differ_and_a_phase_of_the_job_is_everybody_s() -> None:
    assert quiet(Scene(roles=(4.0, 1.0, 1.0, 0.2)))
    assert quiet(
        Scene(
            roles=(4.0, 2.0, 1.0, 0.5),
            bad=[Bad(n, g, 500, 1080, gb_s=0.4) for n in range(3) for g in range(4)],
            cluster=LONGER,
        )
    )


def test_traffic_of_a_field_that_reads_zero_is_not_missed_bandwidth() -> None:
    tape = tape_of(Scene())
    for field in ("DCGM_FI_PROF_PCIE_TX_BYTES", "DCGM_FI_PROF_PCIE_RX_BYTES"):
        tape = changed(
            tape, field, lambda at, node, number, v: np.where((node == name(1)) & (number == 2) & (at > 200), 0.0, v)
        )
    assert run(tape) == []


@pytest.mark.parametrize("stands", [True, False])
def test_readings_that_stand_still_make_no_link_slow(stands: bool) -> None:
    tape = tape_of(SLOW)
    (dcgm,) = tape.rows
    used = np.where(stands & (dcgm.keys["node"].codes == 1), np.minimum(dcgm.times, START + 500_000), dcgm.times)
    energy = {"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": used.astype(float)}
    known = dict.fromkeys(energy, np.ones(len(used), bool))
    both = Rows("dcgm", dcgm.times, dcgm.keys, {**dcgm.values, **energy}, {**dcgm.valid, **known})
    assert firing(replace(tape, rows=[both])) == ([] if stands else [gpu(1, 2)])


@pytest.mark.parametrize(("clock", "found"), [(700.0, []), (1900.0, [gpu(1, 2)])], ids=["held", "runs on"])
def test_a_gpu_that_is_held_at_a_third_of_its_clock_moves_less_and_its_link_is_well(
    clock: float, found: list[dict[str, Any]]
) -> None:
    tape = changed(
        tape_of(SLOW),
        "DCGM_FI_DEV_SM_CLOCK",
        lambda at, node, number, _: np.where((node == name(1)) & (number == 2) & (at >= 515), clock, 1980.0),
    )
    assert firing(tape) == found


def each_on_its_own(scene: Scene, low: float) -> Tape:
    """Return the tape with every GPU low in a part of its stretches of 30 s, each by itself."""

    def fewer(at: FloatArray, nodes: Any, gpus: Any, moved: FloatArray) -> FloatArray:
        chance = np.random.default_rng(5).random((200, scene.cluster.nodes, scene.cluster.gpus))
        number = {name(node): node for node in range(scene.cluster.nodes)}
        drawn = chance[(at // 30).astype(int), [number[node] for node in nodes], gpus]
        return np.where(drawn < low, moved * (0.1 + drawn), moved)

    return changed(tape_of(scene), "DCGM_FI_PROF_PCIE_TX_BYTES", fewer)


def test_gpus_that_work_each_on_their_own_are_low_by_chance_and_a_bad_link_lasts_longer() -> None:
    scene = without(Scene(cluster=Cluster(nodes=3, gpus=4, minutes=60)), "PROF_PCIE_RX_BYTES")
    assert firing(each_on_its_own(scene, 0.3)) == []
    bad = replace(scene, bad=[Bad(1, 2, 1200, 3000, gb_s=2.0)])
    assert firing(each_on_its_own(bad, 0.05)) == [gpu(1, 2)]


def test_a_gpu_that_moves_next_to_nothing_has_nothing_to_move() -> None:
    """The narrowest link that holds up the work is full."""
    narrow, none = (replace(SLOW, bad=[replace(SLOW.bad[0], gb_s=gb_s)]) for gb_s in (0.25, 0.002))
    assert len(firing(tape_of(narrow))) == 1
    assert firing(tape_of(none)) == []


def test_little_traffic_is_no_measure() -> None:
    assert quiet(replace(SLOW, gb_s=0.3, bad=[Bad(1, 2, 515, 1000, gb_s=0.05)]))


def test_replays_counted_long_ago_a_burst_and_a_reset_are_nothing() -> None:
    tape = tape_of(Scene(cluster=LONGER))
    assert run(changed(tape, REPLAYS, lambda at, node, number, v: v + 700 * (at > 700))) == []
    assert run(changed(tape, REPLAYS, lambda at, node, number, v: np.where(at > 700, 3.0, 90_000.0))) == []


def test_a_topology_that_is_wrong_about_all_is_no_fault_of_the_links() -> None:
    assert quiet(Scene(topology_gen=5))


def test_a_job_that_has_part_of_a_node_is_compared_with_itself() -> None:
    fleet_tape = tape_of(replace(SLOW, cluster=replace(LONGER, gpus=8), roles=(1.0, 1.0, 1.0, 1.0, 0.2)))
    names = tuple(name(node) for node in range(3))
    halves = [
        Job(job_id, names, START - 60_000, 4, dict.fromkeys(names, part))
        for job_id, part in (("1", (0, 1, 2, 3)), ("2", (4, 5, 6, 7)))
    ]
    tape = replace(fleet_tape, jobs=[JobEvent(job.start, "start", job) for job in halves])
    assert firing(tape) == [gpu(1, 2)]


def test_of_a_job_that_was_inferred_nobody_knows_whether_its_gpus_do_the_same_work() -> None:
    tape = tape_of(SLOW)
    inferred = [replace(event, job=replace(event.job, job_id=f"{INFERRED}{event.job.job_id}")) for event in tape.jobs]
    assert firing(tape) != []
    assert firing(replace(tape, jobs=inferred)) == []
