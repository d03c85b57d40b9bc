"""Sweeps: which values are tried, which is best, and what is drawn of it."""

import xml.etree.ElementTree as ET
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.registry import discover
from services.kit.errors import UserError
from services.score.curve import svg_curve, sweep_sheet, text_curve
from services.score.matching import Outcome
from services.score.suite import Scorecard, Scored
from services.score.sweep import Point, best, kind_of, values_around
from services.score.tally import Manners
from services.score.test_matching import finding, label


def point(value: Any, hits: int, misses: int, false: int, delay: int = 10, is_default: bool = False) -> Point:
    outcomes = [Outcome("hit", "gpu_lost", label(), finding(100 + delay))] * hits
    outcomes += [Outcome("miss", "gpu_lost", label())] * misses
    outcomes += [Outcome("false", "gpu_lost", None, finding(900))] * false
    card = Scorecard([Scored("r", 1, "c", 2.0, outcomes, Manners(), {}, {})])
    return Point(value, is_default, card)


@pytest.mark.parametrize("detector", discover())
def test_every_number_has_a_range_around_its_default(detector: str) -> None:
    kind = kind_of(detector)
    for setting, default in kind.spec.defaults.items():
        if isinstance(default.value, str):
            with pytest.raises(UserError, match="has no range"):
                values_around(kind, setting)
            continue
        values = values_around(kind, setting)
        assert default.value in values, setting
        assert len(values) == len(set(values))
        if 0 < default.value < 1:
            assert all(0 < value < 1 for value in values if isinstance(value, float))


def test_what_does_not_exist_is_refused() -> None:
    with pytest.raises(UserError, match="no detector"):
        kind_of("crystal_ball")
    with pytest.raises(UserError, match="no setting"):
        values_around(kind_of("power_throttle"), "crystal")


def test_the_best_has_the_highest_f1_then_cries_wolf_least_then_is_quickest() -> None:
    worse, good = point(1, 5, 5, 0), point(2, 9, 1, 1)
    assert best([worse, good]).value == 2
    assert best([point(1, 9, 0, 2), point(2, 9, 2, 0)]).value == 2
    assert best([point(1, 9, 1, 0, delay=30), point(2, 9, 1, 0, delay=20)]).value == 2
    assert best([point(1, 9, 1, 0), point(2, 9, 1, 0, is_default=True)]).value == 2
    assert best([point(1, 0, 0, 0), point(2, 1, 9, 0)]).value == 2


counts = st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))


@given(st.lists(counts, min_size=1, max_size=9))
def test_whatever_was_swept_can_be_drawn(drawn: list[tuple[int, int, int]]) -> None:
    points = [point(value, *of, is_default=value == 0) for value, of in enumerate(drawn)]
    lines = text_curve(points).splitlines()
    assert len({line.index("|") for line in lines if "|" in line}) == 1
    placed = [one for one in points if one.counts.labels]
    assert any(mark in "".join(lines[1:-3]) for mark in "*B") == (best(points) in placed)
    svg = ET.fromstring(svg_curve("a<b", points))  # noqa: S314 - our own
    assert len(svg.findall("circle")) == len(placed)
    marks = [row.cells[-1] for row in sweep_sheet("a", "s", points).rows]
    assert sum("best" in mark for mark in marks) == 1
    assert sum("default" in mark for mark in marks) == 1
