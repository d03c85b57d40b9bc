"""Two configurations on the same recordings: what a change would have caught, missed, delayed, and its false alarms."""

from dataclasses import dataclass
from typing import Literal

from detectors.contract import Finding
from services.recording.model import Label
from services.score.matching import Outcome
from services.score.suite import Scorecard, Scored

Change = Literal[
    "caught", "missed", "earlier", "later", "false alarm gone", "false alarm new", "finding gone", "finding new"
]
"""The last two are of recordings that nobody has labelled: whether that is better is unknown."""
_UNEXPLAINED = {"false", "unknown"}


@dataclass(frozen=True)
class Difference:
    """One thing that the second configuration does otherwise; `seconds` is how much later it is (negative: earlier)."""

    recording: str
    change: Change
    fault: str
    label: Label | None
    before: Finding | None
    after: Finding | None
    seconds: float = 0.0


def differences(before: Scorecard, after: Scorecard) -> list[Difference]:
    """Return what differs, recording by recording, finding by finding."""
    return [
        difference
        for one, other in zip(before.recordings, after.recordings, strict=True)
        for difference in [*_labels(one, other), *_unexplained(one, other)]
    ]


def _labels(one: Scored, other: Scored) -> list[Difference]:
    first, second = (
        {o.label.id: o for o in scored.outcomes if o.label is not None and o.kind in {"hit", "miss"}}
        for scored in (one, other)
    )
    found: list[Difference] = []
    for name in sorted(first.keys() | second.keys()):
        was, now = first.get(name), second.get(name)
        label = (now or was or Outcome("miss", "")).label
        hit_before, hit_now = was is not None and was.kind == "hit", now is not None and now.kind == "hit"
        old, new = was.finding if was else None, now.finding if now else None
        fault = label.fault if label else ""
        if hit_now and not hit_before:
            found.append(Difference(one.name, "caught", fault, label, old, new))
        elif hit_before and not hit_now:
            found.append(Difference(one.name, "missed", fault, label, old, new))
        elif hit_before and old is not None and new is not None and new.detected_at != old.detected_at:
            later_s = (new.detected_at - old.detected_at) / 1000
            found.append(Difference(one.name, "later" if later_s > 0 else "earlier", fault, label, old, new, later_s))
    return found


def _unexplained(one: Scored, other: Scored) -> list[Difference]:
    """Return what only one of two raised and no label explains: a false alarm, or where no truth is known a finding."""
    was, now = (
        {identity(o.finding): o for o in scored.outcomes if o.kind in _UNEXPLAINED and o.finding is not None}
        for scored in (one, other)
    )
    gone = [
        Difference(
            one.name, "false alarm gone" if o.kind == "false" else "finding gone", o.fault, None, o.finding, None
        )
        for name, o in was.items()
        if name not in now
    ]
    new = [
        Difference(one.name, "false alarm new" if o.kind == "false" else "finding new", o.fault, None, None, o.finding)
        for name, o in now.items()
        if name not in was
    ]
    return gone + new


def identity(finding: Finding) -> tuple[str, str, tuple[tuple[str, str | int], ...]]:
    """Return what two findings of the same trouble share."""
    return finding.detector, finding.fault, tuple(sorted(finding.entity.items()))
