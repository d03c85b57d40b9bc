"""A stretch of telemetry in memory, and the playing of it to an engine in any cuts and any order of arrival."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from detectors.contract import Finding, Instant, IntArray, LogRecord
from detectors.engine.engine import GRID_MS, Choice, Engine
from detectors.engine.heard import FORGET_MS, Forgetting
from detectors.engine.rows import KeyColumn, Rows
from detectors.fleet.fleet import JobEvent


@dataclass(frozen=True)
class Tape:
    """Telemetry of one unit from `start` to `end` (ms): one `Rows` a kind, log lines, and starts and ends of jobs."""

    start: Instant
    end: Instant
    rows: Sequence[Rows]
    logs: Sequence[LogRecord] = ()
    jobs: Sequence[JobEvent] = ()
    topology: Mapping[str, Any] = field(default_factory=dict)

    @property
    def streams(self) -> tuple[str, ...]:
        """Return the streams that are marked."""
        return ("jobs", "logs", *(rows.kind for rows in self.rows))

    def until(self, at: Instant) -> "Tape":
        """Return the part up to `at`."""
        return replace(
            self,
            end=min(at, self.end),
            rows=[take(rows, np.flatnonzero(rows.times <= at)) for rows in self.rows],
            logs=[record for record in self.logs if record.at <= at],
            jobs=[event for event in self.jobs if event.at <= at],
        )


@dataclass(frozen=True)
class Handling:
    """How a tape is handed over: where it is cut, in what disorder, and whether the engine is carried over a cut."""

    cuts: Sequence[Instant] = ()
    seed: int | None = None
    """With a seed, each stretch comes shuffled, in pieces, with duplicates, and with rows that are late."""
    carried: bool = False
    """At every cut the engine is snapshotted and restored."""
    upgraded: Sequence[Choice] | None = None
    """With what it is restored, if not with the same detectors."""
    forget_ms: int = FORGET_MS
    grid_ms: int = GRID_MS


def take(rows: Rows, which: IntArray) -> Rows:
    """Return some of the rows."""
    return Rows(
        rows.kind,
        rows.times[which],
        {name: KeyColumn(column.codes[which], column.categories) for name, column in rows.keys.items()},
        {name: values[which] for name, values in rows.values.items()},
        {name: valid[which] for name, valid in rows.valid.items()},
        KeyColumn(rows.node.codes[which], rows.node.categories) if rows.node is not None else None,
    )


def play(tape: Tape, choices: Sequence[Choice], handling: Handling = Handling()) -> tuple[list[Finding], Engine]:
    """Return the findings of a tape, and the engine at its end."""
    found: list[Finding] = []
    engine: Engine
    for news, engine in stretches(tape, choices, handling):  # noqa: B007  the last of them is returned
        found += news
    return found, engine


def stretches(
    tape: Tape, choices: Sequence[Choice], handling: Handling = Handling()
) -> Iterator[tuple[list[Finding], Engine]]:
    """Yield the findings of a tape up to each cut, and at last up to its end, with the engine as it is then."""
    forgetting = Forgetting(handling.forget_ms)
    engine = Engine(tape.topology, choices, tape.streams, grid_ms=handling.grid_ms, forgetting=forgetting)
    chance = None if handling.seed is None else np.random.default_rng(handling.seed)
    before = tape.start - 1
    for upto in [*sorted({cut for cut in handling.cuts if tape.start <= cut < tape.end}), tape.end]:
        _feed(engine, tape, before, upto, chance)
        for stream in tape.streams:
            engine.mark(stream, upto)
        found = engine.process()
        before = upto
        if handling.carried:
            onward = choices if handling.upgraded is None else handling.upgraded
            state = engine.snapshot()
            engine = Engine.restore(
                tape.topology, onward, tape.streams, state, grid_ms=handling.grid_ms, forgetting=forgetting
            )
        yield (found + engine.finish(tape.end) if upto == tape.end else found), engine


def _feed(engine: Engine, tape: Tape, after: Instant, upto: Instant, chance: np.random.Generator | None) -> None:
    engine.feed_jobs(event for event in tape.jobs if (event.at > after or after < tape.start) and event.at <= upto)
    lines = [record for record in tape.logs if after < record.at <= upto]
    if chance is not None:
        lines = [lines[n] for n in chance.permutation(len(lines))] * 2
    engine.feed_logs(lines)
    pieces: list[Rows] = []
    for rows in tape.rows:
        due = np.flatnonzero((rows.times > after) & (rows.times <= upto))
        if chance is None:
            pieces.append(take(rows, due))
            continue
        again = chance.choice(due, size=len(due) // 5) if len(due) else due
        late = np.flatnonzero(rows.times <= after)[-10:]
        pieces += [take(rows, part) for part in _pieces(np.concatenate([due, again, late]), chance)]
    order = range(len(pieces)) if chance is None else chance.permutation(len(pieces))
    for number in order:
        engine.feed(pieces[number])


def _pieces(rows: IntArray, chance: np.random.Generator) -> Iterator[IntArray]:
    shuffled = chance.permutation(rows)
    yield from np.array_split(shuffled, int(chance.integers(1, 4)))
