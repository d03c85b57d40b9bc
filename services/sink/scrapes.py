"""What Prometheus would know of its targets had it scraped them: `up`, and which series a scrape no longer showed.

Event time is cut into ticks of the stream's interval. A watermark that passes a tick's end settles it: a target of the
topology without a row in it, while others had one, was down (`up` 0 at the tick's start); what reported in the tick
before and not in this one has ended. All of it follows from rows and watermarks alone, so that a sink that starts again
from its committed offset decides the same.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from services.sink.naming import Naming
from services.sink.pages import Ints
from services.sink.rows import Entities, Mask

UNKNOWN_INTERVAL_MS = 300_000
"""Prometheus' look-back: a series silent for longer has ended by itself. Used where a stream has no fixed interval."""
PENDING_ROWS = 2_000_000
"""Rows kept while no watermark settles them; a producer that sends no watermarks gets no `up` 0."""


@dataclass(slots=True)
class Verdict:
    """What was decided: `up` of targets (t,) at times, and the entities that ended, each at a time; all epoch ms."""

    targets: Ints
    up_times: Ints
    up: Ints
    ended: Ints
    ended_times: Ints


@dataclass(slots=True)
class _Tick:
    times: list[Ints] = field(default_factory=list)
    entities: list[Ints] = field(default_factory=list)


class Scrapes:
    """One stream of one generation of a replay; `interval_ms` None where it has none that is known.

    `begin_ms` is where the generation's data begin, if known. `hold` is the offset from which all must be read again
    to decide the same as before, None once the stream has ended.
    """

    def __init__(
        self, naming: Naming, entities: Entities, *, interval_ms: int | None, begin_ms: int | None, offset: int
    ) -> None:
        self._naming = naming
        self._entities = entities
        self._fixed = interval_ms is not None and naming.stream.target is not None
        self._interval = interval_ms if self._fixed and interval_ms is not None else UNKNOWN_INTERVAL_MS
        self._begin_ms = begin_ms
        self._complete_from: int | None = None
        self.targets: list[str] = []
        self._target_index: dict[str, int] = {}
        self._target_of: list[int] = []
        self._expected = np.array([self._target(name) for name in naming.expected], np.int64)
        self._ticks: dict[int, _Tick] = {}
        self._pending = 0
        self._alive: Mask = np.zeros(0, np.bool_)
        self._settled: int | None = None
        self._watermarks: deque[tuple[int, int]] = deque()
        self.hold: int | None = offset
        self._at_once: list[Verdict] = []
        self._up_to: Ints = np.zeros(0, np.int64)

    def rows(self, times: Ints, entities: Ints) -> None:
        """Take note of rows that came."""
        if not len(times):
            return
        if self._complete_from is None and self._begin_ms is not None and times.min() < self._begin_ms + self._interval:
            self._complete_from = self._begin_ms
        numbers = times // self._interval
        order = np.argsort(numbers, kind="stable")
        cuts = np.flatnonzero(np.diff(numbers[order], prepend=numbers.min() - 1))
        for part in np.split(order, cuts[1:]):
            tick = self._ticks.setdefault(int(numbers[part[0]]), _Tick())
            tick.times.append(times[part])
            tick.entities.append(entities[part])
        self._pending += len(times)
        if not self._fixed and self._naming.stream.target is not None:
            targets, up_times, _ = self._scrapes(times, self._targets_of()[entities], int(times.min()))
            self._up_to = np.pad(self._up_to, (0, len(self.targets) - len(self._up_to)))
            # Of a scrape that comes in parts the later ones may come after those of the next scrape.
            newer = up_times > self._up_to[targets]
            targets, up_times = targets[newer], up_times[newer]
            np.maximum.at(self._up_to, targets, up_times)
            self._at_once.append(Verdict(targets, up_times, np.ones(len(targets), np.int64), _NO, _NO))

    def watermark(self, at_ms: int, offset: int) -> None:
        """Take note of a watermark and its offset."""
        if self._complete_from is None:
            # Rows before the first watermark may lie before the offset that reading began at.
            self._complete_from = at_ms + 1
        self._watermarks.append((at_ms, offset))

    def settle(self) -> list[Verdict]:
        """Return what the watermarks taken note of decide, tick by tick."""
        verdicts, self._at_once = self._at_once, []
        upto = self._watermarks[-1][0] if self._watermarks else None
        if self._pending > PENDING_ROWS and self._ticks:
            upto = max(self._ticks) * self._interval - 1
            self._complete_from = upto + 1
        if upto is not None:
            last = (upto + 1) // self._interval - 1
            verdicts += [self._decide(number) for number in sorted(self._ticks) if number <= last]
            self._advance_hold()
        return verdicts

    def end(self, at_ms: int) -> tuple[list[Verdict], Ints]:
        """Return what is decided now that no row follows, and the entities that reported last.

        A tick that the end cuts short can't show who was down in it.
        """
        self._complete_from = at_ms + 1 if self._complete_from is None else self._complete_from
        whole = (at_ms + 1) // self._interval - 1
        verdicts = [self._decide(number, whole=number <= whole) for number in sorted(self._ticks)]
        self.hold = None
        return verdicts, np.flatnonzero(self._alive)

    def _decide(self, number: int, *, whole: bool = True) -> Verdict:
        tick = self._ticks.pop(number)
        times, entities = np.concatenate(tick.times), np.concatenate(tick.entities)
        self._pending -= len(times)
        self._settled = number
        seen = np.zeros(len(self._entities.keys), np.bool_)
        seen[entities] = True
        before = np.zeros(len(seen), np.bool_)
        before[: len(self._alive)] = self._alive
        self._alive = seen if whole else seen | before
        if not self._fixed:
            return Verdict(_NO, _NO, _NO, _NO, _NO)
        start = number * self._interval
        targets, up_times, first = self._scrapes(times, self._targets_of()[entities], start)
        up = np.ones(len(targets), np.int64)
        if not whole or self._complete_from is None or start < self._complete_from:
            return Verdict(targets, up_times, up, _NO, _NO)
        silent = np.setdiff1d(self._expected, targets)
        ended = np.flatnonzero(before & ~seen)
        return Verdict(
            np.concatenate([targets, silent]),
            np.concatenate([up_times, np.full(len(silent), start)]),
            np.concatenate([up, np.zeros(len(silent), np.int64)]),
            ended,
            first[self._targets_of()[ended]],
        )

    def _scrapes(self, times: Ints, targets: Ints, start: int) -> tuple[Ints, Ints, Ints]:
        """Return each (target, time) once, and the first time by target; `start` where there is none."""
        span = int(times.max()) - start + 1
        pairs = np.unique(targets * span + (times - start))
        found, when = pairs // span, pairs % span + start
        first = np.full(len(self.targets), start)
        first[found[::-1]] = when[::-1]
        return found, when, first

    def _advance_hold(self) -> None:
        """Move on to the last watermark before the last settled tick: that tick shows what ends in the next."""
        needed = (self._settled or 0) * self._interval
        while len(self._watermarks) > 1 and self._watermarks[1][0] < needed:
            self._watermarks.popleft()
        if self._watermarks and self._watermarks[0][0] < needed:
            self.hold = self._watermarks[0][1]

    def _targets_of(self) -> Ints:
        for key in self._entities.keys[len(self._target_of) :]:
            self._target_of.append(self._target(self._naming.target(key)))
        return np.array(self._target_of, np.int64)

    def _target(self, name: str) -> int:
        number = self._target_index.setdefault(name, len(self.targets))
        if number == len(self.targets):
            self.targets.append(name)
        return number


_NO: Ints = np.zeros(0, np.int64)
