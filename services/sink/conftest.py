"""A reader of remote-write requests that shares nothing with the encoder: plain protobuf wire format, by the book."""

import struct
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

Series = tuple[tuple[tuple[str, str], ...], list[tuple[int, bytes]]]
"""Sorted labels as sent, and samples: (epoch ms, the eight bytes of the value)."""


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            # A second encoding of the same number would also decode, but must never be sent.
            assert byte or not shift, "a varint longer than need be"
            return number, at
        shift += 7


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if kind == 1:
            size = 8
        else:
            assert kind == 2, f"wire type {kind}"
            size, at = _varint(data, at)
        yield tag >> 3, data[at : at + size]
        at += size
        assert at <= len(data)


def _body(value: bytes | int) -> bytes:
    assert isinstance(value, bytes)
    return value


def _sample(data: bytes) -> tuple[int, bytes]:
    found = dict(_fields(data))
    assert set(found) == {1, 2}
    at_ms = found[2]
    assert isinstance(at_ms, int)
    struct.unpack("<d", _body(found[1]))
    return at_ms, _body(found[1])


def _read_v1(data: bytes) -> Iterator[Series]:
    for number, series in _fields(data):
        assert number == 1
        labels, samples = [], []
        for part, value in _fields(_body(series)):
            if part == 1:
                pair = dict(_fields(_body(value)))
                labels.append((_body(pair[1]).decode(), _body(pair[2]).decode()))
            else:
                assert part == 2
                samples.append(_sample(_body(value)))
        yield tuple(labels), samples


def _read_v2(data: bytes) -> Iterator[Series]:
    symbols = [_body(value).decode() for number, value in _fields(data) if number == 4]
    assert symbols[0] == ""
    assert len(set(symbols)) == len(symbols)
    for number, series in _fields(data):
        if number == 4:
            continue
        assert number == 5
        refs, samples = [], []
        for part, value in _fields(_body(series)):
            if part == 1:
                at = 0
                while at < len(_body(value)):
                    ref, at = _varint(_body(value), at)
                    refs.append(symbols[ref])
            else:
                assert part == 2
                samples.append(_sample(_body(value)))
        yield tuple(zip(refs[::2], refs[1::2], strict=True)), samples


@pytest.fixture(scope="session")
def read_request() -> Callable[[bytes, str], list[Series]]:
    """Return a function that reads a compressed request of a protocol."""

    def read(body: bytes, protocol: str) -> list[Series]:
        # The raw block format begins with the uncompressed length.
        size, _ = _varint(body, 0)
        data = pa.Codec("snappy").decompress(body, decompressed_size=size, asbytes=True)
        return list(_read_v2(data) if protocol == "v2" else _read_v1(data))

    return read
