"""Which findings are open: one firing an id, and at most one resolved after it."""

import json
from collections.abc import Iterable
from typing import Any

from detectors.contract import Finding

_REMEMBERED = 4096
"""Ids of closed findings that are kept to refuse repeats; an id holds its onset, so old ones cannot come back."""


class Alarms:
    """The open findings of one unit, by id."""

    def __init__(self) -> None:
        self._open: set[str] = set()
        self._closed: dict[str, None] = {}

    def admit(self, found: Iterable[Finding]) -> list[Finding]:
        """Return those of `found` that are news, by (detected_at, detector, entity, state)."""
        news: list[Finding] = []
        for finding in sorted(found, key=canonical):
            if finding.state == "firing":
                if finding.id in self._open or finding.id in self._closed:
                    continue
                self._open.add(finding.id)
            else:
                if finding.id not in self._open:
                    continue
                self._open.remove(finding.id)
                self._closed[finding.id] = None
                if len(self._closed) > _REMEMBERED:
                    del self._closed[next(iter(self._closed))]
            news.append(finding)
        return news

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON can say it."""
        return {"open": sorted(self._open), "closed": list(self._closed)}

    @classmethod
    def restore(cls, state: dict[str, Any]) -> "Alarms":
        """Return what `snapshot` was taken of."""
        alarms = cls()
        alarms._open = set(state["open"])
        alarms._closed = dict.fromkeys(state["closed"])
        return alarms


def canonical(finding: Finding) -> tuple[int, str, str, str]:
    """Return what findings are sorted by wherever they are compared: (detected_at, detector, entity, state)."""
    entity = json.dumps(dict(sorted(finding.entity.items())), separators=(",", ":"))
    return finding.detected_at, finding.detector, entity, finding.state
