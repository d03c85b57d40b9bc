"""Event time: integer milliseconds since the Unix epoch, UTC; as text, RFC 3339."""

import time
from datetime import UTC, datetime, timedelta

from services.kit.errors import UserError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def epoch_ms(moment: datetime) -> int:
    """Return the whole milliseconds since the epoch of an aware time; finer digits are cut off."""
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def parse_instant(value: object) -> int:
    """Return the epoch milliseconds of an RFC 3339 text or an aware datetime; finer digits are cut off.

    Raises ValueError for anything else, above all for a time without an offset: it would mean another instant on
    another machine. A number is refused too, because seconds and milliseconds look alike.
    """
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(f"{value!r} is not an RFC 3339 time such as 2024-04-01T08:00:00Z") from None
    if not isinstance(value, datetime):
        raise ValueError(f"{value!r} is not an RFC 3339 time such as 2024-04-01T08:00:00Z")  # noqa: TRY004 - pydantic turns ValueError into a located message
    if value.tzinfo is None:
        raise ValueError(f"{value.isoformat()} has no time zone; write it in UTC with a trailing Z")
    return epoch_ms(value)


def parse_time(text: str) -> int:
    """Return the epoch milliseconds of an RFC 3339 time, as `parse_instant`; raise UserError if it is not one."""
    try:
        return parse_instant(text)
    except ValueError as error:
        raise UserError(str(error), remedy="write RFC 3339 in UTC, as in 2024-04-01T08:00:00Z") from None


def format_time(at_ms: int) -> str:
    """Return epoch milliseconds as RFC 3339 UTC with milliseconds and a Z."""
    moment = datetime.fromtimestamp(at_ms / 1000, tz=UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def to_the_second(at_ms: int) -> str:
    """Return epoch milliseconds as RFC 3339 UTC, cut to the second."""
    return f"{format_time(at_ms)[:19]}Z"


def wall_ms() -> int:
    """Return wall time in epoch milliseconds."""
    return time.time_ns() // 1_000_000
