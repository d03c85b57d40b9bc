"""A node is down: its in-band series stop, or the scheduler says so, while its BMC may live on.

When the scheduler says that a node is down, it is reported at once; but one that Kubernetes calls not ready only if it
is silent as well, or nothing is gathered of it and it stays so for five minutes: kubelets restart. So is a node that
misses two readings in all its in-band streams (GPUs, NICs, storage) after its kernel's or BMC's last words, when the
scheduler misses it too or ends its job for a failed node, or when its BMC reads no power while it had a job. Else it is
inferred. A node's silence weighs what so long a silence weighs here, where scrapes get lost in runs and collectors
pause; its job's steps that stop with it, or its watts that fall, weigh by how seldom jobs pause for so long, or watts
fall so far. Together they must be so improbable that chance makes them within the budget only. Of a job without steps
the GPUs of its other nodes say it, by their tensor activity or power: they stand since, for nine readings or for two
and a half minutes. A job that completed, or that began later, says nothing, nor does one whose other nodes began to
write a checkpoint when it stopped, for as long as they do. On silence alone it takes five minutes, and longer than
nodes here are ever silent; of a node without a job, as long as a reboot takes, or as a power cycle if its BMC reads no
power. That of a node without a job is information where nothing else speaks of it: it holds nobody up, and clouds and
autoscalers take such nodes away. A node whose job goes on stepping, or works on elsewhere, is alive: its
collector is not (`telemetry_gap`); so are nodes that fall silent together, unless their job stops with them or
something names each of them. Streams that stop one by one are their agents' trouble. What the scheduler took out on
purpose is silent by right.

It is wrong about an idle node without a BMC, if its only exporter died for longer than a reboot takes; about an idle
node that hangs with its power on, until the scheduler says so; about a node that hangs while its exporter still
answers (`job_hang` sees the job).
"""

import math
from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np

from detectors.base import BaseDetector
from detectors.contract import (
    Batch,
    DetectorConfig,
    DetectorSpec,
    Evidence,
    Fault,
    Finding,
    Instant,
    LogRecord,
)
from detectors.core.evidence import odds_in_words
from detectors.core.survivors import Survivors
from detectors.fleet.fleet import Fleet
from detectors.fleet.lapses import Lapses, believed, chance_allowed
from detectors.fleet.presence import LATE, LEAST_READINGS, NEVER, REBOOT_MS, Attendance, Progress, Roster
from detectors.fleet.scheduling import Scheduler, Word
from detectors.fleet.tenancy import Tenancy
from detectors.node_down.cases import MISSED, Case, bmc_in_a_word
from detectors.node_down.config import NodeDownConfig
from detectors.node_down.signs import LastWords, is_panic
from detectors.node_down.silence import Silence
from detectors.signals.saves import Saves
from detectors.signals.watts import Watts
from detectors.spec import load_spec

_FAULT: Fault = "node_down"
_SIGNS_BEFORE_MS: Final = 180_000
"""A SEL or kernel line this long before the silence still speaks of it: BMCs are read every minute."""
_TOGETHER: Final = 3
"""So many nodes are not silent for as long at once by chance: it is for what they share, most often a collector."""
_STUCK_MS: Final = 150_000
"""Policy of `job_health`: GPUs that wait for others for so long hang, and their node is silent since. Where scrapes are
seldom that is sooner than nine readings."""
_FEED_SHARE: Final = 0.8
"""When nearly all that report are silent at once, and so are all jobs, it is our feed and not the cluster."""
_FORGET_MS: Final = 86_400_000
"""A node silent for a day is no longer news, and not counted among those that report."""
_LATELY_MS: Final = 300_000
"""A line of its own within five minutes shows a node alive: programs that run print one as often, mostly."""
_RELEASE_MS, _RELEASE_INTERVALS = 60_000, 3
"""A node that boots twice is one finding; well within the five minutes in which a resolve is due (policy)."""
_IDLE: Final = "idle"
"""The aspect of a node without work of which nothing but its silence speaks."""


class NodeDown(BaseDetector):
    """See the module; the thresholds are in detector.yaml."""

    spec: ClassVar[DetectorSpec] = load_spec(__package__ or "")
    config_type: ClassVar[type[DetectorConfig]] = NodeDownConfig

    KEPT = (
        "_roster", "_silence", "_pauses", "_watts", "_bmcs", "_words", "_progress", "_scheduler", "_tenancy",
        "_excused", "_heard_of", "_saves",
    )  # fmt: skip
    _config: NodeDownConfig

    def __init__(self, config: DetectorConfig, fleet: Fleet) -> None:
        super().__init__(config, fleet)
        # In a case's memo: `heard` the node's last reading while gone; `back_at` since when it is heard again, or -1.
        self._roster = Roster(fleet)
        self._silence = Silence(self._config, self._roster, Lapses(self.tails["silences of nodes"]))
        self._pauses = Lapses(self.tails["pauses of jobs"])
        self._watts = Watts(fleet, self._roster)
        self._bmcs = Attendance("bmc")
        self._saves = Saves(fleet)
        self._words = LastWords()
        self._progress = Progress(fleet)
        self._scheduler = Scheduler(fleet)
        self._tenancy = Tenancy(fleet)
        self._excused: dict[str, Instant] = {}
        """Nodes that are silent by right or evidently alive, with their last reading then."""
        self._heard_of: Instant = -1

    def begin_afresh(self, name: str) -> None:
        """Go on with the state of a version that did not note which nodes save."""
        if name != "_saves":
            super().begin_afresh(name)

    def logs(self, records: Sequence[LogRecord]) -> Sequence[Finding]:
        """Note what schedulers, BMCs and kernels say of nodes."""
        self._scheduler.take(records)
        self._words.take(records)
        return ()

    def observe(self, batch: Batch) -> Sequence[Finding]:
        """Note who is heard; what follows is decided at the next point of the grid."""
        if batch.kind == "bmc":
            self._watts.take(batch)
            self._bmcs.readings.take(batch)
            return ()
        if batch.kind == "storage":
            self._saves.take(batch)
        self._progress.take(batch)
        if batch.kind != "steps":
            self._silence.streams[batch.kind].readings.take(batch)
        return ()

    def advance(self, now: Instant) -> Sequence[Finding]:
        """Decide: who is back, and who is gone."""
        self._pauses.learn(*self._progress.settle(now))
        self._bmcs.look(now)
        self._words.forget(now)
        self._tenancy.note(now)
        self._silence.measure(now, self._excused.keys() | {case.node for case in self._book.cases()})
        over = self._close(now)
        unheard = (node for node in self._scheduler.long_unready(now) if not self._was_heard(node))
        stated = {*self._scheduler.reported_down(self._heard_of), *unheard}
        self._heard_of = now
        silence = self._silence
        suspects = np.flatnonzero((silence.missed > LATE) & (silence.silent_ms <= _FORGET_MS))
        names = {self._roster.names[number] for number in suspects.tolist()} | stated
        self._excused = {node: last for node, last in self._excused.items() if node in names}
        began: list[Finding] = []
        for node in sorted(names - {case.node for case in self._book.cases() if case.severity != "info"}):
            began += self._judge(now, node, stated=node in stated)
        self.tails["falls of power"].learn(self._watts.drops())
        return [*over, *began]

    def go_on_with(self, survivors: Survivors) -> None:
        """Forget who of those that are gone was silent by right."""
        self._excused = {n: last for n, last in self._excused.items() if n not in survivors.names("machine")}

    def _judge(self, now: Instant, node: str, *, stated: bool) -> list[Finding]:
        number = self._roster.number(node)
        self._silence.grow(len(self._roster))
        last, usual = int(self._silence.last[number]), float(self._silence.usual[number])
        if not stated and last >= 0 and self._excused.get(node) == last:
            return []
        scheduler = self._scheduler
        out = scheduler.on_purpose(node, now) if stated else scheduler.by_right(node, last, usual, now)
        if out is not None:
            self._excused[node] = last
            return []
        if not stated and self._silence.missed[number] < MISSED:
            return []
        case = self._case(now, number, last, usual)
        if not stated and not self._is_down(case, now):
            return []
        alerts = stated or case.job_id is not None or case.off or bool(case.support)
        idle = self._book.get(_FAULT, {"node": node}, _IDLE) if alerts else None
        over = [self._book.resolve(idle, now, "more than its silence speaks of it")] if idle is not None else []
        return [*over, *self._fire(now, case, alerts=alerts)]

    def _was_heard(self, node: str) -> bool:
        number = self._roster.known(node)
        return number is not None and number < len(self._silence) and bool(self._silence.last[number] >= 0)

    def _is_down(self, case: Case, now: Instant) -> bool:
        """Return whether a silent node is down; none of the rest if its job proves that it lives.

        What draws no power does not live, whatever its job does on other nodes.
        """
        if case.word is not None or (case.line is not None and is_panic(case.line[1])):
            return True
        if case.off and (case.job_id is not None or self._stays_off(case, now)):
            return True
        if self._lives(case, now):
            return False
        if case.line is not None:
            return True
        if case.stopped is False:
            return False  # its job's next step may still come
        allowed = chance_allowed(self._config.false_alarms_per_100_node_days, case.usual)
        work_stands = case.job_id is not None and (case.draws_less or case.paused >= LEAST_READINGS)
        stuck = case.stopped is None and min(case.paused, case.missed) * case.usual >= _STUCK_MS
        sure = case.odds <= allowed or (work_stands and case.missed >= LEAST_READINGS) or stuck
        sure &= not case.saves  # a checkpoint is why its job, and its GPUs, pause
        return (sure and case.together < _TOGETHER) or self._is_silent_for_good(case, now)

    def _stays_off(self, case: Case, now: Instant) -> bool:
        """Return whether a node without a job draws no power for longer than one that is power-cycled, and boots."""
        return now - case.last >= max(1000 * self._config.least_s, LEAST_READINGS * case.usual)

    def _is_silent_for_good(self, case: Case, now: Instant) -> bool:
        """Return whether silence alone says it: longer than nodes here are ever silent, of all its streams at once."""
        needed = float(self._silence.needed[case.number])
        if case.job_id is None:
            needed = max(needed, REBOOT_MS)
        if now - case.last < needed or not self._silence.at_once(case.number):
            return False
        draws_on = case.stopped is not True and self._watts.held(case.number, case.last)
        if draws_on and now - case.last >= REBOOT_MS:
            self._excused[case.node] = case.last  # so long at work it is its collector, and idle when the work is over
        return not draws_on and not self._is_a_collector(case, now)

    def _lives(self, case: Case, now: Instant) -> bool:
        outlived = case.last + int(LEAST_READINGS * case.usual)
        word = self._scheduler.alive(case.node, case.last + int(case.usual))
        if word is not None and word.at > outlived:
            self._excused[case.node] = case.last  # what runs on it outlived what a crash could explain
            return True
        if word is not None and now - word.at <= _LATELY_MS:
            return True
        if case.job_id is None or not self._progress.lives_by(case.job_id, case.last + int(case.usual), now):
            return False
        if self._progress.lives_by(case.job_id, outlived, now):
            self._excused[case.node] = case.last  # its job outlived what a crash could explain: it is the collector
        return True

    def _is_a_collector(self, case: Case, now: Instant) -> bool:
        """Return whether the silence of several nodes at once is better explained by what collects it."""
        reporting = self._silence.reporting(_FORGET_MS)
        if case.together >= reporting:
            return True
        if case.together < _TOGETHER:
            return False
        return case.stopped is not True or (
            case.together >= _FEED_SHARE * reporting and not self._progress.any_goes_on(now)
        )

    def _case(self, now: Instant, number: int, last: Instant, usual: float) -> Case:
        node, silence = self._roster.names[number], self._silence
        silent = last >= 0 and silence.missed[number] > 1
        since = (last if silent else now) - _SIGNS_BEFORE_MS if last >= 0 else -1
        watts, before = self._watts.since(number, last)
        bmc_last, bmc_usual = self._roster.latest(self._bmcs)
        job_id = self._tenancy.job(node, last)
        ended = "" if job_id is None else self._fleet.how_ended(job_id)
        if ended == "COMPLETED":
            job_id = None  # it did not die with a node
        failed = Word("suspect", now, f"job {job_id} ended by NODE_FAIL") if silent and ended == "NODE_FAIL" else None
        odds, paused = 1.0, 0.0
        working = job_id is not None and self._began(job_id) <= last + MISSED * usual
        if silent and job_id is not None and working:
            stepped = self._paused(job_id, last, usual, now)
            # It may be either of two steps.
            beside = min(2 * self._pauses.odds(stepped) if stepped else 1.0, self._odds_of_fall(watts, before))
            paused = stepped or self._stands(job_id, node, last, usual, now)
            odds = 1.0 if beside >= 1 else both(beside, silence.lapses.odds(float(silence.missed[number])))
        return Case(
            node=node,
            number=number,
            last=last,
            usual=usual,
            missed=float(silence.missed[number]),
            together=silence.beside(number, now),
            word=self._scheduler.fate(node, since) or failed,
            line=self._words.of(node, since),
            off=self._watts.off(number, last),
            watts=watts,
            watts_before=before,
            draws_less=working
            and not self._tenancy.left(node, last - _LATELY_MS, last + usual)  # it took its power with it
            and self._watts.less_since(number, last, last + usual + 2 * float(bmc_usual[number])),
            bmc=bmc_in_a_word(int(bmc_last[number]), float(bmc_usual[number]), now),
            job_id=job_id,
            stopped=self._progress.stopped(job_id, now) if job_id and working else None,
            odds=odds,
            paused=paused,
            saves=job_id is not None and self._save(job_id, node, last, now),
        )

    def _save(self, job_id: str, node: str, last: Instant, now: Instant) -> bool:
        """Return whether other nodes of a job began to save after its last step, or after a node was last heard."""
        job, stepped = self._fleet.jobs.get(job_id), self._progress.of(job_id)[0]
        if job is None:
            return False
        return self._saves.began({*job.nodes} - {node}, stepped if stepped != NEVER else last, now)

    def _began(self, job_id: str) -> Instant:
        """Return when a job began (-1: it is over); one that is given a silent node has not fallen silent with it."""
        job = self._fleet.jobs.get(job_id)
        return job.start if job is not None else -1

    def _paused(self, job_id: str, last: Instant, usual: float, now: Instant) -> float:
        """Return for how many of its intervals a job has stopped together with a node; 0 if it did not."""
        stepped, interval = self._progress.of(job_id)
        together = abs(stepped - last) <= 2 * interval + usual
        return (now - stepped) / interval if together and self._progress.stopped(job_id, now) else 0.0

    def _stands(self, job_id: str, node: str, last: Instant, usual: float, now: Instant) -> float:
        """Return for how many readings the GPUs of a job without steps have stood since a node fell silent; else 0."""
        worked = self._progress.stands_since(job_id, node, last + int(usual))
        return (now - worked) / usual if worked >= 0 and abs(worked - last) <= 3 * usual else 0.0

    def _odds_of_fall(self, watts: float, before: float) -> float:
        if not watts < before:
            return 1.0
        falls = self.tails["falls of power"]
        return believed(float(falls.odds(np.array([before / max(watts, 1.0) - 1]))[0]), falls.total)

    def _fire(self, now: Instant, case: Case, *, alerts: bool) -> list[Finding]:
        stated_at = case.word.at if case.word is not None else now
        started_at = min(case.last + int(case.usual / 2), stated_at, now) if case.missed > 1 else stated_at
        return self._book.fire(
            now,
            _FAULT,
            {"node": case.node},
            started_at=started_at,
            severity="page" if alerts else "info",
            score=min(1.0, (0.95 if case.down else 0.65) + 0.12 * len(case.support)),
            summary=case.summary(now) + ("" if alerts else "; it had no work, and nothing else speaks of it"),
            action="look at its console and event log by the BMC, power-cycle it, keep it out of the scheduler until "
            "it passes its health check"
            if alerts
            else "none, if it was taken away on purpose",
            evidence=self._evidence(case, now),
            aspect="" if alerts else _IDLE,
            memo={"heard": case.last, "back_at": -1},
        )

    def _evidence(self, case: Case, now: Instant) -> Evidence:
        reporting = self._silence.reporting(_FORGET_MS)
        evidence: dict[str, float | int | str] = {
            "silent_together": case.together,
            "nodes_reporting": reporting,
            "bmc": case.bmc,
            "support": ", ".join(case.support),
        }
        if case.last >= 0 and np.isfinite(case.usual):
            evidence |= {
                "silent_s": (now - case.last) / 1000,
                "usual_interval_s": case.usual / 1000,
                "intervals_missed": case.missed,
                "longest_by_chance_s": float(self._silence.needed[case.number]) / 1000,
                "streams": self._silence.of(case.number),
            }
            if case.odds < 1:
                wealth = -math.log(max(case.odds, 1e-30))
                evidence["by_chance"] = odds_in_words(wealth, reporting, case.usual / 1000)
        if case.word is not None:
            evidence["scheduler"] = case.word.line
        if case.line is not None:
            evidence["event_log"] = case.line[1]
        if np.isfinite(case.watts):
            evidence |= {"node_power_w": case.watts, "node_power_before_w": case.watts_before}
        if case.job_id is not None:
            evidence["job_id"] = case.job_id
            last, usual = self._progress.of(case.job_id)
            if last >= 0:
                evidence["job_step_age_s"] = (now - last) / 1000
            if np.isfinite(usual):
                evidence["job_step_interval_s"] = usual / 1000
        return evidence

    def _close(self, now: Instant) -> list[Finding]:
        """Close what has been heard again for long enough; a node that boots twice stays open over both."""
        over: list[Finding] = []
        for entry in self._book.cases():
            memo, number = entry.memo, self._roster.number(entry.node)
            self._silence.grow(len(self._roster))
            last, missed = int(self._silence.last[number]), float(self._silence.missed[number])
            usual = float(self._silence.usual[number])
            if last < 0 and self._scheduler.back_at(entry.node) > entry.started_at:
                over.append(self._book.resolve(entry, now, "the scheduler has it back"))
                continue
            if last <= memo["heard"] or missed > LATE:
                memo["back_at"], memo["heard"] = -1, max(memo["heard"], last)
                continue
            if memo["back_at"] < 0:
                memo["back_at"] = last
                continue
            if last - memo["back_at"] >= np.fmax(_RELEASE_MS, _RELEASE_INTERVALS * usual):
                back_s = (now - memo["back_at"]) / 1000
                lasted_s = max(memo["back_at"] - entry.started_at, 0) / 1000
                reason = f"it reports again since {back_s:.0f} s"
                over.append(self._book.resolve(entry, now, reason, {"lasted_s": lasted_s}))
        return over


def both(one: float, other: float) -> float:
    """Return how likely two independent readings are so improbable together (Fisher's method, of two)."""
    product = one * other
    return product * (1 - math.log(product))
