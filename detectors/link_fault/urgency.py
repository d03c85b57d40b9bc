"""How urgent it is that a cable has no link: whether anybody uses it, expects it to be up, or works on it."""

from typing import Final

import numpy as np

from detectors.contract import Instant, Severity
from detectors.fleet.fleet import Fleet
from detectors.fleet.tenancy import Tenancy
from detectors.link_fault.announced import Announced
from detectors.link_fault.cables import Cable
from detectors.link_fault.lines import Lines
from detectors.link_fault.together import Together

_USED_MS: Final = 3_600_000
"""Policy: who has not used a port for an hour does not wait for it."""
ANNOUNCED: Final = "; work on the switch was announced"
UNUSED: Final = "; nobody has used it"
_FREE: Final = "; no job has the node, and its kernel logged no loss"


class Urgency:
    """Knows who uses cables."""

    def __init__(self, fleet: Fleet, announced: Announced, together: Together, lines: Lines, tenancy: Tenancy) -> None:
        self._fleet, self._announced, self._ports = fleet, announced, together.ports
        self._lines, self._tenancy = lines, tenancy

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

    def of_loss(self, cable: Cable, since: Instant, logged: bool, now: Instant) -> tuple[Severity, str]:
        """Return the same of one that is down since then, and why it is information; `logged` where a line says so.

        A driver logs the loss of a link, and nothing where the host takes its own port down (mlx5e_update_carrier_work
        passes over an interface that is closed). Of a node that no job has, it is information until one does.
        """
        severity = self.of(cable, since, now)
        if severity == "page" and not logged and self._is_free(cable, since):
            return "info", _FREE
        if severity == "page":
            return severity, ""
        return severity, ANNOUNCED if self._announced.covers(cable.ends, since) else UNUSED

    def _is_free(self, cable: Cable, since: Instant) -> bool:
        """Return whether no job has a node, nor had it when a link was lost at `since`, and its log has no loss."""
        node = cable.node
        if node is None or not self._fleet.is_idle(node) or self._tenancy.job(node, since) is not None:
            return False
        late_ms = max(states.late_ms(port) for _, states, port in self._ports(cable))
        return self._lines.quiet(node, since - round(late_ms))

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
