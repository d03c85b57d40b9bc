"""Times as tools write them, with or without a zone, to milliseconds since the epoch."""

import re
from datetime import UTC, datetime, timedelta, timezone

from services.kit.errors import UserError
from services.recording.instants import parse_instant

EARLIEST, LATEST = 0, 4_102_444_800_000  # 1970 to 2100: outside it, a stamp is a damaged one
_OFFSET = re.compile(r"(?P<sign>[+-])(?P<hours>\d{1,2}):?(?P<minutes>\d{2})?")


def parse_utc_offset(text: str) -> timezone:
    """Return the zone of ``+02:00``, ``-0500``, ``+2`` or ``UTC``. UserError where it is none of them."""
    if text.strip().upper() in {"UTC", "Z", ""}:
        return UTC
    match = _OFFSET.fullmatch(text.strip())
    if match is not None:
        shift = timedelta(hours=int(match["hours"]), minutes=int(match["minutes"] or 0))
        if shift < timedelta(hours=24) and int(match["minutes"] or 0) < 60:
            return timezone(shift if match["sign"] == "+" else -shift)
    raise UserError(f"--utc-offset: {text!r} is no offset", remedy="write it as +02:00 or -05:00", exit_code=2)


def parse_start(text: str | None) -> int | None:
    """Return the instant of a ``--start`` option; None stays None. UserError where it is no RFC 3339 time."""
    if text is None:
        return None
    try:
        at = parse_instant(text)
    except ValueError as error:
        raise UserError(f"--start: {error}", remedy="write it as 2024-04-01T08:00:00Z", exit_code=2) from error
    if not EARLIEST <= at < LATEST:
        raise UserError(f"--start: {text!r} is not between 1970 and 2100", remedy="correct the year", exit_code=2)
    return at


def parse_stamp(text: str, zone: timezone) -> int | None:
    """Return the instant of an ISO 8601 time (``zone`` where it has none) or of epoch seconds; None if it is neither.

    What lies before 1970 or after 2100 is no time of a computer's log either.
    """
    text = text.strip()
    if text.isascii() and text.isdecimal() and 8 < len(text) < 12:
        at = int(text) * 1000
    else:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return None
        try:
            at = instant_of(moment, zone)
        except (OverflowError, ValueError):
            return None
    return at if EARLIEST < at < LATEST else None


def instant_of(moment: datetime, zone: timezone) -> int:
    """Return the instant of a moment, which is in ``zone`` where it says no other."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)
    return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
