"""Time zones as options and lines of logs name them: ``Europe/Zurich``, ``+02:00``, ``CEST``."""

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from services.kit.errors import UsageError, UserError

_OFFSET = re.compile(r"([+-])(\d\d)(?::?(\d\d))?")
_HOURS: dict[str, float] = {
    # What the time zone database writes today, each for one offset only; those of several are `_AMBIGUOUS`.
    "UTC": 0, "GMT": 0, "Z": 0, "WET": 0, "WEST": 1, "BST": 1, "CET": 1, "CEST": 2, "MET": 1, "MEST": 2, "EET": 2,
    "EEST": 3, "MSK": 3, "WAT": 1, "CAT": 2, "SAST": 2, "EAT": 3, "PKT": 5, "WIB": 7, "WITA": 8, "WIT": 9, "HKT": 8,
    "JST": 9, "KST": 9, "AWST": 8, "ACST": 9.5, "ACDT": 10.5, "AEST": 10, "AEDT": 11, "NZST": 12, "NZDT": 13,
    "NST": -3.5, "NDT": -2.5, "AST": -4, "ADT": -3, "EST": -5, "EDT": -4, "CDT": -5, "MST": -7, "MDT": -6, "PDT": -7,
    "AKST": -9, "AKDT": -8, "HST": -10,
}  # fmt: skip
_AMBIGUOUS = {
    "CST": "America/Chicago or Asia/Shanghai",
    "IST": "Asia/Kolkata, Asia/Jerusalem or Europe/Dublin",
    "PST": "America/Los_Angeles or Asia/Manila",
}
ABBREVIATION = "|".join(sorted((*_HOURS, *_AMBIGUOUS), key=len, reverse=True))
"""A regular expression of the names of zones: what stands behind a time and is none of them may be a host."""


class ZoneError(ValueError):
    """A name that is no zone, or that of several; the message is the reason why the time is not read."""


def zone_of(text: str) -> tzinfo:
    """Return the time zone that an option names: ``UTC``, ``Europe/Zurich``, ``CEST``, ``+02:00``. UserError else."""
    fixed = _fixed(text.upper())
    if fixed is not None:
        return fixed
    try:
        return ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        remedy = "write a name such as Europe/Zurich, or an offset such as +02:00"
        raise UsageError(f"--timezone {text}: no time zone that is known here", remedy=remedy) from None


def is_zone(text: str) -> bool:
    """Whether a text names one time zone."""
    try:
        zone_of(text)
    except UserError:
        return False
    return True


def placed(moment: datetime, name: str | None, otherwise: tzinfo) -> datetime:
    """Return a moment without a zone in the zone that stands beside it, in ``otherwise`` where none does.

    A name of several zones is read where ``otherwise`` has it. ZoneError for any other, and for what is no zone.
    """
    if not name:
        return moment.replace(tzinfo=otherwise)
    fixed = _fixed(name)
    if fixed is not None:
        return moment.replace(tzinfo=fixed)
    # The hour that comes twice in autumn has both names, distinguished by its fold.
    for fold in (0, 1):
        here = moment.replace(tzinfo=otherwise, fold=fold)
        if here.tzname() == name:
            return here
    if name in _AMBIGUOUS:
        raise ZoneError(f"a time in {name}, which is several zones (say with --timezone: {_AMBIGUOUS[name]})")
    raise ZoneError("a time in a zone that is not known (give --timezone, if it is that one)")


def assumed_zone(count: int, timezone: str) -> list[str]:
    """Return what to say of ``count`` times that named no zone and were taken as the option says."""
    return [f"{count:,} times name no zone and were taken as {timezone} (--timezone says otherwise)"] if count else []


def _fixed(name: str) -> tzinfo | None:
    """Return the zone of an abbreviation or an offset; None where it is neither."""
    found = _OFFSET.fullmatch(name)
    if found is not None:
        shift = timedelta(hours=int(found[2]), minutes=int(found[3] or 0))
        if shift < timedelta(days=1) and int(found[3] or 0) < 60:
            return timezone(-shift if found[1] == "-" else shift)
    hours = _HOURS.get(name)
    return None if hours is None else timezone(timedelta(hours=hours), name) if hours else UTC
