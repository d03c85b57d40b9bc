"""Findings of the window that only warms the detectors, before the time that a seek asked for.

What began and was over before that time was not asked for and is not said. What is still open at that time is said
then, as it was found: with the time it was detected at.
"""

import json
from collections.abc import Sequence

from detectors.contract import Finding, Instant

Line = tuple[str, str, bytes]
"""Id, state, and canonical JSON of a finding."""


class Warmup:
    """Holds findings back until event time has come to `from_ms`."""

    def __init__(self, from_ms: Instant | None, held: Sequence[Line] = ()) -> None:
        self._from_ms = from_ms
        self._held: dict[str, Line] = {line[0]: line for line in held}

    def release(self, findings: Sequence[Finding], event_time: Instant) -> list[Line]:
        """Take findings in their order; return those to be said now that event time has come to `event_time`."""
        said: list[Line] = []
        for finding in findings:
            line = (finding.id, finding.state, finding.to_json().encode())
            if self._from_ms is not None and finding.detected_at < self._from_ms:
                if finding.state == "firing":
                    self._held[finding.id] = line
                else:
                    self._held.pop(finding.id, None)
                continue
            said += self._open_at_start()
            said.append(line)
        if self._from_ms is None or event_time >= self._from_ms:
            said += self._open_at_start()
        return said

    def _open_at_start(self) -> list[Line]:
        lines, self._held = list(self._held.values()), {}
        return lines

    def snapshot(self) -> str:
        """Return what is held, as JSON."""
        return json.dumps([(name, state, body.decode()) for name, state, body in self._held.values()])

    @classmethod
    def restore(cls, from_ms: Instant | None, state: str) -> "Warmup":
        """Return what `snapshot` was taken of."""
        return cls(from_ms, [(name, kind, body.encode()) for name, kind, body in json.loads(state)])
