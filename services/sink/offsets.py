"""Which offsets may be committed: those before which every sample is written or in dead-letter."""

import threading
from collections import deque
from collections.abc import Mapping

from kafka import TopicPartition


class Ticket:
    """One batch: the offsets that are safe once all its requests are through."""

    def __init__(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.offsets = dict(offsets)
        self._lock = threading.Lock()
        self._open = 0
        self._closed = False

    def expect(self, requests: int) -> None:
        """Say how many requests it has, before the first of them is handed over."""
        with self._lock:
            self._open, self._closed = requests, True

    def one_done(self) -> None:
        """Note that one request is through."""
        with self._lock:
            self._open -= 1

    @property
    def done(self) -> bool:
        """Return whether all requests are through."""
        with self._lock:
            return self._closed and self._open == 0


class Ledger:
    """The batches in order: a batch's offsets are safe once it and all before it are done."""

    def __init__(self) -> None:
        self._tickets: deque[Ticket] = deque()
        self._safe: dict[TopicPartition, int] = {}

    def add(self, ticket: Ticket) -> None:
        """Append a batch."""
        self._tickets.append(ticket)

    def safe(self) -> dict[TopicPartition, int]:
        """Return offsets that became safe since the last call."""
        while self._tickets and self._tickets[0].done:
            self._safe.update(self._tickets.popleft().offsets)
        safe, self._safe = self._safe, {}
        return safe
