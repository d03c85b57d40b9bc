"""Figures from counts, and how findings behave."""

import math
from dataclasses import replace

import pytest

from detectors.contract import Finding
from services.score.matching import judge
from services.score.tally import Tally, manners, tally, upper_bound
from services.score.test_matching import GPU, finding, label


def test_figures_follow_from_counts() -> None:
    counts = tally(judge([finding(110), finding(500), finding(900)], [label(), label(2000, 2100)]))["all"]
    assert (counts.hits, counts.misses, counts.false_alarms) == (1, 1, 2)
    assert counts.precision == pytest.approx(1 / 3)
    assert counts.recall == 0.5
    assert counts.f1 == pytest.approx(0.4)
    assert counts.delay_s(0.5) == 10


def test_without_anything_there_is_no_figure() -> None:
    counts = tally([])["all"]
    assert math.isnan(counts.precision)
    assert math.isnan(counts.recall)
    assert math.isnan(Tally().delay_s(0.5))


def test_no_false_alarm_still_has_an_upper_bound() -> None:
    """The rule of three: with none seen, the 95 % bound is about 3."""
    assert upper_bound(0) == pytest.approx(2.9957, abs=1e-3)
    assert upper_bound(3) == pytest.approx(7.7537, abs=1e-3)


def test_the_first_finding_in_the_job_must_be_the_culprit() -> None:
    truth, nodes = label(job_id="812"), {"812": {"n1", "n2"}}
    victim, culprit = finding(105, {"node": "n2"}, "straggler"), finding(110)

    def first(*raised: Finding) -> tuple[int, int]:
        found = manners(raised, [truth], judge(raised, [truth]), nodes, 10_000_000)
        return found.jobs_hit, found.culprit_first

    assert first(culprit) == (1, 1)
    assert first(victim, culprit) == (1, 0)
    assert first() == (0, 0)


def test_flaps_and_resolves_are_counted() -> None:
    truth = label()
    flapping = [finding(110), finding(200)]
    found = manners(flapping, [truth], judge(flapping, [truth]), {}, 10_000_000)
    assert (found.hits, found.once) == (1, 0)
    opened = finding(110)
    closed = finding(110, GPU, state="resolved")
    for at, in_time in ((600_000, 1), (800_000, 0)):
        pair = [opened, replace(closed, detected_at=at)]
        found = manners(pair, [truth], judge(pair, [truth]), {}, 10_000_000)
        assert (found.resolvable, found.resolved_in_time) == (1, in_time)
