from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from services.kit.series import table
from services.sink.naming import Naming
from services.sink.rows import Entities
from services.sink.scrapes import Scrapes

INTERVAL = 5000
START = 1_711_958_400_000
NODES, GPUS = 3, 2
TOPOLOGY = {"nodes": [{"name": f"v{n}", "gpus": [{"gpu": g} for g in range(GPUS)]} for n in range(NODES)]}
KEYS = [(f"v{n}", str(g)) for n in range(NODES) for g in range(GPUS)]


@dataclass(frozen=True)
class Row:
    at: int
    entity: int


@dataclass(frozen=True)
class Passed:
    """A watermark."""

    at: int


Up = tuple[str, int, int]
Ended = tuple[tuple[str, ...], int]


def decide(
    stream: list[Row | Passed], *, first: int = 0, last: int | None = None, end: int | None = None, begin: int = START
) -> tuple[set[Up], set[Ended], int | None, set[tuple[str, ...]]]:
    """Feed what lies at offsets `first` to `last`; return ups, endings, the hold, and what lives at `end`."""
    entities = Entities(("node", "gpu"))
    naming = Naming(table().streams["dcgm"], "vela", "r", TOPOLOGY)
    scrapes = Scrapes(naming, entities, interval_ms=INTERVAL, begin_ms=begin, offset=first)
    ups: set[Up] = set()
    endings: set[Ended] = set()
    verdicts = []
    for offset in range(first, len(stream) if last is None else last):
        item = stream[offset]
        if isinstance(item, Passed):
            scrapes.watermark(item.at, offset)
            verdicts += scrapes.settle()
        else:
            number = entities._number(KEYS[item.entity])
            scrapes.rows(np.array([item.at]), np.array([number]))
    hold = scrapes.hold
    alive: set[tuple[str, ...]] = set()
    if end is not None:
        more, living = scrapes.end(end)
        verdicts += more
        alive = {entities.keys[int(e)] for e in living}
    for verdict in verdicts:
        ups |= {
            (scrapes.targets[t], int(at), int(up))
            for t, at, up in zip(verdict.targets, verdict.up_times, verdict.up, strict=True)
        }
        endings |= {(entities.keys[int(e)], int(at)) for e, at in zip(verdict.ended, verdict.ended_times, strict=True)}
    return ups, endings, hold, alive


def stream_of(there: np.ndarray, passed_every: int) -> list[Row | Passed]:
    """Return the records of (ticks, entities): node n is scraped 1000 n ms into a tick; watermarks after some ticks."""
    items: list[Row | Passed] = []
    for tick, row in enumerate(there):
        items += [
            Row(START + tick * INTERVAL + 1000 * (entity // GPUS), entity) for entity in range(len(KEYS)) if row[entity]
        ]
        if tick % passed_every == passed_every - 1:
            items.append(Passed(START + (tick + 1) * INTERVAL - 1))
    return items


def wanted(there: np.ndarray) -> tuple[set[Up], set[Ended]]:
    """Return `up` and endings by the definition: a loop over nodes and ticks."""
    ups: set[Up] = set()
    endings: set[Ended] = set()
    before = np.zeros(len(KEYS), bool)
    for tick, row in enumerate(there):
        if not row.any():
            continue
        start = START + tick * INTERVAL
        for node in range(NODES):
            up = row[node * GPUS : (node + 1) * GPUS].any()
            at = start + 1000 * node if up else start
            ups.add((f"v{node}", at, int(up)))
            for gpu in range(GPUS):
                entity = node * GPUS + gpu
                if before[entity] and not row[entity]:
                    endings.add((KEYS[entity], at))
        before = row
    return ups, endings


@st.composite
def presence(draw: st.DrawFn) -> np.ndarray:
    ticks = draw(st.integers(1, 12))
    flat = draw(st.lists(st.sampled_from([True, True, True, False]), min_size=ticks * 6, max_size=ticks * 6))
    there = np.array(flat).reshape(ticks, len(KEYS))
    there[0, 0] = True
    return there


@settings(deadline=None)
@given(presence(), st.integers(1, 4))
def test_up_and_endings_are_what_a_scraper_would_have_seen(there: np.ndarray, passed_every: int) -> None:
    stream = stream_of(there, passed_every)
    ups, endings, _, alive = decide(stream, end=START + len(there) * INTERVAL - 1)
    want_ups, want_endings = wanted(there)
    assert ups == want_ups
    assert endings == want_endings
    reported = [row for row in there if row.any()]
    assert alive == {KEYS[e] for e in np.flatnonzero(reported[-1])}


@settings(max_examples=300, deadline=None)
@given(presence(), st.integers(1, 4), st.data())
def test_a_restart_from_the_hold_decides_the_same(there: np.ndarray, passed_every: int, data: st.DataObject) -> None:
    stream = stream_of(there, passed_every)
    end = START + len(there) * INTERVAL - 1
    cut = data.draw(st.integers(0, len(stream)))
    want_ups, want_endings, _, want_alive = decide(stream, end=end)
    first_ups, first_endings, hold, _ = decide(stream, last=cut)
    assert hold is not None
    again_ups, again_endings, _, alive = decide(stream, first=hold, end=end)
    assert first_ups | again_ups == want_ups
    assert first_endings | again_endings == want_endings
    if hold < len(stream) and any(isinstance(item, Row) for item in stream[hold:]):
        assert alive == want_alive


def test_a_replay_that_begins_within_a_tick_calls_nobody_down_in_it() -> None:
    begin = START + 2500
    stream: list[Row | Passed] = [Row(START + 4000, 4), Passed(START + INTERVAL - 1)]
    ups, _, _, _ = decide(stream, begin=begin)
    assert ups == {("v2", START + 4000, 1)}


def test_an_end_within_a_tick_calls_nobody_down_in_it() -> None:
    stream: list[Row | Passed] = [*stream_of(np.ones((2, 6), bool), 1), Row(START + 2 * INTERVAL, 0)]
    ups, endings, _, alive = decide(stream, end=START + 2 * INTERVAL + 500)
    assert {up for up in ups if up[1] >= START + 2 * INTERVAL} == {("v0", START + 2 * INTERVAL, 1)}
    assert endings == set()
    assert alive == set(KEYS)
