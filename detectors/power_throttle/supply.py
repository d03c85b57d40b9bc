"""What the BMC says of the power supplies of a node: lines of its event log, and the state of its supply sensors."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from detectors.contract import Batch, Instant, LogRecord
from detectors.fleet import EntityKey

_KEPT_MS = 600_000
_BURST_MS = 60_000
# IPMI sensor types 08h (power supply) and 09h (power unit), and what vendors call the same parts.
_PART = re.compile(r"power[ _-]?(supply|unit|card|feed|module|shelf|brake)|psu|\bps\d", re.IGNORECASE)
_FAILED = re.compile(
    r"fail|fault|\blost\b|out[- ]of[- ]range|redundancy (lost|degraded)|power off|brake|over[- ]?current|critical",
    re.IGNORECASE,
)
_OVER = re.compile(r"deassert|regained|restored|fully redundant|recovered|cleared|\bok\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SupplyAlarm:
    """A power supply of a node said to have failed: since when, and in what words."""

    at: Instant
    words: str


def supply_failure(record: LogRecord) -> bool:
    """Return whether a log line tells of the failure of a power supply of its node."""
    text = record.message
    return (
        record.source == "sel"
        and record.node is not None
        and _PART.search(text) is not None
        and _FAILED.search(text) is not None
        and _OVER.search(text) is None
    )


class Supplies:
    """The latest alarm of each node, and the state of each supply sensor. Read only at points of the grid."""

    def __init__(self) -> None:
        self._lines: dict[str, SupplyAlarm] = {}
        self._sensors: dict[str, dict[str, tuple[Instant, int]]] = {}
        self._is_supply = np.empty(0, bool)
        self._state = np.empty(0)
        """What each sensor last said, as far as it is known without looking it up: it hardly ever says another."""

    def take_lines(self, records: Sequence[LogRecord]) -> None:
        """Take log lines; of a burst on one node the first counts, as it is nearest to the onset."""
        for record in records:
            if supply_failure(record) and record.node is not None:
                known = self._lines.get(record.node)
                if known is None or record.at - known.at > _BURST_MS:
                    self._lines[record.node] = SupplyAlarm(record.at, record.message.strip())

    def take_sensors(self, batch: Batch, sensors: Sequence[EntityKey]) -> None:
        """Take sensor readings; `sensors` are the (node, sensor) that the batch's entities index."""
        if len(self._is_supply) < len(sensors):
            self._is_supply = np.array([_PART.search(str(key[1])) is not None for key in sensors], bool)
        if "state" not in batch.values:
            return
        telling = batch.present & batch.valid["state"] & np.isfinite(batch.values["state"])
        telling &= self._is_supply[batch.entities][None, :]
        if len(self._state) < len(sensors):
            self._state = np.concatenate([self._state, np.full(len(sensors) - len(self._state), np.nan)])
        stated = np.trunc(np.clip(batch.values["state"], 0, 2))
        if len(stated) == 1:
            telling &= stated != self._state[batch.entities]
        for tick, column in zip(*np.nonzero(telling), strict=True):
            node, sensor = (str(part) for part in sensors[batch.entities[column]])
            state = int(stated[tick, column])
            of_node = self._sensors.setdefault(node, {})
            since, before = of_node.get(sensor, (0, 0))
            at = int(batch.at[tick, column])
            of_node[sensor] = (at if (state > 0) != (before > 0) else since, state)
            self._state[batch.entities[column]] = state

    def advance(self, now: Instant) -> None:
        """Forget lines that no onset can be near to any more."""
        for node in [node for node, alarm in self._lines.items() if now - alarm.at > _KEPT_MS]:
            del self._lines[node]

    def alarm(self, node: str, since: Instant) -> SupplyAlarm | None:
        """Return the first alarm of a node that is not older than `since`; lines go before sensors."""
        line = self._lines.get(node)
        if line is not None and line.at >= since:
            return line
        bad = [(at, sensor) for sensor, (at, state) in self._of(node) if state > 0 and at >= since]
        return SupplyAlarm(min(bad)[0], f"sensor {min(bad)[1]}") if bad else None

    def worst_state(self, node: str) -> int | None:
        """Return the worst state of a node's supply sensors (0 nominal, 1 warning, 2 critical); None: has none."""
        return max((state for _, (_, state) in self._of(node)), default=None)

    def _of(self, node: str) -> Iterable[tuple[str, tuple[Instant, int]]]:
        return self._sensors.get(node, {}).items()

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON can say it."""
        return {"lines": {node: asdict(alarm) for node, alarm in self._lines.items()}, "sensors": self._sensors}

    @classmethod
    def restore(cls, state: dict[str, Any]) -> "Supplies":
        """Return what `snapshot` was taken of."""
        supplies = cls()
        supplies._lines = {node: SupplyAlarm(**alarm) for node, alarm in state["lines"].items()}
        supplies._sensors = {
            node: {sensor: (at, level) for sensor, (at, level) in sensors.items()}
            for node, sensors in state["sensors"].items()
        }
        return supplies
