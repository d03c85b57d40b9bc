"""ecc_memory on what memory does: errors of every kind, and counters that only look like them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detectors.contract import Finding
from detectors.ecc_memory.detector import EccMemory
from detectors.ecc_memory.examples import (
    CLUSTER,
    DBE,
    FAILURE,
    LOST_ROWS,
    PENDING,
    ROW_MARKED,
    SBE,
    SPARE_ROWS,
    XID,
    double_bit_error,
    memory,
    reset,
    stepped,
    stormy,
)
from detectors.registry import choose
from detectors.signals.xid import XidCatalogue
from detectors.tapes.gpus import START, Cluster, name, xid_line
from detectors.tapes.tape import Tape, play


def run(tape: Tape, **overrides: Any) -> list[Finding]:
    choices = [c for c in choose({"ecc_memory": overrides}) if c[0] is EccMemory]
    return play(tape, choices)[0]


def fired(tape: Tape, **overrides: Any) -> list[tuple[str, dict[str, Any]]]:
    return [(found.fault, dict(found.entity)) for found in run(tape, **overrides) if found.state == "firing"]


def gpu(node: int, number: int) -> dict[str, Any]:
    return {"node": name(node), "gpu": number}


def test_one_event_two_faults_each_with_its_end() -> None:
    columns = stepped(CLUSTER, memory(), [(DBE, 1, 2, 200, 1), (LOST_ROWS, 1, 2, 200, 1), (PENDING, 1, 2, 201, 1)])
    columns = reset(CLUSTER, columns, CLUSTER.of(1, 2), 400)
    found = run(CLUSTER.tape(columns, logs=double_bit_error(200, 1, 2)))
    assert [(f.fault, f.state, dict(f.entity)) for f in found] == [
        ("ecc_uncorrectable", "firing", gpu(1, 2)),
        ("row_remap_pending", "firing", gpu(1, 2)),
        ("ecc_uncorrectable", "resolved", gpu(1, 2)),
        ("row_remap_pending", "resolved", gpu(1, 2)),
    ]
    assert found[0].started_at == START + 200_000, "the kernel's line has the time"
    assert found[0].detected_at <= START + 205_000
    assert found[0].id != found[1].id
    assert (found[0].id, found[1].id) == (found[2].id, found[3].id)
    assert found[2].detected_at <= START + 410_000


def test_the_evidence_has_the_action_its_source_and_the_counters() -> None:
    columns = stepped(CLUSTER, memory(), [(DBE, 1, 2, 196, 1)])
    (found,) = run(CLUSTER.tape(columns, logs=double_bit_error(197, 1, 2)))
    evidence = found.evidence
    assert (evidence["xid"], evidence["xid_action"], evidence["xid_action_source"]) == (48, "WORKFLOW_XID_48", "nvidia")
    assert evidence["double_bit_errors_since_driver_load"] == 1
    assert evidence["xid_seen_in"] == "kernel log"
    assert "WORKFLOW_XID_48, by nvidia" in found.recommended_action


@pytest.mark.parametrize("code", [48, 94, 95, 140])
def test_each_uncorrectable_code_alone_suffices(code: int) -> None:
    assert fired(CLUSTER.tape(memory(), logs=[xid_line(100, 2, 1, code)])) == [("ecc_uncorrectable", gpu(2, 1))]


def test_the_gauge_alone_suffices_and_a_sticky_one_is_one_event() -> None:
    assert fired(CLUSTER.tape(stepped(CLUSTER, memory(), [(XID, 0, 2, 100, 95)]))) == [("ecc_uncorrectable", gpu(0, 2))]


def test_a_remap_for_corrected_errors_is_no_uncorrectable_one_and_its_flag_decides() -> None:
    columns = stepped(CLUSTER, memory(), [(SPARE_ROWS, 2, 1, 100, 1), (XID, 2, 1, 100, 63)])
    lines = [xid_line(100, 2, 1, 63, ROW_MARKED)]
    assert fired(CLUSTER.tape(columns, logs=lines)) == []
    flagged = stepped(CLUSTER, columns, [(PENDING, 2, 1, 104, 1)])
    assert fired(CLUSTER.tape(flagged, logs=lines)) == [("row_remap_pending", gpu(2, 1))]


def test_a_remap_for_an_uncorrectable_error_is_one() -> None:
    columns = stepped(CLUSTER, memory(), [(LOST_ROWS, 2, 1, 110, 1), (XID, 2, 1, 100, 63)])
    lines = [xid_line(100, 2, 1, 63, ROW_MARKED)]
    assert fired(CLUSTER.tape(columns, logs=lines)) == [("ecc_uncorrectable", gpu(2, 1))]


@pytest.mark.parametrize(("code", "fault"), [(63, "row_remap_pending"), (64, "row_remap_failure")])
@pytest.mark.parametrize("logged", [True, False])
def test_without_its_flag_a_remap_is_found_by_its_xid_in_the_log_or_the_field(
    code: int, fault: str, logged: bool
) -> None:
    columns = {XID: stepped(CLUSTER, {XID: memory()[XID]}, [] if logged else [(XID, 2, 1, 100, code)])[XID]}
    (found,) = run(CLUSTER.tape(columns, logs=[xid_line(100, 2, 1, code, ROW_MARKED)] if logged else []))
    assert (found.fault, dict(found.entity)) == (fault, gpu(2, 1))
    assert found.detected_at <= START + (105_000 if logged else 115_000)
    assert "IGNORE" not in found.recommended_action


def test_a_failed_remap_that_the_driver_reports_is_raised_before_its_flag_and_once() -> None:
    columns = stepped(CLUSTER, memory(), [(FAILURE, 2, 1, 130, 1), (XID, 2, 1, 100, 64)])
    (found,) = run(CLUSTER.tape(columns, logs=[xid_line(100, 2, 1, 64)]))
    assert (found.fault, found.detected_at) == ("row_remap_failure", START + 100_000)
    assert "CONTACT_SUPPORT, by nvidia" in found.recommended_action


@pytest.mark.parametrize("doubles", [0, 1])
def test_the_row_that_could_not_be_remapped_had_an_uncorrectable_error(doubles: int) -> None:
    columns = stepped(
        CLUSTER, memory(), [(FAILURE, 2, 1, 130, 1), (LOST_ROWS, 2, 1, 130, 1), (DBE, 2, 1, 130, doubles)]
    )
    faults = ["ecc_uncorrectable", "row_remap_failure"]
    assert fired(CLUSTER.tape(columns)) == [(fault, gpu(2, 1)) for fault in faults]


def test_on_default_fields_rows_given_up_for_corrected_errors_are_information_and_hide_no_remap() -> None:
    columns = stepped(CLUSTER, memory(), [(SPARE_ROWS, 2, 1, 100, 1)])
    del columns[PENDING]
    (info,) = run(CLUSTER.tape(columns))
    assert (info.fault, dict(info.entity), info.severity) == ("row_remap_pending", gpu(2, 1), "info")
    found = run(CLUSTER.tape(columns, logs=[xid_line(200, 2, 1, 63, ROW_MARKED)]))
    assert [(f.fault, f.severity) for f in found] == [("row_remap_pending", "info"), ("row_remap_pending", "ticket")]


@pytest.mark.parametrize("code", [48, 94, 95, None])
@pytest.mark.parametrize("remap_s", [91.0, 101.1, 106.0, 280.0])
def test_without_its_flag_a_remap_that_comes_with_an_uncorrectable_error_waits_for_a_reset_beside_it(
    code: int | None, remap_s: float
) -> None:
    columns = memory() if code else stepped(CLUSTER, memory(), [(DBE, 2, 1, 101, 1)])
    del columns[PENDING]
    error = [xid_line(101, 2, 1, code)] if code else []
    lines = sorted([*error, xid_line(remap_s, 2, 1, 63, ROW_MARKED)], key=lambda line: line.at)
    found = {one.fault: one for one in run(CLUSTER.tape(columns, logs=lines))}
    assert {fault: dict(one.entity) for fault, one in found.items()} == {
        "ecc_uncorrectable": gpu(2, 1), "row_remap_pending": gpu(2, 1),
    }  # fmt: skip
    assert found["ecc_uncorrectable"].detected_at <= START + 110_000
    assert found["row_remap_pending"].detected_at <= START + 1000 * remap_s + 5000
    assert all("reset the GPU" in one.recommended_action for one in found.values())


def test_a_remap_of_another_gpu_than_the_one_with_the_error_is_a_finding() -> None:
    columns = {XID: memory()[XID]}
    tape = CLUSTER.tape(columns, logs=[xid_line(100, 2, 1, 48), xid_line(100.1, 2, 2, 63, ROW_MARKED)])
    assert fired(tape) == [("ecc_uncorrectable", gpu(2, 1)), ("row_remap_pending", gpu(2, 2))]


def test_a_contained_error_whose_row_waits_for_a_reset_is_open_until_there_is_one() -> None:
    cluster = Cluster(minutes=80, interval_s=30)
    lines = [xid_line(100, 2, 1, 94), xid_line(101, 2, 1, 63, ROW_MARKED)]
    both = ["ecc_uncorrectable", "row_remap_pending"]
    found = run(cluster.tape({SBE: cluster.steady(5)}, logs=lines))
    assert [(f.fault, f.state) for f in found] == [(fault, "firing") for fault in both]
    forgets = np.where((cluster.at_s > 4200) & (np.arange(12) == cluster.of(2, 1)), 0.0, 5.0)
    found = run(cluster.tape({SBE: forgets}, logs=lines))
    assert [(f.fault, f.state) for f in found] == [(fault, state) for state in ("firing", "resolved") for fault in both]


@pytest.mark.parametrize(
    "code", sorted(XidCatalogue({}).codes("uncorrectable_memory", "remap_failed", "remap_recorded"))
)
def test_what_is_recommended_contradicts_no_word_that_it_quotes(code: int) -> None:
    (found, *_) = run(CLUSTER.tape({XID: memory()[XID]}, logs=[xid_line(100, 2, 1, code)]))
    assert "IGNORE" not in found.recommended_action
    assert f"XID {code}" in found.recommended_action
    assert ("restart the application" in found.recommended_action) == ("RESTART_APP" in found.recommended_action)


def test_an_exporter_that_shows_no_xid_before_there_is_one() -> None:
    columns = {XID: np.full_like(memory()[XID], np.nan), SBE: memory()[SBE]}
    late = stepped(CLUSTER, columns, [(XID, 0, 2, 200, 48)])
    assert fired(CLUSTER.tape(late)) == [("ecc_uncorrectable", gpu(0, 2))]
    early = stepped(CLUSTER, columns, [(XID, 0, 2, 20, 48)])
    assert fired(CLUSTER.tape(early)) == [], "of last week: the exporter was not yet asked for all it has"


def test_a_site_can_see_a_code_otherwise() -> None:
    tape = CLUSTER.tape({XID: memory()[XID]}, logs=[xid_line(100, 2, 1, 63), xid_line(100, 0, 1, 13)])
    overrides = {63: {"class": "information"}, 13: {"class": "uncorrectable_memory", "action": "REPLACE"}}
    (found,) = run(tape, xid_overrides=overrides)
    assert dict(found.entity) == gpu(0, 1)
    assert (found.evidence["xid_action"], found.evidence["xid_action_source"]) == ("REPLACE", "site")


def test_without_a_topology_the_node_is_named_and_the_gauge_adds_nothing() -> None:
    cluster = replace(CLUSTER, topology_known=False)
    columns = stepped(cluster, memory(cluster), [(XID, 1, 2, 200, 48)])
    assert fired(cluster.tape(columns, logs=[xid_line(200, 1, 2, 48)])) == [("ecc_uncorrectable", {"node": name(1)})]


def test_a_counter_with_a_past_is_history_a_gauge_that_is_set_is_not() -> None:
    columns = memory()
    columns[DBE] += 7
    columns[LOST_ROWS] += 3
    columns[FAILURE][:, CLUSTER.of(1, 0)] = 1
    (found,) = run(CLUSTER.tape(columns))
    assert (found.fault, dict(found.entity)) == ("row_remap_failure", gpu(1, 0))
    assert found.evidence["set_since_first_reading"] == 1


def test_lifetime_counters_are_asked_where_there_are_no_others() -> None:
    columns = memory()
    aggregate = "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL"
    lifetime = {aggregate: columns[DBE] + 5}
    lifetime[aggregate][CLUSTER.at_s[:, 4] > 200, 4] += 1
    assert fired(CLUSTER.tape(lifetime)) == [("ecc_uncorrectable", gpu(1, 0))]
    assert fired(CLUSTER.tape(lifetime | {SBE: columns[SBE]})) == [("ecc_uncorrectable", gpu(1, 0))], "each by itself"
    assert fired(CLUSTER.tape(columns | lifetime)) == [], "written at a reload, it repeats what was reported before"


def test_rows_counted_when_a_node_comes_back_are_no_new_error() -> None:
    columns = stepped(CLUSTER, memory(), [(LOST_ROWS, 0, 1, 300, 1)])
    gone = (CLUSTER.at_s >= 100) & (CLUSTER.at_s < 300) & (np.arange(12) < 4)
    assert fired(CLUSTER.tape(columns, gone=gone)) == []


@pytest.mark.parametrize("interval_s", [1.0, 15.0, 30.0, 60.0])
def test_every_cadence(interval_s: float) -> None:
    cluster = Cluster(nodes=9, minutes=25, interval_s=interval_s, missing=0.0)
    columns = stepped(cluster, memory(cluster), [(DBE, 1, 2, 300, 1), (PENDING, 0, 1, 320, 1)])
    columns = stormy(cluster, columns, 8, (900, 1300), 1.0)
    found = [f for f in run(cluster.tape(columns)) if f.state == "firing"]
    onsets = {"ecc_uncorrectable": 300, "row_remap_pending": 320, "ecc_correctable_storm": 900}
    assert {f.fault for f in found} == set(onsets)
    assert len(found) == 3
    for f in found:
        scrapes = 2 if f.fault != "ecc_correctable_storm" else 4
        assert f.detected_at - START <= onsets[f.fault] * 1000 + max(scrapes * interval_s, 60) * 1000


def test_a_contained_error_is_over_when_it_stays_away_for_an_hour() -> None:
    cluster = Cluster(minutes=75, interval_s=30)
    tape = cluster.tape(memory(cluster), logs=[xid_line(100, 2, 1, 94)])
    assert [f.state for f in run(tape)] == ["firing", "resolved"]
    tape = cluster.tape(memory(cluster), logs=[xid_line(100, 2, 1, 95)])
    assert [f.state for f in run(tape)] == ["firing"], "an uncontained one needs a reset"


def test_single_bit_counters_that_begin_anew_are_no_errors() -> None:
    columns = memory()
    columns[SBE] += 5000
    columns = reset(CLUSTER, columns, 4, 200)
    assert fired(CLUSTER.tape(columns)) == []
