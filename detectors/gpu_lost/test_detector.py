"""gpu_lost on what GPUs do: gone in every way, and only not heard for a while."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detectors.contract import Finding
from detectors.fleet.fleet import Job, JobEvent
from detectors.gpu_lost.detector import GpuLost
from detectors.gpu_lost.examples import (
    CLUSTER,
    POWER,
    TEMPERATURE,
    UTIL,
    XID,
    absent,
    off_the_bus,
    readings,
    scheduler,
)
from detectors.registry import choose
from detectors.tapes.gpus import START, Cluster, kernel, name, xid_line
from detectors.tapes.tape import Tape, play


def run(tape: Tape, **overrides: Any) -> list[Finding]:
    choices = [c for c in choose({"gpu_lost": overrides}) if c[0] is GpuLost]
    return play(tape, choices)[0]


def fired(tape: Tape, **overrides: Any) -> list[dict[str, Any]]:
    return [dict(found.entity) for found in run(tape, **overrides) if found.state == "firing"]


def gpu(node: int, number: int) -> dict[str, Any]:
    return {"node": name(node), "gpu": number}


def test_off_the_bus_is_one_finding_with_its_action_and_its_end() -> None:
    gone = absent(CLUSTER, [(1, 2, 120, 200)])
    fire, over = run(CLUSTER.tape(readings(), gone=gone, logs=off_the_bus(120, 1, 2, others=(0, 1, 3))))
    assert (dict(fire.entity), fire.state, over.state, over.id) == (gpu(1, 2), "firing", "resolved", fire.id)
    assert fire.started_at == START + 120_000
    assert fire.detected_at <= START + 125_000
    assert (fire.evidence["xid_action"], fire.evidence["xid_action_source"]) == ("RESTART_BM", "nvidia")
    assert fire.evidence["node_gpus_known"] == 4
    assert fire.evidence["job_id"] == "812"
    assert START + 200_000 < over.detected_at <= START + 300_000


def test_silence_alone_names_the_gpu_and_when_it_began() -> None:
    gone = absent(CLUSTER, [(1, 2, 120, 9999)])
    (fire,) = run(CLUSTER.tape(readings(), gone=gone))
    assert dict(fire.entity) == gpu(1, 2)
    assert abs(fire.started_at - START - 120_000) <= 5000
    assert (fire.evidence["node_gpus_reporting"], fire.evidence["node_gpus_known"]) == (3, 4)


@pytest.mark.parametrize("interval_s", [1.0, 15.0, 30.0, 60.0])
def test_silence_is_counted_in_scrapes_and_not_in_seconds(interval_s: float) -> None:
    cluster = Cluster(minutes=max(4.0, interval_s * 20 / 60), interval_s=interval_s, missing=0.0)
    begin = cluster.minutes * 30
    (fire,) = run(cluster.tape(readings(cluster), gone=absent(cluster, [(0, 1, begin, 9e9)])))
    assert dict(fire.entity) == gpu(0, 1)
    assert fire.detected_at - START <= begin * 1000 + max(30, 5 * interval_s) * 1000 + 5000


@pytest.mark.parametrize("missing_gpu", [0.05, 0.3])
def test_readings_that_often_get_lost_teach_patience(missing_gpu: float) -> None:
    cluster = Cluster(nodes=4, minutes=60, missing=0.1, missing_gpu=missing_gpu, seed=5)
    assert fired(cluster.tape(readings(cluster))) == []
    gone = absent(cluster, [(2, 3, 1800, 9999)])
    assert fired(cluster.tape(readings(cluster), gone=gone)) == [gpu(2, 3)]


def test_a_collector_that_stops_loses_nobody() -> None:
    gone = absent(CLUSTER, [(0, None, 60, 300), (1, None, 100, 9999)])
    assert fired(CLUSTER.tape(readings(), gone=gone)) == []


def test_most_gpus_of_a_node_at_once_are_not_its_gpus_fault() -> None:
    assert fired(CLUSTER.tape(readings(), gone=absent(CLUSTER, [(0, n, 100, 9999) for n in range(3)]))) == []
    two = CLUSTER.tape(readings(), gone=absent(CLUSTER, [(0, n, 100, 9999) for n in range(2)]))
    assert fired(two) == [gpu(0, 0), gpu(0, 1)]


def test_a_gpu_that_never_reported_is_not_lost() -> None:
    assert fired(CLUSTER.tape(readings(), gone=absent(CLUSTER, [(0, 2, 0, 9999)]))) == []


def test_a_gpu_missing_after_a_restart_is_lost_five_minutes_later() -> None:
    cluster = replace(CLUSTER, minutes=9)
    gone = absent(cluster, [(0, None, 100, 200), (0, 2, 100, 9999)])
    (fire,) = run(cluster.tape(readings(cluster), gone=gone))
    assert dict(fire.entity) == gpu(0, 2)
    assert fire.started_at <= START + 210_000
    assert 490_000 <= fire.detected_at - START <= 510_000


def test_gpus_that_come_back_one_by_one_after_a_restart_are_not_lost() -> None:
    cluster = replace(CLUSTER, minutes=9)
    gone = absent(cluster, [(0, None, 100, 140), *((0, n, 100, 140 + 60 * n) for n in range(4))])
    assert fired(cluster.tape(readings(cluster), gone=gone)) == []


def test_a_gpu_without_work_may_be_reset_or_split_for_five_minutes() -> None:
    cluster = replace(CLUSTER, minutes=9)
    idle = readings(cluster) | {UTIL: cluster.steady(0)}
    assert fired(cluster.tape(idle, gone=absent(cluster, [(0, 2, 100, 380)]), jobs=[])) == []
    gone = absent(cluster, [(0, 2, 100, 9999)])
    (fire,) = run(cluster.tape(idle, gone=gone, jobs=[]))
    assert 390_000 <= fire.detected_at - START <= 410_000
    busy = readings(cluster) | {UTIL: cluster.steady(100)}
    (fire,) = run(cluster.tape(busy, gone=gone, jobs=[]))
    assert fire.detected_at - START <= 140_000


def test_rows_of_zeros_are_silence_and_an_idle_gpu_is_not() -> None:
    columns = readings() | {UTIL: CLUSTER.steady(0)}
    late = CLUSTER.at_s[:, 6] > 150
    for column in (TEMPERATURE, POWER):
        columns[column][late, 6] = 0.0
    assert fired(CLUSTER.tape(columns)) == [gpu(1, 2)]
    assert fired(CLUSTER.tape({UTIL: CLUSTER.steady(0)})) == [], "all that is known is that it does nothing"


def test_a_job_that_dies_with_its_gpu_makes_nobody_patient() -> None:
    cluster = Cluster(minutes=20, interval_s=30.0, missing=0.02)
    job = Job("812", tuple(name(n) for n in range(cluster.nodes)), START - 3_600_000, cluster.gpus)
    jobs = [JobEvent(job.start, "start", job), JobEvent(START + 620_000, "end", job)]
    (fire,) = run(cluster.tape(readings(cluster), gone=absent(cluster, [(1, 2, 600, 9999)]), jobs=jobs))
    assert dict(fire.entity) == gpu(1, 2)
    assert fire.detected_at - START <= 600_000 + 125_000


def test_rows_without_a_reading_are_silence() -> None:
    columns = readings()
    late = CLUSTER.at_s[:, 6] > 150
    columns[TEMPERATURE][late, 6], columns[POWER][late, 6] = np.nan, np.nan
    assert fired(CLUSTER.tape(columns)) == [gpu(1, 2)]


def test_drained_before_is_maintenance_drained_because_is_not() -> None:
    cluster = replace(CLUSTER, minutes=9)
    gone = absent(cluster, [(0, 2, 150, 9999)])
    before = [scheduler(100, "slurmctld: update_node: node v001 state set to DRAIN")]
    because = [scheduler(165, "slurmctld: update_node: node v001 state set to DRAIN")]
    assert fired(cluster.tape(readings(cluster), gone=gone, logs=before, jobs=[])) == []
    assert fired(cluster.tape(readings(cluster), gone=gone, logs=because, jobs=[])) == [gpu(0, 2)]
    back = [*before, scheduler(260, "slurmctld: update_node: node v001 state set to RESUME")]
    assert fired(cluster.tape(readings(cluster), gone=gone, logs=back, jobs=[])) == [gpu(0, 2)], "put back without it"


def test_the_firmware_that_answers_no_more_is_one_event_while_it_repeats() -> None:
    text = "Timeout after 6s of waiting for RPC response from GPU2 GSP! Expected function 76 (GSP_RM_CONTROL)."
    lines = [xid_line(at_s, 0, 2, 119, text) for at_s in (30, 36, 42, 1000, 2700)]
    cluster = replace(CLUSTER, minutes=76)
    fire, over = run(cluster.tape(readings(cluster), logs=lines))
    assert (fire.state, over.state) == ("firing", "resolved")
    assert 1800 <= (over.detected_at - START) / 1000 - 2700 <= 1805


def test_a_gauge_cleared_by_a_reset_resolves() -> None:
    columns = readings()
    place = CLUSTER.of(0, 2)
    columns[XID][:, place] = np.where((CLUSTER.at_s[:, place] > 60) & (CLUSTER.at_s[:, place] < 150), 119, 0)
    assert [f.state for f in run(CLUSTER.tape(columns))] == ["firing", "resolved"]


def test_a_gpu_that_comes_and_goes_within_a_minute_is_one_event() -> None:
    gone = absent(CLUSTER, [(1, 2, 100, 150), (1, 2, 175, 230)])
    assert [f.state for f in run(CLUSTER.tape(readings(), gone=gone))] == ["firing", "resolved"]


def test_without_a_topology_the_line_names_the_node_and_the_silence_adds_nothing() -> None:
    cluster = replace(CLUSTER, topology_known=False)
    gone = absent(cluster, [(1, 2, 151, 9999)])
    assert fired(cluster.tape(readings(cluster), gone=gone, logs=off_the_bus(150, 1, 2))) == [{"node": name(1)}]


def test_other_codes_are_nothing() -> None:
    lines = [xid_line(50 + code, 1, 1, code) for code in (13, 31, 43, 45, 63, 74)]
    lines.append(kernel(200, 1, "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:0f:00"))
    assert fired(CLUSTER.tape(readings(), logs=lines)) == []


@pytest.mark.parametrize(
    ("code", "action"),
    [
        (54, "CHECK_MECHANICALS / CONTACT_SUPPORT, by nvidia"),
        (62, "RESET_GPU, by nvidia"),
        (121, ""),
        (142, "CONTACT_SUPPORT, by nvidia"),
        (157, ""),
        (169, "XID 169"),
    ],
)
def test_what_nvidia_asks_to_reset_or_to_look_at_is_reported_and_what_it_ignores_is_not(code: int, action: str) -> None:
    found = run(CLUSTER.tape(readings(), logs=[xid_line(50, 1, 1, code)]))
    assert [dict(one.entity) for one in found if one.state == "firing"] == ([gpu(1, 1)] if action else [])
    assert all(action in one.recommended_action for one in found[:1])


def test_a_site_can_take_a_code_out() -> None:
    tape = CLUSTER.tape(readings(), logs=[xid_line(50, 1, 1, 120)])
    assert fired(tape) == [gpu(1, 1)]
    assert fired(tape, xid_overrides={"120": {"class": "firmware"}}) == []
