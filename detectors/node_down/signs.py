"""Last words: what a node's BMC or kernel wrote before it fell silent."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from detectors.contract import Instant, LogRecord

_KEPT_MS = 600_000
# SEL: critical lines of board, processor, memory and supplies (IPMI sensor types 07h, 08h, 09h, 0Ch, 20h); kernel:
# the last words that a console or kdump relays.
_FATAL_SEL = re.compile(
    r"uncorrectable|IERR|MCERR|thermal trip|FRB|failure detected|AC lost|power off|bus fatal|critical stop|panic|"
    r"critical interrupt|fatal|memory.*fail|dimm.*fail|hgx|baseboard|fault",
    re.IGNORECASE,
)
_FATAL_KERNEL = re.compile(
    r"kernel panic|Fatal machine check|Machine check: Processor context corrupt|hard LOCKUP|"
    r"Hardware Error.*(?:fatal|uncorrected)|Uncorrected hardware memory error",
    re.IGNORECASE,
)


class LastWords:
    """The last fatal line of each node."""

    def __init__(self) -> None:
        self._lines: dict[str, tuple[Instant, str]] = {}

    def take(self, records: Sequence[LogRecord]) -> None:
        """Note fatal lines of BMCs and kernels."""
        for record in records:
            if record.node and _is_fatal(record):
                self._lines[record.node] = record.at, record.message[:200]

    def of(self, node: str, since: Instant) -> tuple[Instant, str] | None:
        """Return the last fatal line of a node since `since`."""
        found = self._lines.get(node)
        return found if found is not None and found[0] >= since else None

    def forget(self, now: Instant) -> None:
        """Drop lines that are old."""
        self._lines = {node: entry for node, entry in self._lines.items() if now - entry[0] <= _KEPT_MS}

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON can say it."""
        return dict(self._lines)

    def load(self, state: Mapping[str, Any]) -> None:
        """Take what `snapshot` returned."""
        self._lines = {node: (at, line) for node, (at, line) in state.items()}


def _is_fatal(record: LogRecord) -> bool:
    if record.source == "kernel":
        return _FATAL_KERNEL.search(record.message) is not None
    grave = record.source == "sel" and record.severity in {"critical", "error"}
    return grave and "eassert" not in record.message and _FATAL_SEL.search(record.message) is not None
