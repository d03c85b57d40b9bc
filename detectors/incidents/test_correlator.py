"""The correlator: what belongs together, what is the root, and that no cut of the input changes what is reported."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from graphlib import TopologicalSorter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detectors.contract import Batch, Fault, Finding, Instant, Severity, State, finding_id
from detectors.fleet.fleet import Fleet, Job, JobEvent
from detectors.incidents.book import MOST_MEMBERS
from detectors.incidents.correlator import Correlator
from detectors.incidents.report import Incident

START: Instant = 1_700_000_040_000
NODES = [f"n{number}" for number in range(6)]
TOPOLOGY: dict[str, Any] = {
    "nodes": [
        {
            "name": node,
            "rack": f"r{number // 3}",
            "pod": "p",
            "gpus": [{"gpu": gpu} for gpu in range(8)],
            "nics": [{"nic": "mlx0", "switch": f"leaf-{number // 3}", "port": f"e{number}"}],
        }
        for number, node in enumerate(NODES)
    ],
    "switches": [{"name": name} for name in ("leaf-0", "leaf-1", "spine")],
    "links": [{"a": f"leaf-{n}:up", "b": f"spine:e{n}"} for n in range(2)],
    "mounts": [{"mount": "/scale"}],
}
JOB = Job("812", tuple(NODES[:4]), START - 3_600_000, 8)
Step = Finding | JobEvent | Batch


def finding(
    fault: Fault,
    entity: dict[str, str | int],
    at_s: float,
    *,
    began_s: float | None = None,
    state: State = "firing",
    score: float = 0.9,
    severity: Severity = "ticket",
) -> Finding:
    began = START + round(1000 * (at_s if began_s is None else began_s))
    return Finding(
        id=finding_id(fault, entity, began),
        detector=fault,
        fault=fault,
        entity=entity,
        state=state,
        started_at=began,
        detected_at=START + round(1000 * at_s),
        severity=severity,
        score=score,
        summary=f"{fault} of {entity}",
        recommended_action="look",
    )


def over(one: Finding, at_s: float) -> Finding:
    return replace(one, state="resolved", detected_at=START + round(1000 * at_s))


def made(fleet: Fleet | None = None) -> Correlator:
    correlator = Correlator(TOPOLOGY, fleet or Fleet(TOPOLOGY))
    correlator.happen(JobEvent(JOB.start, "start", JOB))
    return correlator


def latest(findings: Sequence[Finding], until_s: float = 86_400) -> dict[str, Incident]:
    """Return the last revision of each incident."""
    correlator, last = made(), {}
    for incident in correlator.take(findings, START + round(1000 * until_s)):
        last[incident.id] = incident
    return last


def only(findings: Sequence[Finding], until_s: float = 86_400) -> Incident:
    (incident,) = latest(findings, until_s).values()
    return incident


def test_a_feed_that_is_lost_is_one_incident_and_its_root_comes_first() -> None:
    braked = [finding("power_throttle", {"node": node}, 10 + n, began_s=n) for n, node in enumerate(NODES[:3])]
    slow = finding("straggler", {"node": "n3", "gpu": 1}, 90, began_s=60)
    incident = only([*braked, slow])
    assert incident.causes[0].entity == {"node": "n0"}
    assert "3 in rack r0 within 2 s: its power feed" in incident.causes[0].reasons
    assert {member.id for member in incident.members} == {one.id for one in (*braked, slow)}
    assert {(link.cause, link.over) for link in incident.chain if link.effect == braked[2].id} == {
        (braked[0].id, "rack:r0")
    }
    assert incident.impact.gpus == 32
    assert incident.impact.nodes == 4


def test_the_chain_begins_with_what_the_evidence_shows() -> None:
    evidence: dict[str, float | int | str] = {
        "supply_alarm": " 1 | Power Supply #0x51 | Failure detected ",
        "sm_clock_before_mhz": 1350.2,
        "sm_clock_mhz": "?",
    }
    brake = replace(finding("power_throttle", {"node": "n0"}, 10), evidence=evidence)
    chain = only([brake]).chain
    assert [(link.cause, link.effect) for link in chain] == [
        ("seen:1 | Power Supply #0x51 | Failure detected", brake.id)
    ], "what is not of the right kind is left out"
    brake = replace(brake, evidence={**evidence, "sm_clock_mhz": 450.0})
    assert only([brake]).chain[-1].effect == "seen:SM clocks fall from 1350 to 450 MHz"
    rose = replace(brake, evidence={**evidence, "sm_clock_mhz": 1380.0})
    assert len(only([rose]).chain) == 1, "a clock that rose shows no brake"


def test_eight_gpus_of_a_node_are_one_incident_of_one_revision_each_time() -> None:
    lost = [finding("gpu_lost", {"node": "n5", "gpu": gpu}, 30) for gpu in range(8)]
    correlator = made()
    revisions = correlator.take(lost, START + 60_000)
    assert len(revisions) == 1
    assert len(revisions[0].members) == 8


def test_what_is_on_other_machines_is_another_incident() -> None:
    assert len(latest([finding("ecc_uncorrectable", {"node": node, "gpu": 0}, 5) for node in ("n0", "n1", "n4")])) == 3
    assert len(latest([finding("power_throttle", {"node": node}, 5) for node in ("n0", "n5")])) == 2


def test_a_cause_that_is_found_late_becomes_the_root() -> None:
    hang = finding("job_hang", {"job_id": "812"}, 300, began_s=60)
    dead = finding("node_down", {"node": "n2"}, 320, began_s=50)
    correlator = made()
    (first,) = correlator.take([hang], START + 310_000)
    (second,) = correlator.take([dead], START + 330_000)
    assert (first.id, first.causes[0].fault) == (second.id, "job_hang")
    assert [cause.fault for cause in second.causes] == ["node_down"]
    assert second.revision == first.revision + 1


def test_two_incidents_with_one_cause_are_joined_and_the_older_keeps_its_name() -> None:
    slow = finding("straggler", {"node": "n0", "gpu": 0}, 100, began_s=50)
    hang = finding("job_hang", {"job_id": "812"}, 200, began_s=120)
    brake = finding("power_throttle", {"node": "n0"}, 210, began_s=40)
    before = latest([slow, hang])
    assert len(before) == 2
    after = latest([slow, hang, brake])
    assert {incident.state for incident in after.values()} == {"open", "joined"}
    (gone,) = (incident for incident in after.values() if incident.state == "joined")
    assert gone.joined_to is not None
    kept = after[gone.joined_to]
    assert kept.opened_at == slow.detected_at
    assert kept.causes[0].fault == "power_throttle"
    assert len(kept.members) == 3


def test_an_incident_is_closed_with_its_last_finding_and_a_flap_opens_it_again() -> None:
    port: dict[str, str | int] = {"node": "n1", "nic": "mlx0"}
    first, second = finding("link_flap", port, 10), finding("link_flap", port, 400)
    late = finding("link_flap", port, 400 + 120 + 901)
    held = only([first, over(first, 100), second])
    assert held.state == "open"
    assert len(held.members) == 2
    closed = only([first, over(first, 100)])
    assert (closed.state, closed.closed_at) == ("closed", START + 100_000)
    assert len(latest([first, over(first, 100), second, over(second, 520), late])) == 2


def test_a_port_that_flaps_and_is_then_lost_is_lost() -> None:
    flap = finding("link_flap", {"switch": "leaf-0", "port": "e1"}, 10)
    lost = finding("link_down", {"node": "n1", "nic": "mlx0"}, 1200)
    incident = only([flap, over(flap, 600), lost])
    assert incident.causes[0].finding == lost.id
    assert incident.chain[0].effect == flap.id


def test_who_was_the_root_again_and_again_is_counted_and_forgotten_after_four_weeks() -> None:
    gpu: dict[str, str | int] = {"node": "n0", "gpu": 3}
    day_s = 86_400
    findings = []
    for day in (0, 10, 20, 35):
        one = finding("gpu_lost", gpu, day * day_s)
        findings += [one, over(one, day * day_s + 60)]
    last = list(latest(findings, 40 * day_s).values())
    counts = [{len(offender.entity): offender.incidents for offender in incident.offenders} for incident in last]
    assert counts == [{}, {2: 1, 1: 1}, {2: 2, 1: 2}, {2: 2, 1: 2}]
    assert round(last[2].offenders[0].score, 3) == round((1 - 20 / 28) + (1 - 10 / 28), 3)
    assert [offender.entity for offender in last[2].offenders] == [gpu, {"node": "n0"}]


def steps(job: str, fleet: Fleet, first_s: int, last_s: int, every_s: float) -> Batch:
    """Return steps of a job of one rank, in a batch."""
    at = np.arange(first_s * 1000, last_s * 1000, round(every_s * 1000))[:, None] + START
    full = np.ones(at.shape, bool)
    entity = np.array([fleet.index("steps", (job, -1))])
    return Batch("steps", entity, at, full, {"step_time_s": np.full(at.shape, every_s)}, {"step_time_s": full})


def test_the_impact_is_what_the_jobs_steps_show() -> None:
    correlator = made(fleet := Fleet(TOPOLOGY))
    correlator.observe(steps("812", fleet, -1800, 0, 5.0))
    brake = finding("power_throttle", {"node": "n1"}, 10, began_s=0)
    correlator.take([brake], START + 20_000)
    correlator.observe(steps("812", fleet, 0, 1800, 15.0))
    (closed,) = correlator.take([over(brake, 1800)], START + 1_800_000)[-1:]
    assert closed.impact.step_time_factor == 3.0
    assert closed.impact.gpu_hours_lost == round(32 * 0.5 * (1 - 1 / 3), 2)
    assert closed.chain[-1].effect == "job:812"
    assert "3.00 times as long" in closed.chain[-1].because


@pytest.mark.parametrize("steps_s", [None, 0, 60], ids=["no steps", "killed at once", "killed as it stood"])
def test_what_jobs_lost_that_no_step_shows_is_not_known_and_not_nothing(steps_s: int | None) -> None:
    correlator = made(fleet := Fleet(TOPOLOGY))
    if steps_s is not None:
        correlator.observe(steps("812", fleet, -1800, steps_s, 5.0))
        end = START + 1000 * (3 + 2 * steps_s)
        correlator.happen(JobEvent(end, "end", JOB))
    brake = finding("power_throttle", {"node": "n1"}, 10, began_s=0)
    (*_, revision) = correlator.take([brake], START + 600_000)
    (job,) = revision.impact.jobs
    for of in (job, revision.impact):
        assert (of.step_time_factor, of.gpu_hours_lost, of.gpus) == (None, None, 32)
    assert revision.title.endswith("what it cost is not known")


def test_what_an_idle_node_costs_is_nothing_where_jobs_are_known_and_unknown_elsewhere() -> None:
    brake = finding("power_throttle", {"node": "n9"}, 10, began_s=0)
    for events, lost in (((), None), ((JobEvent(JOB.start, "start", JOB),), 0.0)):
        correlator = Correlator(TOPOLOGY, Fleet(TOPOLOGY))
        for event in events:
            correlator.happen(event)
        (*_, revision) = correlator.take([brake], START + 600_000)
        assert (revision.impact.jobs, revision.impact.gpu_hours_lost) == ((), lost)


def test_a_job_that_stands_still_loses_all_its_time() -> None:
    correlator = made(fleet := Fleet(TOPOLOGY))
    correlator.observe(steps("812", fleet, -1800, 0, 5.0))
    hang = finding("job_hang", {"job_id": "812"}, 240, began_s=0)
    (*_, last) = [*correlator.take([hang], START + 3_600_000), *correlator.end(START + 3_600_000)]
    assert 31 < (last.impact.gpu_hours_lost or 0.0) <= 32
    assert last.impact.jobs[0].stood_s > 3500


def test_an_incident_of_very_many_findings_is_bounded_and_says_so() -> None:
    port: dict[str, str | int] = {"node": "n1", "nic": "mlx0"}
    findings = []
    for number in range(MOST_MEMBERS + 50):
        flap = finding("link_flap", port, number * 100)
        findings += [flap, over(flap, number * 100 + 50)]
    correlator = Correlator(TOPOLOGY, Fleet(TOPOLOGY))
    (*_, incident) = correlator.take(findings, START + 86_400_000)
    assert len(incident.members) == MOST_MEMBERS
    assert incident.unlisted == 50
    assert incident.causes[0].finding == findings[0].id


ENTITIES: dict[str, list[dict[str, str | int]]] = {
    "gpu": [{"node": node, "gpu": gpu} for node in NODES[:4] for gpu in (0, 1)],
    "node": [{"node": node} for node in NODES],
    "nic": [{"node": "n0", "nic": "mlx0"}, {"node": "n1", "nic": "mlx0"}, {"switch": "leaf-0", "port": "e1"}],
    "switch": [{"switch": "leaf-0"}, {"switch": "spine"}, {"switch": "leaf-0", "port": "up"}],
    "job": [{"job_id": "812"}, {"job_id": "9"}],
    "mount": [{"mount": "/scale"}],
}
FAULTS: list[tuple[Fault, str]] = [
    ("power_throttle", "node"), ("thermal_throttle", "gpu"), ("gpu_lost", "gpu"), ("node_down", "node"),
    ("nvlink_fault", "node"), ("ecc_correctable_storm", "gpu"), ("ecc_uncorrectable", "gpu"),
    ("row_remap_pending", "gpu"), ("link_flap", "nic"), ("link_down", "nic"), ("link_down", "switch"),
    ("fabric_congestion", "switch"), ("straggler", "gpu"), ("job_hang", "job"), ("storage_slow", "mount"),
]  # fmt: skip


@st.composite
def histories(draw: st.DrawFn) -> list[Step]:
    """Draw findings that fire and resolve, jobs that come and go, and steps, in order of event time."""
    events: list[tuple[Instant, int, Step]] = []
    count = draw(st.integers(1, 25))
    span_s = draw(st.sampled_from([300, 4000]))
    for _ in range(count):
        fault, kind = draw(st.sampled_from(FAULTS))
        at_s = draw(st.integers(60, span_s))
        began_s = at_s - draw(st.sampled_from([0, 5, 60, 300]))
        one = finding(
            fault,
            draw(st.sampled_from(ENTITIES[kind])),
            at_s,
            began_s=began_s,
            score=draw(st.sampled_from([0.2, 0.7, 1.0])),
            severity=draw(st.sampled_from(["page", "ticket"])),
        )
        events.append((one.detected_at, 2, one))
        if draw(st.booleans()):
            end = over(one, at_s + draw(st.integers(1, span_s)))
            events.append((end.detected_at, 2, end))
    other = Job("9", ("n4", "n5"), START + 1000 * draw(st.integers(0, span_s)), 8)
    events.append((other.start, 0, JobEvent(other.start, "start", other)))
    events.append((other.start + 500_000, 0, JobEvent(other.start + 500_000, "end", other)))
    return [event for _, _, event in sorted(events, key=_order) if not _again(event, events)]


def _order(entry: tuple[Instant, int, Step]) -> tuple[Any, ...]:
    at, kind, event = entry
    if isinstance(event, Finding):
        return at, kind, event.detector, json.dumps(event.entity), event.state, event.id
    return at, kind, "", "", "", ""


def _again(event: Step, events: Sequence[tuple[Instant, int, Step]]) -> bool:
    """Return whether an id was drawn twice: the engine lets none through."""
    if not isinstance(event, Finding):
        return False
    same = [e for _, _, e in events if isinstance(e, Finding) and e.id == event.id and e.state == event.state]
    return same[0] is not event


def run(history: Sequence[Step], cuts: Iterable[Instant], *, carried: bool) -> list[str]:
    """Return what is reported of a history whose steps come in pieces, with the correlator carried over each cut."""
    correlator = made(fleet := Fleet(TOPOLOGY))
    last = max(_at(event) for event in history) + 1_500_000
    # As the engine does it, a stretch ends at a grid, and right before a job starts or ends.
    jobs = {event.at - 1 for event in history if isinstance(event, JobEvent)}
    cuts = {cut for cut in cuts if cut < last}
    stops = sorted({*range(START, last, 300_000), *cuts, *jobs, last})
    revisions: list[str] = []
    before = START - 600_000
    for stop in stops:
        for event in history:
            if isinstance(event, JobEvent) and before < event.at <= stop:
                correlator.happen(event)
        correlator.observe(_steps_between(fleet, before, stop))
        due = [event for event in history if isinstance(event, Finding) and before < event.detected_at <= stop]
        revisions += [incident.to_json() for incident in correlator.take(due, stop)]
        before = stop
        if carried and stop in cuts:
            correlator = Correlator.restore(TOPOLOGY, fleet, correlator.snapshot())
    return revisions + [incident.to_json() for incident in correlator.end(last)]


def _steps_between(fleet: Fleet, after: Instant, stop: Instant) -> Batch:
    """Return a job's steps, every 30 s, every third one slow, of two ranks a little apart."""
    at = np.arange(after // 30_000 * 30_000 + 30_000, stop + 1, 30_000)
    at = at[at > after][:, None] + np.array([[0, 0]])
    full = np.ones(at.shape, bool)
    entities = np.array([fleet.index("steps", ("812", rank)) for rank in (0, 1)])
    values = np.where(at // 30_000 % 3 == 0, 17.1, 10.3) + np.array([[0.0, 0.001]])
    return Batch("steps", entities, at, full, {"step_time_s": values}, {"step_time_s": full})


def _at(event: Step) -> Instant:
    return event.detected_at if isinstance(event, Finding) else event.at if isinstance(event, JobEvent) else 0


@settings(max_examples=200, deadline=None)
@given(histories(), st.lists(st.integers(0, 6_000_000), max_size=4), st.booleans())
def test_no_cut_and_no_restore_changes_what_is_reported(history: list[Step], offsets: list[int], carried: bool) -> None:
    whole = run(history, [], carried=False)
    assert run(history, [START + offset for offset in offsets], carried=carried) == whole


@settings(max_examples=50, deadline=None)
@given(histories(), st.floats(0, 1))
def test_what_comes_later_changes_nothing_that_was_reported(history: list[Step], share: float) -> None:
    times = sorted(_at(event) for event in history)
    upto = times[int(share * (len(times) - 1))]
    early = run([event for event in history if _at(event) <= upto], [upto], carried=False)
    whole = run(history, [upto], carried=False)
    assert [line for line in early if _revised(line) <= upto] == [line for line in whole if _revised(line) <= upto]


def _revised(line: str) -> Instant:
    at = np.datetime64(json.loads(line)["revised_at"].removesuffix("Z"), "ms")
    return int(at.astype(np.int64))


@settings(max_examples=100, deadline=None)
@given(histories())
def test_every_finding_is_in_one_incident_and_no_chain_goes_in_circles(history: list[Step]) -> None:
    last: dict[str, Any] = {}
    for line in run(history, [], carried=False):
        incident = json.loads(line)
        assert incident["revision"] == last.get(incident["id"], {"revision": 0})["revision"] + 1
        assert incident["state"] == "joined" or abs(sum(c["score"] for c in incident["causes"]) - 1) < 0.5
        last[incident["id"]] = incident
    homes = [member["id"] for incident in last.values() for member in incident["members"]]
    fired = [event.id for event in history if isinstance(event, Finding) and event.state == "firing"]
    assert sorted(homes) == sorted(fired)
    for incident in last.values():
        chain = [link for link in incident["chain"] if not link["effect"].startswith("job:")]
        TopologicalSorter({link["effect"]: [link["cause"]] for link in chain}).prepare()  # raises CycleError
