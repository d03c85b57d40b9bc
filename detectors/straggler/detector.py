"""Straggler: one GPU, or one node, for which all others of its job wait, and no other fault says why.

In a synchronous job every rank's step takes equally long; the culprit computes longest and waits least. So each rank's
computation is compared with its own level of before, times what all ranks' computation has changed by meanwhile: a
uniform slowdown, longer sequences, a checkpoint or drift move all alike and cancel out, and what a rank always had more
to do than others (its stage, its experts) is part of its level. A rank that was slower from the job's first step on is
compared with the others, unless such ranks make up a pipeline stage. Slow means: by a tenth of the step, by five robust
deviations, waiting less than the others, and for most of a minute or three steps, whichever is longer. Most GPUs of a
node together are the node. Where ranks report no times, a clock that is low for no reason given is all there is.

It is wrong where ranks' work shifts for good within a job (experts rebalanced: an alert), where the last stage's node
is slow from the first step on (taken for the model's cut; among few nodes, stages that differ hide other nodes),
where tensor-parallel ranks count the wait for each other as computation (all of the group are named), where a single
node has the whole job and all its GPUs slow down alike (nobody to compare with), and where a fault that has a name
leaves no trace in DCGM or the logs.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import numpy as np

from detectors.contract import (
    Batch,
    DetectorConfig,
    DetectorSpec,
    Entity,
    Finding,
    Instant,
    IntArray,
    LogRecord,
    Severity,
    finding_id,
)
from detectors.fleet import Fleet, Job
from detectors.gpus import GpuLayout, reported
from detectors.spec import load_spec
from detectors.state import pack, unpack
from detectors.straggler.clocks import LoneClocks
from detectors.straggler.config import StragglerConfig
from detectors.straggler.evidence import Case, Lag
from detectors.straggler.excuses import Excuses
from detectors.straggler.pace import Pace
from detectors.straggler.shape import Places, places_of

_SHORTEST_STEP_S, _LONGEST_STEP_S = 0.001, 86_400.0
_GAP_MS = 60_000
_AGAIN_MS = 1_800_000
_GAP_ROOM = 1.15


@dataclass(slots=True)
class _Open:
    """A finding that fired and is not over. `ranks` are those of the entity; empty if clocks alone told of it."""

    id: str
    job_id: str
    node: str
    gpu: int | None
    ranks: list[int]
    started_at: Instant
    slow_at: Instant
    """When it was last slow."""
    gap_ms: int
    """The longest that it has kept up before it was slow again."""
    severity: Severity


@dataclass(slots=True)
class _Past:
    """A finding that was resolved lately."""

    started_at: Instant
    slow_at: Instant
    gap_ms: int


class Straggler:
    """See the module; the thresholds are in detector.yaml."""

    spec: ClassVar[DetectorSpec] = load_spec(__package__ or "")
    config_type: ClassVar[type[DetectorConfig]] = StragglerConfig

    def __init__(self, config: DetectorConfig, fleet: Fleet) -> None:
        if not isinstance(config, StragglerConfig):
            raise TypeError(f"{type(config).__name__} is not a StragglerConfig")
        self._config = config
        self._fleet = fleet
        self._layout = GpuLayout(fleet)
        self._excuses = Excuses(config, fleet, self._layout)
        self._clocks = LoneClocks(config)
        self._paces: dict[str, Pace] = {}
        self._places: dict[str, Places] = {}
        self._job_names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._job_of = np.empty(0, np.int64)
        self._rank_of = np.empty(0, np.int64)
        self._open: list[_Open] = []
        self._past: dict[str, _Past] = {}

    def logs(self, records: Sequence[LogRecord]) -> Sequence[Finding]:
        """Note what logs say of hardware faults."""
        self._excuses.take_lines(records)
        return ()

    def observe(self, batch: Batch) -> Sequence[Finding]:
        """Take readings; what follows from them is decided at the next point of the grid."""
        if batch.kind == "dcgm":
            self._excuses.take(batch)
        elif batch.kind == "steps":
            self._take_steps(batch)
        return ()

    def _take_steps(self, batch: Batch) -> None:
        self._extend()
        job, rank = self._job_of[batch.entities], self._rank_of[batch.entities]
        paces = {number: self._pace(self._job_names[number]) for number in np.unique(job[rank >= 0]).tolist()}
        for tick in range(len(batch.at)):
            here = batch.present[tick] & (rank >= 0)
            step, compute, wait, data = (
                reported(batch, name, tick, here) for name in ("step_time_s", "compute_s", "comm_wait_s", "data_wait_s")
            )
            rest = np.where(np.isfinite(wait), step - wait - np.where(np.isfinite(data), data, 0.0), step)
            compute = np.where(np.isfinite(compute), compute, rest)
            sound = (step >= _SHORTEST_STEP_S) & (step <= _LONGEST_STEP_S)
            for number, pace in paces.items():
                mine = sound & (job[here] == number)
                if pace is not None and mine.any():
                    at = batch.at[tick, here][mine]
                    pace.add(rank[here][mine], at, step[mine], compute[mine], wait[mine])

    def _extend(self) -> None:
        keys = self._fleet.entities("steps")[len(self._job_of) :]
        if not keys:
            return
        jobs = []
        for key in keys:
            name = str(key[0])
            if name not in self._numbers:
                self._numbers[name] = len(self._job_names)
                self._job_names.append(name)
            jobs.append(self._numbers[name])
        self._job_of = np.concatenate([self._job_of, np.array(jobs, np.int64)])
        self._rank_of = np.concatenate([self._rank_of, np.array([int(key[1]) for key in keys], np.int64)])

    def _pace(self, job_id: str) -> Pace | None:
        """Return the pace of a job that runs now; None for any other, whose ranks are nowhere."""
        job = self._fleet.jobs.get(job_id)
        if job is None:
            return None
        pace = self._paces.get(job_id)
        if pace is None or pace.start != job.start:
            pace = self._paces[job_id] = Pace(self._config, job.start)
            self._places.pop(job_id, None)
        return pace

    def advance(self, now: Instant) -> Sequence[Finding]:
        """Decide: what is over, and what began."""
        found = self._close_ended(now)
        for job_id in list(self._paces):
            job = self._fleet.jobs.get(job_id)
            pace = self._paces[job_id]
            if job is None or job.start != pace.start:
                del self._paces[job_id]
                self._places.pop(job_id, None)
                continue
            places = self._places_of(job, pace)
            if places is not None and pace.beat(now, places):
                found += self._close(now, job_id, pace)
                found += self._judge(now, job, pace, places)
        found += self._judge_clocks(now)
        self._past = {key: past for key, past in self._past.items() if now - past.slow_at <= _AGAIN_MS}
        self._excuses.forget(now)
        return found

    def _places_of(self, job: Job, pace: Pace) -> Places | None:
        known = self._places.get(job.job_id)
        if known is None or len(known.node) != len(pace):
            known = places_of(job, len(pace))
            if known is not None:
                self._places[job.job_id] = known
        return known

    def _judge(self, now: Instant, job: Job, pace: Pace, places: Places) -> list[Finding]:
        found: list[Finding] = []
        ranks = pace.confirmed()
        for node in np.unique(places.node[ranks]).tolist():
            mates = np.flatnonzero((places.node == node) & (pace.seen > 0))
            lagging = mates[pace.behind[mates] >= self._config.effect_share / 2]
            whole = len(lagging) > 1 and len(lagging) >= self._config.node_share * len(mates)
            cases = (
                [(None, mates)] if whole else [(rank, np.array([rank])) for rank in ranks[places.node[ranks] == node]]
            )
            for rank, members in cases:
                gpu = None if rank is None else int(places.gpu[rank])
                found += self._fire_ranks(now, job, pace, places, gpu, members)
        return found

    def _fire_ranks(
        self, now: Instant, job: Job, pace: Pace, places: Places, gpu: int | None, ranks: IntArray
    ) -> list[Finding]:
        node = places.names[places.node[ranks[0]]]
        onsets = pace.onset[ranks[pace.score[ranks] > 0]]
        onset = max(int(np.median(onsets)), job.start)
        if self._is_open(node, gpu) or self._excuses.to_come(node, places.gpu[ranks], onset, now):
            return []
        peers = self._gpus_of(job)
        if self._excuses.of(node, places.gpu[ranks], peers, onset, now) is not None:
            return []
        mine = self._excuses.gpus_of(node, places.gpu[ranks])
        lag = Lag.of(pace, ranks, self._excuses.clock[mine], self._excuses.clock[peers])
        case = Case(job.job_id, node, gpu, [int(rank) for rank in ranks], (now - onset) / 1000, lag)
        return self._fire(now, case, onset, now)

    def _judge_clocks(self, now: Instant) -> list[Finding]:
        if not self._clocks.due(now):
            return []
        silent = [job for job in self._fleet.jobs.values() if not self._tells(job.job_id)]
        groups = [(job.job_id, self._gpus_of(job)) for job in silent]
        found: list[Finding] = []
        judged = self._clocks.judge(now, groups, self._excuses)
        for job_id, gpu, usual in judged.slow:
            entity = self._layout.entity(gpu)
            node, number = str(entity["node"]), int(entity["gpu"])
            onset = max(int(self._clocks.since[gpu]), self._fleet.jobs[job_id].start)
            mates = np.array([number])
            if self._is_open(node, number) or self._excuses.of(node, mates, np.array([gpu]), onset, now) is not None:
                continue
            clock = Lag(clock_mhz=float(self._excuses.clock[gpu]), peers_clock_mhz=usual, peers=judged.peers[job_id])
            case = Case(job_id, node, number, [], (now - onset) / 1000, clock)
            found += self._fire(now, case, onset, now)
        back = {(str(entity["node"]), int(entity["gpu"])) for entity in map(self._layout.entity, judged.back)}
        for entry in [entry for entry in self._open if not entry.ranks and (entry.node, entry.gpu) in back]:
            found.append(self._end(now, entry, "its clock is that of its peers again"))
        return found

    def _tells(self, job_id: str) -> bool:
        pace = self._paces.get(job_id)
        return pace is not None and pace.telling

    def _gpus_of(self, job: Job) -> IntArray:
        parts = []
        for node in job.nodes:
            members = self._layout.members(node)
            members = members[members < self._excuses.count]
            if node in job.gpus:
                members = members[np.isin(self._layout.gpu[members], job.gpus[node])]
            parts.append(members)
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def _is_open(self, node: str, gpu: int | None) -> bool:
        return any(held.node == node and (held.gpu in (None, gpu) or gpu is None) for held in self._open)

    def _fire(self, now: Instant, case: Case, onset: Instant, slow_at: Instant) -> list[Finding]:
        entity = _entity(case.node, case.gpu)
        key = f"{case.node}/{case.gpu}"
        past = self._past.get(key)
        if past is not None and onset // 1000 <= past.started_at // 1000:
            onset = past.started_at + 1000
        if onset > now:
            return []
        gap = max(past.gap_ms, onset - past.slow_at) if past is not None else 0
        identity = finding_id(self.spec.name, entity, onset)
        entry = _Open(identity, case.job_id, case.node, case.gpu, case.ranks, onset, slow_at, gap, case.severity)
        self._open.append(entry)
        return [
            Finding(
                id=identity,
                detector=self.spec.name,
                fault="straggler",
                entity=entity,
                state="firing",
                started_at=onset,
                detected_at=now,
                severity=case.severity,
                score=case.score,
                summary=case.summary,
                recommended_action=case.action,
                evidence=case.evidence,
            )
        ]

    def _close_ended(self, now: Instant) -> list[Finding]:
        found: list[Finding] = []
        for entry in list(self._open):
            job = self._fleet.jobs.get(entry.job_id)
            if job is None or job.start > entry.started_at:
                found.append(self._end(now, entry, "its job has ended"))
        return found

    def _close(self, now: Instant, job_id: str, pace: Pace) -> list[Finding]:
        """Close what has kept up for long enough; what comes and goes must have for longer than it ever did."""
        config, found = self._config, []
        for entry in [entry for entry in self._open if entry.job_id == job_id and entry.ranks]:
            ranks = np.array(entry.ranks)
            slow_at = int(np.median(pace.slow_at[ranks]))  # a node is as slow as most of its ranks are
            if slow_at - entry.slow_at > _GAP_MS + 3000 * pace.step_s:
                entry.gap_ms = max(entry.gap_ms, slow_at - entry.slow_at)
            entry.slow_at = max(slow_at, entry.slow_at)
            brief = entry.slow_at - entry.started_at < config.brief_s * 1000
            hold = config.release_brief_s if brief else config.release_s
            if entry.gap_ms:
                hold = min(max(_GAP_ROOM * entry.gap_ms / 1000, config.release_s), config.release_longest_s)
            heard = ranks[pace.at[ranks] > entry.slow_at]
            kept_up = len(heard) > 0 and float(np.median(pace.kept_up[heard])) >= config.release_beats
            if kept_up and now - entry.slow_at >= hold * 1000:
                pace.score[ranks] = 0.0
                found.append(self._end(now, entry, "it keeps up with its peers again"))
        return found

    def _end(self, now: Instant, entry: _Open, reason: str) -> Finding:
        self._open.remove(entry)
        self._past[f"{entry.node}/{entry.gpu}"] = _Past(entry.started_at, entry.slow_at, entry.gap_ms)
        where = entry.node if entry.gpu is None else f"{entry.node} GPU {entry.gpu}"
        return Finding(
            id=entry.id,
            detector=self.spec.name,
            fault="straggler",
            entity=_entity(entry.node, entry.gpu),
            state="resolved",
            started_at=entry.started_at,
            detected_at=now,
            severity=entry.severity,
            score=0.0,
            summary=f"straggler on {where} is over: {reason}",
            recommended_action="none",
            evidence={"job_id": entry.job_id, "lasted_s": (entry.slow_at - entry.started_at) / 1000},
        )

    def snapshot(self) -> bytes:
        """Return the whole state."""
        lines, arrays = self._excuses.snapshot()
        numbers: dict[str, Any] = {}
        for place, (job_id, pace) in enumerate(self._paces.items()):
            numbers[job_id], columns = pace.snapshot()
            arrays |= {f"pace/{place}/{name}": column for name, column in columns.items()}
        arrays |= self._clocks.arrays("clock/")
        document = {
            "lines": lines,
            "paces": [[job_id, told] for job_id, told in numbers.items()],
            "open": [asdict(entry) for entry in self._open],
            "past": {key: asdict(past) for key, past in self._past.items()},
            "clocks": self._clocks.asked_at,
        }
        return pack(document, arrays)

    @classmethod
    def restore(cls, config: DetectorConfig, fleet: Fleet, state: bytes) -> Self:
        """Return a detector that goes on exactly where `snapshot` was taken."""
        document, arrays = unpack(state)
        detector = cls(config, fleet)
        detector._excuses.restore(document["lines"], arrays)
        detector._clocks.load(arrays, "clock/")
        detector._clocks.asked_at = document["clocks"]
        for place, (job_id, told) in enumerate(document["paces"]):
            prefix = f"pace/{place}/"
            columns = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
            detector._paces[job_id] = Pace.restore(detector._config, told, columns)
        detector._open = [_Open(**entry) for entry in document["open"]]
        detector._past = {key: _Past(**past) for key, past in document["past"].items()}
        return detector


def _entity(node: str, gpu: int | None) -> Entity:
    return {"node": node} if gpu is None else {"node": node, "gpu": gpu}
