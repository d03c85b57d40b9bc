"""Work on switches that was announced: what it takes down is no fault."""

import re
from collections.abc import Sequence
from typing import Final

from detectors.contract import Instant, LogRecord

_WORK: Final = re.compile(r"\b(?:upgrade|reload|reboot|maintenance|firmware|replace(?:ment)?|swap)\b", re.IGNORECASE)
_NAME: Final = re.compile(r"[\w.-]*\w")
_HOLDS_MS: Final = 7_200_000
"""Work is announced shortly before it begins and takes an hour or so; what fails later fails by itself."""


class Announced:
    """When work was last announced, by each word of the line if the scheduler's log has it, else by its machine.

    Which of the words are switches is not asked: one may report for the first time after the line.
    """

    def __init__(self) -> None:
        self._at: dict[str, Instant] = {}

    def take(self, records: Sequence[LogRecord]) -> None:
        """Take log lines in order of time."""
        for record in records:
            if record.source not in {"scheduler", "kernel"} or not _WORK.search(record.message):
                continue
            named = {record.node} if record.node else set()
            if record.source == "scheduler":
                named.update(_NAME.findall(record.message))
            kept = {name: at for name, at in self._at.items() if record.at - at <= _HOLDS_MS}
            self._at = kept | dict.fromkeys(named, record.at)

    def covers(self, switches: Sequence[str], since: Instant) -> bool:
        """Return whether what happened at `since` belongs to work that was announced on one of the switches."""
        return any(0 <= since - self._at.get(switch, -2 * _HOLDS_MS) <= _HOLDS_MS for switch in switches)

    def snapshot(self) -> dict[str, Instant]:
        """Return the state as JSON can say it."""
        return dict(self._at)

    def load(self, state: dict[str, Instant]) -> None:
        """Take what `snapshot` returned."""
        self._at = dict(state)
