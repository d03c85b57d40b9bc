"""Power limits that were lowered: an alert where jobs go slower for it and nobody chose that, else a note.

All GPUs of a node that draw what they may, at nine tenths of their peers' clock or less, cost somebody's work a tenth.
Somebody chose it if a log shows the command, an operator's or a job's, or all of a model have the limit; and without
logs, if one job has all the nodes that were capped in the same minute, and no other job a part in them: its user may
have. One GPU's limit is noted here, and what it does to a job is a `straggler`.
"""

from typing import Final

import numpy as np

from detectors.case_book import CaseBook, OpenCase, in_words
from detectors.contract import BoolArray, Entity, Fault, Finding, FloatArray, Instant, IntArray, Severity
from detectors.core.statistics import median_of
from detectors.fleet.fleet import Fleet
from detectors.power_throttle.limits import Limits
from detectors.power_throttle.work import Work
from detectors.signals.brakes import COSTS
from detectors.signals.held_down import medians

_FAULT: Fault = "power_throttle"
NOTE: Final = "limit"
ALERT: Final = "cap"
"""The aspects of findings that are about a power limit, and not about a brake."""
_PAGES: Final = 0.75
"""A quarter is worth waking somebody, as for a straggler."""
_TOGETHER_MS: Final = 90_000
"""What one hand or one controller caps is read as capped within a scrape of a minute."""
_HALF: Final = 0.5


class Caps:
    """See the module; the cases lie in the detector's book."""

    def __init__(self, fleet: Fleet, gpus: Work, limits: Limits, book: CaseBook) -> None:
        self._fleet, self._gpus, self._limits, self._book = fleet, gpus, limits, book

    def judge(self, now: Instant, fresh: BoolArray) -> list[Finding]:
        """Say where a power limit was lowered, and where that is over; what is silent stays open."""
        gpus, limits, layout = self._gpus, self._limits, self._gpus.layout
        if np.count_nonzero(np.isnan(limits.enforced)) == limits.count:
            return []
        below, odd = limits.lowered(now, gpus)
        found = list[Finding]()
        for case in [case for case in self._book.cases() if case.aspect in (NOTE, ALERT)]:
            members = self._members(case)
            if fresh[members].any() and not (fresh & below)[members].any():
                found.append(self._end(now, case))
        if not below.any():
            return found
        busy = gpus.fresh(now) & gpus.busy
        peers = gpus.among_peers(gpus.clock, busy & ~below, 0.5)
        binding = odd & limits.binds(gpus, peers)
        for node in np.unique(layout.node[below & (binding | ~odd)]).tolist():
            here, entity = np.flatnonzero(layout.node == node), {"node": layout.names[node]}
            harm = here[binding[here]]
            if not len(harm):
                found += self._fire(now, entity, here[below[here]][:1], np.empty(0))
            elif self._most(below[here]):
                costs = self._most(binding[here[busy[here]]]) and median_of(gpus.clock[harm] / peers[harm]) <= COSTS
                alerts = costs and not self._chosen(now, node, odd)
                found += self._fire(now, entity, harm, peers[harm], alerts=alerts)
            elif self._book.get(_FAULT, entity, NOTE) is None:
                for gpu in harm.tolist():
                    found += self._fire(now, layout.entity(gpu), np.array([gpu]), peers[[gpu]])
        return found

    def _most(self, those: BoolArray) -> bool:
        return int(np.count_nonzero(those)) >= max(_HALF * len(those), 2)

    def _members(self, case: OpenCase) -> IntArray:
        members, gpu = self._gpus.layout.members(case.node), case.entity.get("gpu")
        return members if gpu is None else members[self._gpus.layout.gpu[members] == gpu]

    def _chosen(self, now: Instant, node: int, odd: BoolArray) -> bool:
        """Return whether somebody capped a node: by a line of a log, or the user of the one job that has all of it."""
        limits, layout = self._limits, self._gpus.layout
        here, job = layout.members(layout.names[node]), self._fleet.job_of(layout.names[node])
        if limits.ordered(here, job.job_id if job else "").any():
            return True
        if limits.logs_come(now):
            return job is None
        those = odd & (np.abs(limits.since - int(np.median(limits.since[here]))) <= _TOGETHER_MS)
        capped = {layout.names[one] for one in np.unique(layout.node[those]).tolist()}
        jobs = [job for job in self._fleet.jobs.values() if capped & set(job.nodes)]
        return not jobs or (len(jobs) == 1 and set(jobs[0].nodes) == capped)

    def _fire(
        self, now: Instant, entity: Entity, held: IntArray, peers_mhz: FloatArray, *, alerts: bool = False
    ) -> list[Finding]:
        """Report the limit of some GPUs, (n,), and where it binds the clocks of their peers, (n,) MHz."""
        aspect = ALERT if alerts else NOTE
        known = [ALERT, aspect, *([""] if alerts else [])]  # a brake on the node is the worse news
        if any(self._book.get(_FAULT, entity, one) for one in known):
            return []
        gpus, limits, first = self._gpus, self._limits, int(held[0])
        usual = limits.usual(gpus.fresh(now) & (gpus.model == gpus.model[first]))
        here, clock = float(limits.enforced[first]), median_of(gpus.clock[held])
        figures: dict[str, float] = {"power_limit_w": here, "power_limit_peers_w": usual}
        effect = ""
        severity: Severity = "info"
        if len(peers_mhz):
            peers = median_of(peers_mhz)
            figures |= {"power_w": median_of(gpus.power[held]), "sm_clock_mhz": clock, "sm_clock_peers_mhz": peers}
            effect = f"; it draws it, at {clock:.0f} MHz beside {peers:.0f} of its peers"
            if alerts:
                figures["work_rate"] = clock / peers
                severity = "page" if clock <= _PAGES * peers else "ticket"
        return self._book.fire(
            now,
            _FAULT,
            entity,
            started_at=int(limits.since[first]),
            severity=severity,
            score=min(1.0, 2 * (1 - here / usual)),
            summary=f"{in_words(entity)}: its power limit is {here:.0f} W, that of its peers {usual:.0f} W{effect}",
            action="set the limit back (nvidia-smi -pl, or the BMC's cap), and find out who or what lowered it",
            evidence=figures,
            aspect=aspect,
        )

    def _end(self, now: Instant, case: OpenCase) -> Finding:
        members = self._members(case)
        figures = {"power_w": self._gpus.power[members], "sm_clock_mhz": self._gpus.clock[members]}
        return self._book.resolve(case, now, "the power limit is that of the others again", medians(figures))
