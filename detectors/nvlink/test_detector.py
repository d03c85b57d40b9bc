"""nvlink on what links do: errors, codes and lost traffic, and what only looks like it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detectors.contract import Finding, LogRecord
from detectors.fleet.fleet import Job, JobEvent
from detectors.nvlink.detector import Nvlink
from detectors.nvlink.examples import (
    CLUSTER,
    CRC,
    LONG,
    RECEIVED,
    RECOVERY,
    REPLAY,
    SENT,
    UTILISATION,
    WIDE,
    XID,
    counting,
    link_down,
    links,
    switch_fatal,
    weakened,
)
from detectors.nvlink.lines import fabric_line
from detectors.registry import choose
from detectors.tapes.gpus import START, Cluster, instant, kernel, name, xid_line
from detectors.tapes.tape import Tape, play

TOTAL = "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"
ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
MEMORY = "DCGM_FI_PROF_DRAM_ACTIVE"
RECOVERIES_5 = "DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS"


def run(tape: Tape, **overrides: Any) -> list[Finding]:
    choices = [c for c in choose({"nvlink": overrides}) if c[0] is Nvlink]
    return play(tape, choices)[0]


def fired(tape: Tape, **overrides: Any) -> list[dict[str, Any]]:
    return [dict(found.entity) for found in run(tape, **overrides) if found.state == "firing"]


def gpu(node: int, number: int) -> dict[str, Any]:
    return {"node": name(node), "gpu": number}


def test_an_xid_names_gpu_link_and_action() -> None:
    (fire,) = run(CLUSTER.tape(links(), logs=link_down(200, 0, 3)))
    evidence = fire.evidence
    assert (dict(fire.entity), fire.started_at) == (gpu(0, 3), START + 200_000)
    assert fire.detected_at <= START + 210_000
    assert (evidence["xid"], evidence["nvlink_link"], evidence["nvlink_reg0_says"]) == (74, 6, "signal integrity")
    assert evidence["xid_action"] == "WORKFLOW_NVLINK_ERR"


@pytest.mark.parametrize(
    ("field", "rate", "within_s"), [(CRC, 150.0, 60), (CRC, 1.0, 100), (REPLAY, 1.0, 100), (RECOVERY, 0.2, 60)]
)
def test_errors_at_a_rate_fire_and_are_over(field: str, rate: float, within_s: float) -> None:
    cluster = replace(WIDE, minutes=28)
    tape = cluster.tape(counting(cluster, links(cluster), field, 2, (420, 670), rate))
    fire, over = run(tape)
    assert dict(fire.entity) == gpu(0, 2)
    assert fire.detected_at <= START + (420 + within_s) * 1000
    assert abs(fire.started_at - START - 420_000) <= within_s * 1000
    assert over.detected_at <= START + (670 + (660 if field == RECOVERY else 270)) * 1000


@pytest.mark.parametrize("interval_s", [1.0, 15.0, 30.0, 60.0])
def test_every_cadence(interval_s: float) -> None:
    cluster = replace(WIDE, minutes=30, interval_s=interval_s, missing=0.0)
    columns = counting(cluster, links(cluster), CRC, 2, (600, 9999), 200.0)
    columns = weakened(cluster, columns, [5], (1000, 9999), 0.4)
    found = [f for f in run(cluster.tape(columns)) if f.state == "firing"]
    assert [dict(f.entity) for f in found] == [gpu(0, 2), gpu(1, 1)]
    assert found[0].detected_at - START <= (600 + 2 * interval_s + 60) * 1000
    assert found[1].detected_at - START <= (1000 + max(180, 6 * interval_s) + 5) * 1000


def test_counters_copied_by_a_slow_collector_give_the_same_rates() -> None:
    cluster = replace(WIDE, missing=0.0)
    columns = counting(cluster, links(cluster), CRC, 2, (420, 9999), 30.0)
    held = np.arange(cluster.ticks) // 6 * 6
    columns[CRC] = columns[CRC][held]
    (fire,) = run(cluster.tape(columns))
    assert dict(fire.entity) == gpu(0, 2)
    assert fire.severity == "ticket"
    assert float(fire.evidence["nvlink_errors_per_s_usual"]) < 0.01
    assert "of this cluster" in str(fire.evidence["by_chance"])


def test_a_stray_error_a_few_replays_and_a_reset_are_nothing() -> None:
    columns = links()
    columns[CRC][:, 1] += np.where(CLUSTER.at_s[:, 1] > 100, 9, 0)
    columns = counting(CLUSTER, columns, REPLAY, 3, (200, 210), 0.2)
    for field in (CRC, REPLAY):
        columns[field] += 1000
        columns[field][CLUSTER.at_s[:, 0] > 300, :4] -= 1000
    assert fired(CLUSTER.tape(columns)) == []


def test_a_rack_that_is_rebooted_and_counts_from_nought_is_nothing() -> None:
    rack, columns = slice(0, 6 * WIDE.gpus), links(WIDE)
    for field, before in ((CRC, 40_000), (REPLAY, 900), (RECOVERY, 7)):
        columns[field] += before
        columns[field][:, rack] -= np.where(WIDE.at_s[:, rack] > 240, columns[field][:1, rack], 0)
    # What trains the links anew counts a little; the eighth node goes on, and its errors are found.
    columns[CRC][:, rack] += np.where(WIDE.at_s[:, rack] > 250, 12, 0)
    away = (WIDE.at_s > 240) & (WIDE.at_s < 420) & (np.arange(WIDE.nodes * WIDE.gpus) < rack.stop)
    assert fired(WIDE.tape(columns, gone=away)) == []
    columns = counting(WIDE, columns, CRC, 30, (450, 9999), 100.0)
    assert fired(WIDE.tape(columns, gone=away)) == [gpu(7, 2)]


def test_of_72_gpus_in_one_domain_the_one_whose_link_errs_is_named() -> None:
    rack = replace(WIDE, nodes=18)  # NVL72: eighteen trays of four
    assert fired(rack.tape(links(rack))) == []
    columns = counting(rack, links(rack), CRC, 41, (420, 9999), 100.0)
    assert fired(rack.tape(columns)) == [gpu(10, 1)]


def test_a_switch_is_the_nodes_and_its_gpus_say_nothing_of_their_own() -> None:
    columns = links()
    for place in range(4, 8):
        columns = counting(CLUSTER, columns, CRC, place, (180, 9999), 180.0)
    (fire,) = run(CLUSTER.tape(columns, logs=switch_fatal(180, 1)))
    assert dict(fire.entity) == {"node": name(1)}
    assert fire.started_at == START + 180_000
    assert fire.evidence["sxid"] == 20034


def test_several_gpus_one_after_the_other_become_a_finding_on_the_node() -> None:
    columns = counting(CLUSTER, links(), CRC, 4, (150, 9999), 200.0)
    columns = counting(CLUSTER, columns, RECOVERY, 6, (200, 9999), 0.5)
    found = run(CLUSTER.tape(columns))
    assert [(f.state, dict(f.entity)) for f in found] == [
        ("firing", gpu(1, 0)),
        ("resolved", gpu(1, 0)),
        ("firing", {"node": name(1)}),
    ] or [(f.state, dict(f.entity)) for f in found] == [
        ("firing", gpu(1, 0)),
        ("firing", {"node": name(1)}),
        ("resolved", gpu(1, 0)),
    ]


def test_links_to_a_lost_gpu_are_victims() -> None:
    lines = [
        xid_line(200, 0, 1, 74, "NVLink: fatal error detected on link 2"),
        xid_line(201, 0, 0, 79, "GPU has fallen off the bus."),
        xid_line(230, 0, 2, 74, "NVLink: fatal error detected on link 0"),
    ]
    assert fired(CLUSTER.tape(links(), logs=lines)) == []


def test_lost_traffic_is_reported_beside_the_gpus_own_share_and_its_peers() -> None:
    fire, over = run(LONG.tape(weakened(LONG, links(LONG, pauses=[(200, 231)]), [1], (600, 840), 0.4)))
    evidence = fire.evidence
    assert (dict(fire.entity), over.state) == (gpu(0, 1), "resolved")
    assert float(evidence["nvlink_mb_per_s"]) == pytest.approx(0.4 * float(evidence["nvlink_mb_per_s_before"]), rel=0.1)
    assert float(evidence["nvlink_mb_per_s"]) < 0.5 * float(evidence["nvlink_mb_per_s_peers"])
    assert "carries 0.4" in fire.summary
    assert over.detected_at <= START + 840_000 + 300_000


def test_on_default_fields_lost_traffic_is_found_by_the_counter() -> None:
    columns = weakened(LONG, links(LONG), [1], (600, 9999), 0.4)
    total = np.cumsum((columns.pop(SENT) + columns.pop(RECEIVED)) / 1e6 * LONG.interval_s, axis=0)
    columns = {XID: columns[XID], "DCGM_FI_DEV_GPU_UTIL": columns["DCGM_FI_DEV_GPU_UTIL"], TOTAL: total}
    assert fired(LONG.tape(columns)) == [gpu(0, 1)]
    anew = np.where(LONG.at_s > 500, total - total[50], total)
    assert fired(LONG.tape(columns | {TOTAL: anew})) == [gpu(0, 1)], "counters that begin anew are nobody's fault"


def test_a_gpu_that_carries_nothing_any_more_has_another_role() -> None:
    assert fired(LONG.tape(weakened(LONG, links(LONG), [1], (600, 9999), 0.001))) == []


def test_a_share_that_was_small_since_the_job_began_is_a_part_in_it() -> None:
    assert fired(LONG.tape(weakened(LONG, links(LONG), [1], (0, 9999), 0.3))) == []


def test_an_xid_in_the_last_second_is_reported() -> None:
    tape = CLUSTER.tape(links(), logs=link_down(478.5, 0, 3))
    assert fired(tape.until(START + 479_300)) == [gpu(0, 3)]


def test_stages_that_send_less_and_a_new_job_are_no_fault() -> None:
    columns = weakened(LONG, links(LONG), [4, 5, 6, 7], (400, 9999), 0.3)
    names = tuple(name(node) for node in range(4))
    first, second = Job("1", names, START - 60_000, 4), Job("2", names, int(instant(400)), 4)
    jobs = [
        JobEvent(first.start, "start", first),
        JobEvent(int(instant(390)), "end", first),
        JobEvent(second.start, "start", second),
    ]
    assert fired(LONG.tape(columns, jobs=jobs)) == []


def test_idle_gpus_and_gpus_without_a_job_are_not_compared() -> None:
    columns = weakened(LONG, links(LONG), [1], (600, 9999), 0.01)
    columns["DCGM_FI_DEV_GPU_UTIL"][LONG.at_s[:, 1] > 600, 1] = 0
    assert fired(LONG.tape(columns)) == []
    alone = replace(LONG, job_known=False)
    assert fired(alone.tape(weakened(alone, links(alone), [1], (600, 9999), 0.1))) == []


def test_gpus_without_nvlink_are_let_alone() -> None:
    columns = {field: np.full_like(column, np.nan) for field, column in links().items()}
    columns[XID] = CLUSTER.steady(0)
    assert fired(CLUSTER.tape(columns)) == []
    assert (
        fired(CLUSTER.tape({field: column for field, column in links().items() if field not in (SENT, RECEIVED)})) == []
    )


def test_a_reset_ends_what_an_xid_began() -> None:
    columns = links()
    columns[XID][:, 3] = np.where((CLUSTER.at_s[:, 3] > 200) & (CLUSTER.at_s[:, 3] < 350), 74, 0)
    found = run(CLUSTER.tape(columns, logs=link_down(200, 0, 3)))
    assert [f.state for f in found] == ["firing", "resolved"]


def test_a_node_that_dies_while_its_links_err_does_not_fire_again_when_it_is_forgotten() -> None:
    cluster = replace(WIDE, minutes=240, interval_s=30)
    columns = links(cluster)
    for gpu in range(4):
        columns = counting(cluster, columns, CRC, gpu, (600, 9999), 150.0)
    found = run(cluster.tape(columns, gone=(cluster.at_s > 900) & (cluster.node == 0)))
    assert [(f.state, dict(f.entity)) for f in found] == [
        ("firing", {"node": name(0)}),
        ("resolved", {"node": name(0)}),
    ]


@pytest.mark.parametrize(("field", "alerts"), [(CRC, 0), (REPLAY, 1)])
def test_a_few_crc_errors_cost_nothing_and_a_few_replays_matter(field: str, alerts: int) -> None:
    cluster = replace(WIDE, minutes=24)
    tape = cluster.tape(counting(cluster, links(cluster), field, 2, (420, 9999), 0.4))
    assert len([finding for finding in run(tape) if finding.state == "firing"]) == alerts


def test_errors_that_are_back_within_the_hour_are_held_longer() -> None:
    cluster = replace(WIDE, minutes=70, interval_s=15)
    columns = links(cluster)
    for begin in range(300, 3000, 500):
        columns = counting(cluster, columns, CRC, 2, (begin, begin + 150), 200.0)
    assert [f.state for f in run(cluster.tape(columns))] == ["firing", "resolved", "firing", "resolved"]


@pytest.mark.parametrize(
    ("source", "message", "fatal"),
    [
        ("kernel", "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Fatal, Link 30 sourcetrack timeout error", True),
        ("kernel", "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 20009, Non-fatal, Link 28 RX Short Error Rate", False),
        ("kernel", "nvidia-nvswitch2: open (major=510)", False),
        ("fabricmanager", "[ERROR] [tid 841] detected NVSwitch fatal error 20034 on fid 0 physical id 3 port 33", True),
        ("fabricmanager", "[ERROR] [tid 12727] detected NVSwitch non-fatal error 12028 on fid 0 port 61", False),
        ("fabricmanager", "[ERROR] detected number of NVSwitches don't match, aborting fabric manager", True),
        ("fabricmanager", "[INFO] [tid 1808] multicast group 0 is freed.", False),
        ("fabricmanager", "[ERROR] failed to find the GPU handle 54 in the multicast team request setup 61.", False),
        ("job", "detected NVSwitch fatal error 20034", False),
    ],
)
def test_lines_of_the_fabric(source: str, message: str, fatal: bool) -> None:
    assert (fabric_line(LogRecord(START, source, message, node="v001")) is not None) is fatal


def test_a_line_that_names_a_gpu_is_that_gpus() -> None:
    message = "[ERROR] [tid 2147] NVLink fatal error on GPU 0000:17:00.0, link 6; link is inactive"
    line = LogRecord(int(instant(100)), "fabricmanager", message, "error", name(1))
    assert fired(CLUSTER.tape(links(), logs=[line])) == [gpu(1, 2)]


def test_nvlink_5_says_itself_whether_it_is_fatal() -> None:
    fatal = xid_line(100, 0, 1, 149, "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000)")
    mild = xid_line(100, 0, 2, 145, "RLW_CTRL Nonfatal XC0 i0 Link 08 (0x004505c6 0x00000000)")
    assert fired(CLUSTER.tape(links(), logs=[fatal, mild])) == [gpu(0, 1)]


def test_a_fatal_line_is_not_hidden_by_a_mild_one_of_the_same_code_just_before() -> None:
    mild = xid_line(101, 0, 1, 145, "RLW_RXPIPE Nonfatal XC0 i0 Link 08 (0x00000006 0x00000008)")
    fatal = xid_line(102, 0, 1, 145, "RLW_SRC_TRACK Fatal XC0 i0 Link 08 (0x00000007 0x00000001)")
    assert fired(CLUSTER.tape(links(), logs=[mild, fatal])) == [gpu(0, 1)]


@pytest.mark.parametrize("scraped_s", [101.0, 104.0, 112.0])
def test_the_gauge_makes_nothing_graver_than_its_line(scraped_s: float) -> None:
    """A link fails on one GPU, the others miss its packets; their gauges show the code after or beside the line."""
    codes = {0: 149, **dict.fromkeys(range(1, 8), 145)}
    columns = links()
    for place, code in codes.items():
        columns[XID][CLUSTER.at_s[:, place] >= scraped_s, place] = code
    lines = [xid_line(100.5, 0, 0, 149, "NETIR_LINK_DOWN Fatal XC0 i0 Link 14 (0x02500011 0x00000000)")]
    mild = "RLW_SRC_TRACK Nonfatal XC1 i0 Link 03 (0x00000007 0x00000004)"
    lines += [xid_line(100.8, place // 4, place % 4, 145, mild) for place in range(1, 8)]
    assert fired(CLUSTER.tape(columns, logs=lines)) == [gpu(0, 0)]
    # Without a line nothing says that it is mild.
    assert {str(entity["node"]) for entity in fired(CLUSTER.tape(columns))} == {name(0), name(1)}


@pytest.mark.parametrize(
    ("times_s", "found_s"), [((600,), 0), ((600, 900), 900), ((600, 2400), 0), ((600, 2400, 4000), 4000)]
)
def test_a_link_that_was_retrained_once_has_no_fault_and_one_that_is_again_and_again_has(
    times_s: tuple[int, ...], found_s: int
) -> None:
    cluster = replace(WIDE, minutes=80, interval_s=10.0)
    columns = links(cluster)
    on = np.searchsorted(cluster.at_s[:, 2], times_s)
    columns[RECOVERY][:, 2] += np.isin(np.arange(cluster.ticks), on).cumsum()
    found = run(cluster.tape(columns))
    assert len(found) == (2 if found_s else 0)
    assert all(START + found_s * 1000 <= fire.detected_at <= START + (found_s + 20) * 1000 for fire in found[:1])


def test_recoveries_of_nvlink_5_are_those_of_older_links() -> None:
    cluster = replace(WIDE, minutes=28)
    columns = counting(cluster, links(cluster), RECOVERY, 2, (420, 670), 0.2)
    newer = columns | {RECOVERIES_5: columns[RECOVERY], RECOVERY: cluster.steady(np.nan)}
    of_both = [
        [(one.state, dict(one.entity), one.detected_at) for one in run(cluster.tape(c))] for c in (columns, newer)
    ]
    assert of_both[0] == of_both[1]
    assert of_both[0][0][:2] == ("firing", gpu(0, 2))


def test_the_switch_drivers_line_needs_its_node() -> None:
    assert fabric_line(replace(kernel(1, 0, "SXid (PCI:0000:c3:00.0): 1, Fatal, x"), node=None)) is None


def test_readings_that_are_frozen_say_nothing_of_traffic() -> None:
    """An agent hangs: the exporter repeats all readings of a node, its counters of traffic and energy among them."""
    columns = links(LONG)
    traffic = np.cumsum((columns.pop(SENT) + columns.pop(RECEIVED)) / 1e6 * LONG.interval_s, axis=0)
    columns[TOTAL] = traffic
    columns[ENERGY] = np.cumsum(np.full(traffic.shape, 4e5 * LONG.interval_s), axis=0)
    since = int(600 / LONG.interval_s)
    stands = {field: column.copy() for field, column in columns.items()}
    until_then = columns[TOTAL][since, :4]
    stands[TOTAL][since:, :4] = until_then + (columns[TOTAL][since:, :4] - until_then) / 10
    assert fired(LONG.tape(stands)) == [{"node": name(0)}], "links that carry a tenth while the GPUs work"
    stands[TOTAL][since:, :4] = until_then
    stands[ENERGY][since:, :4] = columns[ENERGY][since, :4]
    assert fired(LONG.tape(stands)) == []


def test_profiling_counters_that_are_paused_and_read_zero_are_no_lost_traffic() -> None:
    columns = links(LONG)
    since = int(600 / LONG.interval_s)
    columns[MEMORY] = np.full(columns[SENT].shape, 0.4)
    paused = {field: column.copy() for field, column in columns.items()}
    for field in (SENT, RECEIVED):
        paused[field][since:, :4] /= 10
    assert fired(LONG.tape(paused)) == [{"node": name(0)}], "memory that is used shows that the counters count"
    for field in (SENT, RECEIVED, MEMORY):
        paused[field][since:, :4] = 0
    assert fired(LONG.tape(paused)) == []


@pytest.mark.parametrize(("copies", "found"), [(40.0, [gpu(0, 1)]), (16.0, [])], ids=["works on", "does less"])
def test_on_default_fields_who_moves_less_and_uses_its_memory_less_has_no_bad_link(
    copies: float, found: list[dict[str, Any]]
) -> None:
    """Under a power brake, say, where each evaluates for itself."""
    columns = weakened(LONG, links(LONG), [1], (600, 9999), 0.4)
    columns[TOTAL] = np.cumsum((columns.pop(SENT) + columns.pop(RECEIVED)) / 1e6 * LONG.interval_s, axis=0)
    columns["DCGM_FI_DEV_MEM_COPY_UTIL"] = np.full(columns[TOTAL].shape, 40.0)
    columns["DCGM_FI_DEV_MEM_COPY_UTIL"][LONG.at_s[:, 1] > 600, 1] = copies
    assert fired(LONG.tape(columns)) == found


def test_trainers_that_wait_for_rollouts_at_full_use_have_no_bad_link() -> None:
    """Half of the job moves nothing, and computes nothing, while the other half works: what is usual lies between."""
    cluster = Cluster(nodes=6, gpus=4, minutes=50, interval_s=10)
    columns = links(cluster)
    long_tail = (cluster.at_s > 1800) & (cluster.at_s < 2600)
    trains, trainer = (cluster.at_s % 300 >= 240) & ~long_tail, cluster.node < 3
    works = np.where(trainer, trains, ~trains)
    for field in (SENT, RECEIVED):
        columns[field] = np.where(works, np.where(trainer, 4e10, 2e10), 9e6) * (
            1 + 0.02 * cluster.chance(field).normal(size=works.shape)
        )
    columns[UTILISATION] = np.where(works | trainer, 100.0, 0.0)
    columns[MEMORY] = np.where(works, np.where(trainer, 0.23, 0.62), 0.012)
    assert fired(cluster.tape(columns)) == []
