"""What really happened, to hold findings against: a recording's labels, or tickets matched by time, host and words.

A ticket has a place where it names a machine of the cluster, and faults where its words are those that detectors'
faults.yaml have. Of the alerts at its place, from some time before it was opened until it was closed, the one on a
fault of its words counts, else the nearest in time, and the report says so. A ticket whose words name no fault, and at
whose place nothing was found, is unclear, and neither caught nor missed; one that names nothing of the cluster is
outside.
"""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from detectors.contract import Entity, Finding, Instant
from detectors.faults import faults
from detectors.signals.xid import XIDS
from services.backtest.tickets import Ticket
from services.kit.errors import UsageError
from services.recording.labelling import parse_entity
from services.recording.model import Label, Topology
from services.score.matching import about

OPEN_MS = 86_400_000
"""A ticket that nobody closed lasts for a day."""
State = Literal["judged", "unclear", "outside"]


@dataclass(frozen=True)
class Truth:
    """One label, or one ticket as a label: when people knew of it (`at`), and by what a ticket was matched."""

    label: Label
    at: Instant
    how: str = "label"
    ticket: Ticket | None = None
    state: State = "judged"


@dataclass(frozen=True)
class Correction:
    """What a person says of a ticket: its fault, its place, or that it counts for nothing."""

    fault: str | None = None
    entity: Entity | None = None
    apart: bool = False


def read_corrections(path: Path) -> dict[str, Correction]:
    """Return by ticket what the column `correct` of a file of matches says: a fault, a place such as node=v041, both
    with a space between, or ``none``. UserError (exit code 2) names the line that cannot be read.
    """
    found: dict[str, Correction] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            for row in rows:
                words = row.get("correct") or ""
                if words.strip():
                    found[str(row.get("ticket"))] = correction_of(words, f"{path}: line {rows.line_num}")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path}: cannot be read: {error}", remedy="give matches.csv of a backtest") from None
    return found


def correction_of(words: str, where: str) -> Correction:
    """Return what a person has written of a ticket, as `read_corrections`; `where` is named by what cannot be read."""
    made = Correction()
    for word in words.split():
        if word == "none":
            made = replace(made, apart=True)
        elif "=" in word:
            made = replace(made, entity=parse_entity(word, where))
        elif word in faults():
            made = replace(made, fault=word)
        else:
            remedy = "write a fault, a place such as node=v041, or none"
            raise UsageError(f"{where}: {word!r} is no fault", remedy=remedy)
    return made


class Places:
    """The names of a cluster's machines, found in text."""

    def __init__(self, topology: Topology) -> None:
        self._names: dict[str, Entity] = {mount.mount.lower(): {"mount": mount.mount} for mount in topology.mounts}
        self._names |= {one.name.lower(): {"switch": one.name} for one in topology.switches}
        self._names |= {one.name.lower(): {"node": one.name} for one in topology.nodes}
        self._ports = {
            one.name: [{"switch": nic.switch, "port": nic.port} for nic in one.nics if nic.switch and nic.port]
            for one in topology.nodes
        }

    def of(self, ticket: Ticket, correction: Correction) -> list[Entity]:
        """Return what a ticket is about, first things first; of a node also the switch ports that its cables end in."""
        stated = correction.entity or ticket.entity
        found = [stated] if stated else self._in(ticket.host) or self._in(ticket.words)
        ports: list[Entity] = [port for one in found for port in self._ports.get(str(one.get("node")), ())]
        return [*found, *ports]

    def _in(self, text: str) -> list[Entity]:
        names = (word.rstrip(".") for word in re.findall(r"[\w./-]+", text.lower()))
        known = (self._names.get(name) or self._names.get(name.partition(".")[0]) for name in names)
        return list({str(one): one for one in known if one is not None}.values())


def faults_in(text: str) -> list[str]:
    """Return the faults that the words of a text name, those with the longest words first; an XID names its fault."""
    low = " ".join(text.lower().split())
    weights: dict[str, int] = {}
    for name, facts in faults().items():
        having = [len(word) for word in facts.words if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", low)]
        if name in low or name.replace("_", " ") in low:
            having.append(len(name))
        if having:
            weights[name] = max(having)
    for code in re.findall(r"\bxid:?\s*(\d+)", low):
        known = XIDS.get(int(code))
        if known is not None and known.group in _OF_XID:
            weights[_OF_XID[known.group]] = len(low)
    return sorted(weights, key=lambda name: (-weights[name], name))


_OF_XID: Mapping[str, str] = {
    "uncorrectable_memory": "ecc_uncorrectable", "remap_recorded": "row_remap_pending",
    "remap_failed": "row_remap_failure", "correctable_memory": "ecc_correctable_storm", "gpu_lost": "gpu_lost",
    "pcie": "pcie_degraded", "nvlink": "nvlink_fault", "nvlink_leveled": "nvlink_fault",
}  # fmt: skip
"""By the class of a code (detectors/signals/xid.yaml): the fault that it stands for."""


def of_labels(labels: Iterable[Label]) -> list[Truth]:
    """Return labels as truths; distractors too, for who judges leaves them out."""
    return [Truth(label, label.onset) for label in labels]


def of_tickets(
    tickets: Iterable[Ticket],
    findings: Sequence[Finding],
    places: Places,
    before_ms: int,
    corrections: Mapping[str, Correction],
) -> list[Truth]:
    """Return each ticket as a truth, beside what one configuration has found; `before_ms`: how long before a ticket
    was opened its trouble may have begun, where it does not say.
    """
    alerts = [one for one in findings if one.state == "firing" and one.severity != "info"]
    return [_matched(one, alerts, places, before_ms, corrections.get(one.id, Correction())) for one in tickets]


def _matched(
    ticket: Ticket, alerts: Sequence[Finding], places: Places, before_ms: int, correction: Correction
) -> Truth:
    where = places.of(ticket, correction)
    begin = ticket.opened_at - before_ms if ticket.started_at is None else ticket.started_at
    end = max(ticket.opened_at + OPEN_MS if ticket.closed_at is None else ticket.closed_at, begin)
    stated = correction.fault or ticket.fault
    named = [stated] if stated else faults_in(ticket.words)
    label = Label(
        id=ticket.id,
        fault=named[0] if named else "unknown",
        entity=dict(where[0]) if where else {},
        onset=begin,
        end=end,
        within_s=(end - begin) / 1000,
        also=[dict(one) for one in where[1:]],
        impact=None if ticket.gpu_hours_lost is None else {"gpu_hours_lost": ticket.gpu_hours_lost},
        note=ticket.words or None,
    )
    if correction.apart or not where:
        return Truth(label, ticket.opened_at, "set apart by hand" if correction.apart else "", ticket, "outside")
    there = [one for one in alerts if begin <= one.detected_at <= end and about(label, one.entity)]
    there.sort(key=lambda one: (one.fault not in named, abs(one.detected_at - ticket.opened_at), one.id))
    if stated is not None:
        there = [one for one in there if one.fault == stated or one.fault not in faults()]
    if not there:
        how = "words name no fault" if not named else "time, host, words" if stated is None else "time, host, fault"
        return Truth(label, ticket.opened_at, how, ticket, "judged" if named else "unclear")
    fault = there[0].fault
    how = "time, host, words" if fault in named else "time and host alone"
    if stated is not None and fault == stated:
        how = "corrected by hand" if correction.fault else "time, host, fault"
    return Truth(label.model_copy(update={"fault": fault}), ticket.opened_at, how, ticket)
