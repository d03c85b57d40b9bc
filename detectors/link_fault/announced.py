"""Work on switches that was announced: what it takes down is no fault."""

import re
from collections.abc import Sequence
from typing import Final

from detectors.contract import Instant, LogRecord
from detectors.core.survivors import Survivors
from detectors.fleet import Fleet

_WORK: Final = re.compile(r"\b(?:upgrade|reload|reboot|maintenance|firmware|replace(?:ment)?|swap)\b", re.IGNORECASE)
_NAME: Final = re.compile(r"[\w.-]*\w")
_HOLDS_MS: Final = 7_200_000
"""Work is announced shortly before it begins and takes an hour or so; what fails later fails by itself."""


class Announced:
    """By switch: when work on it was last announced, in the scheduler's log or in the switch's own (a reload)."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._at: dict[str, Instant] = {}

    def take(self, records: Sequence[LogRecord]) -> None:
        """Take log lines in order of time."""
        switches: set[str] | None = None
        for record in records:
            if record.source not in {"scheduler", "kernel"} or not _WORK.search(record.message):
                continue
            switches = self._switches() if switches is None else switches
            own = {record.node} if record.node else set()
            named = own if record.source == "kernel" else {*_NAME.findall(record.message), *own}
            self._at |= dict.fromkeys(named & switches, record.at)

    def covers(self, switches: Sequence[str], since: Instant) -> bool:
        """Return whether what happened at `since` belongs to work that was announced on one of the switches."""
        return any(0 <= since - self._at.get(switch, -2 * _HOLDS_MS) <= _HOLDS_MS for switch in switches)

    def go_on_with(self, survivors: Survivors) -> None:
        """Forget what was announced of switches that are gone."""
        gone = survivors.names("machine")
        self._at = {switch: at for switch, at in self._at.items() if switch not in gone}

    def snapshot(self) -> dict[str, Instant]:
        """Return the state as JSON can say it."""
        return dict(self._at)

    def load(self, state: dict[str, Instant]) -> None:
        """Take what `snapshot` returned."""
        self._at = dict(state)

    def _switches(self) -> set[str]:
        """Return the switches that the topology has, or that have reported."""
        known = {str(switch["name"]) for switch in self._fleet.topology.get("switches") or () if switch.get("name")}
        cabled = {
            str(nic["switch"])
            for node in self._fleet.nodes.values()
            for nic in node.get("nics") or ()
            if nic.get("switch")
        }
        return known | cabled | {str(switch) for switch, _ in self._fleet.entities("switch")}
