"""Requests in columns: whatever the layout that protobuf allows, what is read is what was written."""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.conftest import Series, chunk, histogram, packed, written
from services.gateway.histograms import wrong_with
from services.gateway.protobuf import MalformedError
from services.gateway.remote_write import Protocol, TooLargeError, read, unpack
from services.gateway.symbols import Symbols
from services.kit.varint import varint

NOW = 1_763_650_000_000
PROTOCOLS: tuple[Protocol, ...] = ("v1", "v2")
_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_bits = st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack("<d", struct.pack("<Q", bits))[0])
_times = st.one_of(st.integers(1 << 35, (1 << 42) - 1), st.integers(-(2**63), 2**63 - 1))
_series = st.builds(
    Series,
    labels=st.lists(st.tuples(_text, _text), max_size=5),
    samples=st.lists(st.tuples(_times, st.one_of(st.just(0.0), _bits)), max_size=6),
    metadata=st.booleans(),
    exemplar=st.sampled_from([False, False, True]),
    histogram=st.sampled_from([None, None, histogram()]),
    backwards=st.sampled_from([False, False, True]),
    started=st.sampled_from([None, None, 0, NOW]),
    split=st.sampled_from([False, False, True]),
)


def as_read(data: bytes, protocol: Protocol, symbols: Symbols) -> list[tuple[list[tuple[str, str]], list[bytes]]]:
    """Return labels and samples of each series, a sample as its time and the bits of its value."""
    request = read(data, protocol, symbols)
    found = []
    for number in range(len(request.keys)):
        mine = request.owner == number
        pairs = zip(request.times[mine].tolist(), request.values[mine], strict=True)
        found.append((request.labels(number), [struct.pack("<q", at) + value.tobytes() for at, value in pairs]))
    return found


@pytest.mark.parametrize("protocol", PROTOCOLS)
@settings(deadline=None)
@given(series=st.lists(_series, max_size=30))
def test_what_is_written_is_read(protocol: Protocol, series: list[Series]) -> None:
    expected = [
        (list(one.labels), [struct.pack("<q", at) + struct.pack("<d", value) for at, value in one.samples])
        for one in series
    ]
    symbols = Symbols()
    symbols.numbers([b"another", b"request"])
    assert as_read(written(protocol, series), protocol, symbols) == expected


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_many_series_and_a_series_of_many_samples(protocol: Protocol) -> None:
    many = [
        Series([("__name__", "m"), ("gpu", str(number))], [(NOW + number, float(number))]) for number in range(3000)
    ]
    long = Series([("__name__", "long")], [(NOW + number, float(number % 7)) for number in range(3000)])
    request = read(written(protocol, [*many, long]), protocol, Symbols())
    assert (np.bincount(request.owner) == [1] * 3000 + [3000]).all()
    order = np.lexsort((request.times, request.owner))
    assert (request.times[order] - NOW).tolist() == [*range(3000), *range(3000)]
    assert request.values[order].tolist() == [*map(float, range(3000)), *(float(n % 7) for n in range(3000))]


def test_the_same_labels_have_the_same_key_in_every_request() -> None:
    one, other = Series([("__name__", "m"), ("gpu", "1")], []), Series([("a", "gpu"), ("1", "m")], [])
    symbols = Symbols()
    first = read(written("v2", [one, other]), "v2", symbols)
    second = read(written("v2", [other, one]), "v2", symbols)
    assert first.keys == second.keys[::-1]
    assert first.keys[0] != first.keys[1]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (chunk(5, b""), "symbol table does not begin"),
        (chunk(4, b"") + chunk(5, chunk(1, varint(7) + varint(0))), "refers to text 7, there are 1"),
        (chunk(4, b"") + chunk(5, chunk(1, b"\x00")), "label without a value"),
        (chunk(4, b"") + chunk(5, chunk(1, b"\x80")), "middle of a number"),
        (chunk(4, b"") + chunk(5, chunk(1, b"\x80" * 5 + b"\x01\x00")), "too large"),
        (chunk(4, b"") + chunk(4, b"\xff") + chunk(5, b""), "not UTF-8"),
        (chunk(4, b"") + b"\x2a\x05\x00", "longer than the request"),
        (chunk(4, b"") + chunk(5, chunk(2, b"\x08\x01")), "wire type 0"),
        (chunk(4, b"") + chunk(5, b"\x10\x01"), "wire type 0"),
        (chunk(4, b"") + b"\x28\x01", "wire type 0"),
        (chunk(4, b"") + b"\x2a", "ends in the middle"),
        (b"\x2f\x00", "wire type 7"),
    ],
)
def test_what_is_malformed_is_reported(data: bytes, words: str) -> None:
    with pytest.raises(MalformedError, match=words):
        read(data, "v2", Symbols())


def test_fields_of_later_versions_are_passed_over() -> None:
    series = written("v2", [Series([("__name__", "m")], [(NOW, 1.0)])])
    later = series + chunk(9, b"new") + varint(10 << 3) + varint(300) + b"\x5d1234"
    assert len(read(later, "v2", Symbols()).times) == 1


def test_a_bomb_is_not_unpacked() -> None:
    bomb = packed(bytes(2_000_000))
    assert len(bomb) < 100_000
    with pytest.raises(TooLargeError, match="2000000 bytes unpacked, 1000000 are allowed"):
        unpack(bomb, 1_000_000)
    # One that lies about its size is no snappy block.
    with pytest.raises(MalformedError, match="snappy"):
        unpack(varint(1000) + bomb[3:], 1_000_000)
    with pytest.raises(MalformedError):
        unpack(b"", 1_000_000)


def test_texts_of_no_series_make_room_and_the_others_keep_their_numbers() -> None:
    symbols = Symbols(most=3)
    one, other = Series([("__name__", "m"), ("gpu", "1")], []), Series([("__name__", "n"), ("gpu", "2")], [])
    (kept,) = read(written("v2", [one]), "v2", symbols).keys
    assert symbols.full
    read(written("v2", [other]), "v2", symbols)
    assert not symbols.keep([kept])
    request = read(written("v2", [other, one]), "v2", symbols)
    assert request.keys[1] == kept
    assert [request.labels(number) for number in range(2)] == [other.labels, one.labels]
    assert symbols.keep([])
    assert not symbols.full


@settings(deadline=None)
@given(where=st.integers(0, 40), noise=st.binary(max_size=12), cut=st.integers(0, 40))
def test_a_damaged_histogram_is_refused_or_taken_and_never_a_failure(where: int, noise: bytes, cut: int) -> None:
    whole = histogram()
    try:
        assert isinstance(wrong_with(whole[:where] + noise + whole[where + cut :]), str)
    except MalformedError as error:
        assert str(error)  # noqa: PT017 - either is an answer
