"""What Alertmanager was sent: it is asked which alerts it has; they are known by their labels, which never change."""

import hashlib
import logging
from typing import Any, NamedTuple

import httpx

from services.api.replays.generations import Generation
from services.api.runs.models import Alert
from services.api.runs.writer import RunWriter
from services.api.store import now_ms
from services.kit.errors import UserError
from services.kit.findings import FindingRecord
from services.kit.times import format_time, parse_time
from services.notify.payload import Labels, labels_of

_log = logging.getLogger(__name__)
_TIMEOUT_S = 5.0


class _Held(NamedTuple):
    """An alert as Alertmanager has it."""

    generation: str
    updated_ms: int
    suppressed: bool
    receivers: list[str]


class _Fired(NamedTuple):
    """The findings of one alert of a generation; the times and the severity are the first one's."""

    findings: list[str]
    severity: str
    detected_at: str
    reported_ms: int


class Alerts:
    """The alerts of the replays that are followed."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url.rstrip("/"), timeout=_TIMEOUT_S, trust_env=False)
        self._fired: dict[Generation, dict[Labels, _Fired]] = {}
        self._known: dict[Generation, dict[Labels, Alert]] = {}
        self._away = False

    def take(self, one: Generation, found: FindingRecord) -> None:
        """Look for the alert of a finding from when it fires on."""
        finding, labels = found.finding, labels_of(found)
        if finding.state == "resolved" or found.shadow or finding.severity == "info":
            return
        known = self._fired.setdefault(one, {}).get(labels)
        if known is None:
            detected_at, reported_ms = format_time(finding.detected_at), found.record.timestamp
            self._fired[one][labels] = _Fired([finding.id], finding.severity, detected_at, reported_ms)
        elif finding.id not in known.findings:
            known.findings.append(finding.id)

    def restore(self, one: Generation, alerts: list[Alert]) -> None:
        """Take the alerts that were known of a generation before."""
        self._known[one] = {tuple(sorted(alert.labels.items())): alert for alert in alerts}

    def forget(self, one: Generation) -> None:
        """Look no more for the alerts of a generation."""
        self._fired.pop(one, None)
        self._known.pop(one, None)

    def open(self, one: Generation) -> bool:
        """Return whether an alert of a generation is firing, so far as is known."""
        return any(alert.state == "firing" for alert in self._known.get(one, {}).values())

    def look(self, followed: dict[Generation, RunWriter]) -> None:
        """Ask Alertmanager, and note what is new of each generation."""
        if not any(self._fired.get(one) for one in followed):
            return
        held = self._held()
        if held is None:
            return
        now = now_ms()
        for one, notes in followed.items():
            for labels, fired in self._fired.get(one, {}).items():
                there = held.get(labels)
                if there is not None and there.generation != str(one.number):
                    there = None
                alert = self._now(one, labels, fired, there, now)
                if alert is not None and alert != self._known.setdefault(one, {}).get(labels):
                    self._known[one][labels] = alert
                    notes.take_alert(alert)

    def _now(self, one: Generation, labels: Labels, fired: _Fired, there: _Held | None, now: int) -> Alert | None:
        known = self._known.get(one, {}).get(labels)
        if there is None:
            if known is None or known.state == "resolved":
                return known
            return known.model_copy(update={"state": "resolved", "resolved_at": format_time(now)})
        if known is None:
            sent_ms = max(fired.reported_ms, min(now, there.updated_ms))
            named = dict(labels)
            known = Alert(
                id=hashlib.sha256(repr((one.run, labels)).encode()).hexdigest()[:16],
                run=one.run,
                replay=named["replay"],
                state="firing",
                findings=[],
                name=named["alertname"],
                severity=named["severity"],
                labels=named,
                detected_at=fired.detected_at,
                said_at=format_time(fired.reported_ms),
                sent_at=format_time(sent_ms),
                resolved_at=None,
                delay_s=(sent_ms - fired.reported_ms) / 1000,
                suppressed=False,
                receivers=[],
            )
        now_is = {
            "state": "firing",
            "resolved_at": None,
            "findings": sorted({*known.findings, *fired.findings}),
            "suppressed": there.suppressed,
            "receivers": there.receivers,
        }
        return known.model_copy(update=now_is)

    def _held(self) -> dict[Labels, _Held] | None:
        try:
            answer = self._client.get("/api/v2/alerts", params={"filter": 'source="detector"'})
            answer.raise_for_status()
            found = {tuple(sorted(one["labels"].items())): _read(one) for one in answer.json()}
        except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError, UserError) as error:
            if not self._away:
                _log.warning("alertmanager cannot be asked what it was sent error=%s", type(error).__name__)
            self._away = True
            return None
        self._away = False
        return found

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def _read(one: dict[str, Any]) -> _Held:
    return _Held(
        str(one["annotations"].get("generation")),
        parse_time(one["updatedAt"]),
        one["status"]["state"] == "suppressed",
        sorted(str(receiver["name"]) for receiver in one["receivers"]),
    )
