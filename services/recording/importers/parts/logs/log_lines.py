"""Reads lines of kernel and system logs in the forms that dmesg, journalctl, syslog daemons and /dev/kmsg write."""

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any, Literal

from services.kit.times import epoch_ms
from services.recording.importers.parts.moments import MONTH, MONTHS, instant_of, plausible
from services.recording.importers.parts.source_files import clean, parse_json
from services.recording.importers.parts.zones import ABBREVIATION, ZoneError, placed

Source = Literal["kernel", "fabricmanager"]

_CLOCK = r"(?P<clock>\d\d?:\d\d:\d\d)(?:(?P<mark>[.,])(?P<fraction>\d{1,9}))?(?: (?P<half>[AP]M))?"
_ZONE = rf"(?P<zone>{ABBREVIATION}|[+-]\d\d(?::?\d\d)?)"
_HOST_NAME = re.compile(r"[A-Za-z0-9_][\w.-]{0,252}")
_HOST = re.compile(
    r"(?P<host>[A-Za-z0-9_][\w.-]{0,252}) (?P<tag>[^\s:\[]{1,64})(?P<pid>\[\d*\])?: ?(?P<text>.*)", re.DOTALL
)
_OF_KERNEL = re.compile(r"[A-Za-z0-9_][\w.-]{0,252} kernel: ")
_KMSG = re.compile(r"(?P<priority>\d{1,5}),\d+,(?P<microseconds>\d{1,18}),[^;]*;(?P<text>.*)", re.DOTALL)
_PRIORITY = re.compile(r"<(?P<priority>\d{1,3})>(?:1 (?=\d{4}-))?")
_LEVELS = ("emerg", "alert", "crit", "err", "warn", "notice", "info", "debug")
_DECODED = re.compile(r"[a-z]{2,8}\d? *:(?P<level>" + "|".join(_LEVELS) + r") *: ?")  # dmesg --decode
_UPTIME = re.compile(r"\[ *(?P<seconds>\d{1,9})\.(?P<fraction>\d{1,9})\] ?(?:\[ *[TC]\d+\] ?)?")
# dmesg -T, whose times are the machine's own and name no zone
_CTIME = re.compile(rf"\[[A-Z][a-z]{{2}} {MONTH} +(?P<day>\d\d?) {_CLOCK}(?: {_ZONE})? (?P<year>\d{{4}})\] ?")
_FABRIC = re.compile(
    rf"\[{MONTH} +(?P<day>\d\d?) (?P<year>\d{{4}}) {_CLOCK}\] \[(?P<level>[A-Z]{{4,8}})\] ?(?:\[tid \d+\] ?)?"
)
_ISO = re.compile(rf"(?P<date>\d{{4}}-\d\d-\d\d)[T ]{_CLOCK} ?(?:{_ZONE}(?![\w.:]))? *")
_FULL = re.compile(rf"[A-Z][a-z]{{2}} (?P<date>\d{{4}}-\d\d-\d\d) {_CLOCK} (?P<zone>[A-Z]{{1,5}}|[+-]\d\d(?:\d\d)?) ")
_SYSLOG = re.compile(rf"{MONTH} {{1,2}}(?P<day>\d\d?) (?:(?P<year>\d{{4}}) )?{_CLOCK} (?:{_ZONE} )?")
_UNIX = re.compile(r"(?P<seconds>\d{9,10})\.(?P<fraction>\d{3,9}) ")
_STRUCTURED = re.compile(
    r"(?P<host>\S+) (?P<tag>\S+) (?P<pid>\S+) \S+ (?:-|(?:\[[^\]]*\])+) ?(?:\ufeff)?(?P<text>.*)", re.DOTALL
)
_HEADER = re.compile(r"-- .* --$|-- (?:Boot|Reboot|Logs|Journal|No entries)")
_SPAN = re.compile(r"begins? at [A-Z][a-z]{2} (?P<year>\d{4})-")
_FABRIC_LEVELS = {"DEBUG": 7, "INFO": 6, "NOTICE": 5, "WARNING": 4, "WARN": 4, "ERROR": 3, "CRITICAL": 2, "FATAL": 2}
_HALF_YEAR_MS = 180 * 86_400_000
_YEAR_MS, _MONTH_MS = 365 * 86_400_000, 30 * 86_400_000
_FABRIC_TAGS = {"nv-fabricmanager", "nvidia-fabricmanager", "fabricmanager"}

NO_YEAR = "a time without its year (give --year)"
NO_BOOT = "a time in seconds since boot (give --boot)"
NO_TIME = "a line without a time in a form that is known"
BAD_TIME = "a time that cannot be"
HEADER = "a heading of the log, no record"
PROPERTY = "a property of the kmsg record before, no record"
NO_MESSAGE = "a journal entry without a time or a message"


@dataclass(frozen=True, slots=True)
class LogLine:
    """One record: `at` in ms, `priority` as syslog counts (0 emergency to 7 debug), None where the form has none.

    `message` is the line without what the collector put before it (time, host, the kernel's own tag).
    """

    at: int
    host: str | None
    priority: int | None
    message: str
    source: Source = "kernel"
    continues: bool = False
    """Whether lines without a time that follow belong to it."""


class LogLines:
    """Reads the lines of one file, in their order: the year of times without one goes up at New Year.

    `boot` is the time of boot in ms for seconds since then, `zone` that of times which name no zone. With `near`, ms,
    times without a year are of the one that puts them nearest to it, in whatever order they come.
    """

    def __init__(self, zone: tzinfo, year: int | None, boot: int | None, near: int | None = None) -> None:
        self._zone, self._year, self._boot, self._near = zone, year, boot, near
        self._latest: int | None = None
        self._before: int | None = None
        self.zoneless = 0
        """Times so far that named no zone."""

    def read(self, line: str) -> LogLine | str:
        """Return a line's record, or why it is none (one of the texts of this module)."""
        if line.startswith("{"):
            return self._journal(line)
        kmsg = _KMSG.match(line)
        if kmsg is not None:
            return self._since_boot(int(kmsg["microseconds"]) // 1000, None, int(kmsg["priority"]) & 7, kmsg["text"])
        if _HEADER.match(line):
            span = _SPAN.search(line)
            if span is not None and self._year is None:
                self._year = int(span["year"])
            return HEADER
        if line.startswith(" ") and "=" in line:
            return PROPERTY
        return self._text(line)

    def _text(self, line: str) -> LogLine | str:
        """Read the forms that begin with a priority or a time."""
        priority, start = None, 0
        match = _PRIORITY.match(line)
        if match is not None:
            priority, start = int(match["priority"]) & 7, match.end()
        decoded = _DECODED.match(line, start)
        if decoded is not None:
            priority, start = _LEVELS.index(decoded["level"]), decoded.end()
        if line.startswith("[", start):
            return self._bracketed(line, start, priority)
        for form in (_ISO, _SYSLOG, _UNIX, _FULL):
            match = form.match(line, start)
            if match is not None:
                at = self._unix(match) if form is _UNIX else self._moment(match)
                rest = line[match.end() :]
                if isinstance(at, str):
                    return at
                # dmesg --time-format iso has no host; a comma before the fraction is its own, and a few relays'.
                bare = form is _ISO and (decoded is not None or (match["mark"] == "," and not _OF_KERNEL.match(rest)))
                if bare:
                    return LogLine(at, None, priority, rest)
                return self._hosted(at, priority, rest, always=form is not _ISO)
        return NO_TIME

    def _bracketed(self, line: str, start: int, priority: int | None) -> LogLine | str:
        match = _UPTIME.match(line, start)
        if match is not None:
            ms = int(match["seconds"]) * 1000 + int(match["fraction"].ljust(3, "0")[:3])
            rest = line[match.end() :]
            hosted = _HOST.fullmatch(rest)  # journalctl -o short-monotonic
            if hosted is not None and hosted["tag"] == "kernel":
                return self._since_boot(ms, hosted["host"], priority, hosted["text"])
            return self._since_boot(ms, None, priority, rest)
        match = _CTIME.match(line, start)
        if match is not None:
            at = self._moment(match)
            return at if isinstance(at, str) else LogLine(at, None, priority, line[match.end() :])
        match = _FABRIC.match(line, start)
        if match is None:
            return NO_TIME
        at = self._moment(match)
        if isinstance(at, str):
            return at
        # The level stays in the message: it is the writer's, not the collector's.
        level, text = _FABRIC_LEVELS.get(match["level"]), line[match.start("level") - 1 :]
        return LogLine(at, None, level, text, "fabricmanager", continues=True)

    def _hosted(self, at: int, priority: int | None, rest: str, *, always: bool) -> LogLine:
        """Take host and writer off what follows the time; `always` where the form has a host in every line."""
        match = _HOST.fullmatch(rest) or _STRUCTURED.fullmatch(rest)
        if match is None:
            name, _, text = rest.partition(" ")
            named = always and _HOST_NAME.fullmatch(name) is not None
            return LogLine(at, name, priority, text) if named else LogLine(at, None, priority, rest)
        host, tag, text = match["host"], match["tag"], match["text"]
        if tag == "kernel":
            uptime = _UPTIME.match(text)
            return LogLine(at, host, priority, text if uptime is None else text[uptime.end() :])
        source: Source = "fabricmanager" if tag in _FABRIC_TAGS else "kernel"
        return LogLine(at, host, priority, f"{tag}{match['pid'] or ''}: {text}", source)

    def _since_boot(self, ms: int, host: str | None, priority: int | None, text: str) -> LogLine | str:
        if self._boot is None:
            return NO_BOOT
        at = self._boot + ms
        return LogLine(at, host, priority, text) if plausible(at) else BAD_TIME

    def _unix(self, match: re.Match[str]) -> int | str:
        at = int(match["seconds"]) * 1000 + int(match["fraction"][:3])
        return at if plausible(at) else BAD_TIME

    def _moment(self, match: re.Match[str]) -> int | str:
        """Return the time that a match's date and clock say, by its own zone or else the log's."""
        found = match.groupdict()
        try:
            if found.get("date"):
                year, month, number = (int(part) for part in found["date"].split("-"))
                at = self._instant(year, month, number, found)
            else:
                day = MONTHS[found["month"]], int(found["day"])
                known = (
                    self._instant(int(found["year"]), *day, found) if found.get("year") else self._near_by(*day, found)
                )
                if known is None:
                    return NO_YEAR
                at = known
        except ZoneError as error:
            return str(error)
        except (ValueError, OverflowError):
            return BAD_TIME
        self._before = at
        self.zoneless += not found.get("zone")
        return at if plausible(at) else BAD_TIME

    def _near_by(self, month: int, day: int, found: dict[str, str | None]) -> int | None:
        """Return the time of a line that leaves out its year; None where nothing says which."""
        if self._near is not None:
            about, times = datetime.fromtimestamp(self._near / 1000, UTC).year, []
            for year in (about - 1, about, about + 1):
                with suppress(ValueError):  # no year but a leap year has the 29th of February
                    times.append(self._instant(year, month, day, found))
            return min(times, key=lambda at: abs(at - (self._near or 0)))
        if self._year is None:
            return None
        at = self._instant(self._year, month, day, found)
        if self._latest is not None and at < self._latest - _HALF_YEAR_MS:
            self._year += 1
            at = self._instant(self._year, month, day, found)
        elif self._latest is not None and at > self._latest + _YEAR_MS - _MONTH_MS:
            return self._instant(self._year - 1, month, day, found)  # late: of before New Year
        self._latest = at
        return at

    def _instant(self, year: int, month: int, day: int, found: dict[str, str | None]) -> int:
        hour, minute, second = (int(part) for part in (found["clock"] or "").split(":"))
        if found["half"]:
            hour = hour % 12 + (12 if found["half"] == "PM" else 0)
        # A leap second is the last that datetime knows.
        moment = datetime(year, month, day, hour, minute, min(second, 59))  # noqa: DTZ001 - its zone follows
        name = found.get("zone")
        whole = epoch_ms(placed(moment, name, self._zone)) if name else instant_of(moment, self._zone, self._before)
        return whole + int((found["fraction"] or "0").ljust(3, "0")[:3])

    def _journal(self, line: str) -> LogLine | str:
        """Read an entry of ``journalctl -o json``."""
        entry = parse_json(line)
        if not isinstance(entry, dict):
            return NO_MESSAGE
        stamp, text = entry.get("__REALTIME_TIMESTAMP"), _journal_text(entry.get("MESSAGE"))
        if not isinstance(stamp, str | int) or not str(stamp).isdecimal() or len(str(stamp)) > 18 or text is None:
            return NO_MESSAGE
        at = int(stamp) // 1000
        if not plausible(at):
            return BAD_TIME
        host, tag, pid = (_plain(entry.get(key)) for key in ("_HOSTNAME", "SYSLOG_IDENTIFIER", "_PID"))
        priority = _plain(entry.get("PRIORITY"))
        level = int(priority) if priority is not None and priority in "01234567" else None
        if entry.get("_TRANSPORT") == "kernel" or tag in {"kernel", None}:
            return LogLine(at, host, level, text)
        source: Source = "fabricmanager" if tag in _FABRIC_TAGS else "kernel"
        return LogLine(at, host, level, f"{tag}[{pid}]: {text}" if pid else f"{tag}: {text}", source)


def _journal_text(message: Any) -> str | None:
    """Return a journal message, which is a list of bytes where it is no UTF-8."""
    if isinstance(message, str):
        return clean(message)
    if isinstance(message, list) and all(isinstance(part, int) and 0 <= part < 256 for part in message):
        return bytes(message).decode("utf-8", "replace")
    return None


def _plain(value: Any) -> str | None:
    return clean(value)[:256] if isinstance(value, str) and value else None
