"""The scoring rule: cases by hand, and against trying every assignment there is."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.contract import Finding, finding_id
from services.recording.model import Label
from services.score.matching import Outcome, about, judge

GPU: dict[str, str | int] = {"node": "n1", "gpu": 3}


def label(onset: int = 100, end: int = 400, within: int = 60, **more: Any) -> Label:
    known = {"id": f"f{onset}", "fault": "gpu_lost", "entity": GPU}
    return Label.model_validate(known | {"onset": onset * 1000, "end": end * 1000, "within_s": within} | more)


def finding(
    at: int, entity: dict[str, str | int] | None = None, fault: Any = "gpu_lost", state: Any = "firing"
) -> Finding:
    entity = GPU if entity is None else entity
    key = finding_id("d", entity, at * 1000)
    return Finding(key, "d", fault, entity, state, at * 1000, at * 1000, "page", 1.0, "s", "a")


def kinds(outcomes: list[Outcome]) -> list[str]:
    return sorted(outcome.kind for outcome in outcomes)


@pytest.mark.parametrize("at", [100, 130, 160])
def test_in_time_is_a_hit(at: int) -> None:
    (outcome,) = judge([finding(at)], [label()])
    assert (outcome.kind, outcome.delay_s) == ("hit", at - 100)


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        ([finding(99)], ["false", "miss"]),
        ([finding(161)], ["late", "miss"]),
        ([finding(401)], ["false", "miss"]),
        ([finding(120, {"node": "n1"})], ["hit"]),
        ([finding(120, {"node": "n2"})], ["false", "miss"]),
        ([finding(120, {"node": "n1", "gpu": 4})], ["false", "miss"]),
        ([finding(120, fault="node_down")], ["false", "miss"]),
        ([finding(120), finding(300)], ["hit", "repeat"]),
        ([finding(120), finding(500)], ["false", "hit"]),
        ([finding(120, state="resolved")], ["miss"]),
        ([], ["miss"]),
    ],
)
def test_what_becomes_of_findings_around_a_label(raised: list[Finding], expected: list[str]) -> None:
    assert kinds(judge(raised, [label()])) == expected


def test_eight_alerts_for_eight_gpus_are_one_hit_and_seven_repeats() -> None:
    raised = [finding(110, {"node": "n1", "gpu": gpu}) for gpu in range(8)]
    assert kinds(judge(raised, [label(entity={"node": "n1"})])) == ["hit"] + ["repeat"] * 7


def test_the_other_end_of_the_cable_is_as_right() -> None:
    port: dict[str, str | int] = {"switch": "s1", "port": "Ethernet8"}
    truth = label(fault="link_down", entity={"node": "n1", "nic": "mlx5_0"}, also=[port])
    assert about(truth, port)
    assert about(truth, {"switch": "s1"})
    assert not about(truth, {"node": "n1", "gpu": 0})
    assert kinds(judge([finding(110, port, "link_down")], [truth])) == ["hit"]


def test_optional_labels_and_distractors() -> None:
    optional, distractor = label(optional=True), label(fault="none", within=0, distractor=True)
    assert kinds(judge([], [optional, distractor])) == []
    assert kinds(judge([finding(110)], [optional])) == ["optional"]
    assert kinds(judge([finding(110)], [distractor])) == ["false"]
    required = label(within=30, entity={"node": "n1"})
    assert kinds(judge([finding(110)], [optional, required])) == ["hit"]


def test_two_labels_get_a_finding_each_even_if_that_takes_longer() -> None:
    narrow, wide = label(within=60), label(within=300, id="w", entity={"node": "n1"})
    outcomes = judge([finding(110), finding(250)], [wide, narrow])
    assert {o.label.id: o.delay_s for o in outcomes if o.label} == {"f100": 10, "w": 150}


_TIMES = st.integers(0, 40)


_ALARMS = st.lists(st.tuples(_TIMES, st.sampled_from([0, 1, None])), max_size=4)
_TRUTHS = st.lists(st.tuples(_TIMES, st.integers(0, 15), st.sampled_from([0, 1])), max_size=4)


@given(_ALARMS, _TRUTHS)
def test_the_matching_is_the_best_there_is(
    alarms: list[tuple[int, int | None]], truths: list[tuple[int, int, int]]
) -> None:
    raised = [
        replace(finding(at, {"node": "n"} if gpu is None else {"node": "n", "gpu": gpu}), id=str(number))
        for number, (at, gpu) in enumerate(alarms)
    ]
    labels = [
        label(onset, onset + 60, within, id=str(number), entity={"node": "n", "gpu": gpu})
        for number, (onset, within, gpu) in enumerate(truths)
    ]
    best = (0, 0.0)
    for size in range(min(len(raised), len(labels)) + 1):
        for chosen in itertools.permutations(range(len(raised)), size):
            for places in itertools.combinations(range(len(labels)), size):
                pairs = [(raised[a], labels[b]) for a, b in zip(chosen, places, strict=True)]
                if all(
                    b.onset <= a.detected_at <= b.onset + b.within_s * 1000 and about(b, a.entity) for a, b in pairs
                ):
                    delay = sum((a.detected_at - b.onset) / 1000 for a, b in pairs)
                    best = max(best, (size, -delay))
    hits = [outcome for outcome in judge(raised, labels) if outcome.kind == "hit"]
    assert (len(hits), -sum(outcome.delay_s or 0.0 for outcome in hits)) == best
    outcomes = judge(raised, labels)
    assert sum(o.kind in {"hit", "miss"} for o in outcomes) == len(labels)
    assert sum(o.finding is not None for o in outcomes) == len(raised)
