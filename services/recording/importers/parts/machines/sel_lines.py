"""Reads what ipmitool prints: records of the system event log (``sel list``, ``sel elist``) and sensors (``sdr``)."""

import re
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Literal

from services.kit.times import epoch_ms
from services.recording.importers.parts.moments import MONTHS, plausible
from services.recording.importers.parts.source_files import number_of
from services.recording.importers.parts.zones import ZoneError, placed

Severity = Literal["info", "warning", "error", "critical"]

_NEITHER = "a line that is neither a log record nor a sensor"
BAD_TIME = "a time that cannot be"
_HOST = re.compile(r"(?P<host>[A-Za-z0-9_][\w.-]{0,252}):\s+(?=\S)")  # as pdsh and clush put it before each line
_RECORD_ID = re.compile(r"[0-9a-fA-F]{1,5}")
_DATES = (
    re.compile(r"(?P<month>\d\d?)/(?P<day>\d\d?)/(?P<year>\d{4}|\d\d)"),
    re.compile(r"(?P<day>\d\d?)\.(?P<month>\d\d?)\.(?P<year>\d{4}|\d\d)"),  # ipmitool in a German or Swiss locale
    re.compile(r"(?P<year>\d{4})-(?P<month>\d\d?)-(?P<day>\d\d?)"),
    re.compile(r"(?P<name>[A-Z][a-z]{2})-(?P<day>\d\d?)-(?P<year>\d{4})"),  # FreeIPMI
)
_DAY_FIRST = re.compile(r"(?P<day>\d\d?)/(?P<month>\d\d?)/(?P<year>\d{4}|\d\d)")
_SLASHED = re.compile(r"[|,:]\s*(\d\d?)/(\d\d?)/\d\d")
_CLOCK = re.compile(
    r"(?P<hour>\d\d?):(?P<minute>\d\d)(?::(?P<second>\d\d))?(?: (?P<half>[AP]M))?"
    r"(?: (?P<zone>[+-]\d{4}|[+-]\d\d|[A-Z]{1,5}))?"
)
_PRE_INIT = re.compile(r"Pre-?Init.*", re.IGNORECASE)
_UNDATED = re.compile(r"(?:OEM record|Unspecified|Record type) ?[0-9a-fA-Fx]{0,6}", re.IGNORECASE)

_CRITICAL = re.compile(
    r"failure detected|power supply (?:ac|input) lost|\bac lost|redundancy lost|non-redundant: insuff|uncorrect|"
    r"non-?recoverable|(?:upper|lower) critical|\bierr\b|thermal trip|\bfatal\b|config error|bus error",
    re.IGNORECASE,
)
_WARNING = re.compile(
    r"correctable|predictive|throttled|degraded|out-of-range|non-?critical|limit reached|log (?:almost )?full|"
    r"transition to (?:non-critical|degraded)",
    re.IGNORECASE,
)
_ERROR = re.compile(r"\bfail|error|fault|\blost\b|critical", re.IGNORECASE)
_NOTHING = re.compile(
    r"no reading|disabled|na|n/a|not readable|not available|not present|unknown|ns|", re.IGNORECASE
)  # as a reading
_MEASURED = re.compile(r"(?P<number>[-+]?[\d.,]+(?:e[-+]?\d+)?) *(?P<unit>[A-Za-z%][A-Za-z% ]*)?")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
# Unit as ipmitool writes it: the format's name of it.
_UNITS = {"degrees c": "Cel", "rpm": "RPM", "volts": "V", "amps": "A", "watts": "W", "percent": "%"}
_STATES: dict[str, int | None] = {
    "ok": 0, "nc": 1, "cr": 2, "nr": 2, "unc": 1, "lnc": 1, "ucr": 2, "lcr": 2, "unr": 2, "lnr": 2,
    "ns": None, "na": None,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SelRecord:
    """One record of the event log: `at` in ms by the BMC's clock, None where it had no time yet."""

    host: str | None
    at: int | None
    severity: Severity
    message: str


@dataclass(frozen=True, slots=True)
class SensorReading:
    """One sensor: `state` 0 nominal, 1 warning, 2 critical, None not given; `reading` in `unit`."""

    host: str | None
    sensor: str
    reading: float
    unit: str
    state: int | None


def days_come_first(text: str) -> bool:
    """Whether a log's dates with slashes have the day before the month, as ipmitool writes them in a British locale."""
    dates = [(int(first), int(second)) for first, second in _SLASHED.findall(text)]
    return any(first > 12 for first, _ in dates) and all(second <= 12 for _, second in dates)


def read_line(line: str, zone: tzinfo, *, day_first: bool = False) -> SelRecord | SensorReading | str:
    """Return what a line holds, or why it is neither a record nor a reading. `zone` is that of the BMC's clock."""
    host = _HOST.match(line)
    name = None if host is None else host["host"]
    text = line if host is None else line[host.end() :]
    fields = [field.strip() for field in text.split("|" if "|" in text else ",")]
    if len(fields) < 3:
        return _NEITHER
    if _RECORD_ID.fullmatch(fields[0]):
        if _PRE_INIT.fullmatch(fields[1]) or _UNDATED.fullmatch(fields[1]):
            return SelRecord(name, None, severity_of(text), text.strip())
        if any(form.fullmatch(fields[1]) for form in _DATES):
            at = time_of(fields[1], fields[2], zone, day_first=day_first)
            return at if isinstance(at, str) else SelRecord(name, at, severity_of(text), text.strip())
    if not fields[0]:
        return "a sensor without a name"
    return _sensor(name, fields)


def severity_of(record: str) -> Severity:
    """Return how grave an event is by its words (IPMI table 42-3); the end of a condition is information."""
    if re.search(r"\bdeassert", record, re.IGNORECASE):
        # The deassertion of a presence is a part that was pulled or has died.
        return "warning" if re.search(r"presence|fully redundant", record, re.IGNORECASE) else "info"
    if re.search(r"(?:upper|lower) non-?critical", record, re.IGNORECASE):
        return "warning"
    if _CRITICAL.search(record):
        return "critical"
    if _WARNING.search(record):
        return "warning"
    return "error" if _ERROR.search(record) else "info"


def time_of(date: str, clock: str, zone: tzinfo, *, day_first: bool = False) -> int | str:
    """Return a time in ms, or why it is none."""
    moment = _CLOCK.fullmatch(clock)
    forms = (_DAY_FIRST, *_DATES) if day_first else _DATES
    day = next((found for form in forms if (found := form.fullmatch(date)) is not None), None)
    if moment is None or day is None:
        return BAD_TIME
    parts = day.groupdict()
    if "name" in parts and parts["name"] not in MONTHS:
        return BAD_TIME
    month = MONTHS[parts["name"]] if "name" in parts else int(parts["month"])
    year = int(parts["year"]) + (2000 if len(parts["year"]) == 2 else 0)
    hour = int(moment["hour"])
    if moment["half"]:
        hour = hour % 12 + (12 if moment["half"] == "PM" else 0)
    try:
        second = min(int(moment["second"] or 0), 59)
        plain = datetime(year, month, int(parts["day"]), hour, int(moment["minute"]), second)  # noqa: DTZ001 - below
        at = epoch_ms(placed(plain, moment["zone"], zone))
    except ZoneError as error:
        return str(error)
    except (ValueError, OverflowError):
        return BAD_TIME
    return at if plausible(at) else BAD_TIME


def _sensor(host: str | None, fields: list[str]) -> SensorReading | str:
    """Read a line of ``sdr`` (name, reading, state), ``sdr elist`` (5 fields) or ``sensor`` (10 fields)."""
    discrete = len(fields) >= 9 and fields[2].lower() == "discrete"
    if len(fields) >= 9:
        # `sensor` prints three decimals, behind the locale's point: 23,000 degrees are 23.
        number = re.sub(r"(?<=\d),(?=\d{3}$)", ".", fields[1])
        reading, status = number if number_of(number) is None else f"{number} {fields[2]}".strip(), fields[3]
    elif len(fields) in {3, 5}:
        reading, status = fields[-1 if len(fields) == 5 else 1], fields[2]
    else:
        return _NEITHER
    if status.lower() not in _STATES and not _HEX.fullmatch(status):
        return _NEITHER
    state = _STATES.get(status.lower(), 0)
    if _NOTHING.fullmatch(reading) or (len(fields) == 5 and state is None):
        return "a sensor without a reading"
    if discrete or _HEX.fullmatch(reading):
        return SensorReading(host, fields[0], float(state or 0), "state", state or 0)
    measured = _MEASURED.fullmatch(reading)
    if measured is None:
        worst = _condition(reading)
        return SensorReading(host, fields[0], float(worst), "state", worst)
    return _measured(host, fields[0], measured, state)


def _measured(host: str | None, sensor: str, measured: re.Match[str], state: int | None) -> SensorReading | str:
    number, unit = number_of(measured["number"]), (measured["unit"] or "").strip().lower()
    if number is None:
        return "a sensor whose reading is no number"
    if unit == "degrees f":
        return SensorReading(host, sensor, (number - 32) / 1.8, "Cel", state)
    known = _UNITS.get(unit)
    if known is None:
        return "a sensor in a unit that the format does not have"
    return SensorReading(host, sensor, number, known, state)


def _condition(text: str) -> int:
    """Return the state that a discrete sensor's words give."""
    grave = severity_of(text)
    return {"info": 0, "warning": 1}.get(grave, 2)
