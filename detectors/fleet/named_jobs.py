"""Jobs that something names where no list of them is gathered: the scheduler's log, ranks' steps, ranks' log lines.

A job's steps name each of its nodes. Its lines name only those whose ranks write; these, and the nodes that work in
step with them, are the job's where they are all that it has by its highest rank. The scheduler's log goes before both.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from detectors.contract import Instant, LogRecord
from detectors.engine.rows import Rows
from detectors.fleet.fleet import Job, JobEvent
from detectors.fleet.job_lines import Speakers, job_event_of

GONE_S: Final = 3600
"""A job that nothing names for an hour is over."""
_LATELY: Final = 5
"""Minutes."""
_MINUTE_MS: Final = 60_000
_NEVER: Final = 2**62


@dataclass(slots=True)
class _NamedJob:
    """From when on each node is known, the minutes in which the job was heard of, its ranks that wrote lines.

    `ranks`: the latest minute that is over in which ranks on each node reported, and the lowest of them; `coming`:
    these by minute, of those that are not over. `logged` and `finished`: the scheduler's log has its start, or its
    end. `spoken`: the nodes are those of its lines.
    """

    nodes: dict[str, Instant] = field(default_factory=dict)
    ranks: dict[str, tuple[int, int]] = field(default_factory=dict)
    coming: dict[int, dict[str, int]] = field(default_factory=dict)
    minutes: set[int] = field(default_factory=set)
    speakers: Speakers = field(default_factory=Speakers)
    logged: bool = False
    finished: bool = False
    spoken: bool = False

    def heard_of(self, now: Instant) -> bool:
        """Return whether the job was heard of in one of the last minutes that are over."""
        over = now // _MINUTE_MS
        return any(over - _LATELY <= minute < over for minute in self.minutes)

    def take_node(self, node: str, minute: int, rank: int) -> None:
        """Note that a rank, the lowest of some, ran on a node in a minute."""
        self.nodes[node] = min((minute + 1) * _MINUTE_MS, self.nodes.get(node, _NEVER))
        self.minutes.add(minute)
        here = self.coming.setdefault(minute, {})
        here[node] = min(rank, here.get(node, rank))

    def settle(self, now: Instant) -> None:
        """Take over the minutes that are over by now."""
        for minute in sorted(minute for minute in self.coming if (minute + 1) * _MINUTE_MS <= now):
            self.ranks |= {node: (minute, rank) for node, rank in self.coming.pop(minute).items()}

    def by_rank(self, now: Instant) -> tuple[str, ...]:
        """Return the nodes that are known by now, in the order of their ranks."""
        self.settle(now)
        known = [node for node, at in self.nodes.items() if at <= now]
        return tuple(sorted(known, key=lambda node: (self.ranks.get(node, (0, _NEVER))[1], node)))


class NamedJobs:
    """By name, what is known of such jobs."""

    def __init__(self) -> None:
        self._jobs: dict[str, _NamedJob] = {}
        self._reported: list[JobEvent] = []
        """What the scheduler's log reported since the last point of the grid."""

    def __contains__(self, job_id: str) -> bool:
        job = self._jobs.get(job_id)
        return job is not None and (job.logged or bool(job.nodes))

    def logged(self, job_id: str) -> bool:
        """Return whether the scheduler's log started a job and did not end it."""
        return job_id in self._jobs and self._jobs[job_id].logged

    def take_rows(self, rows: Rows, after: Instant) -> None:
        """Take rows as they arrive, for the nodes that ranks run on; those up to `after` are too late.

        Rows may be ahead of event time: what is kept of them are the first time of each pair and the minutes in which a
        job was heard of, of which only those that event time has passed are looked at.
        """
        if rows.node is None:
            return
        jobs, width = rows.keys["job_id"], len(rows.node.categories)
        good = np.flatnonzero((rows.node.codes >= 0) & (rows.times > after))
        pairs, minutes = jobs.codes[good] * width + rows.node.codes[good], rows.times[good] // _MINUTE_MS
        numbers = np.array([int(rank) for rank in rows.keys["rank"].categories], np.int64)
        ranks = numbers[rows.keys["rank"].codes[good]]
        order = np.lexsort((ranks, minutes, pairs))
        seen = np.stack([pairs, minutes, ranks], axis=1)[order]
        lowest = np.ones(len(seen), bool)
        lowest[1:] = (seen[1:, :2] != seen[:-1, :2]).any(axis=1)
        for pair, minute, rank in seen[lowest].tolist():
            node = str(rows.node.categories[pair % width])
            self._of(str(jobs.categories[pair // width])).take_node(node, minute, rank)

    def take_lines(self, records: Iterable[LogRecord]) -> None:
        """Take log lines in order of time."""
        for record in records:
            if (event := job_event_of(record)) is not None:
                self._reported.append(event)
            elif record.source == "job" and record.job_id is not None:
                job = self._of(record.job_id)
                job.minutes.add(record.at // _MINUTE_MS)
                job.speakers.take(record)

    def _of(self, job_id: str) -> _NamedJob:
        return self._jobs.setdefault(job_id, _NamedJob())

    def reported(self, now: Instant) -> Iterator[JobEvent]:
        """Yield what the scheduler's log has reported by now."""
        for event in self._reported:
            job, starts = self._of(event.job.job_id), event.event == "start"
            job.logged, job.finished = starts, not starts
            yield replace(event, at=now)
        self._reported.clear()

    def by_nodes(self, now: Instant) -> list[tuple[str, tuple[str, ...]]]:
        """Return the jobs of which the scheduler's log has nothing, sorted, with the nodes known by now."""
        found = []
        for job_id, job in sorted(self._jobs.items()):
            nodes = job.by_rank(now)
            if nodes and not job.logged and not job.finished:
                found.append((job_id, nodes))
        return found

    def name_speakers(self, now: Instant, lots: Sequence[tuple[str, ...]], gpus: Mapping[str, int]) -> None:
        """Give the jobs whose ranks write lines their nodes, where all are known; `lots` work in step, unnamed so far.

        Lines of the first node alone may look like a whole job until a higher rank writes: then it gets the others too.
        """
        for job in self._jobs.values():
            if job.logged or job.finished or (job.nodes and not job.spoken) or not job.heard_of(now):
                continue
            nodes = job.speakers.among([*lots, tuple(job.nodes)], gpus)
            if set(nodes) > job.nodes.keys():
                job.nodes, job.spoken = dict.fromkeys(nodes, now) | job.nodes, True

    def keep_steps(self) -> None:
        """Forget all but what steps have named."""
        for job in self._jobs.values():
            job.speakers, job.logged, job.finished = Speakers(), False, False
        self._reported.clear()

    def by_rank(self, job: Job, now: Instant) -> tuple[str, ...]:
        """Return the nodes on which ranks have reported steps of a job since its start, in the order of these."""
        known = self._jobs.get(job.job_id)
        if known is None:
            return ()
        return tuple(n for n in known.by_rank(now) if n in known.ranks and known.ranks[n][0] * _MINUTE_MS >= job.start)

    def silent_s(self, job_id: str, now: Instant) -> float | None:
        """Return for how long a job has not been heard of by name; None for one whose nodes nothing names."""
        job = self._jobs.get(job_id)
        if job is None or not job.nodes or job.logged:
            return None
        passed = [minute for minute in job.minutes if (minute + 1) * _MINUTE_MS <= now]
        return (now - (max(passed) + 1) * _MINUTE_MS) / 1000 if passed else math.inf

    def forget(self, job_id: str) -> None:
        """Forget a job that is over."""
        self._jobs.pop(job_id, None)

    def forget_old(self, now: Instant, running: Mapping[str, Job]) -> None:
        """Forget the minutes before the last two hours, and jobs that have no others and do not run."""
        kept = now // _MINUTE_MS - 2 * GONE_S // 60
        for job_id, job in list(self._jobs.items()):
            job.settle(now)
            job.minutes = {minute for minute in job.minutes if minute >= kept}
            if not job.minutes and not job.logged and job_id not in running:
                del self._jobs[job_id]

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON can say it."""
        jobs = self._jobs
        return {
            "named": {name: job.nodes for name, job in jobs.items() if job.nodes},
            "ranks": {name: job.ranks for name, job in jobs.items() if job.ranks},
            "coming": {name: list(job.coming.items()) for name, job in jobs.items() if job.coming},
            "minutes": {name: sorted(job.minutes) for name, job in jobs.items() if job.minutes},
            "speakers": {name: (job.speakers.highest, job.speakers.nodes) for name, job in jobs.items()},
            "logged": sorted(name for name, job in jobs.items() if job.logged),
            "finished": sorted(name for name, job in jobs.items() if job.finished),
            "spoken": sorted(name for name, job in jobs.items() if job.spoken),
            "lines": [(line.event, line.at, line.job.job_id, line.job.nodes) for line in self._reported],
        }

    def load(self, document: Mapping[str, Any]) -> None:
        """Take what `snapshot` returned; what an older version did not keep starts anew."""
        self._jobs = {}
        for name, nodes in document["named"].items():
            self._of(name).nodes = dict(nodes)
        for name, ranks in document.get("ranks", {}).items():
            self._of(name).ranks = {node: (minute, rank) for node, (minute, rank) in ranks.items()}
        for name, coming in document.get("coming", {}).items():
            self._of(name).coming = {minute: dict(nodes) for minute, nodes in coming}
        for name, minutes in document["minutes"].items():
            self._of(name).minutes = set(minutes)
        for name, (highest, nodes) in document.get("speakers", {}).items():
            self._of(name).speakers = Speakers(highest, dict(nodes))
        for key in ("logged", "finished", "spoken"):
            for name in document.get(key, ()):
                setattr(self._of(name), key, True)
        self._reported = [
            JobEvent(at, event, Job(job_id, tuple(nodes), at)) for event, at, job_id, nodes in document.get("lines", ())
        ]
