"""Who is alerted how often: alerts as Alertmanager would send them on, by team, and the parts that come back."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from detectors.contract import Finding, Instant
from detectors.engine.alarms import canonical
from detectors.faults import faults
from services.recording.model import Topology

WEEK_MS = 7 * 86_400_000
NOBODY = "no route"
"""Of rules' alerts that name no fault of ours: who gets them is in their own routes."""


@dataclass(frozen=True)
class Notice:
    """One notification that somebody gets: a group of alerts whose first is `finding`."""

    finding: Finding
    team: str

    @property
    def at(self) -> Instant:
        """When it is sent."""
        return self.finding.detected_at


def notices(findings: Sequence[Finding], topology: Topology) -> list[Notice]:
    """Return what is sent, as alert-rules/alertmanager.yaml groups live alerts: by job, rack, fault and severity.

    What joins a group while it fires is no notification of its own.
    """
    racks = {node.name: node.rack or "" for node in topology.nodes}
    firing: dict[tuple[str, ...], set[str]] = {}
    group_of: dict[str, tuple[str, ...]] = {}
    found = []
    for one in sorted(findings, key=canonical):
        if one.state == "resolved":
            firing.get(group_of.pop(one.id, ()), set()).discard(one.id)
            continue
        if one.severity == "info":
            continue
        job, rack = str(one.entity.get("job_id", "")), racks.get(str(one.entity.get("node", "")), "")
        group = group_of[one.id] = (one.severity, job, rack, one.fault)
        members = firing.setdefault(group, set())
        if not members:
            found.append(Notice(one, team_of(one.fault)))
        members.add(one.id)
    return found


def team_of(fault: str) -> str:
    """Return who is alerted of a fault."""
    return faults()[fault].team if fault in faults() else NOBODY


def pages_a_week(sent: Sequence[Notice], weeks: float) -> dict[str, dict[str, float]]:
    """Return pages and tickets a week by team, under ``all`` those of all."""
    counts: dict[str, Counter[str]] = {}
    for one in sent:
        for team in (one.team, "all"):
            counts.setdefault(team, Counter())[one.finding.severity] += 1
    counts.setdefault("all", Counter())
    ordered = sorted(counts, key=lambda team: (team == "all", team))
    return {team: {what: counts[team][what] / weeks for what in ("page", "ticket")} for team in ordered}


_MOST = 20
"""Offenders that are named."""


def offenders(sent: Sequence[Notice]) -> list[dict[str, Any]]:
    """Return the machines that somebody was alerted of on several days, those of most days first."""
    days: dict[str, set[int]] = {}
    times: Counter[str] = Counter()
    kinds: dict[str, set[str]] = {}
    for one in sent:
        machine = machine_of(one.finding.entity)
        if machine:
            days.setdefault(machine, set()).add(one.at // 86_400_000)
            times[machine] += 1
            kinds.setdefault(machine, set()).add(one.finding.fault)
    again = sorted((name for name in days if len(days[name]) > 1), key=lambda name: (-len(days[name]), name))
    return [
        {"machine": name, "days": len(days[name]), "notices": times[name], "faults": sorted(kinds[name])}
        for name in again[:_MOST]
    ]


def machine_of(entity: Mapping[str, str | int]) -> str:
    """Return the machine that an entity is a part of; of a job or a mount none."""
    return str(entity.get("node") or entity.get("switch") or "")
