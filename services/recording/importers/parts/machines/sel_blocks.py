"""Reads event logs whose records are several lines each: ``ipmitool sel list -v``, ``racadm``, HPE iLO's ``show``.

A record begins with its number and ends where the next begins. ipmitool's records come out as the one line that
``sel list`` writes for them; of the vendors' records, what they say is joined with bars.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import tzinfo

from services.recording.importers.parts.machines.sel_lines import SelRecord, Severity, severity_of, time_of
from services.recording.importers.parts.moments import parse_stamp

_FIELD = re.compile(r"\s*(?P<name>[A-Za-z][\w /().-]{0,40}?)\s*[:=]\s*(?P<value>.*?)\s*")
_FIRST = {"SEL Record ID", "Record", "SeqNumber", "number"}
"""What a record begins with: ipmitool, racadm getsel, racadm lclog view, iLO."""
RULE = re.compile(r"\s*[-=]{5,}\s*")
_ROW = re.compile(r"[^:=|]{1,60}\|")
_MOST_FIELDS = 60
_UNSET = re.compile(r"Pre-?Init.*|Unspecified.*|System Boot.*|N/?A|", re.IGNORECASE)
_SEVERITIES: dict[str, Severity] = {
    "ok": "info", "informational": "info", "information": "info", "normal": "info", "repaired": "info",
    "warning": "warning", "caution": "warning", "non-critical": "warning", "critical": "critical",
    "non-recoverable": "critical", "fatal": "critical",
}  # fmt: skip


@dataclass
class Block:
    """One record as it stands: its fields by name, and the line that it begins in."""

    line: int
    fields: dict[str, str] = field(default_factory=dict)

    def record(self, zone: tzinfo, *, day_first: bool = False) -> SelRecord | str:
        """Return the event, or why there is none. `zone` is that of the BMC's clock."""
        text = self._one("Timestamp", "Date/Time") or f"{self._one('date')} {self._one('time')}".strip()
        at = None if _UNSET.fullmatch(text) else _moment(text, zone, day_first=day_first)
        if isinstance(at, str):
            return at
        message = self._ipmi(text) if "SEL Record ID" in self.fields else self._vendors(text)
        if message is None:
            return "a record that does not say what happened"
        severity = _SEVERITIES.get(self._one("Severity", "severity").lower())
        return SelRecord(None, at, severity or severity_of(message), message)

    def _one(self, *names: str) -> str:
        return next((self.fields[name] for name in names if self.fields.get(name)), "")

    def _ipmi(self, text: str) -> str | None:
        date, _, clock = text.partition(" ")
        number = self._one("SEL Record ID").lstrip("0") or "0"
        if self._one("Record Type") not in {"02", ""}:
            parts = [f"OEM record {self._one('Record Type')}", date, clock, self._one("OEM Defined", "Event Data")]
            return " | ".join([number, *filter(None, parts)])
        what = self._one("Description") or self._one("Event Data", "Event Data (RAW)")
        if not what:
            return None
        sensor = f"{self._one('Sensor ID', 'Sensor Type')} #0x{self._one('Sensor Number')}"
        direction = self._one("Event Direction").lower()
        state = "Deasserted" if direction.startswith("deassert") else "Asserted"
        parts = [number, date, clock, sensor, what, state]
        if self._one("Trigger Reading"):
            parts.append(f"Reading {self._one('Trigger Reading')} Threshold {self._one('Trigger Threshold')}")
        return " | ".join(parts)

    def _vendors(self, text: str) -> str | None:
        what = self._one("Description", "Message", "description")
        if not what:
            return None
        number = self._one("Record", "SeqNumber", "number")
        parts = self._one("Severity", "severity"), self._one("Message ID"), what, self._one("FQDD", "Source")
        return " | ".join(filter(None, (number, text, *parts)))


def blocks_of(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str | Block]]:
    """Yield numbered lines, those of a record of several lines as one `Block` at the line where it begins."""
    block: Block | None = None
    for number, line in lines:
        found = _FIELD.fullmatch(line)
        first = found is not None and found["name"] in _FIRST
        # What has bars is a record or a sensor of one line, wherever it stands.
        if block is not None and (first or RULE.fullmatch(line) or _ROW.match(line)):
            yield block.line, block
            block = None
        if found is not None and first:
            block = Block(number)
        if block is None:
            yield number, line
        elif found is not None and len(block.fields) < _MOST_FIELDS:
            block.fields.setdefault(found["name"], found["value"])
    if block is not None:
        yield block.line, block


def _moment(text: str, zone: tzinfo, *, day_first: bool) -> int | str:
    date, _, clock = text.partition(" ")
    at = time_of(date, clock, zone, day_first=day_first)
    if isinstance(at, int):
        return at
    return parse_stamp(text, zone) or at
