"""Columns for charts: entities down-sampled, and beside them the band in which their peers are."""

import numpy as np

from services.api.recordings.columns import KEYS, Buckets, Chunk, Floats, Grid, Ints, Rates, chunks, plain
from services.api.recordings.library import Window
from services.api.recordings.models import Band, Series, SeriesAnswer
from services.kit.entities import Entities
from services.recording.model import Job
from services.recording.reader import Recording

MOST_SERIES = 64
MOST_PEERS = 4096
_DEVIATIONS = 3.0
_ROBUST = 1.4826
"""The median absolute deviation of a normal distribution times this is its standard deviation."""
_FEWEST_PEERS = 3


class _Choice:
    """Which of a stream's entities are drawn, and which are only peers of the first; decided as they come up."""

    def __init__(self, recording: Recording, kind: str, wanted: list[str], window: Window, entities: Entities) -> None:
        self._kind = kind
        self._wanted = wanted
        self._entities = entities
        self.drawn: dict[int, int] = {}
        """The place of each entity that is drawn, by its number."""
        self.left_out = 0
        self.job = _job_of(recording, kind, wanted[0].split("/"), window) if wanted else None
        self._gpus = self.job.gpus or {} if self.job else {}
        self.peers: dict[int, int] = {}
        self._known = 0

    @property
    def about(self) -> str | None:
        """Return whose peers they are; None where the first has none."""
        if self._kind == "switch" and self._wanted:
            return f"switch {self._wanted[0].split('/')[0]}"
        return f"job {self.job.job_id}" if self.job else None

    def meet(self) -> None:
        """Look at the entities that have come up since."""
        for number, keys in enumerate(self._entities.keys[self._known :], self._known):
            key = "/".join(str(part) for part in keys)
            if not self._wanted or any(key == one or key.startswith(f"{one}/") for one in self._wanted):
                if len(self.drawn) < MOST_SERIES:
                    self.drawn[number] = len(self.drawn)
                else:
                    self.left_out += 1
            if len(self.peers) < MOST_PEERS and self._is_peer(keys):
                self.peers[number] = len(self.peers)
        self._known = len(self._entities.keys)

    def _is_peer(self, keys: tuple[str | int, ...]) -> bool:
        first = self._wanted[0].split("/") if self._wanted else [""]
        if self._kind == "switch" or self.job is None:
            return self._kind == "switch" and keys[0] == first[0]
        if self._kind == "steps":
            return keys[0] == self.job.job_id
        if keys[0] not in self.job.nodes:
            return False
        if self._kind == "dcgm":
            part = self._gpus.get(str(keys[0]))
            return part is None or keys[1] in part
        # The same sensor, port or mount of the other nodes: others are not its like.
        return len(first) == 1 or str(keys[1]) == "/".join(first[1:])


def _job_of(recording: Recording, kind: str, keys: list[str], window: Window) -> Job | None:
    """Return the job that had the entity longest within the window."""
    best: tuple[int, Job | None] = (0, None)
    for job in recording.jobs():
        gpus = (job.gpus or {}).get(keys[0])
        if kind == "steps":
            its = job.job_id == keys[0]
        else:
            its = keys[0] in job.nodes and (
                kind != "dcgm" or len(keys) < 2 or gpus is None or keys[1] in map(str, gpus)
            )
        if its:
            until = window.end if job.end is None else min(job.end, window.end)
            best = max(best, (until - max(job.start, window.start), job), key=lambda pair: pair[0])
    return best[1]


def series(
    recording: Recording,
    kind: str,
    field: str,
    *,
    entities: list[str],
    window: Window,
    points: int,
    rate: bool,
    peers: bool,
) -> SeriesAnswer:
    """Return what a chart draws of one column.

    `entities` are keys joined by '/', or the first of them: ``v002`` is every GPU of that node; without any, all are
    meant. UserError (exit code 2): there is no such stream or field.
    """
    table, buckets, rates = Entities(KEYS[kind]), Buckets.over(window, points), Rates()
    choice = _Choice(recording, kind, entities, window, table)
    drawn, others = Grid(buckets), Grid(buckets)
    reach = Window(window.start - 2 * buckets.ms, window.end) if rate else window
    for raw in chunks(recording, kind, field, reach, table):
        choice.meet()
        chunk = _within(rates.of(raw), window) if rate else raw
        place = _places(choice.drawn, len(table.keys))
        mine = place[chunk.entities] >= 0
        drawn.add(place[chunk.entities[mine]], chunk.times[mine], chunk.values[mine])
        if peers and choice.peers:
            place = _places(choice.peers, len(table.keys))
            theirs = place[chunk.entities] >= 0
            others.add(place[chunk.entities[theirs]], chunk.times[theirs], chunk.values[theirs])
    return SeriesAnswer(
        recording=recording.manifest.name,
        kind=kind,
        field=field,
        rate=rate,
        from_ms=window.start,
        to_ms=window.end,
        bucket_ms=buckets.ms,
        times=buckets.times,
        series=_series(table, choice, drawn),
        band=_band(choice, others) if peers else None,
        left_out=choice.left_out,
    )


def _within(chunk: Chunk, window: Window) -> Chunk:
    inside = chunk.times >= window.start
    return Chunk(chunk.times[inside], chunk.entities[inside], chunk.values[inside])


def _places(places: dict[int, int], count: int) -> Ints:
    found = np.full(count, -1, dtype=np.int64)
    if places:
        found[list(places)] = list(places.values())
    return found


def _series(table: Entities, choice: _Choice, grid: Grid) -> list[Series]:
    found: list[Series] = []
    for number, place in choice.drawn.items():
        low, high, mean = (plain(values) for values in grid.row(place))
        keys = table.keys[number]
        key = "/".join(str(part) for part in keys)
        found.append(Series(key=key, entity=dict(zip(table.columns, keys, strict=True)), min=low, max=high, mean=mean))
    return sorted(found, key=lambda one: [(not isinstance(part, int), part) for part in one.entity.values()])


def _band(choice: _Choice, others: Grid) -> Band | None:
    """Return the peers' band, those that are drawn left out unless too few are left then.

    Where not all that were asked for found room, who is left is no other than they are, and the band is of all.
    """
    about, means = choice.about, others.means()
    rows = [place for place in choice.peers.values() if place < len(means)]
    strangers = [place for number, place in choice.peers.items() if place < len(means) and number not in choice.drawn]
    if len(strangers) >= _FEWEST_PEERS and not choice.left_out:
        rows = strangers
    if about is None or len(rows) < _FEWEST_PEERS:
        return None
    median, spread = _robust(means[rows])
    return Band(
        about=about,
        peers=len(rows),
        median=plain(median),
        low=plain(median - _DEVIATIONS * spread),
        high=plain(median + _DEVIATIONS * spread),
    )


def _robust(values: Floats) -> tuple[Floats, Floats]:
    """Return median and robust standard deviation by column (peers, buckets), NaN where no peer has a reading."""
    there = (~np.isnan(values)).any(axis=0)
    median, spread = np.full(values.shape[1], np.nan), np.full(values.shape[1], np.nan)
    if there.any():
        median[there] = np.nanmedian(values[:, there], axis=0)
        spread[there] = _ROBUST * np.nanmedian(np.abs(values[:, there] - median[there]), axis=0)
    return median, spread
