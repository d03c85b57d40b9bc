"""What is reported of the window that only warms the detectors, before the time that a seek asked for.

What began and was over before that time was not asked for and is not reported. What is still open then is reported
at that time, as it was found: with the time it was detected at. Of an incident that is its last revision.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from detectors.contract import Finding, Instant
from detectors.incidents.report import Incident
from services.kit import topics
from services.kit.findings import finding_in
from services.kit.wire import CLOSED, INCIDENT, SHADOW

_OPEN = frozenset({"firing", "open"})


class Line(NamedTuple):
    """A finding, or a revision of an incident, as it goes into its topic: `headers` become headers."""

    topic: str
    id: str
    state: str
    at_ms: Instant
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


def finding_line(finding: Finding, *, incident: str | None = None, shadow: bool = False) -> Line:
    """Return the line of a finding: its canonical JSON, and beside it the incident it was put into."""
    headers = [(INCIDENT, incident)] if incident is not None else []
    headers += [(SHADOW, "1")] if shadow else []
    body = finding.to_json().encode()
    return Line(topics.FINDINGS, finding.id, finding.state, finding.detected_at, body, tuple(headers))


def closed_line(line: Line, at_ms: Instant, words: str) -> Line:
    """Return a firing finding's line as that of its end at `at_ms`, by hand: `words` say whose and why."""
    over = replace(finding_in(line.body), state="resolved", detected_at=at_ms)
    headers = (*line.headers, (CLOSED, words))
    return line._replace(state="resolved", at_ms=at_ms, body=over.to_json().encode(), headers=headers)


def incident_line(incident: Incident) -> Line:
    """Return the line of a revision of an incident."""
    return Line(topics.INCIDENTS, incident.id, incident.state, incident.revised_at, incident.to_json().encode())


class Warmup:
    """Holds lines back until event time has come to `from_ms`."""

    def __init__(self, from_ms: Instant | None, held: Iterable[Line] = ()) -> None:
        self.from_ms = from_ms
        self._held: dict[tuple[str, str], Line] = {(line.topic, line.id): line for line in held}

    def release(self, lines: Sequence[Line], event_time: Instant) -> list[Line]:
        """Take lines in their order; return those to be reported now that event time has come to `event_time`."""
        released: list[Line] = []
        for line in lines:
            if self.from_ms is not None and line.at_ms < self.from_ms:
                self._held.pop((line.topic, line.id), None)
                if line.state in _OPEN:
                    self._held[line.topic, line.id] = line
                continue
            released += self._open_at_start()
            released.append(line)
        if self.from_ms is None or event_time >= self.from_ms:
            released += self._open_at_start()
        return released

    def holds(self, line: Line) -> bool:
        """Whether a line is held back."""
        return (line.topic, line.id) in self._held

    def _open_at_start(self) -> list[Line]:
        lines, self._held = list(self._held.values()), {}
        return lines

    def snapshot(self) -> str:
        """Return what is held, as JSON."""
        return json.dumps(rows_of(self._held.values()))

    @classmethod
    def restore(cls, from_ms: Instant | None, state: str) -> "Warmup":
        """Return what `snapshot` was taken of."""
        return cls(from_ms, lines_of(json.loads(state)))


def rows_of(lines: Iterable[Line]) -> list[list[Any]]:
    """Return lines as JSON can say them."""
    return [[*line._replace(body=line.body.decode())] for line in lines]  # type: ignore[arg-type]  # JSON has no bytes


def lines_of(rows: Iterable[Sequence[Any]]) -> list[Line]:
    """Return the lines that `rows_of` was given."""
    return [
        Line(topic, name, state, at_ms, body.encode(), tuple((key, value) for key, value in headers))
        for topic, name, state, at_ms, body, headers in rows
    ]
