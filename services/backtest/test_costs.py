"""Who is alerted how often, what troubles cost, and what policies would have saved: by figures worked out by hand."""

from typing import Any

import pytest

from detectors.contract import Finding
from services.backtest.judged import Judged, judged
from services.backtest.losses import Assumptions, Ledger, assumptions
from services.backtest.pages import notices, offenders, pages_a_week
from services.backtest.policies import Policy, PolicyOutcome, outcome_of, policy_of
from services.backtest.test_windows import alarm, over
from services.backtest.truth import Truth, of_labels
from services.kit.errors import UserError
from services.recording.model import Gpu, Job, Label, Node, Topology

HOUR, DAY = 3_600_000, 86_400_000
TOPOLOGY = Topology(
    nodes=[Node(name=f"n{n}", rack=f"r{(n + 1) // 2}", gpus=[Gpu(gpu=g) for g in range(8)]) for n in range(1, 5)]
)
ASSUMED = Assumptions(checkpoint_min=60, restart_min=30, reaction_min=0, repair_h=4, spares=1)
JOB = Job(job_id="j", nodes=["n1", "n2"], start=0, state="RUNNING")


def label(
    node: str = "n1", onset: int = 10 * HOUR, end: int = 20 * HOUR, lost: float | None = 100, **more: Any
) -> Label:
    impact = None if lost is None else {"gpu_hours_lost": lost}
    fields = {"fault": "gpu_lost", "entity": {"node": node}, "onset": onset, "end": end, "within_s": 36_000}
    return Label.model_validate({"id": f"f-{node}-{onset}", "impact": impact} | fields | more)


def test_alerts_of_a_rack_on_one_fault_are_one_page() -> None:
    first, beside, other = alarm(HOUR), alarm(HOUR + 5000, node="n2"), alarm(HOUR, node="n3")
    sent = notices([first, beside, other], TOPOLOGY)
    assert [(one.finding.id, one.team) for one in sent] == [(first.id, "hardware"), (other.id, "hardware")]
    again = alarm(3 * HOUR)
    ended = [over(first, 2 * HOUR), over(beside, 2 * HOUR)]
    assert len(notices([first, beside, *ended, again], TOPOLOGY)) == 2
    assert len(notices([first, beside, ended[0], again], TOPOLOGY)) == 1
    assert pages_a_week(sent, 2.0) == {"hardware": {"page": 1.0, "ticket": 0.0}, "all": {"page": 1.0, "ticket": 0.0}}


def test_who_comes_back_on_another_day_is_an_offender() -> None:
    raised = [alarm(HOUR), over(alarm(HOUR), 2 * HOUR), alarm(DAY + HOUR), alarm(HOUR, node="n3")]
    assert offenders(notices(raised, TOPOLOGY)) == [{"machine": "n1", "days": 2, "notices": 2, "faults": ["gpu_lost"]}]


def test_what_is_saved_is_what_was_left_less_a_restart() -> None:
    ledger = Ledger([JOB], TOPOLOGY, ASSUMED)
    (truth,) = of_labels([label()])
    assert ledger.lost(truth) == 100
    # Seven of ten hours were left; 16 GPUs restart: half a checkpoint interval and half an hour.
    assert ledger.saved(truth, 13 * HOUR) == pytest.approx(70 - 16 * 1.0)
    assert ledger.saved(truth, 20 * HOUR) == 0
    assert Ledger([], TOPOLOGY, ASSUMED).saved(truth, 13 * HOUR) == pytest.approx(70)


def test_a_job_that_a_trouble_ended_has_lost_what_was_not_written() -> None:
    ended = JOB.model_copy(update={"end": 12 * HOUR, "state": "NODE_FAIL"})
    ledger = Ledger([ended], TOPOLOGY, ASSUMED)
    (truth,) = of_labels([label(lost=None)])
    assert ledger.lost(truth) == 16 * 1.0
    assert ledger.saved(truth, 11 * HOUR) == 16 * 0.5
    assert ledger.saved(truth, 13 * HOUR) == 0
    assert Ledger([JOB], TOPOLOGY, ASSUMED).lost(truth) is None
    cancelled = ended.model_copy(update={"state": "CANCELLED"})
    assert Ledger([cancelled], TOPOLOGY, ASSUMED).lost(truth) is None


def test_assumptions_are_set_by_name() -> None:
    assert assumptions(["spares=0", "repair_h=1.5"]) == Assumptions(spares=0, repair_h=1.5)
    for wrong in ("luck=1", "spares=many", "spares=-1", "spares"):
        with pytest.raises(UserError, match="there are checkpoint_min"):
            assumptions([wrong])


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("none", Policy("none", 0)),
        ("drain-on-page", Policy("drain-on-page", 1)),
        ("drain-after 3", Policy("drain-after 3", 3)),
    ],
)
def test_policies_are_named(text: str, policy: Policy) -> None:
    assert policy_of(text) == policy


@pytest.mark.parametrize("text", ["drain", "drain-after", "drain-after 0", "drain-after x"])
def test_what_is_no_policy_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="no policy"):
        policy_of(text)


def outcome(pages: int, labels: list[Label], raised: list[Finding]) -> PolicyOutcome:
    truths: list[Truth] = of_labels(labels)
    subjects: list[Judged] = [judged(raised, truths)]
    return outcome_of(Policy("p", pages), subjects, [Ledger([JOB], TOPOLOGY, ASSUMED)])


def test_doing_nothing_costs_what_the_faults_cost() -> None:
    found = outcome(0, [label(), label("n3", lost=None)], [alarm(11 * HOUR)])
    assert (found.drains, found.lost_to_faults, found.lost_to_drains, found.of_unknown_cost) == (0, 100, 0, 1)


def test_a_drain_ends_a_fault_and_costs_a_restart_from_the_last_checkpoint() -> None:
    at = 11 * HOUR + HOUR // 4
    found = outcome(1, [label()], [alarm(at)])
    # A quarter of an hour since the checkpoint of each full hour, and half an hour to restart, of 16 GPUs.
    assert (found.drains, found.false_drains, found.without_spare) == (1, 0, 0)
    assert found.lost_to_faults == pytest.approx(100 * 1.25 / 10)
    assert found.lost_to_drains == pytest.approx(16 * 0.75)


def test_a_drain_for_nothing_saves_nothing_and_a_drained_node_is_not_drained_again() -> None:
    found = outcome(1, [], [alarm(11 * HOUR), alarm(12 * HOUR), alarm(16 * HOUR)])
    assert (found.drains, found.false_drains, found.lost_to_faults) == (2, 2, 0)
    assert found.lost_to_drains == pytest.approx(2 * 16 * 0.5)


def test_without_a_spare_the_job_waits_until_a_node_is_back() -> None:
    found = outcome(1, [], [alarm(11 * HOUR), alarm(12 * HOUR, node="n2")])
    assert (found.drains, found.without_spare) == (2, 1)
    assert found.lost_to_drains == pytest.approx(16 * 0.5 + 16 * (0.5 + 3))


def test_a_node_is_drained_at_its_nth_page_within_four_weeks() -> None:
    often = [alarm(day * DAY) for day in (1, 2, 3)]
    assert outcome(3, [], often).drains == 1
    assert outcome(3, [], often[:2]).drains == 0
    assert outcome(3, [], [alarm(day * DAY) for day in (1, 2, 30)]).drains == 0
