"""Tickets of a year: a CSV as PagerDuty, Jira or a person writes it; columns are known by their names."""

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from pathlib import Path

from detectors.contract import Entity, Instant
from services.kit.errors import UsageError
from services.recording.faults import FAULTS
from services.recording.labelling import parse_entity

_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "id": ("id", "ticket", "key", "issue key", "incident_number", "number"),
    "opened": ("opened", "opened_at", "created", "created_at", "created_on", "open"),
    "started": ("started", "started_at", "onset", "began"),
    "closed": ("closed", "closed_at", "resolved", "resolved_at", "resolved_on", "end", "ended_at"),
    "host": ("host", "hostname", "hosts", "node", "nodes", "server", "affected", "configuration item"),
    "fault": ("fault",),
    "entity": ("entity",),
    "gpu_hours_lost": ("gpu_hours_lost",),
}
"""By what is meant: the names of its column, the first that is there counts."""
_WORDS = ("title", "summary", "description", "short description", "text", "subject", "labels", "component", "body")
_FORMS = ("%d/%b/%y %I:%M %p", "%d/%b/%y %H:%M", "%d/%b/%Y %H:%M", "%Y/%m/%d %H:%M", "%Y/%m/%d %H:%M:%S")
"""Jira's, and those of spreadsheets in which the month cannot be taken for the day; beside ISO 8601."""


@dataclass(frozen=True)
class Ticket:
    """What somebody wrote down: when it was opened and closed, and about what; `host` and `words` are text as it is."""

    id: str
    opened_at: Instant
    closed_at: Instant | None = None
    started_at: Instant | None = None
    host: str = ""
    words: str = ""
    fault: str | None = None
    entity: Entity | None = None
    gpu_hours_lost: float | None = None


def read_tickets(path: Path, zone: tzinfo = UTC) -> list[Ticket]:
    """Return the tickets of a CSV, in order of their opening; times that name no zone are of `zone`.

    UserError (exit code 2) names the file and line of what cannot be read.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            columns = _columns(path, rows.fieldnames or ())
            found = [_ticket(path, rows.line_num, row, columns, zone) for row in rows]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path}: cannot be read: {error}", remedy="give a CSV in UTF-8") from None
    twice = {name for name, count in Counter(one.id for one in found).items() if count > 1}
    if twice:
        raise UsageError(f"{path}: ticket {min(twice)} is there twice", remedy="leave one of them out")
    return sorted(found, key=lambda one: (one.opened_at, one.id))


def _columns(path: Path, names: Sequence[str]) -> dict[str, str]:
    """Return by what is meant the column that has it; under ``words`` all columns of text, by commas."""
    known = {re.sub(r"\s+", " ", name.strip().lower()): name for name in names}
    found = {
        meant: next(known[name] for name in aliases if name in known)
        for meant, aliases in _COLUMNS.items()
        if any(name in known for name in aliases)
    }
    if "opened" not in found:
        raise UsageError(
            f"{path}: no column says when a ticket was opened; there are {', '.join(names) or 'none'}",
            remedy=f"name it one of {', '.join(_COLUMNS['opened'])}",
        )
    return found


def _ticket(path: Path, line: int, row: Mapping[str, str], columns: Mapping[str, str], zone: tzinfo) -> Ticket:
    given = {meant: (row.get(name) or "").strip() for meant, name in columns.items()}
    where = f"{path}: line {line}"
    texts = [text for name, text in row.items() if name and name.strip().lower() in _WORDS and isinstance(text, str)]
    fault = given.get("fault") or None
    if fault is not None and fault not in FAULTS:
        raise UsageError(f"{where}: no fault {fault!r}", remedy=f"there are {', '.join(FAULTS)}")
    opened = _instant(where, given["opened"], zone)
    closed = _instant(where, given["closed"], zone) if given.get("closed") else None
    if closed is not None and closed < opened:
        raise UsageError(f"{where}: closed before it was opened", remedy="correct the two times")
    return Ticket(
        given.get("id") or f"line-{line}",
        opened,
        closed,
        _instant(where, given["started"], zone) if given.get("started") else None,
        given.get("host", ""),
        " ".join(" ".join(texts).split()),
        fault,
        parse_entity(given["entity"], where) if given.get("entity") else None,
        _number(where, given["gpu_hours_lost"]) if given.get("gpu_hours_lost") else None,
    )


def _instant(where: str, text: str, zone: tzinfo) -> Instant:
    for moment in _read(text):
        return round((moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp() * 1000)
    raise UsageError(f"{where}: {text!r} is not a time", remedy="write it as 2026-03-04T09:12:00Z or 2026-03-04 09:12")


def _read(text: str) -> Iterator[datetime]:
    try:
        yield datetime.fromisoformat(text)
    except ValueError:
        for form in _FORMS:
            try:
                yield datetime.strptime(text, form)  # noqa: DTZ007 - the caller gives it its zone
            except ValueError:
                continue


def _number(where: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{where}: {text!r} is no number of GPU-hours", remedy="write 12.5") from None
