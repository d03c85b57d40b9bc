"""Requests on their way to the target: in lanes, retried until they are taken, split where part of one is refused."""

import base64
import email.utils
import http.client
import logging
import queue
import random
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from services.kit.errors import UserError
from services.sink import metrics
from services.sink.encode import Samples, request
from services.sink.offsets import Ticket
from services.sink.pages import Page
from services.sink.settings import SinkSettings

_log = logging.getLogger(__name__)

_REFUSALS = {400, 409, 413, 422}
"""The data's fault: split to find which. Thanos Receive says 409 to samples out of order. All else is waited out."""
_WRITTEN = "X-Prometheus-Remote-Write-Samples-Written"
_FORMATS = {
    "v2": {
        "Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request",
        "X-Prometheus-Remote-Write-Version": "2.0.0",
    },
    "v1": {"Content-Type": "application/x-protobuf", "X-Prometheus-Remote-Write-Version": "0.1.0"},
}


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


@dataclass(frozen=True, slots=True)
class Reply:
    """What the target said: status 0 if nothing; `written` where it counts what it took."""

    status: int
    text: str = ""
    written: int | None = None
    retry_after_s: float | None = None


Refused = Callable[[Parcel, Samples, str], None]
"""Told of samples that the target refuses, with its words."""


class Connection:
    """One kept-alive HTTP connection to the target."""

    def __init__(self, settings: SinkSettings) -> None:
        parts = urlsplit(str(settings.url))
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        host, port = parts.hostname or "", parts.port
        self._http = (
            http.client.HTTPSConnection(host, port, timeout=settings.timeout_s, context=ssl.create_default_context())
            if parts.scheme == "https"
            else http.client.HTTPConnection(host, port, timeout=settings.timeout_s)
        )
        self._tenant_header = settings.tenant_header
        self._headers = {"Content-Encoding": "snappy", "User-Agent": "hindcast-sink", **_FORMATS[settings.protocol]}
        if settings.bearer:
            self._headers["Authorization"] = f"Bearer {settings.bearer.get_secret_value()}"
        elif settings.username and settings.password:
            pair = f"{settings.username}:{settings.password.get_secret_value()}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"

    def post(self, body: bytes, tenant: str) -> Reply:
        """Send one request; a connection that fails is a reply of status 0."""
        headers = self._headers | ({self._tenant_header: tenant} if self._tenant_header else {})
        try:
            self._http.request("POST", self._path, body, headers)
            answer = self._http.getresponse()
            text = answer.read().decode(errors="replace").strip()
        except (OSError, http.client.HTTPException) as error:
            self._http.close()
            return Reply(0, f"{type(error).__name__}: {error}")
        written = answer.headers.get(_WRITTEN)
        return Reply(
            answer.status, text, int(written) if written else None, _seconds(answer.headers.get("Retry-After"))
        )

    def close(self) -> None:
        """Close the connection."""
        self._http.close()


def _seconds(retry_after: str | None) -> float | None:
    if retry_after is None:
        return None
    if retry_after.isdigit():
        return float(retry_after)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time())
    except ValueError:
        return None


class Delivery:
    """Lanes of requests: a parcel waits for those before it in its lane, so a series' samples stay in order."""

    def __init__(self, settings: SinkSettings, refused: Refused) -> None:
        self._settings = settings
        self._refused = refused
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._outstanding = 0
        self.failure: BaseException | None = None
        self._lanes: list[queue.SimpleQueue[Parcel | None]] = [queue.SimpleQueue() for _ in range(settings.lanes)]
        self._threads = [
            threading.Thread(target=self._run, args=(lane,), name=f"lane-{i}", daemon=True)
            for i, lane in enumerate(self._lanes)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, parcel: Parcel) -> None:
        """Hand over a parcel; never waits (ask `has_room` first)."""
        with self._changed:
            self._outstanding += parcel.count
        self._lanes[parcel.lane % len(self._lanes)].put(parcel)

    def has_room(self, timeout_s: float) -> bool:
        """Return whether less than a batch is on its way; wait for that up to `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._outstanding < self._settings.batch_samples or self.failure is not None, timeout_s
            )

    def drained(self, timeout_s: float) -> bool:
        """Return whether nothing is on its way; wait for that up to `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._outstanding or self.failure is not None, timeout_s)

    def close(self) -> None:
        """Give up what is on its way and end the lanes."""
        self._stop.set()
        for lane in self._lanes:
            lane.put(None)
        for thread in self._threads:
            thread.join(self._settings.timeout_s)

    def _run(self, lane: "queue.SimpleQueue[Parcel | None]") -> None:
        connection = Connection(self._settings)
        while (parcel := lane.get()) is not None and not self._stop.is_set():
            try:
                if self._deliver(connection, parcel, parcel.parts):
                    parcel.ticket.one_done()
            except Exception as error:  # noqa: BLE001 - whatever it is, the main thread must learn of it and end
                self.failure = self.failure or error
            with self._changed:
                self._outstanding -= parcel.count
                metrics.OUTSTANDING.labels(self._settings.server).set(self._outstanding)
                self._changed.notify_all()
        connection.close()

    def _deliver(self, connection: Connection, parcel: Parcel, parts: Sequence[Samples]) -> bool:
        """Return True when every sample is either written or reported as refused, False when told to stop."""
        count = sum(part.count for part in parts)
        reply = self._until_answered(connection, request(parcel.page, parts), parcel.tenant)
        if reply is None:
            return False
        written = self._written(reply, count)
        if written == count:
            metrics.WRITTEN.labels(self._settings.server).inc(count)
            return True
        if written == 0 or count == 1:
            for part in parts:
                self._refused(parcel, part, f"{reply.status} {reply.text}")
            metrics.REFUSED.labels(self._settings.server).inc(count)
            return True
        return all(self._deliver(connection, parcel, half) for half in _halves(parts))

    def _written(self, reply: Reply, count: int) -> int | None:
        """Return how many samples were taken, None if that is not known."""
        accepted = reply.status // 100 == 2
        if self._settings.protocol == "v1":
            return count if accepted else None
        if accepted and reply.written is None:
            raise UserError(
                f"{self._settings.url} answers {reply.status} to remote-write v2 without saying how many "
                f"samples it has written: it does not know v2 and has stored nothing",
                remedy="set HINDCAST_SINK_PROTOCOL=v1 for this target (Thanos Receive needs it)",
                exit_code=2,
            )
        return reply.written

    def _until_answered(self, connection: Connection, body: bytes, tenant: str) -> Reply | None:
        wait_s = self._settings.retry_first_s
        refused_before = ""
        while not self._stop.is_set():
            reply = connection.post(body, tenant)
            metrics.REQUESTS.labels(self._settings.server, str(reply.status)).inc()
            if reply.status // 100 == 2 or reply.status in _REFUSALS:
                if refused_before:
                    _log.info("target answers again target=%s status=%d", self._settings.server, reply.status)
                return reply
            words = f"status={reply.status} answer={reply.text[:200]!r}"
            if words != refused_before:
                _log.warning("target does not take samples, retrying target=%s %s", self._settings.server, words)
                refused_before = words
            metrics.RETRIES.labels(self._settings.server).inc()
            pause_s = max(wait_s * random.uniform(0.5, 1.0), reply.retry_after_s or 0.0)  # noqa: S311 - jitter, no secret
            self._stop.wait(pause_s)
            wait_s = min(2 * wait_s, self._settings.retry_most_s)
        return None


def _halves(parts: Sequence[Samples]) -> list[Sequence[Samples]]:
    if len(parts) > 1:
        return [parts[: len(parts) // 2], parts[len(parts) // 2 :]]
    first, second = parts[0].halves()
    return [[first], [second]]
