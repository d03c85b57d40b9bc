"""Straggler: one GPU, or one node, for which all others of its job wait, and no other fault says why.

Three rungs, by what a cluster reports. Where ranks report their times, each rank's computation is compared with its own
habit and with the others' (`ranks`, `rank_places`). Where they do not, DCGM's readings show who computes while the
others wait (`readings`, `watch`), or whose power alone sets it apart from those that spin (`silent_chips`), and what
the job lost by it: in its step times, else in its own activity (`job_pace`). On each the culprit's own shortfall must
explain what the job loses; where demand sets the pace of a service, which reports no steps, a quarter more time for the
same work at a slow clock is enough. A node whose NIC came up at a lower speed than it had, while steps got longer, is
one, too: all ranks wait as long for it (`slow_links`). What is odd and slows nobody is reported once, as information.
Most GPUs of a node together are the node, and of one node there is one finding at a time.

Who does more work is given it, and is not slow: it is left out where tensor activity is read, or another rank came to
have less to do meanwhile. Nor is a rank that is the longest while steps are as ever; but who comes to be slow where all
other ranks are alike is, however busy it is. Nor are nodes of whatever jobs that wait for data at once, as their
storage is slow.

It is wrong where a few ranks of a job get more work, none less, and tensor activity is not read (an alert), where the
last stage's node is slow from the first step on (taken for the model's cut; among few nodes, stages that differ hide
other nodes), where a single node has the whole job and all its GPUs slow down alike, where a GPU or a node is a little
slower by its readings from the job's first minutes on (taken for its habit), where the memory of GPUs on two nodes
becomes slow within a minute (by readings: taken for more work), and where a fault that has a name leaves
no trace in DCGM or the logs. A rank that alone reports of its node stands for the node, as neighbours in tensor
parallelism count the wait for each other as computation; the GPU is named where its readings make it the one.
"""

from collections.abc import Sequence
from typing import ClassVar, Final, Self

import numpy as np

from detectors.case_book import CaseBook, OpenCase
from detectors.contract import Batch, DetectorConfig, DetectorSpec, Finding, Instant, IntArray, LogRecord
from detectors.core.evidence import Rises
from detectors.core.kept import Kept
from detectors.core.statistics import known_or
from detectors.core.tails import Tails
from detectors.engine.state import pack, unpack
from detectors.fleet.fleet import SHORTEST_STEP_S, Fleet, Job
from detectors.fleet.gpus import WHOLE_NODE, GpuLayout
from detectors.signals.held_down import RETURN_MS
from detectors.spec import load_spec
from detectors.straggler.comparison import Comparison
from detectors.straggler.config import StragglerConfig
from detectors.straggler.holding import HOLD_MS, hold_ms, slow_again
from detectors.straggler.job_pace import History
from detectors.straggler.known_causes import KnownCauses
from detectors.straggler.late_ranks import Late, wait_for_storage
from detectors.straggler.rank_places import Places, places_of
from detectors.straggler.ranks import WARM_UP_STEPS, Ranks
from detectors.straggler.readings import LATE, LONG_WORK, SAME_ORDER, SILENT, SLOW_CLOCK, STARVED
from detectors.straggler.slow_links import SlowLink, SlowLinks, report_on
from detectors.straggler.suspects import EXPLAINS, Suspect, action_for, report_of
from detectors.straggler.watch import Watch
from detectors.straggler.windows import WINDOW_S

_LONGEST_STEP_S = 86_400.0
_IN_TIME: Final = np.uint64(0b111)
"""Three looks in time, and it keeps up."""
_HARMLESS_LOOKS: Final = 15
"""What is odd for a quarter of an hour and slows nobody is a property: reported once, and learnt."""
_HARMLESS: Final = "harmless"
_LEAST_LAG: Final = 0.75
"""Of the effect: no job is slower by more than its slowest clock is. Both are measured, the lag at its least."""
_FULL: Final = float(np.log(3))
"""More may not be seen of it: a GPU is active all the time at most, and those that wait are so for a fifth of it."""
_WINDOW_MS: Final = 1000 * WINDOW_S


class _Work(Kept):
    """One job at work: when it started, its pace, and its ranks where they report."""

    KEPT = ("history", "ranks")

    def __init__(self, config: StragglerConfig, tails: Tails, rises: Rises, start: Instant) -> None:
        self.start = start
        self.history = History(WARM_UP_STEPS)
        self.ranks = Ranks(config, tails, rises)
        self.places: Places | None = None


class Straggler(Kept):
    """See the module; the settings are in detector.yaml."""

    KEPT = ("_watch", "_causes", "_book", "_rises", "_works", "_links")

    spec: ClassVar[DetectorSpec] = load_spec(__package__ or "")
    config_type: ClassVar[type[DetectorConfig]] = StragglerConfig

    def __init__(self, config: DetectorConfig, fleet: Fleet) -> None:
        if not isinstance(config, StragglerConfig):
            raise TypeError(f"{type(config).__name__} is not a StragglerConfig")
        self._config = config
        self._fleet = fleet
        self._layout = GpuLayout(fleet)
        self._causes = KnownCauses(fleet, self._layout)
        self._watch = Watch(config, fleet, self._layout)
        self._late = Late(config, self._layout, self._causes, self._watch)
        self._links = SlowLinks(fleet)
        self._book = CaseBook(self.spec.name, RETURN_MS)
        self._rises = Rises()
        self._works: dict[str, _Work] = {}
        self._numbers: dict[str, int] = {}
        self._job_of, self._rank_of = np.empty(0, np.int64), np.empty(0, np.int64)

    @property
    def tails(self) -> Tails:
        """What is usual here: `hindcast calibrate` writes it down."""
        return self._watch.tails

    def logs(self, records: Sequence[LogRecord]) -> Sequence[Finding]:
        """Note what logs say of hardware faults."""
        self._causes.take_lines(records)
        return ()

    def observe(self, batch: Batch) -> Sequence[Finding]:
        """Take readings; what follows from them is decided at the next point of the grid."""
        if batch.kind == "dcgm":
            self._causes.take(batch)
            self._watch.extend()
            self._watch.take(batch)
        elif batch.kind == "steps":
            self._take_steps(batch)
        elif batch.kind == "nic":
            self._links.take(batch)
        return ()

    def _take_steps(self, batch: Batch) -> None:
        keys = self._fleet.entities("steps")[len(self._job_of) :]
        jobs = [self._numbers.setdefault(str(key[0]), len(self._numbers)) for key in keys]
        self._job_of = np.concatenate([self._job_of, np.array(jobs, np.int64)])
        self._rank_of = np.concatenate([self._rank_of, np.array([int(key[1]) for key in keys], np.int64)])
        names, job, rank = list(self._numbers), self._job_of[batch.entities], self._rank_of[batch.entities]
        unknown = np.full(batch.at.shape, np.nan)
        step, compute, wait, data = (
            batch.sound.get(name, unknown) for name in ("step_time_s", "compute_s", "comm_wait_s", "data_wait_s")
        )
        rest = np.where(np.isfinite(wait), step - wait - known_or(data, 0.0), step)
        figures = step, np.where(np.isfinite(compute), compute, rest), wait, data
        sound = (step >= SHORTEST_STEP_S) & (step <= _LONGEST_STEP_S)
        named = ((self._fleet.jobs.get(names[number]), number) for number in sorted(set(job.tolist())))
        running = [(one, sound & (job == number)) for one, number in named if one is not None]
        for tick, at in enumerate(batch.at):
            for one, its in running:
                if not len(mine := its[tick].nonzero()[0]):
                    continue
                work, ranks = self._work(one), rank[mine]
                work.history.take(ranks, step[tick, mine], int(at[mine[0]]) - one.start)
                if len(mine := mine[ranks >= 0]):
                    work.ranks.add(rank[mine], at[mine], *(of[tick, mine] for of in figures))

    def _work(self, job: Job) -> _Work:
        work = self._works.get(job.job_id)
        if work is None or work.start != job.start:
            work = self._works[job.job_id] = _Work(self._config, self._watch.tails, self._rises, job.start)
        return work

    def advance(self, now: Instant) -> Sequence[Finding]:
        """Decide: what is over, and what began."""
        jobs = self._fleet.jobs
        found = [
            self._end(now, case, "its job has ended")
            for case in self._book.cases()
            if case.memo["job_id"] not in jobs or jobs[case.memo["job_id"]].start > case.started_at
        ]
        self._works = {job_id: self._work(job) for job_id, job in jobs.items()}
        for job_id, work in self._works.items():
            job, ranks = jobs[job_id], work.ranks
            if not len(ranks):
                continue
            if (known := work.places) is None or (len(known.node), known.names) != (len(ranks), tuple(job.nodes)):
                work.places = places_of(job, len(ranks))
            held = [rank for case in self._alarms() if case.memo["job_id"] == job_id for rank in case.memo["ranks"]]
            if work.places is not None and ranks.close(now, work.places, held):
                found += self._close(now, job_id)
                found += self._judge(now, self._late.suspects(job, ranks, work.places))
        histories = {job_id: work.history for job_id, work in self._works.items()}
        suspects = self._watch.close(now, histories, self._held())
        if suspects is not None:
            found += self._close(now, None)
            found += self._judge(now, suspects)
            found += self._judge_links(now, self._links.slow(now, histories))
            self._causes.forget(now)
        return found

    def _judge_links(self, now: Instant, links: list[SlowLink]) -> list[Finding]:
        found: list[Finding] = []
        for link in links:
            late = link.windows >= _HARMLESS_LOOKS  # what slows the job from now on is something else
            harmless = late or link.effect is None or link.effect.slower < self._config.job_share
            if any(case.node == link.node for case in self._alarms()) or (harmless and not late):
                continue
            report = report_on(link, now, harmless=harmless)
            found += self._book.fire(
                now,
                "straggler",
                {"node": link.node},
                started_at=link.since,
                severity=report.severity,
                score=report.score,
                summary=report.summary,
                action=f"reseat or swap the cable and the transceiver of {link.nic}, and drain the node until then",
                evidence=report.evidence,
                aspect=_HARMLESS if harmless else "",
                memo={"job_id": link.job.job_id, "ranks": [], "nic": link.nic, "slow_at": now},
            )
        return found

    def _held(self) -> IntArray:
        held = [self._layout.members(case.node) if case.gpu == WHOLE_NODE else [case.gpu] for case in self._alarms()]
        return np.array([gpu for gpus in held for gpu in gpus], np.int64)

    def _judge(self, now: Instant, suspects: list[Suspect]) -> list[Finding]:
        found: list[Finding] = []
        excused = {id(suspect) for suspect in suspects if self._explained(now, suspect)}
        no_nodes = {one.entity["node"] for one in suspects if id(one) in excused and "gpu" not in one.entity}
        single = {one.entity["node"] for one in suspects if "gpu" in one.entity}
        for one in suspects:
            if id(one) in excused:
                self._drop(one)
            node, alone = str(one.entity["node"]), "gpu" in one.entity
            if id(one) in excused or node in (no_nodes if alone else single):
                continue
            if any(case.node == node for case in self._alarms()) or self._is_known(one) or one.is_one_of_many():
                continue
            known = [case.memo["lag"] for case in self._alarms() if case.memo["job_id"] == one.job.job_id]
            worst = max(known + [other.lag for other in suspects if other.job == one.job])
            if one.how != LATE and np.log1p(one.lag) < np.log1p(worst) / 2:
                continue  # the slowest sets the job's pace
            if one.how != LATE and self._ranks_know(one.job) and not (one.effect and one.effect.slower):
                continue  # ranks' times know better, unless steps are longer and no rank's time says why
            if one.how == LATE and not self._slows(now, one):
                continue
            harmless = one.does_other_work() or not self._holds_up(one)
            if harmless and (one.looks < _HARMLESS_LOOKS or not one.sure):
                continue
            if not harmless or one.lag >= self._config.effect_share:
                found += self._fire(now, one, harmless=harmless)
            if harmless:
                comparison, entities = self._compared(node, one.gpus if alone else None)
                comparison.forget(entities)
        return found

    def _is_known(self, one: Suspect) -> bool:
        """Return whether it is known that its longer work slows nobody: its past was forgotten when that was reported.

        Who is starved, or has a slow clock, beside peers that have been alike ever since, is waited for all the same.
        """
        known = [(case.entity, case.memo["job_id"]) for case in self._book.cases() if case.aspect]
        return one.always and one.how == LONG_WORK and (dict(one.entity), one.job.job_id) in known

    def _drop(self, one: Suspect) -> None:
        """Forget the evidence against who is slow by another fault: it is none once that is over."""
        if one.how == LATE:
            self._works[one.job.job_id].ranks.drop(np.array(one.ranks, np.int64))
        else:
            comparison, entities = self._compared(str(one.entity["node"]), one.gpus if "gpu" in one.entity else None)
            comparison.drop(entities)

    def _ranks_know(self, job: Job) -> bool:
        return int(np.count_nonzero(self._works[job.job_id].ranks.seen)) >= len(self._layout.of_job(job))

    def _explained(self, now: Instant, one: Suspect) -> bool:
        peers = self._layout.of_job(one.job)
        # Ranks' own times leave out what they wait for each other.
        if one.how not in (LATE, SLOW_CLOCK) and self._causes.network_lost(one.job.nodes, one.since):
            return True
        if one.starved or one.how == STARVED:
            if self._links.errs(str(one.entity["node"])):
                return True
            placed = ((work.ranks, work.places) for work in self._works.values() if work.places is not None)
            if wait_for_storage(placed, self._config.effect_share / 2):
                return True
        return self._causes.explain(one, peers, self._watch.gpus.watts_at_work, now)

    def _slows(self, now: Instant, one: Suspect) -> bool:
        """Return whether steps are longer since a rank is late, as far as is known: of those that were given more work
        by turns each is the longest for a while, and steps are as ever.
        """
        windows = now // _WINDOW_MS - -(-one.since // _WINDOW_MS)
        work = self._works[one.job.job_id]
        if work.ranks.came_to_be_slow(one.ranks[0]):
            return True
        lengthened = work.history.lengthened(max(windows, 0))
        return not lengthened < min(self._config.job_share, one.lag / 3)

    def _holds_up(self, one: Suspect) -> bool:
        """Return whether its job lost by it as much as counts, as much as its lag explains, and not for another reason.

        Where the job's pace varies too much to show a loss as large as the lag, a lag that counts is enough if the
        clock is slow, and activity higher; or if it is idle, and the others spin. Ranks wait by their own times.
        """
        if one.how in (LATE, SILENT):  # these are asked for after what their jobs have lost
            return True
        effect, share, inferred = one.effect, self._config.effect_share, one.job.inferred
        steps_known = self._works[one.job.job_id].history.steps_known
        alone = len(one.job.nodes) == 1 and not steps_known
        as_one = one.in_step and (not inferred or one.is_waited_for() or bool(effect and effect.slower))
        if (inferred or alone) and (one.how != SLOW_CLOCK or (inferred and one.has_more_to_do())) and not as_one:
            return False  # a slow clock is so in any job; who works longer may have work of its own
        # Where demand sets the pace of work, what is lost is time to answer.
        far = one.is_far_slower() and not steps_known
        if one.always or far:  # the others wait for it
            return far or (one.lag >= share and (not alone or (as_one and one.has_slow_memory)))
        if effect is None or (effect.slower == 0 and effect.seen >= one.lag / 3):
            plain = one.works_alike() if one.how == SLOW_CLOCK else one.is_waited_for()
            return bool(one.sure and one.lag >= share and plain)
        if alone and not (one.works_alike() or one.is_waited_for(felt=True) or one.works_in_step()):
            return False
        slower = np.log1p(effect.slower) / (SAME_ORDER if one.how in (SLOW_CLOCK, STARVED) else EXPLAINS)
        explained = np.log1p(one.lag) >= min(slower, _FULL) or one.works_on(effect.slower) or one.grew_mib > 0
        felt = effect.slower >= max(self._config.job_share, one.costs() / SAME_ORDER)
        least = _LEAST_LAG * share if one.how == SLOW_CLOCK else 0.0
        return bool(felt and explained and max(one.lag, effect.slower) >= share and one.lag >= least)

    def _alarms(self) -> list[OpenCase]:
        """Return the open findings but those of what harms nobody: these last as long as the job."""
        return [case for case in self._book.cases() if not case.aspect]

    def _fire(self, now: Instant, one: Suspect, *, harmless: bool) -> list[Finding]:
        limits = self._causes.limits(one.gpus, self._layout.of_job(one.job))
        report = report_of(one, now, limits, harmless=harmless)
        single = one.gpus[self._layout.gpu[one.gpus] == one.entity.get("gpu", -1)]
        again = not harmless and self._book.returned(now, "straggler", one.entity)
        memo = {"job_id": one.job.job_id, "ranks": list(one.ranks), "slow_at": now, "gap_ms": 0, "slow": True}
        silent = {"silent": [one.silent.level, one.silent.spared]} if one.silent is not None else {}
        return self._book.fire(
            now,
            "straggler",
            one.entity,
            started_at=one.since,
            severity=report.severity,
            score=report.score,
            summary=report.summary,
            action=action_for(one, limits),
            evidence=report.evidence,
            gpu=int(single[0]) if len(single) else WHOLE_NODE,
            aspect=_HARMLESS if harmless else "",
            memo=memo | {"lag": one.lag, "again": again, **silent},
        )

    def _compared(self, node: str, gpus: IntArray | None) -> tuple[Comparison, IntArray]:
        if gpus is None or not len(gpus):
            return self._watch.nodes, np.array([self._layout.number(node)])
        return self._watch.gpus, gpus

    def _close(self, now: Instant, job_id: str | None) -> list[Finding]:
        """Close what has kept up for long enough, by the times of a job's ranks, or (None) by readings."""
        found = []
        for case in self._alarms():
            if nic := case.memo.get("nic"):
                if self._links.is_slow(case.node, str(nic)):
                    case.memo["slow_at"] = now
                elif now - case.memo["slow_at"] >= HOLD_MS:
                    found.append(self._end(now, case, "its link runs at its speed again"))
                continue
            if silent := case.memo.get("silent"):
                if self._watch.silent.is_low(case.gpu, *silent):
                    slow_again(case, now)
                elif now - case.memo["slow_at"] >= hold_ms(case):
                    found.append(self._end(now, case, "it draws as much as ever beside its peers again"))
                continue
            ranks = np.array(case.memo["ranks"], np.int64)
            if len(ranks) if job_id is None else (case.memo["job_id"] != job_id or not len(ranks)):
                continue
            gpus = np.array([case.gpu]) if case.gpu != WHOLE_NODE else None
            compared, who = self._compared(case.node, gpus) if job_id is None else (self._works[job_id].ranks, ranks)
            odd = compared.odd[who]
            if 2 * np.count_nonzero(odd & np.uint64(1)) >= len(who):  # a node is as slow as half of its ranks are
                slow_again(case, now)
                case.memo["lag"] = float(np.median(compared.lag[who]))
                continue
            case.memo["slow"] = False
            if 2 * np.count_nonzero(odd & _IN_TIME) < len(who) and now - case.memo["slow_at"] >= hold_ms(case):
                compared.forget(who)
                found.append(self._end(now, case, "it keeps up with its peers again"))
        return found

    def _end(self, now: Instant, case: OpenCase, reason: str) -> Finding:
        lasted_s = (case.memo["slow_at"] - case.started_at) / 1000
        return self._book.resolve(case, now, reason, {"job_id": case.memo["job_id"], "lasted_s": lasted_s})

    def snapshot(self) -> bytes:
        """Return the whole state."""
        document, arrays = self.saved()
        starts = {job_id: work.start for job_id, work in self._works.items()}
        return pack({"tails": self.tails.document(), "starts": starts, "rest": document}, arrays)

    @classmethod
    def restore(cls, config: DetectorConfig, fleet: Fleet, state: bytes) -> Self:
        """Return a detector that goes on exactly where `snapshot` was taken."""
        document, arrays = unpack(state)
        detector = cls(config.model_copy(update={"calibration": document["tails"]}), fleet)
        for job_id, start in document["starts"].items():
            detector._works[job_id] = _Work(detector._config, detector.tails, detector._rises, start)
        detector.take_saved(document["rest"], arrays)
        detector._layout.extend()
        return detector
