"""The plans of `benchmarks.held_out`, and one small recording made, scored, stored and not made again."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.held_out import report
from benchmarks.held_out.case import Case, outline
from benchmarks.held_out.healthy import healthy_plan
from benchmarks.held_out.plan import faults_plan
from benchmarks.held_out.run import run
from benchmarks.held_out.worlds import budget_sheets, world_sheets
from services.recording.faults import FAULTS
from services.score.seeds import TEST_SEEDS
from services.synth.story.scenario import load_scenario


def test_every_fault_has_the_labels_asked_for_from_several_stories() -> None:
    plan = faults_plan(5, 700, 0.1)
    assert min(plan.labels[fault] for fault in FAULTS) >= 5
    assert len(set(plan.cases)) == len(plan.cases)
    assert {case.seed for case in plan.cases}.isdisjoint(TEST_SEEDS)
    stories = {name: outline(Case("faults", name, 700, 0.1)) for name in {case.scenario for case in plan.cases}}
    tellers = Counter(fault for known in stories.values() if known is not None for fault in known.required)
    assert tellers["straggler"] >= 2
    few = faults_plan(1, 700, 0.1, ["job_hang"])
    assert few.labels["job_hang"] == len(few.cases) == 1


def test_healthy_plans_have_the_days_asked_for_and_no_fault(tmp_path: Path) -> None:
    plan = healthy_plan(30, 700, 0.1)
    known = [outline(case) for case in plan.cases]
    assert sum(one.nodes * one.hours / 24 for one in known if one is not None) >= 30
    assert None not in known
    assert plan.labels == {}
    assert len({case.interval_s for case in plan.cases}) == 4
    story = Case("healthy", "sakuraone-fault-year", 700, healthy=True)
    scenario, _, _ = load_scenario(story.written(tmp_path), 700)
    assert [happening.kind for happening in scenario.happenings if happening.truth is not None] == []
    assert {"dirty_optics", "old_xid"} <= {happening.kind for happening in scenario.happenings}
    assert scenario.jobs


def test_a_result_is_kept_and_not_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = Case("faults", "vela-power-brake", 700, scale=0.03, interval_s=30, duration_s=5700)
    refused = Case("faults", "sakuraone-fault-year", 700, scale=0.02)
    results = tmp_path / "results.jsonl"
    (first,) = run([case, refused], results, workers=1, version="one")
    assert "not made" in capsys.readouterr().err
    assert first.scored.node_days > 0
    assert first.classes == {"f1": "event"}
    with results.open("a", encoding="utf-8") as file:
        file.write('{"cut o')
    (again,) = run([case], results, workers=1, version="one")
    assert again == first
    assert "1 are in" in capsys.readouterr().err
    assert run([case], results, workers=1, budget_s=0, version="other") == []
    assert "other code" in capsys.readouterr().err
    assert {"power_throttle", "all"} <= {row.cells[0] for row in report.fault_sheets([first])[0].rows}
    assert report.healthy_sheets([first])[0].rows[-1].cells[0] == "all"
    assert report.grid_sheet([first]).rows[-1].cells[2] == "1"


def test_plans_go_from_world_to_world() -> None:
    plan = faults_plan(2, 700, 0.1, ["link_down", "straggler"], range(3, 6))
    assert [case.world for case in plan.cases] == [3 + place % 3 for place in range(len(plan.cases))]
    assert min(plan.labels[fault] for fault in ("link_down", "straggler")) >= 2
    healthy = healthy_plan(20, 700, 0.1, range(3, 6))
    assert {case.world for case in healthy.cases} == {3, 4, 5}
    assert {case.interval_s for case in healthy.cases} == {None}, "each world has cadences of its own"


def test_one_recording_is_scored_for_every_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = Case("healthy", "vela-power-brake", 700, scale=0.04, duration_s=900, healthy=True, world=2)
    cases = [replace(case, budget=budget) for budget in (0.5, 20.0)]
    results = run(cases, tmp_path / "results.jsonl", workers=1, version="one")
    assert [result.case.budget for result in results] == [0.5, 20.0]
    assert len({result.scored.node_days for result in results}) == 1
    (sheet,) = budget_sheets(results)
    assert [row.cells[0] for row in sheet.rows] == ["0.5", "20"]
    assert all(row.cells[1] == "1" for row in sheet.rows)
    (worlds,) = world_sheets(results)
    assert [row.cells[0] for row in worlds.rows] == ["2", "worst tenth", "mean"]
    assert run(cases, tmp_path / "results.jsonl", workers=1, version="one") == results
    assert "2 are in" in capsys.readouterr().err
