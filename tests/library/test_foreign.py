"""Recordings made by others: the detectors never saw how they were made, so this is what a stranger would see."""

from collections import Counter
from functools import cache

import pytest

from benchmarks.foreign import FOREIGN, recordings
from services.recording.reader import Recording
from services.score.suite import Scorecard, Scored, score_recording

PRECISION, RECALL = 0.95, 0.90
"""The bars of the issue on detection, over all nine."""
FAULT_FREE = "quies-70"

pytestmark = pytest.mark.skipif(
    not recordings(), reason=f"no recordings at {FOREIGN}; set HINDCAST_DATA to the folder that has foreign-recordings"
)


@cache
def scored(name: str) -> Scored:
    return score_recording(FOREIGN / name)


def card() -> Scorecard:
    return Scorecard([scored(path.name) for path in recordings()])


@pytest.mark.parametrize("name", [path.name for path in recordings()])
def test_each_required_label_of_a_recording_is_hit_or_missed_once(name: str) -> None:
    labels = [one for one in Recording.open(FOREIGN / name).labels() if not (one.distractor or one.optional)]
    judged = [one.label.id for one in scored(name).outcomes if one.label is not None and one.kind in {"hit", "miss"}]
    assert Counter(judged) == Counter(label.id for label in labels)


def test_precision_and_recall_hold_on_recordings_made_by_others() -> None:
    total = card().by_fault["all"]
    false = [f"{name}: {outcome.finding and outcome.finding.summary}" for name, outcome in card().false_alarms()]
    assert total.precision >= PRECISION, false
    missed = [f"{one.name}: {o.label}" for one in card().recordings for o in one.outcomes if o.kind == "miss"]
    assert total.recall >= RECALL, missed


def test_where_nothing_is_wrong_there_is_at_most_one_false_alarm() -> None:
    assert sum(name == FAULT_FREE for name, _ in card().false_alarms()) <= 1
