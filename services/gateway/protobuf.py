"""Protobuf's wire format, field by field: for what is not laid out as usual."""

from collections.abc import Iterator

_LONGEST_VARINT = 10


class MalformedError(ValueError):
    """A body that is no remote-write request; its text says why."""


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, wire type, and begin and end of the contents of each field of a message; else MalformedError."""
    while at < end:
        number, kind, first, at = field_at(data, at, end)
        yield number, kind, first, at


def field_at(data: bytes, at: int, end: int) -> tuple[int, int, int, int]:
    """Return number, wire type, and begin and end of the contents of the field at a place; else MalformedError."""
    tag, first = varint_at(data, at, end)
    number, kind = tag >> 3, tag & 7
    if kind == 0:
        _, last = varint_at(data, first, end)
    elif kind == 1:
        last = first + 8
    elif kind == 5:
        last = first + 4
    elif kind == 2:
        size, first = varint_at(data, first, end)
        last = first + size
    else:
        raise MalformedError(f"wire type {kind} at byte {at} is none of protobuf's")
    if number == 0 or last > end:
        raise MalformedError(f"a field at byte {at} is longer than what holds it, or has number 0")
    return number, kind, first, last


def varint_at(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the number at a place and where it ends; MalformedError where none is."""
    number = 0
    for shift in range(_LONGEST_VARINT):
        if at >= end:
            break
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return number & 0xFFFF_FFFF_FFFF_FFFF, at
    raise MalformedError(f"a number at byte {at} is cut off or too long")
