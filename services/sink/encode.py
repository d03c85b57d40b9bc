"""Remote-write requests by hand: label bytes from the page, timestamps and values laid beside them by NumPy.

In both protocols a series' samples are field 2 of its message, and a sample is ``{1: double, 2: int64}``; with
a timestamp of six varint bytes (1971 to 2109) each takes 18 bytes, always in the same places:
``12 10 | 09 <value, 8 bytes> | 10 <timestamp, 6 bytes>``.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from services.kit.varint import varint
from services.sink.pages import PAGE_SERIES, Bytes, Ints, Lengths, Page, Protocol

Floats = NDArray[np.float64]

EARLIEST_MS = 1 << 35
LATEST_MS = (1 << 42) - 1
"""The times whose varint has six bytes: 1971-02-02 to 2109-05-15."""

STALE: float = float(np.uint64(0x7FF0000000000002).view(np.float64))
"""Prometheus' staleness marker: this NaN and no other. Held as bits in arrays; it survives copying."""

_SAMPLE = np.dtype(
    {
        "names": ["head", "value", "time_tag", "time_low", "time_high"],
        "formats": [("u1", 3), "<f8", "u1", "<u4", "<u2"],
        "offsets": [0, 3, 11, 12, 16],
        "itemsize": 18,
    }
)
_SERIES_TAG = {"v2": 0x2A, "v1": 0x0A}
_SNAPPY = pa.Codec("snappy")


@dataclass(slots=True)
class Samples:
    """n series with k samples each: `series` (n,) numbers, `times` (n, k) epoch ms ascending, `values` (n, k)."""

    series: Ints
    times: Ints
    values: Floats

    @property
    def count(self) -> int:
        """Return n times k."""
        return self.values.size

    def halves(self) -> tuple["Samples", "Samples"]:
        """Return the first and the second half: of the series, or of one series' samples."""
        if len(self.series) > 1:
            cut = len(self.series) // 2
            return (
                Samples(self.series[:cut], self.times[:cut], self.values[:cut]),
                Samples(self.series[cut:], self.times[cut:], self.values[cut:]),
            )
        cut = self.times.shape[1] // 2
        return (
            Samples(self.series, self.times[:, :cut], self.values[:, :cut]),
            Samples(self.series, self.times[:, cut:], self.values[:, cut:]),
        )


def by_page(samples: Samples) -> Iterator[tuple[int, Samples]]:
    """Yield page numbers with the samples of their series."""
    pages = samples.series // PAGE_SERIES
    if not len(pages):
        return
    if np.any(np.diff(pages) < 0):
        order = np.argsort(pages, kind="stable")
        samples = Samples(samples.series[order], samples.times[order], samples.values[order])
        pages = pages[order]
    starts = np.flatnonzero(np.diff(pages, prepend=-1))
    for start, stop in zip(starts, [*starts[1:], len(pages)], strict=True):
        yield (
            int(pages[start]),
            Samples(samples.series[start:stop], samples.times[start:stop], samples.values[start:stop]),
        )


def request(page: Page, parts: Iterable[Samples]) -> bytes:
    """Return the compressed request that writes `parts`, all of them of `page`."""
    prelude, lengths = page.encoded()
    bodies: list[bytes | memoryview] = [prelude]
    for part in parts:
        bodies.extend(block.data for block in _blocks(page.protocol, lengths, part))
    compressed: bytes = _SNAPPY.compress(b"".join(bodies), asbytes=True)
    return compressed


def _blocks(protocol: Protocol, lengths: Lengths, part: Samples) -> Iterator[Bytes]:
    local = part.series % PAGE_SERIES
    if len(lengths.matrices) == 1:
        yield _block(protocol, lengths.matrices[0][local], part.times, part.values)
        return
    group = lengths.group[local]
    row = lengths.row[local]
    present = np.flatnonzero(np.bincount(group))
    for number in present:
        labels = lengths.matrices[number]
        if len(present) == 1:
            yield _block(protocol, labels[row], part.times, part.values)
        else:
            chosen = np.flatnonzero(group == number)
            yield _block(protocol, labels[row[chosen]], part.times[chosen], part.values[chosen])


def _block(protocol: Protocol, labels: Bytes, times: Ints, values: Floats) -> Bytes:
    """Return n series messages of equal length, as (n, length) bytes."""
    count, samples = values.shape
    body = labels.shape[1] + samples * _SAMPLE.itemsize
    head = np.frombuffer(bytes((_SERIES_TAG[protocol],)) + varint(body), np.uint8)
    start = len(head) + labels.shape[1]
    block = np.empty((count, len(head) + body), np.uint8)
    block[:, : len(head)] = head
    block[:, len(head) : start] = labels
    laid = block[:, start:].view(_SAMPLE)
    laid["head"] = (0x12, 0x10, 0x09)
    laid["value"] = values
    laid["time_tag"] = 0x10
    stamps = six_bytes(times)
    laid["time_low"] = stamps & 0xFFFFFFFF
    laid["time_high"] = stamps >> 32
    return block


def six_bytes(times: Ints) -> Ints:
    """Return the six varint bytes of each time, little-endian in the low 48 bits; times from 1971 to 2109 only."""
    # Seven bits go into each byte; all but the last carry the continuation bit.
    return (
        (times & 0x7F)
        | ((times & (0x7F << 7)) << 1)
        | ((times & (0x7F << 14)) << 2)
        | ((times & (0x7F << 21)) << 3)
        | ((times & (0x7F << 28)) << 4)
        | ((times & (0x7F << 35)) << 5)
        | 0x80_80_80_80_80
    )
