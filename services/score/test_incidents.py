"""Incidents against labels: whose root is first, what is split and mixed, and whose impact is right."""

from typing import Any

from detectors.contract import Fault
from detectors.incidents.report import Cause, Impact, Incident, Member, Touched
from services.recording.model import Label
from services.score.incidents import IncidentTally, incident_sheet, judge_incidents


def label(name: str, fault: str, incident: str, entity: dict[str, str | int], **more: Any) -> Label:
    fields: dict[str, Any] = {"id": name, "fault": fault, "entity": entity, "incident": incident, "within_s": 60}
    return Label.model_validate(fields | {"onset": 1000, "end": 100_000} | more)


def reported(name: str, *found: tuple[Fault, dict[str, str | int]], at: int = 2000, **impact: Any) -> Incident:
    """Return an incident of findings, of which each is ranked by its place."""
    cost = Impact(impact.get("gpus", 8), 1, (Touched("812", 8, 2.0, 0.0, 4.0, None),), 2.0, impact.get("hours", 4.0))
    return Incident(
        name,
        1,
        at,
        "open",
        at,
        at,
        None,
        "page",
        f"{found[0][0]} first",
        tuple(Cause(f"{name}{n}", fault, entity, 0.5, ()) for n, (fault, entity) in enumerate(found)),
        tuple(Member(f"{name}{n}", "d", f, e, "page", at, at, None, "") for n, (f, e) in enumerate(found)),
        0,
        (),
        cost,
    )


def tally(incidents: list[Incident], labels: list[Label]) -> IncidentTally:
    total = IncidentTally()
    for one in judge_incidents(incidents, labels):
        total.add(one)
    return total


BRAKE = label("f1", "power_throttle", "i1", {"node": "n1"}, root=True, impact={"gpus": 8, "jobs": 1,
              "step_time_factor": 2.1, "gpu_hours_lost": 4.5})  # fmt: skip
SLOW = label("f2", "straggler", "i1", {"node": "n2", "gpu": 3})
OTHER = label("f3", "node_down", "i2", {"node": "n9"}, root=True)


def test_the_root_is_first_where_the_first_cause_is_about_it_and_a_gpu_of_the_node_will_do() -> None:
    good = tally([reported("a", ("power_throttle", {"node": "n1", "gpu": 0}))], [BRAKE, SLOW])
    assert (good.labelled, good.reported, good.root_first, good.wrong) == (1, 1, 1, [])
    assert (good.impacts, good.gpus_right, good.jobs_right, good.factor_right, good.hours_right) == (1, 1, 1, 1, 1)
    victim = ("straggler", {"node": "n2", "gpu": 3})
    bad = tally([reported("a", victim, ("power_throttle", {"node": "n1"}), gpus=9, hours=9.0)], [BRAKE, SLOW])  # type: ignore[arg-type]  # a Fault
    assert (bad.root_first, bad.gpus_right, bad.hours_right) == (0, 0, 0)
    assert "power_throttle is the root; straggler first" in bad.wrong[0]


def test_what_nobody_saw_or_saw_at_another_time_has_no_root() -> None:
    late = reported("a", ("power_throttle", {"node": "n1"}), at=200_000)
    missed = tally([late], [BRAKE, SLOW, OTHER])
    assert (missed.labelled, missed.reported, missed.root_first, len(missed.wrong)) == (2, 0, 0, 2)


def test_a_root_that_need_not_be_found_counts_if_anything_was() -> None:
    latent = BRAKE.model_copy(update={"optional": True})
    assert tally([], [latent, OTHER]).labelled == 1
    assert tally([reported("a", ("power_throttle", {"node": "n1"}))], [latent, SLOW]).root_first == 1


def test_what_is_split_and_what_is_mixed_is_counted() -> None:
    parts = [reported("a", ("power_throttle", {"node": "n1"})), reported("b", ("straggler", {"node": "n2"}))]
    assert tally(parts, [BRAKE, SLOW]).split == 1
    both = reported("a", ("power_throttle", {"node": "n1"}), ("node_down", {"node": "n9"}))
    mixed = tally([both], [BRAKE, OTHER])
    assert (mixed.mixed, mixed.root_first) == (2, 1)


def test_a_burst_with_several_labels_of_one_trouble_may_be_found_by_any() -> None:
    first = label("f1", "fabric_congestion", "i", {"switch": "leaf-1"})
    root = label("f2", "fabric_congestion", "i", {"switch": "leaf-1"}, root=True, onset=200_000, end=300_000)
    assert tally([reported("a", ("fabric_congestion", {"switch": "leaf-1", "port": "e1"}))], [first, root]).root_first


def test_counts_add_up_and_are_shown() -> None:
    one = tally([reported("a", ("power_throttle", {"node": "n1"}))], [BRAKE])
    one.merge(tally([], [OTHER]))
    sheet = incident_sheet({"incidents": vars(one)})
    assert sheet.rows[0].cells == ["root cause ranked first, of all labelled incidents", "1", "2", "50.0%"]
    assert sheet.notes == ["Root not first: i2: node_down is the root; nothing was found of it."]
