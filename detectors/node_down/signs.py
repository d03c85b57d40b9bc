"""Last words: what a node's BMC or kernel wrote of its own end."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from detectors.contract import Instant, LogRecord

_KEPT_MS = 600_000
# Lines that mean that the host is gone, or is going: of the kernel as a console or kdump relays them; of the SEL by
# IPMI 2.0, table 42-3: processor (IERR, MCERR, thermal trip, FRB), critical interrupt (bus fatal error), OS critical
# stop, power unit (AC lost; a supply's lost input is none, and off it is switched on purpose, too).
_FATAL_SEL = re.compile(
    r"IERR|MCERR|thermal trip|FRB\d|bus fatal|critical stop|run-time critical|kernel panic|power unit.*AC lost",
    re.IGNORECASE,
)
_FATAL_KERNEL = re.compile(
    r"kernel panic|Fatal machine check|Machine check: Processor context corrupt|hard LOCKUP|"
    r"Hardware Error.*fatal|Uncorrected hardware memory error",
    re.IGNORECASE,
)


def is_panic(line: str) -> bool:
    """Return whether a fatal line is a panic: nothing runs on after it, whatever else seems to."""
    return "kernel panic" in line.lower()


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
    return record.source == "sel" and "eassert" not in record.message and _FATAL_SEL.search(record.message) is not None
