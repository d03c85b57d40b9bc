"""Requests on their way to the target: in lanes, retried until they are taken, split where part of one is refused.

==========================  ===================================================================================
2xx                         written, all of it
400, 409, 413, 422          the data's fault: halved to find which samples, and those go to dead-letter; not with v2
                            where nothing says how many were written (but 413): that is not a v2 receiver's answer
415, with v2                it knows v1 only
408, 429, 5xx, no answer    waited out
all else                    the credential or the address is wrong: waited out, logged and counted as that
==========================  ===================================================================================
"""

import logging
import queue
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.kit.errors import UsageError
from services.sink import metrics
from services.sink.connection import Connection, Reply
from services.sink.encode import Samples, request
from services.sink.offsets import Ticket
from services.sink.pages import Page
from services.sink.settings import SinkSettings

_log = logging.getLogger(__name__)

_REFUSALS = {400, 409, 413, 422}
"""The data's fault: split to find which. Thanos Receive says 409 to samples out of order."""
_PASSING = {0, 408, 429}
"""Waited out, as 5xx is."""
_AT_ONCE = 16
"""Refusals in a row that halving takes to come to one sample of the largest request: more are not asked for at once."""
_MOST_REFUSALS = 24
"""Refusals in a row after which what is left of a request is taken to be refused, too: each was waited longer for."""
_STOP_S = 2.0
"""How long lanes are waited for when it ends: their connections are cut before."""
_WRONG = {
    401: "its credential is wrong: see HINDCAST_SINK_BEARER_FILE, or USERNAME and PASSWORD_FILE",
    403: "its credential may not write: see HINDCAST_SINK_BEARER_FILE, or USERNAME and PASSWORD_FILE",
}


class OtherProtocolError(Exception):
    """The target takes remote-write v1 only."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """One request to be: samples of one page, whose they are, its lane, and the ticket that waits for it."""

    page: Page
    parts: Sequence[Samples]
    unit: str
    tenant: str
    lane: int
    ticket: Ticket

    @property
    def count(self) -> int:
        """Return the number of samples."""
        return sum(part.count for part in self.parts)


Refused = Callable[[Parcel, Samples, str], None]
"""Called with samples that the target refuses, and its reason."""


class Delivery:
    """Lanes of requests: a parcel waits for those before it in its lane, so a series' samples stay in order."""

    def __init__(self, settings: SinkSettings, refused: Refused) -> None:
        self._settings = settings
        self._refused = refused
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._outstanding = 0
        self.failure: BaseException | None = None
        self._connections = [Connection(settings) for _ in range(settings.lanes)]
        self._lanes: list[queue.SimpleQueue[Parcel | None]] = [queue.SimpleQueue() for _ in range(settings.lanes)]
        self._threads = [
            threading.Thread(target=self._run, args=(lane, connection), name=f"lane-{i}", daemon=True)
            for i, (lane, connection) in enumerate(zip(self._lanes, self._connections, strict=True))
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, parcel: Parcel) -> None:
        """Hand over a parcel; never waits (ask `has_room` first)."""
        with self._changed:
            self._outstanding += parcel.count
        self._lanes[parcel.lane % len(self._lanes)].put(parcel)

    def has_room(self, timeout_s: float) -> bool:
        """Return whether less than half a batch is on its way; wait for that up to `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(
                lambda: 2 * self._outstanding < self._settings.batch_samples or self.failure is not None, timeout_s
            )

    def drained(self, timeout_s: float) -> bool:
        """Return whether nothing is on its way; wait for that up to `timeout_s`, but not once it is closed."""
        with self._changed:
            self._changed.wait_for(
                lambda: not self._outstanding or self.failure is not None or self._stop.is_set(), timeout_s
            )
            return not self._outstanding

    def close(self) -> None:
        """Give up what is on its way, whose offsets are not safe, and end the lanes."""
        self._stop.set()
        for lane, connection in zip(self._lanes, self._connections, strict=True):
            lane.put(None)
            connection.cut()
        for thread in self._threads:
            thread.join(_STOP_S)

    def _run(self, lane: "queue.SimpleQueue[Parcel | None]", connection: Connection) -> None:
        while (parcel := lane.get()) is not None and not self._stop.is_set():
            try:
                if self._deliver(connection, parcel, parcel.parts, _Row()):
                    parcel.ticket.one_done()
            except Exception as error:  # noqa: BLE001 - whatever it is, the main thread must learn of it and end
                self.failure = self.failure or error
            with self._changed:
                self._outstanding -= parcel.count
                metrics.OUTSTANDING.labels(self._settings.server).set(self._outstanding)
                self._changed.notify_all()
        connection.close()

    def _deliver(self, connection: Connection, parcel: Parcel, parts: Sequence[Samples], row: "_Row") -> bool:
        """Return True when every sample is either written or reported as refused, False when it is to stop."""
        count = sum(part.count for part in parts)
        if row.refusals >= _MOST_REFUSALS:
            self._give_up(parcel, parts, f"{row.words} (to all that was asked of this request)")
            return True
        if row.refusals > _AT_ONCE:
            self._stop.wait(self._pause_s(row.refusals - _AT_ONCE))
        reply = self._until_answered(connection, request(parcel.page, parts), parcel.tenant, alone=count == 1)
        if reply is None:
            return False
        written = self._written(reply, count)
        row.answered(written, f"{reply.status} {reply.text}")
        if written == count:
            metrics.WRITTEN.labels(self._settings.server).inc(count)
            return True
        if written == 0 or count == 1:
            self._give_up(parcel, parts, row.words)
            return True
        return all(self._deliver(connection, parcel, half, row) for half in _halves(parts))

    def _give_up(self, parcel: Parcel, parts: Sequence[Samples], words: str) -> None:
        for part in parts:
            self._refused(parcel, part, words)
        metrics.REFUSED.labels(self._settings.server).inc(sum(part.count for part in parts))

    def _written(self, reply: Reply, count: int) -> int | None:
        """Return how many of `count` samples were taken, None if that is not known."""
        accepted = reply.status // 100 == 2
        if self._settings.protocol == "v1":
            return count if accepted else None
        if accepted and not reply.counts:
            raise UsageError(
                f"{self._settings.url} answers {reply.status} to remote-write v2 without saying how many "
                f"samples it has written: it does not know v2 and has stored nothing",
                remedy="set HINDCAST_SINK_PROTOCOL=v1 for this target (Thanos Receive needs it)",
            )
        if accepted and (reply.written is None or reply.written > count):
            metrics.MISCOUNTED.labels(self._settings.server).inc()
            return count
        return reply.written

    def _until_answered(self, connection: Connection, body: bytes, tenant: str, *, alone: bool) -> Reply | None:
        """Return the answer that settles a request, None when it is to stop; `alone`: it is of one sample.

        Raises OtherProtocolError where the target takes v1 only.
        """
        attempt = 0
        before = ""
        while not self._stop.is_set():
            reply = connection.post(body, tenant)
            metrics.REQUESTS.labels(self._settings.server, str(reply.status)).inc()
            if reply.status == 415 and self._settings.protocol == "v2":
                raise OtherProtocolError
            if self._settles(reply, alone=alone):
                if before:
                    _log.info("target answers again target=%s status=%d", self._settings.server, reply.status)
                return reply
            words = f"status={reply.status} answer={reply.text[:200]!r}"
            if reply.status not in _PASSING and reply.status < 500:
                metrics.MISDIRECTED.labels(self._settings.server, str(reply.status)).inc()
                words += (
                    f" remedy={_WRONG.get(reply.status, 'no remote-write is taken there: see HINDCAST_SINK_URL')!r}"
                )
            if words != before:
                _log.warning("target does not take samples, retrying target=%s %s", self._settings.server, words)
                before = words
            metrics.RETRIES.labels(self._settings.server).inc()
            attempt += 1
            self._stop.wait(max(self._pause_s(attempt), reply.retry_after_s or 0.0))
        return None

    def _settles(self, reply: Reply, *, alone: bool) -> bool:
        """Return whether an answer says what became of the samples."""
        if reply.status // 100 == 2:
            return True
        if reply.status not in _REFUSALS:
            return False
        if reply.status == 413:  # smaller ones may pass; one sample is not too large
            return not alone or reply.written is not None
        return self._settings.protocol == "v1" or reply.written is not None

    def _pause_s(self, attempt: int) -> float:
        """Return the pause after so many attempts (1 or more): doubling, with jitter."""
        longest = min(self._settings.retry_first_s * 2.0 ** min(attempt - 1, 32), self._settings.retry_most_s)
        return longest * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, no secret


class _Row:
    """Refusals of one parcel in a row, since something of it was written, and the words of the last."""

    def __init__(self) -> None:
        self.refusals = 0
        self.words = ""

    def answered(self, written: int | None, words: str) -> None:
        self.refusals = 0 if written else self.refusals + 1
        self.words = words


def _halves(parts: Sequence[Samples]) -> list[Sequence[Samples]]:
    if len(parts) > 1:
        return [parts[: len(parts) // 2], parts[len(parts) // 2 :]]
    first, second = parts[0].halves()
    return [[first], [second]]
