"""What a server holds where a capture found nothing: its range of time, and those of its series that we know."""

import time

import numpy as np

from services.kit.errors import UsageError
from services.recording.importers.parts.series.known_series import KNOWN_METRICS, stream_of
from services.recording.importers.parts.series.query_api import QueryApi, TooMuchError
from services.recording.instants import format_instant
from services.recording.schema import STREAMS

_EXACT_MS = 60_000
_LOOK_MS = 3 * 3_600_000
"""A server may take a whole block's time for that of a series: where it says, the samples themselves are looked at."""
_AHEAD_MS = 86_400_000
"""A replay's samples may lie ahead of the clock."""
_SHOWN = 6
_KNOWN = f'{{__name__=~"{KNOWN_METRICS}"}}'


class NothingHeldError(UsageError):
    """A server has nothing that we know of the time asked for."""


def nothing_captured(api: QueryApi, stretch: tuple[int, int], filters: str) -> NothingHeldError:
    """Return the error for a capture of a stretch (epoch ms) that found nothing, with what the server does hold.

    `filters` are the options that left series out, as the user gave them; "" where there are none.
    """
    asked = f"{format_instant(stretch[0])} to {format_instant(stretch[1])}"
    now = round(time.time() * 1000) + _AHEAD_MS
    known = [name for name in api.label_values("__name__", _KNOWN, 0, now) if stream_of(name) is not None]
    problem = f"{api.access.url} has no samples that we know from {asked}"
    if not known:
        names = api.label_values("__name__", '{__name__=~".+"}', 0, now)
        held = f"it holds {_some(names)}" if names else "it holds no series at all"
        return NothingHeldError(
            f"{problem}: {held}",
            remedy="give the server that scrapes dcgm-exporter, node_exporter, ipmi_exporter or sonic-exporter",
        )
    first, last = _range(api, known[0], now)
    by_stream = {name: [one for one in known if stream_of(one) == name] for name in STREAMS}
    shown = "; ".join(f"{stream}: {_some(names)}" for stream, names in by_stream.items() if names)
    words = f"{problem}: it holds such from {format_instant(first)} to {format_instant(last)} ({shown})"
    inside = stretch[0] <= last and first <= stretch[1]
    remedy = (
        f"correct {filters or '--match'}" if inside else "correct --from and --to; times are in UTC where they end in Z"
    )
    return NothingHeldError(words, remedy=remedy)


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(sorted(names)[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _range(api: QueryApi, metric: str, now: int) -> tuple[int, int]:
    """Return about when the first and the last sample of what we know were taken: halving, then looking."""

    def holds(start: int, end: int) -> bool:
        return bool(api.label_values("__name__", _KNOWN, start, end))

    low, high = 0, now
    while high - low > _EXACT_MS:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(0, middle) else (middle, high)
    first = low
    low, high = first, now
    while high - low > _EXACT_MS:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle, now) else (low, middle)
    begin, end = _looked(api, metric, first, first + _LOOK_MS), _looked(api, metric, low - _LOOK_MS, high)
    return begin[0] if begin else first, end[1] if end else high


def _looked(api: QueryApi, metric: str, start: int, end: int) -> tuple[int, int] | None:
    try:
        times = api.raw(f'{{__name__="{metric}"}}', start - 1, end).times
    except TooMuchError:
        return None
    return (int(np.min(times)), int(np.max(times))) if len(times) else None
