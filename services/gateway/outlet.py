"""Sends what the gateway took to Kafka, and answers its sender only when Kafka has acknowledged all of it."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from kafka.errors import KafkaError

from services.gateway import metrics
from services.kit import topics
from services.kit.deadletter import DeadLetter
from services.kit.errors import UserError
from services.kit.wire import ARROW, NDJSON, WATERMARK, Origin, Watermark, encode_batch

_log = logging.getLogger(__name__)
MESSAGE_ROWS = 8192
MESSAGE_BYTES = 1024 * 1024
_KEPT_BYTES = 65_536
"""Bytes of what is bad that go to dead-letter: enough to see what it was."""


class AwayError(Exception):
    """Kafka has not acknowledged: the sender is to try again."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """The value of one message of a stream's topic, how many rows or lines it holds, and headers of its own."""

    stream: str
    value: bytes
    content_type: bytes
    rows: int
    more: Sequence[tuple[str, bytes]] = ()


class Outlet(Protocol):
    """Where telemetry goes."""

    def deliver(self, parcels: Sequence[Parcel]) -> None:
        """Return when all of it is safe; raise AwayError if that takes too long."""

    def bury(self, stream: str, value: bytes, reason: str) -> None:
        """Keep something of no use, with the reason."""


@dataclass(slots=True)
class _Refused:
    """Something that came over HTTP, as dead-letter wants it: it has no place in a topic."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Iterable[tuple[str, bytes]]
    partition: int = -1
    offset: int = -1
    timestamp: int = -1


class KafkaOutlet:
    """Sends the records of one unit to its partition.

    `make` gives a producer; a new one is made when the old one has failed.
    """

    def __init__(self, make: Callable[[], Any], origin: Origin, partition: int, *, timeout_s: float) -> None:
        self._make = make
        self._origin = origin
        self._partition = partition
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._producer: Any = make()
        """None after it has failed."""
        self._topic = {stream: name for name, stream in topics.declared().streams().items()}

    def deliver(self, parcels: Sequence[Parcel]) -> None:
        """Return when Kafka has acknowledged all of it; raise AwayError if it does not in time."""
        client = self._client()
        deadline = time.monotonic() + self._timeout_s
        try:
            sent = [self._send(client, parcel) for parcel in parcels]
            for future in sent:
                future.get(timeout=max(0.0, deadline - time.monotonic()))
        except (KafkaError, TimeoutError, AssertionError, RuntimeError) as error:
            self._drop(client)
            raise AwayError(f"Kafka has not acknowledged ({type(error).__name__})") from error
        for parcel in parcels:
            metrics.ROWS.labels(parcel.stream).inc(parcel.rows)

    def bury(self, stream: str, value: bytes, reason: str) -> None:
        """Send something of no use to dead-letter; nobody waits for it."""
        key = self._origin.unit.encode()
        record = _Refused(
            self._topic.get(stream, stream), key, value[:_KEPT_BYTES], self._origin.headers(b"text/plain")
        )
        try:
            DeadLetter(self._client(), "gateway").send(record, reason)
        except (KafkaError, AwayError) as error:
            _log.warning("not in dead-letter reason=%s error=%s", reason, type(error).__name__)

    def close(self) -> None:
        """Close the producer."""
        with self._lock:
            client, self._producer = self._producer, None
        if client is not None:
            client.close(timeout=self._timeout_s)

    def _send(self, client: Any, parcel: Parcel) -> Any:
        headers = [*self._origin.headers(parcel.content_type), *parcel.more]
        key = self._origin.unit.encode()
        value = parcel.value or None
        return client.send(self._topic[parcel.stream], key=key, partition=self._partition, value=value, headers=headers)

    def _client(self) -> Any:
        with self._lock:
            if self._producer is None:
                try:
                    self._producer = self._make()
                except UserError as error:
                    raise AwayError(error.message) from error
                _log.info("Kafka answers again")
            return self._producer

    def _drop(self, client: Any) -> None:
        """Use another producer from now on: one whose sequence of records is broken stays so."""
        with self._lock:
            if self._producer is not client:
                return
            self._producer = None
        _log.warning("Kafka does not acknowledge, senders are asked to try again")
        threading.Thread(target=client.close, kwargs={"timeout": 0}, daemon=True).start()


def watermark_of(stream: str, at_ms: int) -> Parcel:
    """Return what says that all of a stream up to `at_ms` was delivered."""
    return Parcel(stream, b"", WATERMARK, 0, Watermark(at_ms).headers())


def parcels_of(stream: str, batch: pa.RecordBatch) -> list[Parcel]:
    """Return a batch as Arrow messages of bounded size."""
    each = max(1, min(MESSAGE_ROWS, MESSAGE_BYTES * batch.num_rows // max(1, batch.nbytes)))
    return [
        Parcel(stream, encode_batch(piece), ARROW, piece.num_rows)
        for start in range(0, batch.num_rows, each)
        for piece in (batch.slice(start, each),)
    ]


def parcels_of_lines(stream: str, lines: Sequence[bytes]) -> list[Parcel]:
    """Return lines as messages of bounded size."""
    found: list[Parcel] = []
    held: list[bytes] = []
    size = 0
    for number, line in enumerate(lines, start=1):
        held.append(line)
        size += len(line)
        if size >= MESSAGE_BYTES or len(held) >= MESSAGE_ROWS or number == len(lines):
            found.append(Parcel(stream, b"\n".join(held), NDJSON, len(held)))
            held, size = [], 0
    return found
