"""Native histograms: checked as a Prometheus would, and passed over, as no stream has them."""

import numpy as np

from services.gateway.protobuf import MalformedError, fields, varint_at

_COARSEST, _FINEST, _CUSTOM = -4, 8, -53
"""Schemas: resolutions of exponential buckets, and the one whose bounds are given (prompb/io/prometheus/write/v2)."""
_SCHEMA, _TIMESTAMP = 4, 15
_DOUBLES = {2, 3, 5, 7}
_NUMBERS = {1, _SCHEMA, 6, 14, _TIMESTAMP, 17}
_SIDES = (("negative", 8, 9, 10), ("positive", 11, 12, 13))
"""Of each side the fields with its spans, its deltas and its counts."""
_BOUNDS = 16
_PACKED = {9, 12}


def wrong_with(data: bytes) -> str:
    """Return what is wrong with a histogram, nothing where it is valid; MalformedError where it is no message."""
    schema = 0
    held = dict.fromkeys(range(8, 17), 0)
    for number, kind, first, last in fields(data, 0, len(data)):
        wanted = 1 if number in _DOUBLES else 0 if number in _NUMBERS else 2
        if number <= 17 and kind != wanted:
            raise MalformedError(f"field {number} of a histogram has wire type {kind}")
        body = data[first:last]
        if number == _SCHEMA:
            zigzag, _ = varint_at(body, 0, len(body))
            schema = (zigzag >> 1) ^ -(zigzag & 1)
        elif number in (8, 11):
            held[number] += _length_of_span(body)
        elif number in _PACKED:
            held[number] += int((np.frombuffer(body, np.uint8) < 0x80).sum())
        elif number in held:
            held[number] += len(body) // 8
    if not (_COARSEST <= schema <= _FINEST or schema == _CUSTOM):
        return f"a histogram has schema {schema}, which is none"
    for side, spans, deltas, counts in _SIDES:
        if held[spans] != held[deltas] + held[counts]:
            return f"a histogram has {side} spans of {held[spans]} buckets, and {held[deltas] + held[counts]} of them"
    if schema != _CUSTOM and held[_BOUNDS]:
        return f"a histogram has bounds of its own, and schema {schema}"
    return ""


def _length_of_span(data: bytes) -> int:
    for number, kind, first, last in fields(data, 0, len(data)):
        if number == 2 and kind == 0:
            length, _ = varint_at(data, first, last)
            return length
    return 0
