"""What the producer has and the broker has not acknowledged: bounded, with the position up to which all is safe."""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka import KafkaProducer

from services.kit.wire import Headers

_RECHECK_S = 0.2


class Abandoned(Exception):  # noqa: N818 - not an error: the service is shutting down
    """Waiting was given up because the replay is to be left where it is."""


class SendError(Exception):
    """The broker has refused a record for good, or could not be reached within the delivery timeout."""


@dataclass(slots=True)
class Checkpoint:
    """A position (ms) up to which every row was sent, with the rows and samples sent by then, by stream."""

    position_ms: int
    rows: Mapping[str, int] = field(default_factory=dict)
    samples: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Span:
    """What was sent between two checkpoints."""

    oldest_ms: int | None = None
    outstanding: int = 0
    closed: Checkpoint | None = None


class Outbox:
    """Sends through a producer, waits while more than `limit_bytes` are under way, and keeps the safe checkpoint.

    One thread sends; the producer's own thread acknowledges. `abandoned` is asked while waiting: once it says
    True, waiting raises Abandoned.
    """

    def __init__(
        self, producer: KafkaProducer, start: Checkpoint, *, limit_bytes: int, abandoned: Callable[[], bool]
    ) -> None:
        self._producer = producer
        self._limit = limit_bytes
        self._abandoned = abandoned
        self._changed = threading.Condition()
        self._bytes = 0
        self._records = 0
        self._spans: deque[_Span] = deque([_Span()])
        self._safe = start
        self._failure: BaseException | None = None

    @property
    def safe(self) -> Checkpoint:
        """Return the last checkpoint before which everything is acknowledged."""
        with self._changed:
            return self._safe

    @property
    def in_flight_bytes(self) -> int:
        """Return the bytes that are sent and not acknowledged."""
        return self._bytes

    def oldest_ms(self) -> int | None:
        """Return the event time of the oldest row that is sent and not acknowledged; None if all are."""
        with self._changed:
            return next((span.oldest_ms for span in self._spans if span.oldest_ms is not None), None)

    def send(
        self,
        topic: str,
        *,
        key: bytes,
        partition: int,
        value: bytes | None,
        headers: Headers,
        oldest_ms: int | None = None,
    ) -> None:
        """Send one record, its oldest row at `oldest_ms`; wait for room first.

        Raises SendError once any record has failed: what follows it must not be sent, or a watermark would be ahead of
        rows that are not there.
        """
        size = len(value or b"")
        self._wait(lambda: self._bytes == 0 or self._bytes + size <= self._limit)
        future = self._producer.send(topic, key=key, partition=partition, value=value, headers=headers)
        self.track(future, size, oldest_ms)

    def track(self, future: Any, size: int = 0, oldest_ms: int | None = None) -> None:
        """Count a record that was sent otherwise."""
        with self._changed:
            span = self._spans[-1]
            span.outstanding += 1
            if span.oldest_ms is None:
                span.oldest_ms = oldest_ms
            self._bytes += size
            self._records += 1
        future.add_callback(lambda _: self._acknowledge(span, size))
        future.add_errback(self._fail)

    def checkpoint(self, reached: Checkpoint) -> None:
        """Declare that all rows up to this position have been sent."""
        with self._changed:
            self._spans[-1].closed = reached
            self._spans.append(_Span())
            self._advance()

    def drain(self) -> None:
        """Wait until everything is acknowledged."""
        self._wait(lambda: self._records == 0)

    def _wait(self, ready: Callable[[], bool]) -> None:
        with self._changed:
            while True:
                if self._failure is not None:
                    raise SendError(f"{type(self._failure).__name__}: {self._failure}") from self._failure
                if ready():
                    return
                if self._abandoned():
                    raise Abandoned
                self._changed.wait(_RECHECK_S)

    def _acknowledge(self, span: _Span, size: int) -> None:
        with self._changed:
            span.outstanding -= 1
            self._bytes -= size
            self._records -= 1
            self._advance()
            self._changed.notify_all()

    def _advance(self) -> None:
        while self._spans[0].closed is not None and self._spans[0].outstanding == 0:
            span = self._spans.popleft()
            self._safe = span.closed or self._safe

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()
