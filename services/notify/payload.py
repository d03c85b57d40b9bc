"""A finding as Alertmanager is sent it: labels that never change, and annotations with all the rest.

Alertmanager knows an alert by its labels alone. Whatever differs from one moment, generation or run to the next
(values, times, ids) is therefore an annotation.
"""

from collections.abc import Mapping

from services.kit.findings import FindingRecord
from services.kit.times import format_time

Labels = tuple[tuple[str, str], ...]
LIVE = "live"


def labels_of(one: FindingRecord) -> Labels:
    """Return the labels of a finding's alert, sorted by name: those of ARCHITECTURE.md, "Alerts"."""
    finding, origin = one.finding, one.origin
    found = {
        **{name: str(value) for name, value in finding.entity.items()},
        "rack": one.rack,
        "alertname": "".join(word.capitalize() for word in finding.fault.split("_")),
        "fault": finding.fault,
        "severity": finding.severity,
        "cluster": origin.cluster,
        "replay": origin.replay or LIVE,
        "source": "detector",
        "detector": finding.detector,
    }
    return tuple(sorted((name, value) for name, value in found.items() if value))


def annotations_of(one: FindingRecord, *, runbook_base_url: str | None) -> dict[str, str]:
    """Return the annotations of a finding. Times are recording time; of a replay, also as they are shown now."""
    finding, origin = one.finding, one.origin
    evidence = [f"{name}: {_number(value)}" for name, value in sorted(finding.evidence.items())]
    annotations = {
        "summary": finding.summary,
        "description": "\n".join([finding.summary, f"Do: {finding.recommended_action}", *evidence]),
        "evidence": "\n".join(evidence),
        "recommended_action": finding.recommended_action,
        "score": _number(finding.score),
        "finding_id": finding.id,
        "generation": str(origin.generation),
        "started_at": format_time(finding.started_at),
        "detected_at": format_time(finding.detected_at),
    }
    if one.incident is not None:
        annotations["incident"] = one.incident
    if one.closed is not None:
        annotations["resolve_reason"] = one.closed
    if origin.replay != LIVE:
        annotations["started_at_shifted"] = format_time(one.onset_ms)
        annotations["detected_at_shifted"] = format_time(one.reported_ms)
    if runbook_base_url:
        annotations["runbook_url"] = f"{runbook_base_url.rstrip('/')}/{finding.detector}/runbook.md"
    return annotations


def alert(labels: Labels, annotations: Mapping[str, str], *, starts_ms: int, ends_ms: int) -> dict[str, object]:
    """Return one alert as `POST /api/v2/alerts` takes it; it is resolved if `ends_ms` lies in the past."""
    return {
        "labels": dict(labels),
        "annotations": dict(annotations),
        "startsAt": format_time(starts_ms),
        # Alertmanager refuses an end before the start.
        "endsAt": format_time(max(starts_ms, ends_ms)),
    }


def _number(value: float | str) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
