"""File systems that answer slowly to all their clients, and whose work it holds up.

The latency of a mount's median client, in reads and in writes, is compared with the mount's own habit at like
throughput (its direction's and the whole; at a load that was never seen nothing is expected). A rise of `latency_rise`
on most clients for two minutes that is too improbable for chance, by the tail of such differences here, is unusual. It
alerts where somebody waits: jobs that move data there wait for data by `wait_rise` of their time more than they did;
or, where they do not report that, take longer for their steps, soon after and with GPUs that idle for it; or, where
they report no steps, their GPUs wait, at their usual clock and for longer than a pause. None waits for longer than its
requests are under way (Little's law), for what it waited for long before, or while it moves more than it did. Unless
those that move most of it report that they wait no longer than they did, it alerts, too, where throughput halves; where
clients' requests take a twentieth of every second more than they did, the median one's, too, and GPUs do not show that
most work as ever; or, where nobody counts them, queue on every client. It alerts as well where the kernels of two
clients say that servers of its kind do not answer. Else it is of severity info.
A mount that never was quick, or that jobs ask more of than it has, is slow when jobs that read from it wait for
`starving_share` of their steps on most ranks for 150 s while its reads take three times what they do at little load
(six times what other mounts take; 20 ms where there is nothing to compare with), unless it does what it always did at
this load. A mount whose clients get half of what their links can carry is full, and not slow. One slow client is that
client's link; three, and a tenth of all, that are slow beside the others and move no more than they did, are a server's
or pool's behind the mount (`part`), and alert by the same effects on them.

It is wrong where something else than its clients' bytes makes a healthy mount slow while a job waits for another
reason. It misses a mount with a single client, and one that is slow at a load that it never carried before while no
job waits for a good part of its steps.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import numpy as np

from detectors.base import BaseDetector
from detectors.contract import (
    Batch,
    BoolArray,
    DetectorConfig,
    DetectorSpec,
    Finding,
    FloatArray,
    Instant,
    IntArray,
    LogRecord,
)
from detectors.core.columns import REUSED, Columns, column
from detectors.core.evidence import Evidence, odds_in_words, threshold
from detectors.core.slots import Slots
from detectors.core.statistics import median_of
from detectors.core.survivors import Survivors
from detectors.fleet.fleet import Fleet
from detectors.spec import load_spec
from detectors.storage.clients import READ, WRITE, Clients, Looks
from detectors.storage.config import StorageConfig
from detectors.storage.effect import (
    Figures,
    MountHabits,
    felt_by,
    figures_of,
    of_clients,
    of_job,
    of_part,
)
from detectors.storage.habit import IDLE, LoadHabit
from detectors.storage.hosts import Hosts
from detectors.storage.part import WINDOW_S, Part, Parts
from detectors.storage.use import GpuUse, JobsUse
from detectors.storage.voices import Voices
from detectors.storage.waits import Waits

_WINDOW_MS: Final = int(1000 * WINDOW_S)
_WORDS: Final = ("read", "write")
_MINIMUM_LOOKS = 10
"""Five minutes; before that nothing is usual."""
_LEAST_SPREAD = 0.02
_AFFECTED = 0.5
"""A client is affected from half the rise on (of the logarithm); fewer than these of them are slow by their links."""
_MOST_CLIENTS = 0.6
_UNKNOWN_LOAD = 1.6
"""Where clients report no bytes a burst looks like a slow server: the rise (of the logarithm) must be more."""
_LASTING_WINDOWS = 4
"""Two minutes: a policy. A burst of a minute, of a checkpoint or of others, is over before anybody reads of it."""
_STARVING_WINDOWS = 5
"""150 s: the first steps of a job wait for cold caches."""
_WIDE = 0.6
"""Of the ranks of a job that waits for storage most wait."""
_QUEUE = 3.0
"""Reads that take three times what they do at little load stand in a queue; idle mounts differ by twice as much."""
_QUEUED_MS, _SLOW_MS = 10.0, 20.0
"""A disk answers in ten milliseconds: nobody starves on less; twice that is a queue."""
_NAMED: Final = 8
"""Of the nodes that are slow so many are named."""
_RELEASE_MS = 200_000
"""Storms that come and go within minutes are one event; within the five minutes in which a resolve is due."""
_FORGET_MS = 3_600_000
_INFO = "odd"
_ACTION = (
    "look at the servers behind the mount (slow object servers, metadata load, other systems' use), not at the "
    "clients; move jobs that wait for it to another mount"
)
_PART_ACTION = (
    "look at the one server or pool behind the mount that serves these clients (or these files), not at the nodes"
)


class _Mounts(Columns):
    axis = REUSED
    looked: IntArray = column(-1)
    slow: IntArray = column(0, 2)
    starving: IntArray = column(0)
    starving_since: IntArray = column(-1)


class Storage(BaseDetector):
    """Finds storage_slow on mounts."""

    spec: ClassVar[DetectorSpec] = load_spec(__package__ or "")
    config_type: ClassVar[type[DetectorConfig]] = StorageConfig
    KEPT = (
        "_names", "_jobs", "_clients", "_waits", "_mounts", "_usual", "_parts", "_own", "_whole", "_evidence", "_gpus",
        "_use", "_hosts",
    )  # fmt: skip
    _config: StorageConfig

    def __init__(self, config: DetectorConfig, fleet: Fleet) -> None:
        super().__init__(config, fleet)
        self._names, self._jobs = Slots(fleet, "storage", part=1), Slots(fleet, "steps")
        self._clients, self._waits, self._mounts = Clients(fleet, self._names), Waits(), _Mounts()
        self._usual = MountHabits()
        self._gpus, self._use = GpuUse(), JobsUse(fleet)
        self._parts = Parts(fleet, self.tails, self._config.latency_rise, _LASTING_WINDOWS)
        self._own, self._whole, self._evidence = LoadHabit(), LoadHabit(), Evidence().along(REUSED)
        """By mount and direction, 2 mount + way: the habit by the direction's own load, by both; the evidence."""
        self._hosts = Hosts(fleet)

    def logs(self, records: Sequence[LogRecord]) -> Sequence[Finding]:
        """Note what kernels say of servers that do not answer."""
        self._hosts.take(records)
        return ()

    def observe(self, batch: Batch) -> Sequence[Finding]:
        """Note what clients and jobs report; it is looked at when a window ends."""
        if batch.kind == "storage":
            self._clients.take(batch)
        elif batch.kind == "dcgm":
            if len(self._mounts):  # else nothing is asked of them
                self._gpus.take(batch)
        else:
            self._waits.take(batch, self._jobs)
        return ()

    def advance(self, now: Instant) -> Sequence[Finding]:
        """At the end of a window: look at every mount."""
        if now % _WINDOW_MS:
            return ()
        self._clients.mount()  # numbers the mounts
        for by_mount in (self._mounts, self._usual):
            by_mount.grow(len(self._names))
        for by_way in (self._own, self._whole, self._evidence, self._parts.mounts):
            by_way.grow(2 * len(self._names))
        waiting = [int(number) for case in self._book.cases() for number in case.memo["jobs"]]
        held = np.array(waiting, np.int64)
        self._waits.close(now, WINDOW_S, held)
        if len(self._mounts):
            self._use.close(now, self._gpus.means(), self._jobs, WINDOW_S, held)
        self._hosts.forget(now, {str(case.entity["mount"]) for case in self._book.cases() if not case.aspect})
        looks = self._clients.looks(now, self._mounts.looked)
        found = self._judge(now, looks) if len(looks.mounts) else []
        self._forget(now)
        return found

    def go_on_with(self, survivors: Survivors) -> None:
        """Free the numbers of mounts that nobody has any more."""
        mounts = np.array([self._names.find(name) for name in survivors.names("mount")], np.int64)
        mounts = mounts[mounts >= 0]
        self._names.forget(mounts.tolist())
        for by_mount in (self._mounts, self._usual):
            by_mount.forget(mounts[mounts < len(by_mount)])
        for by_way in (self._own, self._whole, self._evidence, self._parts.mounts):
            both = np.concatenate([2 * mounts, 2 * mounts + 1])
            by_way.forget(both[both < len(by_way)])

    def _judge(self, now: Instant, looks: Looks) -> list[Finding]:
        mounts = looks.mounts
        self._mounts.looked[mounts] = now
        local = np.array([self._names.names[mount] in self._hosts.local for mount in mounts.tolist()], bool)
        entities = 2 * mounts + np.array([[READ], [WRITE]])
        expected, rise, high = self._compare(looks, entities, local)
        spread = np.maximum(self._own.spread[entities], _LEAST_SPREAD)
        scaled = rise / spread
        odds = np.stack([self.tails[_WORDS[way]].odds(scaled[way]) for way in (READ, WRITE)])
        # What is not high enough to matter is no evidence, however improbable.
        odds = np.where(high, odds, np.fmax(odds, 0.9))
        known = self._own.looks[entities] >= _MINIMUM_LOOKS
        self._evidence.look(entities.ravel(), np.where(known, odds, np.nan).ravel(), now, most=self._needed() + 2)
        uses = {self._jobs.number(name): self._clients.moved(job.nodes) for name, job in self._fleet.jobs.items()}
        starves = self._starving(now, looks, expected[READ], uses, local)
        found: list[Finding] = []
        open_mounts = {str(case.entity["mount"]) for case in self._book.cases()}
        closed = np.array([self._names.names[mount] not in open_mounts for mount in mounts.tolist()], bool)
        calm = closed & ~starves & ~high.any(axis=0)
        # A window as usual takes one of them back, so that bursts minutes apart do not add up.
        slow = np.clip(self._mounts.slow[:, mounts] + np.where(high, 1, -1), 0, _LASTING_WINDOWS)
        self._mounts.slow[:, mounts] = slow
        unusual = high & (slow >= _LASTING_WINDOWS) & (self._evidence.wealth[entities] >= self._needed())
        for place, mount in enumerate(mounts.tolist()):
            bad = bool(starves[place] or (rise[:, place] >= 0.6 * math.log1p(self._config.latency_rise)).any())
            bad |= self._parts.still(mount)
            found += self._go_on(now, str(self._names.names[mount]), bad=bad)
            starving = bool(self._mounts.starving[mount] >= _STARVING_WINDOWS)
            if unusual[:, place].any() or starving:
                found += self._report(now, looks, place, expected, uses, starving=starving)
        for way in (READ, WRITE):
            each, value = entities[way, calm], np.log(looks.latency[way, calm])
            wary = rise[way, calm] > 0.5 * math.log1p(self._config.latency_rise)
            usual = known[way, calm] & ~wary
            self.tails[_WORDS[way]].learn(scaled[way, calm][usual])
            self._own.learn(each, looks.load[way, calm], value, wary)
            self._whole.learn(each, looks.load[:, calm].sum(axis=0), value, wary)
        self._usual.learn(looks, calm, WINDOW_S)
        for part in self._parts.look(now, looks, self._clients, calm, self._needed()):
            found += self._report_part(now, looks, part)
        return found

    def _compare(self, looks: Looks, entities: IntArray, local: BoolArray) -> tuple[FloatArray, FloatArray, BoolArray]:
        """Return log(latency) that is expected, the rise above it, and whether that is high, (2, mounts)."""
        whole = looks.load.sum(axis=0)
        own = [self._own.expected(entities[way], looks.load[way]) for way in (READ, WRITE)]
        expected = np.maximum(own, [self._whole.expected(entities[way], whole) for way in (READ, WRITE)])
        least = math.log1p(self._config.latency_rise)
        bars = np.full((2, len(self._names)), np.inf)
        bars[:, looks.mounts] = np.exp(np.where(np.isfinite(expected), expected + _AFFECTED * least, np.inf))
        wide = self._clients.affected(looks, bars)[:, looks.mounts]
        rise = np.log(looks.latency) - expected
        with np.errstate(invalid="ignore"):
            high = rise >= np.where(np.isfinite(whole), least, _UNKNOWN_LOAD * least)
            moves = ~(looks.load < 10 * IDLE)
        slow = high & moves & (~looks.full | local)
        return expected, rise, slow & (wide >= _MOST_CLIENTS) & (looks.reporting >= 2)

    def _starving(
        self, now: Instant, looks: Looks, expected: FloatArray, uses: dict[int, FloatArray], local: BoolArray
    ) -> BoolArray:
        """Return which mounts (k,) jobs wait for while their reads take much longer than they need to."""
        config, latency, read = self._config, looks.latency[READ], 2 * looks.mounts + READ
        for by_job in (self._waits, self._use):
            by_job.grow(len(self._jobs))
        felt = self._waits.reported(now) & (self._waits.share >= config.starving_share)
        jobs = np.flatnonzero(felt & (self._waits.wide >= _WIDE)).tolist()
        hungry = {int(uses[job].argmax()) for job in jobs if job in uses and uses[job].max(initial=0.0) > 0}
        waits = np.array([mount in hungry for mount in looks.mounts.tolist()], bool)
        own = np.exp(self._own.least()[read])
        quickest = np.fmin(latency, own)
        others = np.full(len(latency), np.nan)
        for place in range(len(latency)):
            rest = np.delete(np.where(local, np.nan, quickest), place)
            others[place] = np.nanmin(rest) if np.isfinite(rest).any() else np.nan
        seen = self._own.familiar(read, looks.load[READ]), self._whole.familiar(read, looks.load.sum(axis=0))
        familiar = np.minimum(*seen) >= _MINIMUM_LOOKS
        with np.errstate(invalid="ignore"):
            as_ever = familiar & (latency < (1 + config.latency_rise) * np.exp(expected))
            queued = (latency >= _QUEUE * own) & (latency >= _QUEUED_MS)
            above = np.where(np.isfinite(others), latency >= 2 * _QUEUE * others, latency >= _SLOW_MS)
        starves: BoolArray = waits & (queued | above) & ~as_ever & ~looks.full[READ] & (looks.reporting[READ] >= 2)
        count = self._mounts.starving[looks.mounts]
        count = np.where(starves, np.minimum(count + 1, 2 * _STARVING_WINDOWS), count // 2)
        self._mounts.starving[looks.mounts] = count
        since = self._mounts.starving_since[looks.mounts]
        since = np.where(since < 0, now - _WINDOW_MS, since)
        self._mounts.starving_since[looks.mounts] = np.where(count > 0, since, -1)
        return starves

    def _needed(self) -> float:
        """Return the wealth that chance reaches as seldom as the budget allows."""
        nodes = max(len(self._fleet.nodes), len({key[0] for key in self._fleet.entities("storage")}), 1)
        return threshold(self._config.false_alarms_per_100_node_days, 2 * self._names.taken, nodes, WINDOW_S)

    def _report(
        self, now: Instant, looks: Looks, place: int, expected: FloatArray, uses: dict[int, FloatArray], *,
        starving: bool,
    ) -> list[Finding]:  # fmt: skip
        """Return a finding on a mount: an alert where somebody waits for it, else information."""
        mount = int(looks.mounts[place])
        name, pair = str(self._names.names[mount]), 2 * mount + np.array([READ, WRITE])
        way = int(np.argmax(np.where(np.isfinite(expected[:, place]), self._evidence.wealth[pair], -1.0)))
        rise, latency = np.log(looks.latency[:, place]) - expected[:, place], looks.latency[:, place]
        evidence = figures_of(looks, place, expected, np.exp(self._own.least()[2 * mount : 2 * mount + 2]))
        wealth = float(self._evidence.wealth[pair].max())
        since = (
            int(self._evidence.since[pair[way]]) - _WINDOW_MS if wealth > 0 else int(self._mounts.starving_since[mount])
        )
        felt = felt_by(self._waits, self._use, now, since)
        telling = [job for job, moved in uses.items() if moved[mount] > IDLE and np.isfinite(felt[job])]
        hungry = [job for job in telling if starving and self._waits.share[job] >= self._config.starving_share]
        voices = self._voices(now)
        held_up = hungry or voices.held_up(mount, telling, felt, self._config.wait_rise)
        worst = max(
            held_up, key=lambda job: (felt[job], self._waits.share[job], str(self._jobs.names[job])), default=None
        )
        times = math.exp(np.nan_to_num(rise[way]))
        slow = f"{_WORDS[way]}s take {latency[way]:.3g} ms, {times:.1f} times what they do at like throughput"
        if starving and not rise[way] > 0:
            slow = f"reads take {latency[READ]:.3g} ms"
        figures, effect = self._hosts.waiting(self._clients, name, since)
        if worst is not None:
            more, effect = of_job(self._waits, self._use, worst, str(self._jobs.names[worst]))
            figures |= more
        elif not effect and not voices.settled(looks, place):
            fall = self._parts.fall(looks, self._clients, mount, rise >= math.log1p(self._config.latency_rise))
            more_s = 0.0 if voices.work(mount) else self._clients.more_s(mount, rise)
            figures, effect = of_clients(self._usual, looks, place, fall, more_s)
        evidence |= figures
        if not starving:
            evidence["by_chance"] = odds_in_words(wealth, 2 * self._names.taken, WINDOW_S)
        severity: Any = "info" if not effect else "page" if starving else "ticket"
        if severity == "info" and self._book.get("storage_slow", {"mount": name}) is not None:
            return []
        return self._book.fire(
            now,
            "storage_slow",
            {"mount": name},
            started_at=max(since, 0),
            severity=severity,
            score=0.9 if starving else 0.75 if effect else 0.3,
            summary=f"{name} is slow: {slow}, {effect or 'and nobody is seen to wait for it'}",
            action=_ACTION if effect else "none: nobody waits for it",
            evidence=evidence,
            aspect="" if effect else _INFO,
            memo={"bad_at": now, "jobs": held_up},
        )

    def _voices(self, now: Instant) -> Voices:
        jobs = {self._jobs.number(name): job for name, job in self._fleet.jobs.items()}
        return Voices(self._waits, self._use, self._clients, self._parts, now, jobs)

    def _report_part(self, now: Instant, looks: Looks, part: Part) -> list[Finding]:
        """Return a finding on a mount that is slow for some of its clients."""
        mount, way = int(looks.mounts[part.place]), part.way
        name, word = str(self._names.names[mount]), _WORDS[way]
        keys = self._fleet.entities("storage")
        nodes = sorted({str(keys[client][0]) for client in part.clients.tolist()})
        jobs = {job.job_id for node in nodes if (job := self._fleet.job_of(node)) is not None}
        felt = felt_by(self._waits, self._use, now, part.since)
        telling = [number for job in sorted(jobs) if np.isfinite(felt[number := self._jobs.number(job)])]
        held_up = self._voices(now).held_up(mount, telling, felt, self._config.wait_rise)
        latency = self._clients.latency[way]
        evidence: Figures = {
            "clients": int(looks.clients[part.place]),
            "clients_slow": len(part.clients),
            "nodes_slow": ", ".join(nodes[:_NAMED]),
            f"{word}_latency_ms": median_of(latency[part.clients]),
            f"{word}_latency_of_others_ms": float(looks.latency[way, part.place]),
            "by_chance": odds_in_words(part.wealth, 2 * self._names.taken, WINDOW_S),
        }
        effect = ""
        if held_up:
            worst = max(held_up, key=lambda job: (felt[job], str(self._jobs.names[job])))
            figures, effect = of_job(self._waits, self._use, worst, str(self._jobs.names[worst]))
            evidence |= figures
        elif not telling:
            effect = of_part(self._clients, part)
        if self._book.get("storage_slow", {"mount": name}) is not None:
            return []
        return self._book.fire(
            now,
            "storage_slow",
            {"mount": name},
            started_at=max(part.since, 0),
            severity="ticket" if effect else "info",
            score=0.7 if effect else 0.3,
            summary=f"{name} is slow for {len(part.clients)} of its {looks.clients[part.place]} clients, {nodes[0]} "
            f"the first: {word}s take {part.rise:.1f} times as long beside the others' as they did, "
            f"{effect or 'and nobody is seen to wait for it'}",
            action=_PART_ACTION if effect else "none: nobody waits for it",
            evidence=evidence,
            aspect="" if effect else _INFO,
            memo={"bad_at": now, "jobs": held_up},
        )

    def _go_on(self, now: Instant, name: str, *, bad: bool) -> list[Finding]:
        over = []
        for aspect in ("", _INFO):
            case = self._book.get("storage_slow", {"mount": name}, aspect)
            if case is None:
                continue
            case.memo["bad_at"] = now if bad else case.memo["bad_at"]
            if now - case.memo["bad_at"] >= _RELEASE_MS:
                over.append(self._book.resolve(case, now, "latency is what it should be"))
                self._evidence.forget(2 * self._names.find(name) + np.array([READ, WRITE]))
        return over

    def _forget(self, now: Instant) -> None:
        """Forget jobs that are over: the state must not grow with them."""
        for by_job in (self._waits, self._use):
            by_job.grow(len(self._jobs))
        names, kept = self._jobs.names, self._fleet.jobs
        quiet = np.flatnonzero(now - self._waits.at > _FORGET_MS).tolist()
        gone = [number for number in quiet if names[number] is not None and names[number] not in kept]
        if gone:
            self._jobs.forget(gone)
            for by_job in (self._waits, self._use):
                by_job.forget(np.array(gone))
