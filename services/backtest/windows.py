"""The windows that a long history is cut into: each is warmed up by what was before it, and so stands alone."""

from dataclasses import dataclass

from detectors.contract import Instant
from detectors.engine.engine import GRID_MS

TAIL_MS = 60_000
"""How far a window is read beyond its end: what is decided at its end is decided as it would be in the middle."""


@dataclass(frozen=True)
class Window:
    """From `begin` to before `end` (ms) findings are the window's own; it is read from `read_from` to `read_to`."""

    read_from: Instant
    begin: Instant
    end: Instant
    read_to: Instant
    """Included."""


@dataclass(frozen=True)
class Cuts:
    """How long windows are, how long before each the detectors are warmed up, and how often they decide (ms)."""

    length_ms: int = 86_400_000
    warm_ms: int = 7_200_000
    """Two hours: a job that no scheduler names is known after 40 minutes, step times are compared with an hour's."""
    grid_ms: int = GRID_MS
    """A divisor of half a minute, of which detectors make their windows."""


def windows(cuts: Cuts, held: tuple[Instant, Instant], asked: tuple[Instant, Instant]) -> list[Window]:
    """Return the windows, in order, over what is both `held` by the data (ms, both included) and `asked` for.

    They begin at whole multiples of their length since the epoch, so that a longer history has the same windows again;
    less than a minute at the end is none of its own.
    """
    first, last = max(held[0], asked[0]), min(held[1], asked[1])
    found = []
    begin = first
    while begin <= last:
        end = (begin // cuts.length_ms + 1) * cuts.length_ms
        if last + 1 - end < TAIL_MS:
            end = last + 1
        found.append(Window(max(held[0], begin - cuts.warm_ms), begin, end, min(held[1], end + TAIL_MS)))
        begin = end
    return found
