"""A writer of remote-write requests by the book, an outlet that remembers, and a client of the application."""

import asyncio
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx
import pyarrow as pa
import pytest

from services.gateway.api import Gateway, build
from services.gateway.outlet import AwayError, Parcel
from services.gateway.settings import GatewaySettings
from services.kit.varint import varint

CONTENT = {
    "v1": "application/x-protobuf",
    "v2": "application/x-protobuf;proto=io.prometheus.write.v2.Request",
}
Sample = tuple[int, float]


def chunk(number: int, body: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(body)) + body


def sample(at_ms: int, value: float, *, backwards: bool = False, started: int | None = None) -> bytes:
    """A sample; as in Prometheus what is zero is left out."""
    parts = [b"\x09" + struct.pack("<d", value)] if struct.pack("<d", value).strip(b"\0") else []
    parts += [b"\x10" + varint(at_ms)] if at_ms else []
    parts += [b"\x18" + varint(started)] if started is not None else []
    return b"".join(reversed(parts) if backwards else parts)


def histogram(
    schema: int = 3,
    spans: tuple[int, ...] = (2, 1),
    counts: Sequence[int] = (100, 101, 103),
    *,
    more: int = 0,
    total: float = 9.5,
) -> bytes:
    """A native histogram of whole numbers, one in its zero bucket, the others positive, as Prometheus lays it out.

    `more`: observations in no bucket.
    """
    shape = b"".join(chunk(11, b"\x08\x02" + b"\x10" + varint(length)) for length in spans)
    count, summed = b"\x08" + varint(1 + sum(counts) + more), b"\x19" + struct.pack("<d", total)
    zero = b"\x29" + struct.pack("<d", 1e-128)
    deltas = [number - before for before, number in pairwise([0, *counts])]
    buckets = chunk(12, b"".join(map(_zigzag, deltas)))
    later = b"\x70\x00\x78" + varint(1 << 40)
    return count + summed + b"\x20" + _zigzag(schema) + zero + b"\x30\x01" + shape + buckets + later


def _zigzag(number: int) -> bytes:
    return varint(2 * number if number >= 0 else -2 * number - 1)


@dataclass
class Series:
    labels: Sequence[tuple[str, str]]
    samples: Sequence[Sample]
    metadata: bool = False
    exemplar: bool = False
    histogram: bytes | None = None
    backwards: bool = False
    started: int | None = None
    split: bool = False
    """References (v2) in two packed fields; samples before labels (v1)."""


def written(protocol: str, series: Sequence[Series]) -> bytes:
    """Return a request, not compressed."""
    symbols: dict[str, int] = {"": 0}
    bodies = []
    for one in series:
        samples = b"".join(
            chunk(2, sample(at, value, backwards=one.backwards, started=one.started)) for at, value in one.samples
        )
        if protocol == "v1":
            labels = b"".join(chunk(1, chunk(1, n.encode()) + chunk(2, v.encode())) for n, v in one.labels)
            extra = (chunk(3, b"") if one.exemplar else b"") + (
                b"" if one.histogram is None else chunk(4, one.histogram)
            )
            bodies.append(chunk(1, (samples + labels if one.split else labels + samples) + extra))
            continue
        refs = [varint(symbols.setdefault(text, len(symbols))) for pair in one.labels for text in pair]
        packed = [b"".join(refs[:1]), b"".join(refs[1:])] if one.split else [b"".join(refs)]
        body = b"".join(chunk(1, part) for part in packed) + samples
        body += (b"" if one.histogram is None else chunk(3, one.histogram)) + (chunk(4, b"") if one.exemplar else b"")
        body += chunk(5, b"\x08\x01\x18\x00") if one.metadata else b""
        bodies.append(chunk(5, body))
    if protocol == "v1":
        return b"".join(bodies) + chunk(3, b"\x08\x01")
    return b"".join(chunk(4, text.encode()) for text in symbols) + b"".join(bodies)


def packed(data: bytes) -> bytes:
    compressed: bytes = pa.Codec("snappy").compress(data, asbytes=True)
    return compressed


@dataclass
class Kept:
    """An outlet that remembers; `away`: it acknowledges nothing."""

    parcels: list[Parcel] = field(default_factory=list)
    buried: list[tuple[str, bytes, str]] = field(default_factory=list)
    away: bool = False

    def deliver(self, parcels: Sequence[Parcel]) -> None:
        if self.away:
            raise AwayError("Kafka has not acknowledged (test)")
        self.parcels += parcels

    def bury(self, stream: str, value: bytes, reason: str) -> None:
        self.buried.append((stream, value, reason))

    def rows(self, stream: str) -> list[dict[str, Any]]:
        """Return the rows of a telemetry stream, without what is null."""
        found = []
        for parcel in self.parcels:
            if parcel.stream == stream:
                with pa.ipc.open_stream(parcel.value) as batches:
                    found += [row for batch in batches for row in batch.to_pylist()]
        return [{name: value for name, value in row.items() if value is not None} for row in found]


class Client:
    """Asks a gateway in this process."""

    def __init__(self, **settings: Any) -> None:
        self.settings = GatewaySettings(cluster="vela", **settings)
        self.outlet = Kept()
        self._app = build(Gateway(self.settings, self.outlet), self.settings)

    def post(self, path: str, body: bytes | Any, headers: dict[str, str] | None = None) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                return await client.post(path, content=body, headers=headers)

        return asyncio.run(ask())

    def write(self, protocol: str, body: bytes, **headers: str) -> httpx.Response:
        """Send a compressed body."""
        own = {"content-encoding": "snappy", "content-type": CONTENT[protocol]}
        return self.post("/api/v1/write", body, own | headers)


@pytest.fixture
def client() -> Client:
    return Client()
