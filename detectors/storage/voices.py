"""What jobs say of a mount that is slow: which of them wait for it, and which evidently do not."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np

from detectors.contract import FloatArray, Instant
from detectors.fleet.fleet import Job
from detectors.storage.clients import Clients, Looks
from detectors.storage.effect import unexplained
from detectors.storage.habit import IDLE
from detectors.storage.part import Parts
from detectors.storage.use import JobsUse
from detectors.storage.waits import Waits

_SPEAK_FOR: Final = 0.5
"""Of what a mount's clients move: jobs that move less than that and wait no longer say nothing of the others."""
_YOUNG_MS: Final = 300_000
"""Five minutes; before that nothing is usual: a job loads what it needs."""


@dataclass(frozen=True, slots=True)
class Voices:
    """The jobs, by number, and what is known of them `now`."""

    waits: Waits
    use: JobsUse
    clients: Clients
    parts: Parts
    now: Instant
    jobs: dict[int, Job]

    def moved(self, mount: int, those: Collection[int]) -> float:
        """Return the bytes a second that the nodes of some jobs read from a mount, or write to it."""
        nodes = {node for job in those for node in self.jobs[job].nodes}
        return float(self.clients.moved(tuple(sorted(nodes)))[mount])

    def held_up(self, mount: int, telling: list[int], felt: FloatArray, least: float) -> list[int]:
        """Return which jobs wait for `least` of their time more than they did, as far as a mount can make them.

        Who waits for one request after the other waits while it is under way, and no longer; and moves no more than it
        did: a job whose steps take longer, or whose GPUs wait, while it moves more loads or saves. GPUs wait for
        something else where those of others, that move as much there, work as ever.
        """
        lost, steps, found = unexplained(self.waits, self.use, self.now), self.waits.reported(self.now), []
        says = steps & np.isfinite(self.waits.share)
        for job in telling:
            nodes = self.jobs[job].nodes
            if felt[job] < least or self.clients.busiest(mount, nodes) < lost[job]:
                continue
            if says[job] or not self.parts.more(self.clients, mount, nodes):
                found.append(job)
        if any(steps[job] for job in found) or self.moved(mount, self._working()) < self.moved(mount, found):
            return found
        return []

    def settled(self, looks: Looks, place: int) -> bool:
        """Return whether jobs that report how long they wait for data move most of what a mount's clients do: then what
        they feel is all there is.

        Jobs that do not report it speak for nobody: steps may be as long as ever since data have been read ahead. Nor
        does what jobs load that began minutes ago count.
        """
        mount = int(looks.mounts[place])
        reports = self.waits.reported(self.now) & np.isfinite(self.waits.share)
        young = [job for job, one in self.jobs.items() if self.now - one.start < _YOUNG_MS and not reports[job]]
        sure = self.moved(mount, [job for job in self.jobs if reports[job]])
        return sure > IDLE and not sure < _SPEAK_FOR * (float(looks.load[:, place].sum()) - self.moved(mount, young))

    def work(self, mount: int) -> bool:
        """Return whether GPUs work as ever of jobs that move most of what jobs do on a mount, but for young ones."""
        old = [job for job, one in self.jobs.items() if self.now - one.start >= _YOUNG_MS]
        working = self.moved(mount, self._working())
        return working > IDLE and working >= _SPEAK_FOR * self.moved(mount, old)

    def _working(self) -> list[int]:
        working = self.use.works(self.now)
        return [job for job in self.jobs if working[job]]
