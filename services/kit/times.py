"""Event time: integer milliseconds since the Unix epoch, UTC; as text, RFC 3339."""

import time
from datetime import UTC, datetime

from services.kit.errors import UserError


def parse_time(text: str) -> int:
    """Return the epoch milliseconds of an RFC 3339 time; raise UserError if it is not one."""
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise UserError(f"{text!r} is not a time", remedy="write RFC 3339, as in 2024-04-01T08:00:00Z") from None
    if moment.tzinfo is None:
        raise UserError(f"{text!r} has no time zone", remedy="write UTC times with a Z at the end")
    return round(moment.timestamp() * 1000)


def format_time(at_ms: int) -> str:
    """Return epoch milliseconds as RFC 3339 UTC with milliseconds and a Z."""
    moment = datetime.fromtimestamp(at_ms / 1000, tz=UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def wall_ms() -> int:
    """Return wall time in epoch milliseconds."""
    return time.time_ns() // 1_000_000
