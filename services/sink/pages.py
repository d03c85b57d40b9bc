"""Series and their encoded labels, in pages: a page's series share one symbol table and travel in one request.

A series is a number, given once and never moved. Its label bytes are encoded when it first appears; a request
only lays timestamps and values beside them.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from services.kit.varint import varint

Protocol = Literal["v2", "v1"]
Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

PAGE_SERIES = 4096
"""Series a page: large enough to spread a request's fixed cost, small enough that its symbols (7 kB) do not weigh."""


def chunk(tag: int, body: bytes) -> bytes:
    """Return a length-delimited protobuf field of one-byte tag `tag`."""
    return bytes((tag,)) + varint(len(body)) + body


@dataclass(slots=True)
class Lengths:
    """A page's series sorted by the length of their label bytes, so that those of a length form a matrix.

    `group` and `row` (series,) say which matrix and row a series' bytes are in.
    """

    group: Ints
    row: Ints
    matrices: list[Bytes]


@dataclass(slots=True)
class Page:
    """Up to PAGE_SERIES series, their labels encoded for one protocol. One thread adds while others encode."""

    protocol: Protocol
    names: list[Mapping[str, str]] = field(default_factory=list)
    _encoded: list[bytes] = field(default_factory=list)
    _symbols: dict[str, bytes] = field(default_factory=lambda: {"": varint(0)})
    _pairs: dict[tuple[str, str], bytes] = field(default_factory=dict)
    """Labels as they are encoded: most are those of many series."""
    _laid: tuple[bytes, Lengths] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, labels: Mapping[str, str]) -> None:
        """Add a series."""
        self.names.append(labels)

    def encoded(self) -> tuple[bytes, Lengths]:
        """Return what precedes the series in a request (v2: the symbol table), and the label bytes as matrices."""
        with self._lock:
            new = self.names[len(self._encoded) :]
            if new or self._laid is None:
                self._encoded += [self._labels(labels) for labels in new]
                self._laid = self._head(), self._matrices()
            return self._laid

    def _head(self) -> bytes:
        # Tag 4 of io.prometheus.write.v2.Request, length-delimited.
        return b"".join(chunk(0x22, symbol.encode()) for symbol in self._symbols) if self.protocol == "v2" else b""

    def _matrices(self) -> Lengths:
        sizes = np.fromiter(map(len, self._encoded), np.int64, len(self._encoded))
        found, group = np.unique(sizes, return_inverse=True)
        row = np.empty(len(sizes), np.int64)
        matrices = []
        for number, size in enumerate(found):
            members = np.flatnonzero(group == number)
            row[members] = np.arange(len(members))
            joined = b"".join(self._encoded[i] for i in members)
            matrices.append(np.frombuffer(joined, np.uint8).reshape(len(members), int(size)))
        return Lengths(group.astype(np.int64), row, matrices)

    def _labels(self, labels: Mapping[str, str]) -> bytes:
        """Return the labels of a series, sorted by name as both protocols ask."""
        encoded = []
        for pair in sorted(labels.items()):
            known = self._pairs.get(pair)
            if known is None:
                known = self._pairs[pair] = self._pair(*pair)
            encoded.append(known)
        # Tag 1 of v2.TimeSeries: packed references into the symbol table.
        return chunk(0x0A, b"".join(encoded)) if self.protocol == "v2" else b"".join(encoded)

    def _pair(self, name: str, value: str) -> bytes:
        if self.protocol == "v1":
            # Tag 1 of prometheus.TimeSeries: a Label of name (1) and value (2).
            return chunk(0x0A, chunk(0x0A, name.encode()) + chunk(0x12, value.encode()))
        symbols = self._symbols
        return b"".join(symbols.setdefault(text, varint(len(symbols))) for text in (name, value))


class Catalogue:
    """All series of one unit: number `n` is series ``n % PAGE_SERIES`` of page ``n // PAGE_SERIES``."""

    def __init__(self, protocol: Protocol) -> None:
        self._protocol: Protocol = protocol
        self.pages: list[Page] = []
        self.size = 0

    def add(self, labels: Mapping[str, str]) -> int:
        """Add a series and return its number."""
        number = self.size
        if number % PAGE_SERIES == 0:
            self.pages.append(Page(self._protocol))
        self.pages[-1].add(labels)
        self.size += 1
        return number

    def labels(self, number: int) -> Mapping[str, str]:
        """Return the labels of a series."""
        return self.pages[number // PAGE_SERIES].names[number % PAGE_SERIES]
