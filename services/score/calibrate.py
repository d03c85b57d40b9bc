"""What is usual at a site, learnt from the earlier half of its healthy history, and judged on the later."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from detectors.engine.engine import Choice
from services.kit.errors import UsageError
from services.recording.cut import cut_recording
from services.recording.embedded import engine_for, fed
from services.recording.reader import Recording
from services.score.suite import Scorecard

_SHORTEST_MS = 60_000
"""A stretch shorter than that teaches nothing."""


def halves(recordings: Sequence[Recording], folder: Path) -> tuple[list[Recording], list[Recording]]:
    """Return recordings that are the earlier and the later half of the given ones, by time, each at least a minute.

    The one that lies across the middle is cut in two, into `folder`. UserError: there is too little of it.
    """
    ordered = sorted(recordings, key=lambda one: (one.manifest.start, one.manifest.name))
    left_ms = sum(one.manifest.end - one.manifest.start for one in ordered) // 2
    earlier: list[Recording] = []
    later: list[Recording] = []
    for one in ordered:
        length = one.manifest.end - one.manifest.start
        if left_ms >= length - _SHORTEST_MS:
            earlier.append(one)
        elif left_ms < _SHORTEST_MS:
            later.append(one)
        else:
            middle, name = one.manifest.start + left_ms, one.manifest.name
            for lot, side, stretch in ((earlier, "earlier", {"end": middle}), (later, "later", {"start": middle})):
                part = f"{name}-{side}"
                lot.append(Recording.open(cut_recording(one, folder / part, name=part, **stretch)))
        left_ms = max(0, left_ms - length)
    if not earlier or not later:
        raise UsageError(
            "there is too little history to learn from one half of it and judge on the other",
            remedy="give recordings of some hours, of times when all was well",
        )
    return earlier, later


def learnt(
    recordings: Sequence[Recording],
    choices_with: Callable[[Mapping[str, Any]], Sequence[Choice]],
    moved: Callable[[str, float], None] = lambda _name, _share: None,
) -> dict[str, dict[str, Any]]:
    """Return what is usual in all of the recordings, by detector: each goes on from what the one before has taught.

    `choices_with` returns the detectors with such a calibration; `moved` hears which recording is read, and how far.
    """
    known: dict[str, dict[str, Any]] = {}
    for one in recordings:
        begin, length = one.manifest.start, max(one.manifest.end - one.manifest.start, 1)
        engine = engine_for(one, choices_with(known))
        for step in fed(engine, one):
            moved(one.manifest.name, (step.at - begin) / length)
        known = engine.calibration()
    return known


def false_by_detector(card: Scorecard) -> dict[str, int]:
    """Return how many of the false alarms are each detector's."""
    return dict(Counter(outcome.finding.detector for _, outcome in card.false_alarms() if outcome.finding is not None))
