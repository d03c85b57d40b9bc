"""What stops a job and is a fault of its own: a job that stands because of it is a victim; no alert is due on it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from detectors.contract import Instant, LogRecord
from detectors.scheduling import words_of
from detectors.xid import XidCatalogue, parse_line

_KEPT_MS = 86_400_000
_HARMLESS = XidCatalogue({}).codes("information", "remap_recorded", "correctable_memory", "power")
_KERNEL = re.compile(
    r"link (?:is )?down|lost carrier|carrier lost|cable unplugged|kernel panic|hard LOCKUP|soft lockup|"
    r"Out of memory: Killed|oom-kill|not responding, (?:still trying|timed out)|"
    r"Fatal machine check|Hardware Error.*(?:fatal|uncorrected)|I/O error, dev|"
    r"Machine check: Processor context corrupt",
    re.IGNORECASE,
)


class Causes:
    """The last line of each node that may explain why its job stands."""

    def __init__(self) -> None:
        self._lines: dict[str, tuple[Instant, str]] = {}

    def take(self, record: LogRecord) -> None:
        """Take a log line, in order of time."""
        if record.source == "scheduler":
            for node, said in words_of(record):
                if said in {"down", "suspect"}:
                    self._lines[node] = record.at, record.message[:200]
        elif record.node is not None and _stops_jobs(record):
            self._lines[record.node] = record.at, record.message[:200]

    def of(self, nodes: Sequence[str], since: Instant) -> str | None:
        """Return a line on one of `nodes` after `since` that explains why their job stands."""
        if not self._lines:
            return None
        return next((line for node in nodes for at, line in [self._lines.get(node, (-1, ""))] if at >= since), None)

    def forget(self, now: Instant) -> None:
        """Drop lines that are old."""
        if any(now - at > _KEPT_MS for at, _ in self._lines.values()):
            self._lines = {node: entry for node, entry in self._lines.items() if now - entry[0] <= _KEPT_MS}

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON can say it."""
        return dict(self._lines)

    def load(self, state: Mapping[str, Any]) -> None:
        """Take what `snapshot` returned."""
        self._lines = {node: (at, line) for node, (at, line) in state.items()}


def _stops_jobs(record: LogRecord) -> bool:
    if record.source == "kernel":
        xid = parse_line(record.message)
        return xid.code not in _HARMLESS if xid is not None else _KERNEL.search(record.message) is not None
    if record.source == "fabricmanager":
        return record.severity in {"error", "critical"}
    return record.source == "sel" and record.severity == "critical" and "eassert" not in record.message
