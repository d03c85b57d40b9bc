"""File systems that answer slowly to all their clients, seen by the clients' latency and the jobs' waits for data.

A mount is slow when the median latency of its clients, in reads or writes, is twice what it is at like throughput
(the mount's own habit by load, its own direction's and the whole; at a load that was never seen nothing is expected),
in three of four windows of 30 s, with 60 % of the clients affected: a checkpoint at the usual rate or a job that loads
its data is neither. A mount that never was healthy, or that jobs ask more of than it has, is slow when jobs that read
from it wait for data for 15 % of their steps on most ranks for 150 s while its reads take three times what they do at
little load (six times what other mounts take; 20 ms where there is nothing to compare with), unless the mount does what
it always did at this load. A mount whose clients get half of what their links can carry is full, and not slow. One slow
client is that client's link.

It is wrong where something else than its clients' bytes makes a healthy mount slow at times, such as the opening of
many small files: that looks like slow metadata, and is. It misses a mount with a single client, and one that is slow
at a load that it never carried before while no job waits for it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from detectors.case_book import CaseBook, OpenCase
from detectors.contract import Batch, DetectorConfig, DetectorSpec, Finding, Instant, LogRecord
from detectors.fleet import Fleet
from detectors.spec import load_spec
from detectors.state import pack, unpack
from detectors.storage.clients import READ, WRITE, Clients, Look
from detectors.storage.config import StorageConfig
from detectors.storage.habit import Usual
from detectors.storage.waits import Wait, Waits

_WORDS = ("read", "write")
_MAD_TO_SIGMA = 1.25
"""A normal distribution's standard deviation over its mean absolute deviation."""
_WARY = 1.4
"""From this ratio on a habit is learnt slowly."""
_STILL = 1.5
"""A mount that was found slow is so until it is below this ratio."""
_WIDE = 0.6
"""Of the ranks of a job that waits for storage most wait."""
_WAITS_LAST_MS = 120_000
_LOCAL = ("nvme", "local", "ssd", "tmpfs", "ramfs", "xfs", "ext4")
_ACTION = (
    "look at the servers behind the mount (slow object servers, metadata load, other systems' use), not at the "
    "clients; move jobs that wait for it to another mount"
)


@dataclass(frozen=True, slots=True)
class _Direction:
    """What is seen of one direction of a mount."""

    latency: float
    expected: float
    wide: float
    """Of the clients, how many are affected."""
    high: bool
    still: bool

    @property
    def ratio(self) -> float:
        return self.latency / self.expected if self.expected > 0 else math.nan


class Storage:
    """Finds storage_slow on mounts."""

    spec: ClassVar[DetectorSpec] = load_spec(__package__ or "")
    config_type: ClassVar[type[DetectorConfig]] = StorageConfig

    def __init__(self, config: DetectorConfig, fleet: Fleet) -> None:
        if not isinstance(config, StorageConfig):
            raise TypeError(f"{type(config).__name__} is not a StorageConfig")
        self._config = config
        self._fleet = fleet
        self._clients = Clients(fleet)
        self._waits = Waits(fleet)
        self._book = CaseBook(self.spec.name)
        self._usual: dict[str, list[Usual]] = {}
        self._recent: dict[str, list[int]] = {}
        self._starving: dict[str, int] = {}
        self._waiting: dict[str, tuple[Instant, Wait]] = {}
        self._local = {
            str(mount["mount"]) for mount in fleet.topology.get("mounts", ()) if str(mount.get("kind")) in _LOCAL
        }

    def logs(self, records: Sequence[LogRecord]) -> Sequence[Finding]:
        """Take no interest in logs."""
        del records
        return ()

    def observe(self, batch: Batch) -> Sequence[Finding]:
        """Note what clients and jobs report; it is looked at when a window ends."""
        if batch.kind == "storage":
            self._clients.take(batch)
        else:
            self._waits.take(batch)
        return ()

    def advance(self, now: Instant) -> Sequence[Finding]:
        """At the end of a window: look at every mount."""
        if now % (self._config.window_s * 1000):
            return ()
        fresh = {job_id: (now, wait) for job_id, wait in self._waits.close().items()}
        self._waiting = {j: entry for j, entry in self._waiting.items() if now - entry[0] <= _WAITS_LAST_MS} | fresh
        found: list[Finding] = []
        looks = self._clients.looks(now)
        for look in looks:
            found += self._judge(now, look, looks)
        return found

    def _judge(self, now: Instant, look: Look, looks: Sequence[Look]) -> list[Finding]:
        usual = self._usual.setdefault(look.mount, [Usual(), Usual()])
        directions = [self._direction(look, way, usual[way]) for way in (READ, WRITE)]
        readers = self._readers(look, looks)
        starving = self._starves(look, looks, readers, usual[READ])
        high = any(direction.high for direction in directions)
        recent = self._recent[look.mount] = [*self._recent.get(look.mount, []), int(high)][-self._config.window :]
        count = self._starving.get(look.mount, 0)
        count = self._starving[look.mount] = (
            min(count + 1, 2 * self._config.starving_windows) if starving else count // 2
        )
        case = self._book.get("storage_slow", {"mount": look.mount})
        if case is not None:
            return self._go_on(now, case, bad=starving or any(direction.still for direction in directions))
        if not high and not starving:
            for way, direction in enumerate(directions):
                wary = direction.ratio > _WARY
                usual[way].learn(look.load[way], sum(look.load), look.median[way], slowly=wary)
        slow = high and sum(recent) >= self._config.needed
        if not slow and count < self._config.starving_windows:
            return []
        windows = len(recent) - recent.index(1) if slow else count
        return self._fire(now, look, directions, readers, windows, starving=starving)

    def _direction(self, look: Look, way: int, usual: Usual) -> _Direction:
        config, latency = self._config, look.median[way]
        expected = usual.expected(look.load[way], sum(look.load))
        clients = look.latency[way][np.isfinite(look.latency[way])]
        if not latency > 0 or len(clients) < 2:
            return _Direction(latency, expected, 0.0, high=False, still=False)
        wide = float((clients >= config.client_ratio * expected).mean()) if expected > 0 else 0.0
        least = config.latency_ratio if math.isfinite(sum(look.load)) else config.unknown_load_ratio
        distance = math.log(latency / expected) if expected > 0 else 0.0
        if look.of_links[way] >= config.link_share and look.mount not in self._local:
            return _Direction(latency, expected, wide, high=False, still=False)
        high = usual.looks >= config.minimum_history and wide >= config.client_share and distance >= math.log(least)
        high &= distance >= config.latency_deviations * _MAD_TO_SIGMA * usual.spread
        compared = expected if expected > 0 else usual.own.highest
        return _Direction(latency, expected, wide, high=high, still=latency >= _STILL * compared)

    def _readers(self, look: Look, looks: Sequence[Look]) -> dict[str, Wait]:
        """Return the waits of the jobs that read from this mount more than from any other."""
        found = {}
        for job_id, (_, wait) in self._waiting.items():
            job = self._fleet.jobs.get(job_id)
            if job is None:
                continue
            read = {other.mount: sum(other.read_of.get(node, 0.0) for node in job.nodes) for other in looks}
            if read[look.mount] > 0 and read[look.mount] >= max(read.values()):
                found[job_id] = wait
        return found

    def _starves(self, look: Look, looks: Sequence[Look], readers: dict[str, Wait], usual: Usual) -> bool:
        """Return whether jobs wait for this mount and its reads take much longer than they need to."""
        config, latency = self._config, look.median[READ]
        clients = np.isfinite(look.latency[READ]).sum()
        if not any(wait.share >= config.starving_share and wait.wide >= _WIDE for wait in readers.values()):
            return False
        if not latency > 0 or clients < 2 or look.of_links[READ] >= config.link_share:
            return False
        # Jobs that wait while the mount does what it always did at this load ask for more than it ever gave.
        loads = look.load[READ], sum(look.load)
        familiar = usual.looks_at(*loads) >= config.minimum_history
        if familiar and latency < config.latency_ratio * usual.expected(*loads):
            return False
        own = usual.own.lowest
        others = [
            min(other.median[READ], self._usual[other.mount][READ].own.lowest)
            for other in looks
            if other.mount != look.mount and other.mount not in self._local and other.mount in self._usual
        ]
        others = [value for value in others if value > 0]
        if own > 0 and latency >= config.starving_ratio * own:
            return True
        if others:
            return latency >= 2 * config.starving_ratio * min(others)
        return latency >= config.starving_latency_ms

    def _fire(
        self,
        now: Instant,
        look: Look,
        directions: Sequence[_Direction],
        readers: dict[str, Wait],
        windows: int,
        *,
        starving: bool,
    ) -> list[Finding]:
        evidence: dict[str, float | int | str] = {"clients": look.clients, "waiters": look.waiters}
        for way, direction in enumerate(directions):
            figures = {
                f"{_WORDS[way]}_latency_ms": direction.latency,
                f"{_WORDS[way]}_latency_at_like_load_ms": direction.expected,
                f"{_WORDS[way]}_latency_at_little_load_ms": self._usual[look.mount][way].own.lowest,
                f"{_WORDS[way]}_bytes_per_s": look.load[way],
                f"{_WORDS[way]}_clients_affected": direction.wide,
            }
            evidence |= {name: value for name, value in figures.items() if math.isfinite(value)}
        worst = max(readers, key=lambda job_id: (readers[job_id].share, job_id), default=None)
        if worst is not None:
            wait = readers[worst]
            evidence |= {"job_id": worst, "job_data_wait_share": wait.share, "job_data_wait_s": wait.wait_s}
            if math.isfinite(wait.usual_share):
                evidence["job_data_wait_share_before"] = wait.usual_share
        slowest = max(directions, key=lambda direction: np.nan_to_num(direction.ratio))
        words = _WORDS[directions.index(slowest)]
        said = f"{words}s take {slowest.latency:.3g} ms, {slowest.ratio:.1f} times what they do at like throughput"
        if starving and not slowest.high and worst is not None:
            read, share = directions[READ].latency, 100 * readers[worst].share
            said = f"reads take {read:.3g} ms and job {worst} waits for data for {share:.0f} % of its steps"
        return self._book.fire(
            now,
            "storage_slow",
            {"mount": look.mount},
            started_at=now - windows * self._config.window_s * 1000,
            severity="page" if starving else "ticket",
            score=0.9 if starving else 0.75,
            summary=f"{look.mount} is slow: {said}",
            action=_ACTION,
            evidence=evidence,
            memo={"bad_at": now},
        )

    def _go_on(self, now: Instant, case: OpenCase, *, bad: bool) -> list[Finding]:
        if bad:
            case.memo["bad_at"] = now
        if now - case.memo["bad_at"] < self._config.release_s * 1000:
            return []
        return [self._book.resolve(case, now, "latency is what it should be")]

    def snapshot(self) -> bytes:
        """Return the whole state."""
        clients, arrays = self._clients.snapshot()
        names, more = self._waits.snapshot()
        document: dict[str, Any] = {
            "clients": clients,
            "jobs": names,
            "book": self._book.snapshot(),
            "usual": {mount: [way.snapshot() for way in ways] for mount, ways in self._usual.items()},
            "recent": self._recent,
            "starving": self._starving,
            "waiting": {
                job_id: [at, wait.share, wait.wide, wait.wait_s, wait.usual_share]
                for job_id, (at, wait) in self._waiting.items()
            },
        }
        return pack(document, arrays | more)

    @classmethod
    def restore(cls, config: DetectorConfig, fleet: Fleet, state: bytes) -> Self:
        """Return a detector that goes on exactly where `snapshot` was taken."""
        document, arrays = unpack(state)
        detector = cls(config, fleet)
        detector._clients.load(document["clients"], arrays)
        detector._waits.load(document["jobs"], arrays)
        detector._book.load(document["book"])
        detector._usual = {mount: [Usual.of(way) for way in ways] for mount, ways in document["usual"].items()}
        detector._recent, detector._starving = document["recent"], document["starving"]
        detector._waiting = {job_id: (at, Wait(*figures)) for job_id, (at, *figures) in document["waiting"].items()}
        return detector
