"""Times of dumps and log lines: from a file's name, its modification time, or an option; as milliseconds in UTC."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from itertools import pairwise
from pathlib import Path
from typing import Any

from services.kit.errors import UsageError, UserError
from services.kit.times import epoch_ms, parse_instant
from services.recording.importers.parts.source_files import where
from services.recording.importers.parts.zones import zone_of

LATEST = 4_102_444_800_000
"""2100-01-01: a time after it, or before 1970, is a clock that was never set or a damaged line."""
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
MONTHS = {name: number for number, name in enumerate(_MONTHS, 1)}
"""The months by the English names that logs write in every locale."""
MONTH = f"(?P<month>{'|'.join(MONTHS)})"
_OUT_OF_ORDER_MS = 300_000
"""So late may a line be written, by a relay that held it back; a clock that is put back jumps further."""
# Not inside of a longer number or of a hexadecimal one, such as a port's GUID.
_IN_NAME = re.compile(
    r"(?<![0-9a-fA-FxX])(?P<year>20\d\d)-?(?P<month>[01]\d)-?(?P<day>[0-3]\d)[T_ .-]?"
    r"(?P<hour>[012]\d)[-:._]?(?P<minute>[0-5]\d)[-:._]?(?P<second>[0-6]\d)"
    r"(?P<zone>Z|[+-]\d\d:?\d\d)?(?![0-9a-fA-F])"
)
_UNIX_IN_NAME = re.compile(r"(?<![0-9a-fA-FxX.])(1\d{9})(\d{3})?(?![0-9a-fA-F])")


def plausible(ms: float) -> bool:
    """Whether a time can be one of a telemetry record at all."""
    return 0 <= ms < LATEST


def ms_of(seconds: float) -> int:
    """Return milliseconds of a time in seconds since the epoch; -1, which is not plausible, for one that is not."""
    return round(seconds * 1000) if plausible(seconds * 1000) else -1


def instant_of(moment: datetime, zone: tzinfo, before: int | None = None) -> int:
    """Return the milliseconds of a moment, which is in ``zone`` where it says no other.

    When summer time ends an hour comes twice, under the same times: `before`, the time written before it, says which.
    """
    if moment.tzinfo is not None:
        return epoch_ms(moment)
    at = epoch_ms(moment.replace(tzinfo=zone))
    if before is not None and at < before - _OUT_OF_ORDER_MS:
        at = max(at, epoch_ms(moment.replace(tzinfo=zone, fold=1)))
    return at


def iso_instant(text: str, zone: tzinfo, before: int | None = None) -> int | None:
    """Return the time of an ISO 8601 text, as `instant_of`; None where it is none, or not plausible."""
    try:
        at = instant_of(datetime.fromisoformat(text), zone, before)
    except (OverflowError, ValueError):
        return None
    return at if plausible(at) else None


def parse_stamp(text: str, zone: tzinfo, before: int | None = None) -> int | None:
    """Return the time of an ISO 8601 text (in ``zone`` where it names none) or of epoch seconds; None if it is neither.

    `before` as of `instant_of`. What is not plausible, and the epoch itself, is no time of a computer's log either.
    """
    text = text.strip()
    if text.isascii() and text.isdecimal() and 8 < len(text) < 12:
        at = int(text) * 1000
        return at if at and plausible(at) else None
    return iso_instant(text, zone, before) or None


def instant_option(text: str, option: str) -> int | None:
    """Return the time an option gives, None where it was not given. UserError where it is no RFC 3339 time."""
    if not text:
        return None
    try:
        ms = parse_instant(text)
    except ValueError as error:
        remedy = "write it as 2024-04-01T08:00:00Z"
        raise UsageError(f"{option}: {error}", remedy=remedy) from None
    if not plausible(ms):
        raise UsageError(f"{option}: {text} is before 1970 or after 2099", remedy="correct the time")
    return ms


def time_in_name(name: str, zone: tzinfo = UTC) -> int | None:
    """Return the time that a name carries (``…20240401T080000Z…``, ``…2024-04-01_08-00-00…``, ``…1711958400…``)."""
    for match in _IN_NAME.finditer(name):
        parts = [int(match[part]) for part in ("year", "month", "day", "hour", "minute", "second")]
        offset = match["zone"]
        try:
            moment = datetime(*parts[:6], tzinfo=zone if offset is None else zone_of(offset))  # type: ignore[arg-type, misc]  # six numbers
        except (ValueError, UserError):
            continue
        return epoch_ms(moment)
    unix = _UNIX_IN_NAME.search(name)
    return None if unix is None else int(unix[1]) * 1000 + int(unix[2] or 0)


MODIFIED = "mtime"
"""As ``--start``: the files' last change is when they were written."""


@dataclass(frozen=True)
class DumpClock:
    """When dumps were taken: known by options, by the name of the file or of a folder above it, or by the file's time.

    `at` is the time of the first dump, in milliseconds, and `every_ms` the time between dumps, where options say so.
    `modified`: the user says that the files' last changes are the times.
    """

    root: Path
    zone: tzinfo = UTC
    at: int | None = None
    every_ms: int = 0
    modified: bool = False

    def stated(self, path: Path, index: int = 0) -> tuple[int, str] | None:
        """Return what an ``option`` or a ``name`` says of dump number `index` at `path`; None where neither does."""
        if self.at is not None:
            if index and not self.every_ms:
                remedy = "say with --every how many seconds lie between them; they are taken in order of their names"
                raise UserError(f"{where(path)}: the second of several dumps, all at --start", remedy=remedy)
            return self.at + index * self.every_ms, "option"
        inside = path.relative_to(self.root).parts if path.is_relative_to(self.root) else (path.name,)
        for name in (*reversed(inside), self.root.name):
            found = time_in_name(name, self.zone)
            if found is not None and plausible(found):
                return found, "name"
        return None

    def of(self, path: Path, index: int = 0) -> tuple[int, str]:
        """Return the time of dump number `index` at `path`, and whether ``option``, ``name`` or ``mtime`` gives it.

        A file's last change may be when it was copied: it gives the time of a single dump, never the time between
        several. UserError where nothing gives it.
        """
        known = self.stated(path, index)
        if known is not None:
            return known
        if index and not self.modified:
            remedy = (
                "say with --start 2024-04-01T08:00:00Z --every 15 when the first was taken and how many seconds lie "
                f"between them (in order of names), or --start {MODIFIED} if the files' last changes are the times"
            )
            problem = "the second of several dumps, and neither lines nor names say when they were taken"
            raise UserError(f"{where(path)}: {problem}: that cannot be known", remedy=remedy)
        try:
            changed = int(path.stat().st_mtime * 1000)
        except OSError:
            changed = -1
        if not plausible(changed):
            remedy = "say with --start when the dump was taken"
            raise UserError(f"{where(path)}: neither its name nor its date gives its time", remedy=remedy)
        return changed, "mtime"

    def row(self, path: Path, index: int) -> int:
        """Return the time of number `index` of the moments that follow each other in a file without times.

        UserError where the options do not say it.
        """
        if self.at is None or (index and not self.every_ms):
            remedy = (
                "say with --start 2024-04-01T08:00:00Z --every 1 when it began and how many seconds lie between rows"
            )
            raise UserError(f"{where(path)}: its rows have no times: these cannot be known", remedy=remedy)
        return self.at + index * self.every_ms


def dump_clock(root: Path, start: str, every: float, timezone: str) -> DumpClock:
    """Return the clock that ``--start``, ``--every`` and ``--timezone`` describe. UserError for bad ones."""
    if not 0 <= every <= 1e8:
        raise UsageError(f"--every {every:g}: not a time between dumps", remedy="give seconds")
    modified = start == MODIFIED
    first = None if modified else instant_option(start, "--start")
    if first is None and every:
        raise UsageError("--every without --start", remedy="say with --start when the first was taken")
    return DumpClock(root, zone_of(timezone), first, round(every * 1000), modified)


def clock_skew(nodes: Iterable[str], skew_s: float, notes: list[str]) -> dict[str, Any]:
    """Return what ``--clock-skew-s`` puts into the header of a recording, and note it."""
    if not skew_s:
        return {}
    notes.append("clock_skew_s: seconds by which a BMC's clock is ahead; the events' times are not corrected")
    return {"clock_skew_s": dict.fromkeys(sorted(nodes), skew_s)}


def interval_s(moments: Iterable[set[int]]) -> float | None:
    """Return the usual time between readings in seconds: the median over the moments (ms) of each entity.

    None where no entity was read twice.
    """
    gaps = sorted(later - earlier for times in moments for earlier, later in pairwise(sorted(times)))
    return gaps[len(gaps) // 2] / 1000 if gaps else None
