"""The culprit's signals against its job peers: what is drawn, and when each first left the peers' band."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from detectors.contract import BoolArray, Entity, FloatArray, Instant
from detectors.incidents.report import Incident
from services.postmortem.case import place
from services.postmortem.catalogue import STEP, Signal, signals_of
from services.postmortem.chart import Chart, Mark
from services.postmortem.readings import Grid, Key, Readings, columns_of, read
from services.recording.model import Job
from services.recording.reader import Recording

MOST_BINS = 240
_LEAST_LEAD_MS, _LEAD_SHARE = 600_000, 0.2
_LOOK_BACK_MS = 900_000
"""How long before the estimated onset a first signal is looked for, and what was usual is taken from."""
_APART = 5.0
"""Robust deviations, as the detectors ask for."""
_APART_SHARE = 0.1
"""And a tenth of the level at least: what is less is not seen in a chart."""
_TRIFLE = 0.1
"""Of the distance that it came to: the rare tick of a counter that stands still otherwise is no beginning."""
_PEERS, _HISTORY = 4, 6
"""Fewer peers, or readings of before, have no spread to speak of."""
_STEP_WIDTH_MS = 15_000
_USUAL = "what was usual before"
_BAND = (5, 50, 95)
"""Percentiles of the peers."""


@dataclass(frozen=True)
class Shown:
    """One chart, and when its signal left the peers' band for good (None where it never did)."""

    chart: Chart
    signal: Signal
    left_at: Instant | None
    before: float
    during: float
    peers_before: float
    peers_during: float
    against_peers: bool
    """Else against its own past alone."""
    silent_at: Instant | None = None
    """When its next reading was due, if none came any more before the finding."""


def show(recording: Recording, incident: Incident, jobs: Sequence[Job], marks: Sequence[Mark]) -> list[Shown]:
    """Return the charts: the signals of the root's fault that there is data of, and each touched job's step time."""
    root = incident.causes[0]
    cause = next(member for member in incident.members if member.id == root.finding)
    until = cause.resolved_at or recording.manifest.end
    whole = _span(recording, min(cause.started_at, incident.started_at), until)
    near = (max(recording.manifest.start, cause.started_at - _LOOK_BACK_MS), min(cause.detected_at + 60_000, until))
    groups = _Groups.of(recording, root.entity, jobs)
    columns = columns_of(recording, signals_of(root.fault))
    found = []
    for stream in dict.fromkeys(signal.stream for signal in columns):
        mine = {signal: column for signal, column in columns.items() if signal.stream == stream}
        width = _interval(recording, stream)
        drawn = read(recording, mine, _grid(*whole, _step_width(recording) if stream == "steps" else width, MOST_BINS))
        fine = read(recording, mine, _grid(*near, width, 10**9))
        for wide, narrow in zip(drawn, fine, strict=True):
            one = _shown(wide, narrow, groups, (cause.started_at, cause.detected_at, until), marks)
            if one is not None:
                found.append(one)
    order = list(signals_of(root.fault))
    found.sort(key=lambda one: order.index(one.signal))
    return [*found, *_paces(recording, incident, whole, until, marks)]


def _span(recording: Recording, begin: Instant, until: Instant) -> tuple[Instant, Instant]:
    lead = max(_LEAST_LEAD_MS, round((until - begin) * _LEAD_SHARE))
    return max(recording.manifest.start, begin - lead), min(recording.manifest.end, until + lead // 2) + 1


def _interval(recording: Recording, stream: str) -> int:
    interval = recording.manifest.streams[stream].interval_s
    return round(interval * 1000) if interval else _STEP_WIDTH_MS


def _step_width(recording: Recording) -> int:
    """Return a width of bins for steps, ms: so wide that a step three times as long as usual still ends in each."""
    batch = next(recording.batches(STEP.stream, columns=[STEP.column]), None)
    if batch is None:
        return _STEP_WIDTH_MS
    seconds = batch.column(STEP.column).to_numpy(zero_copy_only=False)
    known = seconds[np.isfinite(seconds)]
    return max(_STEP_WIDTH_MS, round(3000 * float(np.median(known)))) if len(known) else _STEP_WIDTH_MS


def _grid(begin: Instant, end: Instant, interval: int, most: int) -> Grid:
    width = interval * max(1, -(-(end - begin) // (interval * most)))
    return Grid(begin, end, width)


@dataclass(frozen=True)
class _Groups:
    """Who is the culprit and who its peers, by stream."""

    entity: Entity
    nodes: frozenset[str]
    """Nodes of the jobs that run on the culprit; none where no job does, and all others are its peers."""
    job_nodes: frozenset[str]
    roles: Mapping[str, str]
    """Role by switch."""

    @classmethod
    def of(cls, recording: Recording, entity: Entity, jobs: Sequence[Job]) -> "_Groups":
        node, job = entity.get("node"), entity.get("job_id")
        with_it = {name for one in jobs if node in one.nodes for name in one.nodes}
        own = {name for one in jobs if one.job_id == job for name in one.nodes}
        roles = {switch.name: switch.role or "" for switch in recording.topology.switches}
        return cls(entity, frozenset(with_it), frozenset(own), roles)

    def split(self, stream: str, keys: Sequence[Key]) -> tuple[list[int], list[int]]:
        """Return the places of the culprit's entities, and of its peers'."""
        sides = [self._side(stream, key) for key in keys]
        return [n for n, side in enumerate(sides) if side == 1], [n for n, side in enumerate(sides) if side == 0]

    def _side(self, stream: str, key: Key) -> int | None:
        """Return 1 for the culprit, 0 for a peer, None for what is neither."""
        names = {
            "dcgm": ("node", "gpu"), "nic": ("node", "nic"), "switch": ("switch", "port"),
            "storage": ("node", "mount"), "steps": ("job_id", "rank", "node"),
        }[stream]  # fmt: skip
        own = dict(zip(names, key, strict=True))
        asked = {name: str(value) for name, value in self.entity.items() if name in names}
        if "job_id" in self.entity:  # what other jobs do says nothing of this one
            of_it = own["job_id"] == asked["job_id"] if stream == "steps" else own.get("node") in self.job_nodes
            return 1 if of_it else None
        if not asked or ("switch" in self.entity and stream != "switch"):
            return None
        if all(own[name] == value for name, value in asked.items()):
            return 1
        if stream == "switch":
            alike = self.roles.get(own["switch"]) == self.roles.get(asked.get("switch", ""))
        else:
            alike = not self.nodes or own.get("node", "") in self.nodes
        return 0 if alike else None

    def names(self, stream: str) -> tuple[str, str]:
        """Return what culprit and peers are called."""
        own = place(self.entity)
        kinds = {"dcgm": "GPUs", "nic": "ports", "switch": "ports", "storage": "mounts", "steps": "ranks"}[stream]
        if stream == "switch":
            return own, "other ports"
        return own, f"other {kinds}{' of the job' if self.nodes else ''}"


def _shown(
    wide: Readings,
    narrow: Readings,
    groups: _Groups,
    times: tuple[Instant, Instant, Instant],
    marks: Sequence[Mark],
) -> Shown | None:
    signal, grid = wide.signal, wide.grid
    mine, others = groups.split(signal.stream, wide.keys)
    if not mine:
        return None
    started, detected, until = times
    values = _across(wide.values[:, mine], 50)
    if not np.isfinite(values).any():
        return None
    begins, ends = grid.at - grid.width // 2, grid.at + grid.width // 2
    before, during = ends <= started, (begins >= started) & (ends <= until)
    low, middle, high = (
        [_across(wide.values[:, others], share) for share in _BAND] if others else _usual(values[before], grid.size)
    )
    culprit, peers = groups.names(signal.stream)
    if len(mine) > 1:
        culprit = f"{culprit}, median of {len(mine)}"
    chart = Chart(
        f"{signal.title[:1].upper()}{signal.title[1:]}{f', {signal.unit}' if signal.unit else ''}",
        signal.unit, culprit, f"median of {len(others)} {peers}" if others else _USUAL,
        grid.at, values, low, middle, high, marks,
    )  # fmt: skip
    mine, others = groups.split(signal.stream, narrow.keys)
    left = _left(narrow, mine, others, started, detected) if mine else None
    silent = _silent(narrow, mine, detected) if mine and signal.stream != "steps" else None
    level = _mean if signal.counter else _median  # what comes in bouts is nothing, most of the time
    return Shown(chart, signal, left,
        level(values[before]), level(values[during]), level(middle[before]), level(middle[during]), bool(others),
        silent,
    )  # fmt: skip


def _left(
    readings: Readings, mine: list[int], others: list[int], started: Instant, detected: Instant
) -> Instant | None:
    """Return the first reading of those, unlike the peers' and its own of before, that led to the finding."""
    values = _across(readings.values[:, mine], 50)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        seen_at = np.nanmax(readings.at[:, mine], axis=1)
    away = np.ones(len(values), dtype=np.bool_)
    known = np.isfinite(values) & (seen_at <= detected + readings.grid.width)
    asked = False
    if len(others) >= _PEERS:
        middle = _across(readings.values[:, others], 50)
        spread = _across(np.abs(readings.values[:, others] - middle[:, None]), 50)
        away &= _apart(values - middle, _APART * 1.4826 * spread, _APART_SHARE * np.abs(middle), known)
        asked = True
    with np.errstate(invalid="ignore"):
        own = values[(seen_at < started - readings.grid.width) & np.isfinite(values)]
    if len(own) >= _HISTORY:
        usual = float(np.median(own))
        spread_own = np.full(len(values), float(np.median(np.abs(own - usual))))
        away &= _apart(
            values - usual, _APART * 1.4826 * spread_own, np.full(len(values), _APART_SHARE * abs(usual)), known
        )
        asked = True
    if not asked:
        return None
    # From the finding backwards: one reading in between may be as usual, as bursts are.
    first, missed = None, 0
    for number in np.flatnonzero(known)[::-1]:
        if away[number]:
            first, missed = number, 0
        else:
            missed += 1
            if missed > 2:
                break
    return None if first is None else int(seen_at[first])


def _silent(readings: Readings, mine: list[int], detected: Instant) -> Instant | None:
    """Return when the first reading was due that did not come, where none came from then until the finding."""
    seen = readings.at[:, mine]
    heard = np.where(seen <= detected, seen, -np.inf).max(axis=1)  # NaN, where nothing came, is not below anything
    heard = heard[np.isfinite(heard)]
    if len(heard) < _HISTORY:
        return None
    usual = max(readings.grid.width, int(np.median(np.diff(heard))))
    due = int(heard[-1]) + usual
    return due if due + usual // 2 < detected else None


def _apart(distance: FloatArray, spread: FloatArray, level: FloatArray, known: BoolArray) -> BoolArray:
    """Return where a distance is more than scatter, and no trifle beside the most it came to; (bins,)."""
    size = np.abs(distance)
    most = float(size[known & np.isfinite(size)].max(initial=0.0))
    with np.errstate(invalid="ignore"):
        return np.asarray(size > np.maximum(np.maximum(spread, level), _TRIFLE * most))


def _paces(
    recording: Recording, incident: Incident, whole: tuple[Instant, Instant], until: Instant, marks: Sequence[Mark]
) -> list[Shown]:
    """Return the step time of the jobs that lost most, against what was usual before."""
    columns = columns_of(recording, [STEP])
    jobs = [job.job_id for job in incident.impact.jobs][:3]
    if not columns or not jobs:
        return []
    (readings,) = read(recording, columns, _grid(*whole, _step_width(recording), MOST_BINS))
    grid, found = readings.grid, []
    before, during = grid.at < incident.started_at, (grid.at >= incident.started_at) & (grid.at <= until)
    for job in jobs:
        mine = [number for number, key in enumerate(readings.keys) if key[0] == job]
        if not mine:
            continue
        values = _across(readings.values[:, mine], 50)
        band = _usual(values[before], grid.size)
        usual = float(band[1][0])
        chart = Chart(
            f"Step time of job {job}, s", "s", f"job {job}", _USUAL, grid.at, values, band[0], band[1], band[2], marks
        )
        found.append(Shown(chart, STEP, None, usual, _median(values[during]), usual, usual, against_peers=False))
    return found


def _usual(before: FloatArray, size: int) -> list[FloatArray]:
    """Return the band of what was before, the same for all bins."""
    known = before[np.isfinite(before)]
    levels = np.percentile(known, _BAND) if len(known) else np.full(len(_BAND), np.nan)
    return [np.full(size, float(level)) for level in levels]


def _across(values: FloatArray, share: float) -> FloatArray:
    """Return a percentile over the entities, (bins,); NaN where none has a value."""
    if not values.shape[1]:
        return np.full(len(values), np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanpercentile(values, share, axis=1), dtype=np.float64)


def _mean(values: FloatArray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def _median(values: FloatArray) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else float("nan")
