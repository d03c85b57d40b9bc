"""Findings of a live cluster to its Alertmanager, as notify sends those in Kafka: the same labels, holds, repeats."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from services.detect.warmup import Line, lines_of, rows_of
from services.kit.findings import FindingRecord, finding_record_of, placed
from services.kit.wire import Origin
from services.notify.alert_store import AlertStore
from services.notify.alertmanager import Alertmanager
from services.notify.delivery import Delivery
from services.notify.ledger import Ledger, Offsets
from services.notify.payload import Labels, labels_of
from services.notify.settings import NotifySettings
from services.recording.model import Topology

_log = logging.getLogger(__name__)
_PARTITION = 0


@dataclass(slots=True)
class _Entry:
    """A finding in the journal, as a record of the findings topic: what notify's alerts reads."""

    topic: str
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Iterable[tuple[str, bytes]]
    partition: int = _PARTITION


def finding_record(origin: Origin, line: Line, topology: Topology, offset: int = 0) -> FindingRecord:
    """Return what a finding's line says, with its node's rack."""
    headers = [(name, value.encode()) for name, value in line.headers]
    entry = _Entry(line.topic, offset, line.at_ms, None, line.body, [*origin.headers(b"application/json"), *headers])
    return placed(finding_record_of(entry), {origin.unit: topology.model_dump(mode="json", exclude_unset=True)})


def alerted(one: FindingRecord) -> Labels | None:
    """Return the labels of the alert that a finding is, None where it alerts nobody."""
    return None if one.shadow or one.finding.severity == "info" else labels_of(one)


class Alerts:
    """What was found and is not over, or not yet delivered: kept until Alertmanager has it.

    `kept`: whether what `snapshot` returns is saved: a resolve then waits until it is saved that its firing went out,
    so that a restart fires nothing again.
    """

    def __init__(
        self,
        settings: NotifySettings,
        origin: Origin,
        *,
        kept: bool,
        monotonic: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        self._settings, self._origin, self._kept = settings, origin, kept
        self._monotonic, self._wall_ms = monotonic, wall_ms
        self._server = Alertmanager(settings)
        self._journal: dict[int, Line] = {}
        """Lines by offset: those that are not delivered, and of findings that are open, the firing."""
        self._next = 0
        self._begin({})

    def _begin(self, offsets: dict[int, Offsets]) -> None:
        self._ledger = Ledger(offsets)
        base = self._settings.runbook_base_url
        alerts = AlertStore(self._settings.policy(), self._ledger, runbook_base_url=str(base) if base else None)
        self._alerts = alerts
        self._delivery = Delivery(
            alerts,
            self._server,
            refused=lambda one, words: _log.error("finding=%s is not delivered: %s", one.finding.id, words),
            monotonic=self._monotonic,
            wall_ms=self._wall_ms,
            longest_pause_s=self._settings.backoff_max_s,
        )

    def silence(self, labels: Labels, *, author: str, note: str, span_ms: tuple[int, int]) -> str:
        """Silence an alert in Alertmanager; return the silence's page. RefusedError as of `Alertmanager.silence`."""
        return self._server.silence(labels, author=author, note=note, span_ms=span_ms)

    def take(self, line: Line, topology: Topology) -> None:
        """Take a finding that fires or is over."""
        self._journal[self._next] = line
        one = finding_record(self._origin, line, topology, self._next)
        self._alerts.take(one, now=self._monotonic(), wall_ms=self._wall_ms())
        self._next += 1

    def deliver(self) -> None:
        """Send what is due; what Alertmanager does not take now is due again later."""
        self._delivery.deliver()
        if not self._kept:
            self._commit()

    def snapshot(self) -> dict[str, Any]:
        """Return what is not over or not delivered, as JSON can say it; to be saved before the next `deliver`."""
        self._commit()
        done, fired = self._ledger.committed_offsets(_PARTITION)
        lines = rows_of(self._journal.values())
        return {"lines": lines, "offsets": [*self._journal], "next": self._next, "done": done, "fired": fired}

    def restore(self, state: dict[str, Any], topology: Topology) -> None:
        """Go on from what `snapshot` returned."""
        self._begin({_PARTITION: Offsets(state["done"], state["fired"])})
        for self._next, line in zip(state["offsets"], lines_of(state["lines"]), strict=True):
            self.take(line, topology)
        self._next = state["next"]

    def close(self) -> None:
        """Close the connections."""
        self._server.close()

    def _commit(self) -> None:
        offsets = self._ledger.to_commit()
        if not offsets:
            return
        self._ledger.committed(offsets)
        done = offsets[_PARTITION].done
        over = {line.id for line in self._journal.values() if line.state == "resolved"}
        self._journal = {
            offset: line for offset, line in self._journal.items() if offset >= done or line.id not in over
        }
