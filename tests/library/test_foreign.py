"""Recordings made by others: the detectors never saw how they were made, so this is what a stranger would see."""

from functools import cache

import pytest

from benchmarks.foreign import FOREIGN, recordings, score
from services.score.suite import Scorecard

PRECISION, RECALL = 0.95, 0.90
"""The bars of the issue on detection, over all nine."""
FAULT_FREE = "quies-70"

pytestmark = pytest.mark.skipif(
    not recordings(), reason=f"no recordings at {FOREIGN}; set HINDCAST_DATA to the folder that has foreign-recordings"
)


@cache
def card() -> Scorecard:
    return score("all", [], None)


def test_precision_and_recall_hold_on_recordings_made_by_others() -> None:
    total = card().by_fault["all"]
    false = [f"{name}: {outcome.finding and outcome.finding.summary}" for name, outcome in card().false_alarms()]
    assert total.precision >= PRECISION, false
    missed = [f"{one.name}: {o.label}" for one in card().recordings for o in one.outcomes if o.kind == "miss"]
    assert total.recall >= RECALL, missed


def test_where_nothing_is_wrong_there_is_at_most_one_false_alarm() -> None:
    assert sum(name == FAULT_FREE for name, _ in card().false_alarms()) <= 1
