"""The orders that a running replay takes, and the mailbox they come through."""

import queue
import threading
from concurrent.futures import Future
from dataclasses import dataclass

from services.kit.errors import ServerError, UsageError, UserError


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop the schedule."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Let it go on."""


@dataclass(frozen=True, slots=True)
class SetSpeed:
    """Go on at another speed."""

    speed: float


@dataclass(frozen=True, slots=True)
class Stop:
    """End it where it is."""


@dataclass(frozen=True, slots=True)
class Seek:
    """Go on at another time, in a new generation."""

    to_ms: int


@dataclass(frozen=True, slots=True)
class Suspend:
    """Leave it where it is: the service ends, and its next start goes on from there."""


Order = Pause | Resume | SetSpeed | Stop | Seek | Suspend


class Mailbox:
    """Orders from any thread to the one that runs the replay; each is answered when it has been carried out."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._orders: queue.Queue[tuple[Order, Future[None]]] = queue.Queue()
        self._lock = threading.Lock()
        self._closed = False

    def ask(self, order: Order, timeout_s: float) -> None:
        """Hand over an order and wait until it is carried out; raise what it raised.

        Raises UserError: the replay is over (exit code 2), or Kafka keeps it waiting (exit code 3).
        """
        answer: Future[None] = Future()
        with self._lock:
            if self._closed:
                raise self._over()
            self._orders.put((order, answer))
        try:
            answer.result(timeout_s)
        except TimeoutError:
            raise ServerError(
                f"replay {self._name} has not followed within {timeout_s:g} s: it waits for Kafka",
                remedy="see `hindcast replay status`; the order is carried out as soon as the broker answers",
            ) from None

    def send(self, order: Order) -> None:
        """Hand over an order without waiting; nobody hears it where the replay is over."""
        self._orders.put((order, Future()))

    def next(self, timeout_s: float | None) -> tuple[Order, Future[None]] | None:
        """Return the next order, waiting for one for `timeout_s` (None: as long as it takes)."""
        try:
            return self._orders.get(timeout=timeout_s) if timeout_s != 0 else self._orders.get_nowait()
        except queue.Empty:
            return None

    def close(self) -> None:
        """Refuse all orders from now on, also those that wait."""
        with self._lock:
            self._closed = True
            while (held := self.next(0)) is not None:
                held[1].set_exception(self._over())

    def _over(self) -> UserError:
        return UsageError(
            f"replay {self._name} is over",
            remedy=f"play it again with `hindcast replay seek {self._name} +00:00:00`, or start a new one",
        )
