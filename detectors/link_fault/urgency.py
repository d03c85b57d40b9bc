"""How urgent it is that a cable has no link: whether anybody uses it, expects it to be up, or works on it."""

from typing import Final

import numpy as np

from detectors.contract import Instant, Severity
from detectors.fleet.fleet import Fleet
from detectors.link_fault.announced import Announced
from detectors.link_fault.cables import Cable
from detectors.link_fault.together import Together

_USED_MS: Final = 3_600_000
"""Policy: who has not used a port for an hour does not wait for it."""


class Urgency:
    """Knows who uses cables."""

    def __init__(self, fleet: Fleet, announced: Announced, together: Together) -> None:
        self._fleet, self._announced, self._ports = fleet, announced, together.ports

    def of(self, cable: Cable, since: Instant, now: Instant) -> Severity:
        """Return "page" of a cable that somebody used in the last hour, or that the topology expects to be up.

        Of one whose counters nobody gathers it is not known: a job of several nodes has use for it. What went down at
        `since` for work that was announced is information.
        """
        if self._announced.covers(cable.ends, since):
            return "info"
        uses = [int(states.used[port]) for _, states, port in self._ports(cable)]
        used = max(uses, default=now if self._is_in_a_job(cable) else -1)
        return "page" if cable.laid or (used >= 0 and now - used <= _USED_MS) else "info"

    def of_flap(self, cable: Cable, since: Instant, now: Instant) -> Severity:
        """Return the same of one that is up most of the time: a flap stalls who uses the cable, and nobody else."""
        return "info" if self._is_unused(cable, now) else self.of(cable, since, now)

    def _is_in_a_job(self, cable: Cable) -> bool:
        """Return whether a job of several nodes has the node on a cable."""
        job = self._fleet.job_of(cable.node) if cable.node is not None else None
        return job is not None and len(job.nodes) > 1

    def _is_unused(self, cable: Cable, now: Instant) -> bool:
        """Return whether no end of a node's cable has carried more than management traffic in an hour of readings."""
        if cable.node is None or self._is_in_a_job(cable):
            return False
        counted = [(states, port) for _, states, port in self._ports(cable) if np.isfinite(states.sent.value[port])]
        read = any(0 <= states.heard_since[port] <= now - _USED_MS for states, port in counted)
        return read and all(not 0 <= now - states.used[port] <= _USED_MS for states, port in counted)
