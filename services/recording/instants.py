"""Instants as hindcast counts them: whole milliseconds since 1970-01-01T00:00:00Z, written as RFC 3339 in UTC."""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, ValidationInfo

from services.kit.times import parse_instant

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CLOCK = re.compile(r"(?:(?P<h>\d{1,9}):)?(?P<m>\d{1,9}):(?P<s>\d{1,9}(?:\.\d{1,9})?)")
_UNITS = re.compile(
    r"(?=.)(?:(?P<d>\d{1,9})d)?(?:(?P<h>\d{1,9})h)?(?:(?P<m>\d{1,9})m)?(?:(?P<s>\d{1,9}(?:\.\d{1,9})?)s)?"
)


def format_instant(ms: int) -> str:
    """RFC 3339 in UTC, its milliseconds only where there are any; the number and its unit where no year has it."""
    try:
        moment = _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return f"{ms} ms since 1970"
    return moment.strftime("%Y-%m-%dT%H:%M:%S") + (f".{ms % 1000:03d}Z" if ms % 1000 else "Z")


def parse_offset(text: str) -> int:
    """Milliseconds of an offset written ``+HH:MM:SS``, ``+MM:SS`` or ``+1h30m`` (fractions of a second allowed)."""
    match = (_CLOCK.fullmatch(text[1:]) or _UNITS.fullmatch(text[1:])) if text.startswith("+") else None
    if match is None:
        raise ValueError(f"{text!r} is not an offset such as +01:30:00 or +1h30m")
    parts = match.groupdict()
    minutes = (int(parts.get("d") or 0) * 24 + int(parts["h"] or 0)) * 60 + int(parts["m"] or 0)
    return minutes * 60_000 + round(float(parts["s"] or 0) * 1000)


def resolve_instant(text: str, start_ms: int, end_ms: int | None = None) -> int:
    """Return an instant given absolutely (RFC 3339), or by offset: ``+1h30m`` from the start, ``-5m`` from the end."""
    if text.startswith("-") and end_ms is not None:
        return end_ms - parse_offset(f"+{text[1:]}")
    return start_ms + parse_offset(text) if text.startswith("+") else parse_instant(text)


def resolve_past(text: str, now_ms: int) -> int:
    """Return an instant given absolutely (RFC 3339), as ``now``, or by how long ago it was: ``-2h``, ``now-2h``."""
    if text == "now":
        return now_ms
    back = text.removeprefix("now")
    return now_ms - parse_offset(f"+{back[1:]}") if back.startswith("-") else parse_instant(text)


def _to_ms(value: object, info: ValidationInfo) -> int:
    if info.mode == "python" and isinstance(value, int) and not isinstance(value, bool):
        return value
    return parse_instant(value)


# In a model: an int of milliseconds inside, RFC 3339 outside. Code may pass the int it already has; a file may not.
InstantMs = Annotated[int, BeforeValidator(_to_ms), PlainSerializer(format_instant, when_used="json")]
