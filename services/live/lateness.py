"""How far behind the clock a server's samples can be relied on: by when samples turn up that were not there before."""

from collections import deque

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

FIRST_MS = 60_000
"""Until it is known. VictoriaMetrics shows nothing younger than 30 s; remote-write takes seconds."""
LEAST_MS, MOST_MS = 5_000, 600_000
_LOOKS = 40
"""Polls that count: ten minutes of one every fifteen seconds."""
_FEWEST = 8
"""Polls before less than the first guess is relied on."""
_MARGIN = 1.5
_BIN_MS = 1000


class Lateness:
    """Watches polls that overlap: a sample older than the last poll that the last poll did not have came late.

    `least_ms`: what is never gone below; None for the usual.
    """

    def __init__(self, least_ms: int | None = None) -> None:
        self._least_ms = LEAST_MS if least_ms is None else least_ms
        self._first_ms = FIRST_MS if least_ms is None else least_ms
        self._seen: deque[int] = deque(maxlen=_LOOKS)
        self._last: tuple[int, int, Ints] | None = None
        """Of the last poll: from when to when it reached (bins), and how many samples each bin had."""

    @property
    def delay_ms(self) -> int:
        """Return how far behind the clock event time is to stay."""
        latest = round(_MARGIN * max(self._seen, default=0))
        known = self._least_ms if len(self._seen) >= _FEWEST else self._first_ms
        return min(max(known, latest), MOST_MS)

    def polled(self, after: int, until: int, times: Ints) -> None:
        """Take the times (n,) of all samples that a poll found with ``after < time <= until``, epoch ms."""
        low, high = after // _BIN_MS + 1, until // _BIN_MS
        if high <= low:
            return
        bins = times // _BIN_MS
        counts = np.bincount(bins[(bins >= low) & (bins < high)] - low, minlength=high - low).astype(np.int64)
        if self._last is not None:
            self._compare(low, counts)
        self._last = low, high, counts

    def _compare(self, low: int, counts: Ints) -> None:
        if self._last is None:
            return
        before_low, before_high, before = self._last
        start, stop = max(low, before_low), before_high
        if stop <= start:
            return
        more = counts[start - low : stop - low] > before[start - before_low : stop - before_low]
        late = np.flatnonzero(more)
        self._seen.append(int(stop - (start + late[0])) * _BIN_MS if len(late) else 0)
