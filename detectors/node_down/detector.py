"""A node is down: its in-band series stop, or the scheduler says so, while its BMC may live on.

Silence is measured in the node's own intervals, over all its in-band streams (GPUs, NICs, storage): so many readings
in a row must be missing that lost scrapes do not explain it, given how many get lost in this cluster. With a line of
the scheduler, the BMC or the kernel beside it, or with the watts fallen, two are enough; when the scheduler says
that the node is down, none need be missing. A node whose job goes on stepping is alive: its collector is not
(`telemetry_gap`). Nodes that fall silent together are a collector too, unless their job's steps stop, their watts
fall, or the scheduler has lost them as well. What the scheduler took out on purpose before is silent by right.
A node without a job that draws what it did is left to `telemetry_gap` until the scheduler misses it too.

It is wrong about an idle node without a BMC, if only its exporter died; about an idle node that hangs with its power
on, until the scheduler says so; about a node that hangs
while its exporter still answers (`job_hang` sees the job); and late by up to `steps_wait_s` where steps are long.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from detectors.case_book import CaseBook
from detectors.contract import Batch, DetectorConfig, DetectorSpec, Evidence, Fault, Finding, Instant, LogRecord
from detectors.fleet import Fleet
from detectors.node_down.config import NodeDownConfig
from detectors.node_down.signs import LastWords
from detectors.node_down.silence import Silence
from detectors.presence import Progress, Roster
from detectors.scheduling import Scheduler, Word
from detectors.spec import load_spec
from detectors.state import pack, unpack
from detectors.watts import Watts

_FAULT: Fault = "node_down"


@dataclass(frozen=True, slots=True)
class _Case:
    """All that is known of a node at the moment of judgement."""

    node: str
    number: int
    last: Instant
    usual: float
    missed: float
    together: int
    word: Word | None
    line: tuple[Instant, str] | None
    watts: float
    watts_before: float
    bmc: str
    job_id: str | None
    stopped: bool | None

    def support(self, power_ratio: float) -> list[str]:
        """Return what speaks for it beside the silence."""
        signs = {
            "scheduler": self.word is not None,
            "event log": self.line is not None,
            "power": self.watts < power_ratio * self.watts_before,
            "steps": self.stopped is True,
        }
        return [name for name, says in signs.items() if says]


class NodeDown:
    """See the module; the thresholds are in detector.yaml."""

    spec: ClassVar[DetectorSpec] = load_spec(__package__ or "")
    config_type: ClassVar[type[DetectorConfig]] = NodeDownConfig

    def __init__(self, config: DetectorConfig, fleet: Fleet) -> None:
        if not isinstance(config, NodeDownConfig):
            raise TypeError(f"{type(config).__name__} is not a NodeDownConfig")
        self._config = config
        self._fleet = fleet
        self._roster = Roster(fleet)
        self._silence = Silence(self._roster)
        self._watts = Watts(fleet, self._roster)
        self._words = LastWords()
        self._progress = Progress(fleet)
        self._scheduler = Scheduler(fleet)
        self._excused: dict[str, Instant] = {}
        self._book = CaseBook(self.spec.name)
        """In its memos: `heard` the node's last reading while gone; `back_at` since when it is heard again, or -1."""
        self._told_upto: Instant = -1

    def logs(self, records: Sequence[LogRecord]) -> Sequence[Finding]:
        """Note what schedulers, BMCs and kernels say of nodes."""
        self._scheduler.take(records)
        self._words.take(records)
        return ()

    def observe(self, batch: Batch) -> Sequence[Finding]:
        """Note who is heard; what follows is decided at the next point of the grid."""
        if batch.kind == "bmc":
            self._watts.take(batch)
        elif batch.kind == "steps":
            self._progress.take(batch)
        else:
            self._silence.take(batch)
        return ()

    def advance(self, now: Instant) -> Sequence[Finding]:
        """Decide: who is back, and who is gone."""
        self._progress.settle()
        self._words.forget(now)
        self._silence.measure(now)
        over = self._close(now)
        told = [node for node, _ in self._scheduler.said_down(self._told_upto)]
        self._told_upto = now
        suspects = np.flatnonzero(self._silence.missed > 1.5)
        suspects = suspects[self._silence.silent_ms[suspects] <= self._config.forget_s * 1000]
        names = {self._roster.names[number] for number in suspects.tolist()} | set(told)
        self._excused = {node: last for node, last in self._excused.items() if node in names}
        began: list[Finding] = []
        for node in sorted(names - {case.node for case in self._book.cases()}):
            began += self._judge(now, node, suspects.tolist(), told=node in told)
        return [*over, *began]

    def _judge(self, now: Instant, node: str, suspects: list[int], *, told: bool) -> list[Finding]:
        number = self._roster.number(node)
        self._silence.grow()
        last, usual = int(self._silence.last[number]), float(self._silence.usual[number])
        if not told and last >= 0 and self._excused.get(node) == last:
            return []
        out = self._scheduler.on_purpose(node, now)
        if out is not None and (told or out.at <= last + usual):
            self._excused[node] = last
            return []
        if not told and self._silence.missed[number] < self._config.supported_intervals:
            return []
        case = self._case(now, number, last, usual, suspects)
        return self._fire(now, case) if told or self._is_down(case, now) else []

    def _is_down(self, case: _Case, now: Instant) -> bool:
        """Return whether a silent node is down; none of the rest if its job proves that it lives."""
        said_down = case.word is not None and case.word.said == "down"
        if self._lives(case, now) and case.word is None:
            return False
        if case.stopped is False and now - case.last <= self._config.steps_wait_s * 1000 and not said_down:
            return False
        if case.stopped is None and case.word is None and self._draws_on(case, now):
            return False
        firm = [sign for sign in case.support(self._config.power_ratio) if sign != "steps"]
        return (bool(firm) or case.missed >= self._silence.patience) and not self._is_a_collector(case, firm, now)

    def _draws_on(self, case: _Case, now: Instant) -> bool:
        """Return whether a node without a job draws what it did, or its BMC is still to be heard on that."""
        if np.isfinite(case.watts):
            return case.watts >= self._config.power_ratio * case.watts_before
        waits = now - case.last <= self._config.steps_wait_s * 1000
        return waits and case.bmc == "reports" and self._watts.known(case.number)

    def _lives(self, case: _Case, now: Instant) -> bool:
        if case.job_id is None or not self._progress.goes_on(case.job_id, case.last + int(case.usual), now):
            return False
        if self._progress.goes_on(case.job_id, case.last + int((self._silence.patience + 1) * case.usual), now):
            self._excused[case.node] = case.last  # its job outlived what a crash could explain: it is the collector
        return True

    def _is_a_collector(self, case: _Case, firm: list[str], now: Instant) -> bool:
        """Return whether the silence of several nodes at once is better explained by what collects it."""
        if firm:
            return False
        reporting = self._silence.reporting(now, self._config.forget_s * 1000)
        if case.together >= reporting:
            return True
        if case.together < self._config.together_nodes:
            return False
        if case.together >= self._config.feed_share * reporting:
            return not self._progress.any_goes_on(now)
        return case.stopped is not True and case.bmc != "silent"

    def _case(self, now: Instant, number: int, last: Instant, usual: float, suspects: list[int]) -> _Case:
        node = self._roster.names[number]
        silent = last >= 0 and self._silence.missed[number] > 1
        since = (last if silent else now) - int(self._config.support_window_s * 1000)
        span = self._config.together_intervals * (usual if np.isfinite(usual) else 0.0)
        together = sum(abs(int(self._silence.last[other]) - last) <= span for other in suspects)
        watts, before = self._watts.since(number, last)
        bmc_last, bmc_usual = self._roster.latest(self._watts.presence)
        job = self._fleet.job_of(node)
        return _Case(
            node=node,
            number=number,
            last=last,
            usual=usual,
            missed=float(self._silence.missed[number]),
            together=together,
            word=self._scheduler.fate(node, since),
            line=self._words.of(node, since),
            watts=watts,
            watts_before=before,
            bmc=_bmc(int(bmc_last[number]), float(bmc_usual[number]), now),
            job_id=job.job_id if job else None,
            stopped=self._progress.stopped(job.job_id, now) if job else None,
        )

    def _fire(self, now: Instant, case: _Case) -> list[Finding]:
        said = case.word.at if case.word is not None else now
        started_at = min(case.last + int(case.usual / 2), said, now) if case.missed > 1 else said
        support = case.support(self._config.power_ratio)
        down = case.word is not None and case.word.said == "down"
        return self._book.fire(
            now,
            _FAULT,
            {"node": case.node},
            started_at=started_at,
            severity="page",
            score=min(1.0, (0.95 if down else 0.65) + 0.12 * len(support)),
            summary=self._summary(case, now),
            action="look at its console and event log by the BMC, power-cycle it, keep it out of the scheduler until "
            "it passes its health check",
            evidence=self._evidence(case, support, now),
            memo={"heard": case.last, "back_at": -1},
        )

    def _summary(self, case: _Case, now: Instant) -> str:
        if case.missed > 1:
            silent = f"{case.node} is silent for {(now - case.last) / 1000:.0f} s ({case.missed:.1f} intervals)"
        else:
            silent = f"{case.node} is down by the scheduler's word"
        support = case.support(self._config.power_ratio)
        return silent + (f"; so say {', '.join(support)}" if support else "")

    def _evidence(self, case: _Case, support: list[str], now: Instant) -> Evidence:
        evidence: dict[str, float | int | str] = {
            "silent_together": case.together,
            "nodes_reporting": self._silence.reporting(now, self._config.forget_s * 1000),
            "bmc": case.bmc,
            "support": ", ".join(support),
        }
        if case.last >= 0 and np.isfinite(case.usual):
            evidence |= {
                "silent_s": (now - case.last) / 1000,
                "usual_interval_s": case.usual / 1000,
                "intervals_missed": case.missed,
                "intervals_needed": self._silence.patience,
                "streams": self._silence.streams(case.number),
            }
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
            self._silence.grow()
            last, missed = int(self._silence.last[number]), float(self._silence.missed[number])
            usual = float(self._silence.usual[number])
            if last <= memo["heard"] or missed > 1.7:
                memo["back_at"], memo["heard"] = -1, max(memo["heard"], last)
                continue
            if memo["back_at"] < 0:
                memo["back_at"] = last
                continue
            held = self._config.release_s * 1000
            if np.isfinite(usual):
                held = max(held, self._config.release_intervals * usual)
            if last - memo["back_at"] >= held:
                back_s = (now - memo["back_at"]) / 1000
                lasted_s = max(memo["back_at"] - entry.started_at, 0) / 1000
                reason = f"it reports again since {back_s:.0f} s"
                over.append(self._book.resolve(entry, now, reason, {"lasted_s": lasted_s}))
        return over

    def snapshot(self) -> bytes:
        """Return the whole state."""
        silence, arrays = self._silence.snapshot()
        watts, more = self._watts.snapshot()
        names, steps = self._progress.snapshot()
        document: dict[str, Any] = {
            "nodes": self._roster.names,
            "silence": silence,
            "watts": watts,
            "words": self._words.snapshot(),
            "jobs": names,
            "scheduler": self._scheduler.snapshot(),
            "excused": self._excused,
            "told_upto": self._told_upto,
            "book": self._book.snapshot(),
        }
        return pack(document, arrays | more | steps)

    @classmethod
    def restore(cls, config: DetectorConfig, fleet: Fleet, state: bytes) -> Self:
        """Return a detector that goes on exactly where `snapshot` was taken."""
        document, arrays = unpack(state)
        detector = cls(config, fleet)
        for node in document["nodes"]:
            detector._roster.number(node)
        detector._silence.load(document["silence"], arrays)
        detector._watts.load(document["watts"], arrays)
        detector._words.load(document["words"])
        detector._progress.load(document["jobs"], arrays)
        detector._scheduler.load(document["scheduler"])
        detector._excused = document["excused"]
        detector._told_upto = document["told_upto"]
        detector._book.load(document["book"])
        return detector


def _bmc(last: Instant, usual: float, now: Instant) -> str:
    """Return in a word how a BMC does that was last heard at `last`, every `usual` ms."""
    if last < 0:
        return "unknown"
    return "reports" if now - last <= 2.5 * max(usual, 1.0) else "silent"
