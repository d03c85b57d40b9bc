"""Straggler: one GPU, or one node, for which all others of its job wait, and no other fault says why.

Three rungs, by what a cluster reports. Where ranks report their times, each rank's computation is compared with its own
level of before, times what all ranks' computation has changed by meanwhile: a uniform slowdown, longer sequences, a
checkpoint or drift move all alike and cancel out, and what a rank always had more to do than others (its stage, its
experts) is part of its level. A rank that was slower from the job's first step on is compared with the others, unless
such ranks make up a pipeline stage (`pace`, `shape`). Where they do not, DCGM's readings tell who computes while the
others wait (`activity`, `watch`), and what the job lost by it: in the job's step times, else in its own activity
(`effect`). What is odd and slows nobody is told once, as information. Most GPUs of a node together are the node.

It is wrong where ranks' work shifts for good within a job (experts rebalanced: an alert), where the last stage's node
is slow from the first step on (taken for the model's cut; among few nodes, stages that differ hide other nodes), where
a single node has the whole job and all its GPUs slow down alike (nobody to compare with), where a GPU or a
node is slow by its readings from the job's first minutes on (taken for its habit), and where a fault that has a name
leaves no trace in DCGM or the logs. A rank that alone reports of its node stands for the node, as tensor-parallel
neighbours count the wait for each other as computation; the GPU is named where its own readings make it the one.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Final, Self

import numpy as np

from detectors.case_book import CaseBook, OpenCase
from detectors.contract import Batch, DetectorConfig, DetectorSpec, Entity, Finding, Instant, IntArray, LogRecord
from detectors.core.tails import Tails
from detectors.fleet import Fleet, Job
from detectors.gpus import WHOLE_NODE, GpuLayout, reported
from detectors.spec import load_spec
from detectors.state import pack, unpack
from detectors.statistics import median_of
from detectors.straggler import says
from detectors.straggler.activity import CLOCK, MEMORY, POWER, SLOW_CLOCK, TENSOR, WINDOW_S
from detectors.straggler.config import StragglerConfig
from detectors.straggler.excuses import Excuses
from detectors.straggler.pace import Pace
from detectors.straggler.shape import Places, places_of
from detectors.straggler.watch import Suspect, Watch, gpus_of

_SHORTEST_STEP_S, _LONGEST_STEP_S = 0.001, 86_400.0
_GAP_MS: Final = 60_000
_GAP_ROOM: Final = 1.15
_BRIEF_MS, _HOLD_BRIEF_S, _HOLD_LONGEST_S = 300_000, 420.0, 600.0
"""What was slow for less than five minutes comes back more likely than not: it is held for longer than that; what comes
and goes for longer than it ever kept up, but not for ever."""
_BEATS_IN_TIME: Final = 3
_HARMLESS_WINDOWS: Final = 15
"""What is odd for a quarter of an hour and slows nobody is a property: told once, and learnt."""
_HARMLESS: Final = "harmless"
_CONFIRM_WINDOWS: Final = 3
"""A checkpoint, or a dip, that falls on the edge of two windows is in both."""
_DUTY: Final = 0.2
"""What comes and goes is odd for a fifth of the time at least; checkpoints that scrapes see unevenly much less."""
_MOST_NODES, _MOST_NODE_SHARE = 2, 0.05
"""More that are odd at once have something in common that is not a machine's."""


class Straggler:
    """See the module; the settings are in detector.yaml."""

    spec: ClassVar[DetectorSpec] = load_spec(__package__ or "")
    config_type: ClassVar[type[DetectorConfig]] = StragglerConfig

    def __init__(self, config: DetectorConfig, fleet: Fleet) -> None:
        if not isinstance(config, StragglerConfig):
            raise TypeError(f"{type(config).__name__} is not a StragglerConfig")
        self._config = config
        self._fleet = fleet
        self._layout = GpuLayout(fleet)
        self._excuses = Excuses(fleet, self._layout)
        self._watch = Watch(config, fleet, self._layout)
        self._book = CaseBook(self.spec.name)
        self._paces: dict[str, Pace] = {}
        self._places: dict[str, Places] = {}
        self._job_names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._job_of = np.empty(0, np.int64)
        self._rank_of = np.empty(0, np.int64)

    @property
    def tails(self) -> Tails:
        """What is usual here: `hindcast calibrate` writes it down."""
        return self._watch.tails

    def logs(self, records: Sequence[LogRecord]) -> Sequence[Finding]:
        """Note what logs say of hardware faults."""
        self._excuses.take_lines(records)
        return ()

    def observe(self, batch: Batch) -> Sequence[Finding]:
        """Take readings; what follows from them is decided at the next point of the grid."""
        if batch.kind == "dcgm":
            self._excuses.take(batch)
            self._watch.extend()
            self._watch.sums.take(batch)
        elif batch.kind == "steps":
            self._take_steps(batch)
        return ()

    def _take_steps(self, batch: Batch) -> None:
        self._extend()
        job, rank = self._job_of[batch.entities], self._rank_of[batch.entities]
        numbers = np.unique(job).tolist()
        for tick in range(len(batch.at)):
            here = batch.present[tick]
            step, compute, wait, data = (
                reported(batch, name, tick, here) for name in ("step_time_s", "compute_s", "comm_wait_s", "data_wait_s")
            )
            rest = np.where(np.isfinite(wait), step - wait - np.where(np.isfinite(data), data, 0.0), step)
            compute = np.where(np.isfinite(compute), compute, rest)
            sound = (step >= _SHORTEST_STEP_S) & (step <= _LONGEST_STEP_S)
            for number in numbers:
                running = self._fleet.jobs.get(self._job_names[number])
                mine = sound & (job[here] == number)
                if running is None or not mine.any():
                    continue
                ranks = rank[here][mine]
                self._watch.history(running).take(ranks, step[mine])
                mine[mine] = ranks >= 0
                if mine.any():
                    at = batch.at[tick, here][mine]
                    self._pace(running).add(rank[here][mine], at, step[mine], compute[mine], wait[mine])

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

    def _pace(self, job: Job) -> Pace:
        pace = self._paces.get(job.job_id)
        if pace is None or pace.start != job.start:
            pace = self._paces[job.job_id] = Pace(self._config, self._watch.tails, job.start)
            self._places.pop(job.job_id, None)
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
                found += self._close_ranks(now, job_id, pace)
                found += self._judge_ranks(now, job, pace, places)
        held = {(case.node, None if case.gpu == WHOLE_NODE else case.gpu) for case in self._alarms()}
        suspects = self._watch.close(now, held)
        if suspects is not None:
            found += self._close_readings(now)
            found += self._judge_readings(now, suspects)
            self._excuses.forget(now)
        return found

    def _places_of(self, job: Job, pace: Pace) -> Places | None:
        known = self._places.get(job.job_id)
        if known is None or len(known.node) != len(pace):
            known = places_of(job, len(pace))
            if known is not None:
                self._places[job.job_id] = known
        return known

    def _judge_ranks(self, now: Instant, job: Job, pace: Pace, places: Places) -> list[Finding]:
        found: list[Finding] = []
        ranks = pace.confirmed(max(len(self._layout.names), places.nodes))
        for node in np.unique(places.node[ranks]).tolist():
            mates = np.flatnonzero((places.node == node) & (pace.seen > 0))
            lagging = mates[pace.behind[mates] >= self._config.effect_share / 2]
            gpus = self._layout.members(places.names[node])
            alone = len(mates) == 1 and np.count_nonzero(np.isin(gpus, gpus_of(job, self._layout))) > 1
            whole = bool(alone or (len(lagging) > 1 and len(lagging) >= self._config.node_share * len(mates)))
            cases = [mates] if whole else [np.array([rank]) for rank in ranks[places.node[ranks] == node]]
            for members in cases:
                found += self._fire_ranks(now, job, pace, places, members, whole)
        return found

    def _fire_ranks(
        self, now: Instant, job: Job, pace: Pace, places: Places, ranks: IntArray, whole: bool
    ) -> list[Finding]:
        node = places.names[places.node[ranks[0]]]
        members = self._layout.members(node)
        mine = members if whole else members[np.isin(self._layout.gpu[members], places.gpu[ranks])]
        gpu = self._watch.stands_out(mine) if whole else int(mine[0]) if len(mine) else None
        onsets = pace.onset[ranks[pace.score[ranks] > 0]]
        onset = max(int(np.median(onsets)), job.start)
        entity = (
            self._entity(node, gpu) if whole or gpu is not None else {"node": node, "gpu": int(places.gpu[ranks[0]])}
        )
        peers = gpus_of(job, self._layout)
        if self._is_open(entity) or self._excuses.to_come(mine, onset, now):
            return []
        clock = self._excuses.clock
        own = median_of(clock[mine].astype(np.float64))
        ratio = own / median_of(clock[np.setdiff1d(peers, mine)].astype(np.float64))
        if self._excuses.unread(mine, peers, own, ratio, now):
            return []
        if self._excuses.of(node, mine, peers, onset, now) is not None:
            return []
        told = says.of_ranks(job.job_id, _words(entity), pace, ranks, (now - onset) / 1000, clock[mine], clock[peers])
        return self._fire(now, job, entity, gpu, told, onset, [int(rank) for rank in ranks])

    def _judge_readings(self, now: Instant, suspects: list[Suspect]) -> list[Finding]:
        found: list[Finding] = []
        excused = {(suspect.node, suspect.gpu) for suspect in suspects if self._excused(now, suspect)}
        single = {suspect.node for suspect in suspects if suspect.gpu is not None}
        for suspect in suspects:
            job, node, gpu = suspect.job, suspect.node, suspect.gpu
            if (node, gpu) in excused or ((node, None) in excused if gpu is not None else node in single):
                continue
            pace = self._paces.get(job.job_id)
            if pace is not None and np.count_nonzero(pace.seen) >= len(gpus_of(job, self._layout)):
                continue  # every rank reports its times: they know better
            entity = self._entity(node, gpu)
            beside = [other for other in suspects if other.job == job]
            crowd = {other.node for other in beside}
            worst = max(np.log1p(other.lag) for other in beside)
            if self._is_open(entity) or len(crowd) > max(_MOST_NODES, _MOST_NODE_SHARE * len(job.nodes)):
                continue
            if np.log1p(suspect.lag) < worst / 2 or suspect.odd < max(_CONFIRM_WINDOWS, _DUTY * suspect.windows):
                continue  # the slowest sets the job's pace
            harmless = not self._holds_up(suspect)
            if harmless and suspect.windows < _HARMLESS_WINDOWS:
                continue
            if not harmless or suspect.lag >= self._config.effect_share:
                told = says.of_readings(suspect, _words(entity), (now - suspect.since) / 1000, harmless)
                found += self._fire(now, job, entity, gpu, told, suspect.since, [], _HARMLESS if harmless else "")
            if harmless:
                self._watch.absolve(node, gpu)
        return found

    def _excused(self, now: Instant, suspect: Suspect) -> bool:
        those = self._layout.members(suspect.node) if suspect.gpu is None else np.array([suspect.gpu])
        peers = gpus_of(suspect.job, self._layout)
        unread = self._excuses.unread(those, peers, float(suspect.own[CLOCK]), suspect.clock, now)
        return unread or self._excuses.of(suspect.node, those, peers, suspect.since, now) is not None

    def _holds_up(self, suspect: Suspect) -> bool:
        """Return whether its job lost by it as much as counts, and no more than its lag explains.

        Where the job's pace varies too much to show a loss as large as the lag, a lag that counts is enough if the
        clock is slow: that activity is higher at once says that the others wait.
        """
        effect = suspect.effect
        if effect is None or (effect.slower == 0 and effect.seen >= suspect.lag / 3):
            with np.errstate(divide="ignore", invalid="ignore"):  # peers that stand still have a signal of 0
                ratio = suspect.own / suspect.peers
            waits = np.fmax(ratio[TENSOR], ratio[MEMORY]) - 1 >= suspect.lag / 2 or ratio[POWER] < 1
            return bool(suspect.how == SLOW_CLOCK and suspect.lag >= self._config.effect_share and waits)
        explained = np.log1p(suspect.lag) >= np.log1p(effect.slower) / 2
        counts = max(suspect.lag, effect.slower) >= self._config.effect_share
        return bool(effect.slower >= self._config.job_share and explained and counts)

    def _entity(self, node: str, gpu: int | None) -> dict[str, str | int]:
        return {"node": node} if gpu is None else dict(self._layout.entity(gpu))

    def _alarms(self) -> list[OpenCase]:
        """Return the open findings but those of what harms nobody: these last as long as the job."""
        return [case for case in self._book.cases() if not case.aspect]

    def _is_open(self, entity: Entity) -> bool:
        node, gpu = entity["node"], entity.get("gpu")
        return any(
            case.node == node and (case.entity.get("gpu") in (None, gpu) or gpu is None) for case in self._alarms()
        )

    def _fire(
        self, now: Instant, job: Job, entity: Entity, gpu: int | None, told: says.Saying, onset: Instant,
        ranks: list[int], aspect: str = "",
    ) -> list[Finding]:  # fmt: skip
        return self._book.fire(
            now,
            "straggler",
            entity,
            started_at=onset,
            severity=told.severity,
            score=told.score,
            summary=told.summary,
            action=says.action("gpu" not in entity),
            evidence=told.evidence,
            gpu=WHOLE_NODE if gpu is None else gpu,
            aspect=aspect,
            memo={"job_id": job.job_id, "ranks": ranks, "slow_at": now, "gap_ms": 0},
        )

    def _close_ended(self, now: Instant) -> list[Finding]:
        found: list[Finding] = []
        for case in self._book.cases():
            job = self._fleet.jobs.get(case.memo["job_id"])
            if job is None or job.start > case.started_at:
                found.append(self._end(now, case, "its job has ended"))
        return found

    def _close_ranks(self, now: Instant, job_id: str, pace: Pace) -> list[Finding]:
        """Close what has kept up for long enough by its ranks' times."""
        found = []
        for case in self._alarms():
            ranks = np.array(case.memo["ranks"], np.int64)
            if case.memo["job_id"] != job_id or not len(ranks):
                continue
            slow_at = int(np.median(pace.slow_at[ranks]))  # a node is as slow as most of its ranks are
            self._note_slow(case, slow_at, _GAP_MS + 3000 * pace.step_s)
            heard = ranks[pace.at[ranks] > case.memo["slow_at"]]
            kept_up = len(heard) > 0 and float(np.median(pace.kept_up[heard])) >= _BEATS_IN_TIME
            if kept_up and now - case.memo["slow_at"] >= self._hold_ms(case):
                pace.score[ranks] = 0.0
                self._watch.absolve(case.node, None if case.gpu == WHOLE_NODE else case.gpu)
                found.append(self._end(now, case, "it keeps up with its peers again"))
        return found

    def _close_readings(self, now: Instant) -> list[Finding]:
        """Close what has kept up for long enough by its readings."""
        found = []
        for case in self._alarms():
            if case.memo["ranks"]:
                continue
            gpu = None if case.gpu == WHOLE_NODE else case.gpu
            if self._watch.slow_now(case.node, gpu):
                self._note_slow(case, now, _GAP_MS + 1000 * WINDOW_S)
            elif now - case.memo["slow_at"] >= self._hold_ms(case):
                self._watch.absolve(case.node, gpu)
                found.append(self._end(now, case, "it keeps up with its peers again"))
        return found

    def _note_slow(self, case: OpenCase, at: Instant, gap_ms: float) -> None:
        if at - case.memo["slow_at"] > gap_ms:
            case.memo["gap_ms"] = max(case.memo["gap_ms"], at - case.memo["slow_at"])
        case.memo["slow_at"] = max(at, case.memo["slow_at"])

    def _hold_ms(self, case: OpenCase) -> float:
        release_s, gap_ms = self._config.release_s, float(case.memo["gap_ms"])
        if gap_ms:
            return 1000 * min(max(_GAP_ROOM * gap_ms / 1000, release_s), _HOLD_LONGEST_S)
        brief = int(case.memo["slow_at"]) - case.started_at < _BRIEF_MS
        return 1000 * (max(_HOLD_BRIEF_S, release_s) if brief else release_s)

    def _end(self, now: Instant, case: OpenCase, reason: str) -> Finding:
        lasted_s = (case.memo["slow_at"] - case.started_at) / 1000
        return self._book.resolve(case, now, reason, {"job_id": case.memo["job_id"], "lasted_s": lasted_s})

    def snapshot(self) -> bytes:
        """Return the whole state."""
        lines, arrays = self._excuses.snapshot()
        watched, more = self._watch.snapshot()
        arrays |= {f"watch/{name}": array for name, array in more.items()}
        numbers: list[Any] = []
        for place, (job_id, pace) in enumerate(self._paces.items()):
            told, columns = pace.snapshot()
            numbers.append([job_id, told])
            arrays |= {f"pace/{place}/{name}": column for name, column in columns.items()}
        document = {"lines": lines, "watch": watched, "paces": numbers, "book": self._book.snapshot()}
        return pack(document, arrays)

    @classmethod
    def restore(cls, config: DetectorConfig, fleet: Fleet, state: bytes) -> Self:
        """Return a detector that goes on exactly where `snapshot` was taken."""
        document, arrays = unpack(state)
        detector = cls(config, fleet)
        detector._excuses.restore(document["lines"], arrays)
        detector._watch.restore(document["watch"], _within(arrays, "watch/"))
        for place, (job_id, told) in enumerate(document["paces"]):
            pace = Pace(detector._config, detector._watch.tails, told["start"])
            detector._paces[job_id] = pace.restore(told, _within(arrays, f"pace/{place}/"))
        detector._book.load(document["book"])
        return detector


def _within(arrays: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _words(entity: Entity) -> str:
    return f"{entity['node']} GPU {entity['gpu']}" if "gpu" in entity else str(entity["node"])
