"""Native histograms: checked as a Prometheus would, and passed over, as no stream has them."""

import math
import struct
from collections.abc import Sequence

import numpy as np

from services.gateway.numbers import Ints
from services.gateway.protobuf import MalformedError, fields, varint_at

_COARSEST, _FINEST, _CUSTOM = -4, 8, -53
"""Schemas: resolutions of exponential buckets, and the one whose bounds are given (prompb/io/prometheus/write/v2)."""
_COUNT, _COUNT_FLOAT, _SUM, _SCHEMA, _ZERO_COUNT, _TIMESTAMP = 1, 2, 3, 4, 6, 15
_DOUBLES = {_COUNT_FLOAT, _SUM, 5, 7}
_NUMBERS = {_COUNT, _SCHEMA, _ZERO_COUNT, 14, _TIMESTAMP, 17}
_SIDES = (("negative", 8, 9, 10), ("positive", 11, 12, 13))
"""Of each side the fields with its spans, its deltas and its counts."""
_BOUNDS = 16
_LONGEST_VARINT = 10
_63_BITS, _64_BITS = 2**63 - 1, 2**64 - 1


def wrong_with(data: bytes) -> str:
    """Return what is wrong with a histogram, nothing where it is valid; MalformedError where it is no message."""
    held = dict.fromkeys(range(8, 17), 0)
    numbers = dict.fromkeys(_NUMBERS, 0)
    deltas: dict[int, list[Ints]] = {9: [], 12: []}
    total, floating = 0.0, False
    for number, kind, first, last in fields(data, 0, len(data)):
        wanted = 1 if number in _DOUBLES else 0 if number in _NUMBERS else 2
        if number <= 17 and kind != wanted:
            raise MalformedError(f"field {number} of a histogram has wire type {kind}")
        body = data[first:last]
        if number in (_COUNT, _COUNT_FLOAT):
            floating = number == _COUNT_FLOAT
        if number in numbers:
            numbers[number], _ = varint_at(body, 0, len(body))
        elif number == _SUM:
            (total,) = struct.unpack("<d", body)
        elif number in (8, 11):
            held[number] += _length_of_span(body)
        elif number in deltas:
            deltas[number].append(_signed(body))
            held[number] += len(deltas[number][-1])
        elif number in held:
            held[number] += len(body) // 8
    return _shape(numbers[_SCHEMA], held) or (
        "" if floating else _observations(numbers[_COUNT], numbers[_ZERO_COUNT], total, list(deltas.values()))
    )


def _shape(zigzag: int, held: dict[int, int]) -> str:
    schema = (zigzag >> 1) ^ -(zigzag & 1)
    if not (_COARSEST <= schema <= _FINEST or schema == _CUSTOM):
        return f"a histogram has schema {schema}, which is none"
    for side, spans, deltas, counts in _SIDES:
        if held[spans] != held[deltas] + held[counts]:
            return f"a histogram has {side} spans of {held[spans]} buckets, and {held[deltas] + held[counts]} of them"
    if schema != _CUSTOM and held[_BOUNDS]:
        return f"a histogram has bounds of its own, and schema {schema}"
    return ""


def _observations(count: int, zero_count: int, total: float, sides: Sequence[Sequence[Ints]]) -> str:
    """Say whether as many observations are in the buckets of whole numbers as a histogram says that it has.

    NaN is observed in no bucket, and makes the sum NaN: then there may be more of them.
    """
    found = zero_count
    for buckets in (np.cumsum(np.concatenate(parts)) for parts in sides if parts):
        if (buckets < 0).any():
            return f"a histogram has a bucket of {int(buckets.min())} observations"
        found += int(buckets.view(np.uint64).sum())
    found &= _64_BITS
    if found > count or (found < count and not math.isnan(total)):
        return f"a histogram has {found} observations in its buckets, and says that it has {count}"
    return ""


def _signed(data: bytes) -> Ints:
    """Return packed signed numbers (zigzag)."""
    raw = np.frombuffer(data, np.uint8)
    zigzag = raw.astype(np.uint64)
    ends = np.flatnonzero(raw < 0x80)
    if len(ends) < len(raw):
        sizes = np.diff(ends, prepend=-1)
        if not len(ends) or ends[-1] != len(raw) - 1 or sizes.max() > _LONGEST_VARINT:
            raise MalformedError("a number among the buckets of a histogram is cut off or too long")
        first = ends - sizes + 1
        place = np.arange(len(raw)) - np.repeat(first, sizes)
        zigzag = np.bitwise_or.reduceat((zigzag & np.uint64(0x7F)) << (7 * place).astype(np.uint64), first)
    signed = zigzag.view(np.int64)
    return ((signed >> 1) & _63_BITS) ^ -(signed & 1)


def _length_of_span(data: bytes) -> int:
    for number, kind, first, last in fields(data, 0, len(data)):
        if number == 2 and kind == 0:
            length, _ = varint_at(data, first, last)
            return length
    return 0
