"""Remote-write requests, v1 and v2, read in columns: series by series only where one begins, samples by NumPy.

Prometheus and hindcast's sink lay a series out alike: labels, samples, and in v2 its metadata. A sample is
``12 10 | 09 <value> | 10 <timestamp, 6 bytes>``, or ``12 07 | 10 <timestamp>`` where the value is zero. Series of that
layout are read together, the first sample of all, then the second of all; any other is read field by field.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from services.gateway import histograms
from services.gateway.numbers import Bools, Ints
from services.gateway.protobuf import MalformedError, field_at, fields, varint_at
from services.gateway.symbols import Symbols
from services.kit.varint import varint

Protocol = Literal["v1", "v2"]
Floats = NDArray[np.float64]
Pairs = list[tuple[str, str]]

_SNAPPY = pa.Codec("snappy")
_PAD = 64
_FEW = 16
"""Series, of which each one's samples are read in a row: those with many samples."""


class TooLargeError(ValueError):
    """A body that would be larger than the limit once unpacked."""


@dataclass(frozen=True, slots=True)
class Request:
    """n series with m samples: `owner` (m,) is each sample's series, `times` (m,) epoch ms, `values` (m,).

    `keys` are bytes that are equal for series of equal labels in the order sent, in all requests of a protocol.
    `histograms` are those that are valid; `broken` says what is wrong with each other one.
    """

    protocol: Protocol
    keys: list[bytes]
    owner: Ints
    times: Ints
    values: Floats
    histograms: int
    broken: list[str]
    exemplars: int
    symbols: Symbols

    def labels(self, series: int) -> Pairs:
        """Return the labels of a series as sent; raise MalformedError where they cannot be read."""
        if self.protocol == "v1":
            return list(_label_pairs(self.keys[series]))
        texts = [self.symbols.text(number) for number in np.frombuffer(self.keys[series], np.int64).tolist()]
        return list(zip(texts[::2], texts[1::2], strict=True))


def unpack(body: bytes, most: int) -> bytes:
    """Return the body of a snappy block, whose length is looked at first.

    Raises TooLargeError where that is more than `most` bytes, MalformedError where it is no snappy block.
    """
    size, _ = varint_at(body, 0, len(body))
    if size > most:
        raise TooLargeError(f"the request has {size} bytes unpacked, {most} are allowed")
    try:
        data: bytes = _SNAPPY.decompress(body, decompressed_size=size, asbytes=True)
    except (OSError, pa.ArrowException):
        raise MalformedError("the body is not compressed with snappy (block format)") from None
    return data


def read(data: bytes, protocol: Protocol, symbols: Symbols) -> Request:
    """Return an unpacked request in columns; raise MalformedError where it is none."""
    wanted = 0x2A if protocol == "v2" else 0x0A
    texts, starts, ends = _top_level(data, wanted, with_symbols=protocol == "v2")
    if protocol == "v2" and texts[:1] != [b""]:
        if starts or texts:
            raise MalformedError("the symbol table does not begin with the empty text")
        texts = [b""]
    found = _Found(data, np.array(starts, np.int64), np.array(ends, np.int64), protocol)
    found.read()
    keys = found.label_bytes()
    if protocol == "v2":
        keys = _by_number(keys, symbols.numbers(texts))
    return Request(protocol, keys, *found.columns(), found.histograms, found.broken, found.exemplars, symbols)


def _top_level(data: bytes, wanted: int, *, with_symbols: bool) -> tuple[list[bytes], list[int], list[int]]:
    """Return the symbols, and where each series begins and ends."""
    symbols: list[bytes] = []
    starts: list[int] = []
    ends: list[int] = []
    at, size = 0, len(data)
    while at + 1 < size:
        tag, length = data[at], data[at + 1]
        at += 2
        if tag & 0x87 != 2 or tag < 8:
            number, kind, first, at = field_at(data, at - 2, size)
            if number == wanted >> 3 or (with_symbols and number == 4):
                raise MalformedError(f"field {number} of the request has wire type {kind}, at byte {first}")
            continue
        if length >= 0x80:
            length, at = varint_at(data, at - 1, size)
        end = at + length
        if end > size:
            raise MalformedError(f"field {tag >> 3} of the request is longer than the request, at byte {at}")
        if tag == wanted:
            starts.append(at)
            ends.append(end)
        elif tag == 0x22 and with_symbols:
            symbols.append(data[at:end])
        at = end
    if at != size:
        raise MalformedError(f"the request ends in the middle of a field, at byte {at}")
    return symbols, starts, ends


@dataclass
class _Found:
    """The series of a request: `start` and `end` (n,) are where their messages lie in `data`."""

    data: bytes
    start: Ints
    end: Ints
    protocol: Protocol
    histograms: int = 0
    broken: list[str] = field(default_factory=list)
    exemplars: int = 0
    _labels: Ints = field(init=False)
    """Where the labels end, which begin the message; -1: they are in `_own`."""
    _own: dict[int, bytes] = field(default_factory=dict)
    _parts: list[tuple[Ints, Ints, Floats]] = field(default_factory=list)

    def read(self) -> None:
        """Read the samples of all series."""
        raw = np.frombuffer(self.data + bytes(_PAD), np.uint8)
        self._labels = self.start.copy()
        left = np.arange(len(self.start))
        while len(left):  # v1: a pass for the first label of all series, then the second; v2: one for all references
            at, until = self._labels[left], self.end[left]
            here = (raw[at] == 0x0A) & (at < until)
            left, at = left[here], at[here]
            size, width = _lengths(raw, at)
            self._labels[left] = at + 1 + width + size
            odd = (width == 0) | (self._labels[left] > until[here])
            self._labels[left[odd]] = -1
            left = left[~odd] if self.protocol == "v1" else left[:0]
        plain = self._samples(raw, np.flatnonzero(self._labels >= 0))
        for series in np.flatnonzero(~plain):
            self._one(int(series))

    def _samples(self, raw: NDArray[np.uint8], series: Ints) -> Bools:
        """Read the samples of those series that are plain, and return which of all are."""
        plain = np.zeros(len(self.start), np.bool_)
        at = self._labels.copy()
        parts: list[tuple[Ints, Ints, Floats]] = []
        while len(series):
            done = at[series] == self.end[series]
            done |= (at[series] + 2 + raw[at[series] + 1] == self.end[series]) & self._is_metadata(raw, at[series])
            plain[series[done]] = True
            series = series[~done]
            if len(series) <= _FEW:
                for one in series.tolist():
                    plain[one] = self._row_of_samples(raw, one, int(at[one]), parts)
                break
            size, times, values = _sample_at(raw, at[series])
            good = (size > 0) & (at[series] + size <= self.end[series])
            series = series[good]
            parts.append((series, times[good], values[good]))
            at[series] += size[good]
        self._parts += [(s[plain[s]], t[plain[s]], v[plain[s]]) for s, t, v in parts]
        return plain

    def _row_of_samples(
        self, raw: NDArray[np.uint8], series: int, at: int, parts: list[tuple[Ints, Ints, Floats]]
    ) -> bool:
        """Read the samples of one series, as many at a time as have the same size; return whether it is plain."""
        end = int(self.end[series])
        while at < end:
            place = np.array([at])
            if at + 2 + int(raw[at + 1]) == end and self._is_metadata(raw, place)[0]:
                return True
            step = int(_sample_at(raw, place)[0][0])
            if not step or at + step > end:
                return False
            places = np.arange(at, end - step + 1, step)
            size, times, values = _sample_at(raw, places)
            other = np.flatnonzero(size != step)
            count = int(other[0]) if len(other) else len(places)
            parts.append((np.full(count, series), times[:count], values[:count]))
            at += count * step
        return at == end

    def _is_metadata(self, raw: NDArray[np.uint8], at: Ints) -> Bools:
        if self.protocol == "v1":
            return np.zeros(len(at), np.bool_)
        found: Bools = (raw[at] == 0x2A) & (raw[at + 1] < 0x80)
        return found

    def _one(self, series: int) -> None:
        """Read one series field by field; raise MalformedError where it can't be read."""
        start, end = int(self.start[series]), int(self.end[series])
        labels: list[bytes] = []
        times: list[int] = []
        values: list[float] = []
        other = (3, 4) if self.protocol == "v2" else (4, 3)
        for number, kind, first, last in fields(self.data, start, end):
            body = self.data[first:last]
            if number in (1, 2, *other) and not (kind == 2 or (number == 1 and kind == 0 and self.protocol == "v2")):
                raise MalformedError(f"field {number} of a series has wire type {kind}, at byte {first}")
            if number == 1 and self.protocol == "v2":
                labels.append(body)
            elif number == 1:
                labels.append(b"\x0a" + varint(len(body)) + body)
            elif number == 2:
                at_ms, value = _one_sample(body)
                times.append(at_ms)
                values.append(value)
            elif number == other[0]:
                wrong = histograms.wrong_with(body)
                self.broken += [wrong] if wrong else []
                self.histograms += not wrong
            elif number == other[1]:
                self.exemplars += 1
        self._labels[series] = -1
        self._own[series] = b"".join(labels)
        self._parts.append((np.full(len(times), series), np.array(times, np.int64), np.array(values, np.float64)))

    def label_bytes(self) -> list[bytes]:
        """Return the labels of each series: v1 the fields, v2 the references."""
        found: list[bytes] = []
        data, own = self.data, self._own
        places = zip(self.start.tolist(), self._labels.tolist(), strict=True)
        for series, (first, last) in enumerate(places):
            if last < 0:
                found.append(own[series])
            elif self.protocol == "v1" or first == last:
                found.append(data[first:last])
            else:
                found.append(data[first + (2 if data[first + 1] < 0x80 else 3) : last])
        return found

    def columns(self) -> tuple[Ints, Ints, Floats]:
        """Return series, times and values of all samples."""
        if not self._parts:
            return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
        series, times, values = zip(*self._parts, strict=True)
        return np.concatenate(series), np.concatenate(times), np.concatenate(values)


def _lengths(raw: NDArray[np.uint8], at: Ints) -> tuple[Ints, Ints]:
    """Return the lengths behind the tags at `at` and how many bytes they take: 1 or 2, else 0."""
    first, second = raw[at + 1].astype(np.int64), raw[at + 2].astype(np.int64)
    short, middle = first < 0x80, (first >= 0x80) & (second < 0x80)
    size = np.where(short, first, (first & 0x7F) | (second << 7))
    return size, np.where(short, 1, np.where(middle, 2, 0))


def _sample_at(raw: NDArray[np.uint8], at: Ints) -> tuple[Ints, Ints, Floats]:
    """Return how many bytes the plain sample at each place takes (0: none is there), its time and its value."""
    at = np.minimum(at, len(raw) - 18)
    cells = raw[at[:, None] + np.arange(18)]
    whole = (cells[:, :3] == (0x12, 0x10, 0x09)).all(axis=1) & (cells[:, 11] == 0x10)
    zero = (cells[:, :3] == (0x12, 0x07, 0x10)).all(axis=1)
    stamp = np.where(zero[:, None], cells[:, 3:9], cells[:, 12:18]).astype(np.int64)
    # Six bytes of seven bits; all but the last say that more follow.
    fits = (stamp[:, :5] >= 0x80).all(axis=1) & (stamp[:, 5] < 0x80)
    times = ((stamp & 0x7F) << (7 * np.arange(6))).sum(axis=1)
    values = np.ascontiguousarray(cells[:, 3:11]).view("<f8")[:, 0].copy()
    values[zero] = 0.0
    return np.where(whole & fits, 18, np.where(zero & fits, 9, 0)), times, values


def _by_number(references: list[bytes], numbers: Ints) -> list[bytes]:
    """Return the references of each series as numbers that mean the same in every request."""
    if not references:
        return []
    sizes = np.fromiter(map(len, references), np.int64, len(references))
    raw = np.frombuffer(b"".join(references), np.uint8).astype(np.int64)
    last = raw < 0x80
    ends = np.cumsum(sizes)
    if np.any((sizes > 0) & ~np.concatenate([last, [True]])[np.maximum(ends - 1, 0)]):
        raise MalformedError("the references of a series end in the middle of a number")
    count = np.concatenate([[0], np.cumsum(last)])
    first = np.concatenate([[0], np.flatnonzero(last)[:-1] + 1]) if len(raw) else np.zeros(0, np.int64)
    which: Ints = np.cumsum(last) - last
    place = np.arange(len(raw)) - first[which]
    if np.any(place > 4):
        raise MalformedError("a reference of a series is too large")
    values = np.add.reduceat((raw & 0x7F) << (7 * place), first) if len(raw) else first
    if np.any(values >= len(numbers)):
        raise MalformedError(f"a series refers to text {int(values.max())}, there are {len(numbers)}")
    upto = count[ends]
    if np.any(np.diff(upto, prepend=0) % 2):
        raise MalformedError("a series has a label without a value")
    known = numbers[values].tobytes()
    return [known[8 * a : 8 * b] for a, b in zip([0, *upto[:-1].tolist()], upto.tolist(), strict=True)]


def _label_pairs(data: bytes) -> Iterator[tuple[str, str]]:
    """Yield the labels of a v1 series."""
    for _, kind, first, last in fields(data, 0, len(data)):
        parts: dict[int, bytes] = {}
        for number, inner, start, stop in fields(data, first, last) if kind == 2 else ():
            if number in (1, 2) and inner != 2:
                raise MalformedError(f"a label has a field of wire type {inner}")
            parts[number] = data[start:stop]
        try:
            yield parts.get(1, b"").decode(), parts.get(2, b"").decode()
        except UnicodeDecodeError:
            raise MalformedError(f"a label is not UTF-8: {data[first:last][:60]!r}") from None


def _one_sample(body: bytes) -> tuple[int, float]:
    value, at_ms = 0.0, 0
    for number, kind, first, last in fields(body, 0, len(body)):
        if number == 1 and kind == 1:
            value = float(np.frombuffer(body[first:last], "<f8")[0])
        elif number == 2 and kind == 0:
            at_ms, _ = varint_at(body, first, len(body))
            at_ms -= (at_ms >> 63) << 64
        elif number in (1, 2):
            raise MalformedError(f"field {number} of a sample has wire type {kind}")
    return at_ms, value
