"""How long an alert is held after its GPU or node was last slow: what comes and goes is one finding."""

from typing import Final

from detectors.case_book import OpenCase
from detectors.contract import Instant
from detectors.signals.held_down import RETURNED_MS

HOLD_MS, _LONGEST_MS = 270_000, 600_000
"""An alert is resolved within five minutes of the fault's end; until then a fault that comes and goes is one. It
is held for longer than it ever kept up, but not for ever."""
_BRIEF_MS, _HOLD_BRIEF_MS = 300_000, 420_000
"""What was slow for less than five minutes comes back more likely than not: it is held for longer than that."""
_GAP_MS: Final = 120_000
_GAP_ROOM: Final = 1.15


def slow_again(case: OpenCase, now: Instant) -> None:
    """Note that it is slow now, and for how long it had kept up."""
    gap_ms = now - case.memo["slow_at"]
    if not case.memo["slow"] and gap_ms > _GAP_MS:
        case.memo["gap_ms"] = max(case.memo["gap_ms"], gap_ms)
    case.memo |= {"slow_at": now, "slow": True}


def hold_ms(case: OpenCase) -> float:
    """Return how long it must have kept up to be over, in milliseconds."""
    if case.memo.get("again"):
        return RETURNED_MS
    if gap_ms := float(case.memo["gap_ms"]):
        return min(max(_GAP_ROOM * gap_ms, HOLD_MS), _LONGEST_MS)
    brief = int(case.memo["slow_at"]) - case.started_at < _BRIEF_MS
    return _HOLD_BRIEF_MS if brief else HOLD_MS
