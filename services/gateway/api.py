"""The gateway over HTTP: remote-write, logs and jobs in; an answer when Kafka has them, and a reason when not.

=====================  ==============================================================================================
204 (200 for lines)    all of it is in Kafka, or has no place in hindcast; v2: the headers say how much was written
400                    malformed; where only parts are, the others were taken; what was not is in dead-letter
401, 403               no valid token, or a viewer's; a page of another site
408, 413, 415          too slow; too large; not the encoding or message that is read here
503                    Kafka is away, or too much is under way: send it again
=====================  ==============================================================================================
"""

import threading
import time
from collections.abc import Callable

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from services.gateway import lines, metrics, remote_write
from services.gateway.outlet import AwayError, Outlet, parcels_of, parcels_of_lines
from services.gateway.protobuf import MalformedError
from services.gateway.remote_write import Protocol, TooLargeError
from services.gateway.sample_rows import SampleRows
from services.gateway.settings import GatewaySettings
from services.kit.application import WITH_TOKEN, add_health, add_metrics, application
from services.kit.counting import Counting
from services.kit.middleware import Middleware
from services.kit.problems import RefusedError

_SENDERS = frozenset({"/api/v1/write", "/api/v1/logs", "/api/v1/jobs", "/loki/api/v1/push"})
_RETRY_S = "5"
_PROTO: dict[str, Protocol] = {
    "": "v1",
    "prometheus.WriteRequest": "v1",
    "io.prometheus.write.v2.Request": "v2",
}
_WRITTEN = "X-Prometheus-Remote-Write-{}-Written"
_AHEAD_MS = 600_000
"""How far ahead the time of a sample may be: as far as a Prometheus takes it."""
_BURIED_MOST = 20
"""Bad series or lines of one request that go to dead-letter one by one."""


class Gateway:
    """Takes what is sent and answers when it is safe."""

    def __init__(self, settings: GatewaySettings, outlet: Outlet) -> None:
        self._settings = settings
        self._outlet = outlet
        self._sample_rows = SampleRows(settings.cluster, settings.series)
        self._rows_lock = threading.Lock()
        self._in_flight = 0

    async def body(self, request: Request) -> bytes:
        """Return a request's body; raise RefusedError where it is too long, or does not come."""
        most = self._settings.body_bytes
        length = request.headers.get("content-length", "")
        if length.isdecimal() and len(length) < 20 and int(length) > most:
            raise _too_large(most)
        parts: list[bytes] = []
        size = 0
        try:
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise _too_large(most)
                parts.append(part)
        except ClientDisconnect:
            raise RefusedError(400, "the body ends early", "send it again") from None
        return b"".join(parts)

    async def work(self, path: str, body: bytes, take: Callable[[bytes], Response]) -> Response:
        """Return what `take` makes of a body, on a thread of its own; RefusedError where too much is under way."""
        if self._in_flight and self._in_flight + len(body) > self._settings.in_flight_bytes:
            raise RefusedError(503, "too much is under way", "send it again", {"Retry-After": _RETRY_S})
        self._in_flight += len(body)
        metrics.IN_FLIGHT.set(self._in_flight)
        began_s = time.perf_counter()
        try:
            return await run_in_threadpool(take, body)
        except AwayError as error:
            remedy = "send it again; and see to Kafka"
            raise RefusedError(503, str(error), remedy, {"Retry-After": _RETRY_S}) from error
        finally:
            self._in_flight -= len(body)
            metrics.IN_FLIGHT.set(self._in_flight)
            metrics.SECONDS.labels(path).observe(time.perf_counter() - began_s)

    def write(self, protocol: Protocol, body: bytes) -> Response:
        """Take a remote-write request; raise RefusedError where it is malformed, AwayError where Kafka is away."""
        try:
            data = remote_write.unpack(body, self._settings.decoded_bytes)
            # One at a time: it is computing, and what is known of the series is shared.
            with self._rows_lock:
                metrics.EVICTED.inc(self._sample_rows.make_room())
                request = remote_write.read(data, protocol, self._sample_rows.symbols)
                rows = self._sample_rows.rows(request, time.time_ns() // 1_000_000 + _AHEAD_MS)
                metrics.SERIES.set(self._sample_rows.series)
        except TooLargeError as error:
            raise RefusedError(413, str(error), "send less at a time (max_samples_per_send)") from None
        except MalformedError as error:
            metrics.SAMPLES.labels("malformed request").inc()
            self._outlet.bury(f"remote-write {protocol}", body, str(error))
            remedy = "send a remote-write request of the version that its content type names"
            raise RefusedError(400, str(error), remedy, _written(protocol, 0, 0, 0)) from None
        parcels = [parcel for stream, batch in rows.batches.items() for parcel in parcels_of(stream, batch)]
        self._outlet.deliver(parcels)
        for outcome, count in rows.outcomes.items():
            metrics.SAMPLES.labels(outcome).inc(count)
        # What has no place here counts as written: the sender can do nothing about it, and must not warn of it.
        good = len(request.times) - sum(one.samples for one in rows.bad)
        headers = _written(protocol, good, request.histograms, request.exemplars)
        wrong = [one.reason for one in rows.bad] + request.broken
        if wrong:
            for one in rows.bad[:_BURIED_MOST]:
                self._outlet.bury(f"remote-write {protocol}", repr(dict(one.labels)).encode(), one.reason)
            reason = f"{len(wrong)} series not taken, the first: {wrong[0]}"
            raise RefusedError(400, reason, "the others were taken: mend those", headers)
        return Response(status_code=204, headers=headers)

    def take_lines(self, stream: str, body: bytes) -> Response:
        """Take log lines or job events; raise RefusedError where some are bad, AwayError where Kafka is away."""
        try:
            found = (lines.logs if stream == "logs" else lines.jobs)(body)
        except lines.UnreadableError as error:
            self._outlet.bury(stream, body, str(error))
            raise RefusedError(400, str(error), "send JSON lines, or a JSON array of objects") from None
        self._outlet.deliver(parcels_of_lines(stream, found.taken))
        for outcome, count in found.outcomes.items():
            metrics.LINES.labels(stream, outcome).inc(count)
        for line, reason in found.bad[:_BURIED_MOST]:
            self._outlet.bury(stream, line, reason)
        if found.bad:
            reason = f"{len(found.bad)} lines not taken, the first: {found.bad[0][1]}"
            raise RefusedError(400, reason, f"the other {len(found.taken)} were taken: mend those")
        passed = sum(found.outcomes.values()) - found.outcomes["taken"]
        return JSONResponse({"taken": found.outcomes["taken"], "passed_over": passed})

    def unzipped(self, request: Request, body: bytes) -> bytes:
        """Return a body of lines as it was before it was compressed."""
        encoding = request.headers.get("content-encoding", "identity").lower()
        if encoding == "gzip":
            try:
                return lines.gunzip(body, self._settings.decoded_bytes)
            except lines.UnreadableError as error:
                raise RefusedError(400, str(error), "send whole gzip, or none") from None
        if encoding != "identity":
            raise RefusedError(415, f"lines in content encoding {encoding!r} are not read here", "send gzip, or none")
        return body


def build(gateway: Gateway, settings: GatewaySettings) -> FastAPI:
    """Return the application."""
    app = application("hindcast gateway")
    add_health(app)
    add_metrics(app)
    app.add_middleware(Middleware, settings=settings, senders=_SENDERS, large=_SENDERS.__contains__)
    app.add_middleware(Counting, note=_count)
    taking = APIRouter(dependencies=WITH_TOKEN)

    @taking.post("/api/v1/write", status_code=204)
    async def write(request: Request) -> Response:
        protocol = _protocol(request)
        body = await gateway.body(request)
        return await gateway.work("write", body, lambda data: gateway.write(protocol, data))

    async def take(stream: str, request: Request) -> Response:
        body = gateway.unzipped(request, await gateway.body(request))
        return await gateway.work(stream, body, lambda data: gateway.take_lines(stream, data))

    @taking.post("/api/v1/logs")
    async def logs(request: Request) -> Response:
        return await take("logs", request)

    @taking.post("/loki/api/v1/push", status_code=204)
    async def push(request: Request) -> Response:
        if not request.headers.get("content-type", "").startswith("application/json"):
            raise RefusedError(415, "pushes are read as JSON only", "set the sender's encoding to JSON")
        await take("logs", request)
        return Response(status_code=204)

    @taking.post("/api/v1/jobs")
    async def jobs(request: Request) -> Response:
        return await take("jobs", request)

    app.include_router(taking)
    return app


def _protocol(request: Request) -> Protocol:
    encoding = request.headers.get("content-encoding", "")
    if encoding.lower() != "snappy":
        raise RefusedError(
            415, f"content encoding {encoding!r} is not read here", "compress with snappy (block format)"
        )
    kind, _, rest = request.headers.get("content-type", "").partition(";")
    given = dict(part.strip().partition("=")[::2] for part in rest.split(";"))
    protocol = _PROTO.get(given.get("proto", "").strip('"'))
    if kind.strip().lower() != "application/x-protobuf" or protocol is None:
        remedy = "send application/x-protobuf, with proto=io.prometheus.write.v2.Request for version 2"
        raise RefusedError(415, f"content type {kind.strip()!r} with {rest.strip()!r} is not read here", remedy)
    return protocol


def _written(protocol: Protocol, samples: int, histograms: int, exemplars: int) -> dict[str, str]:
    if protocol == "v1":
        return {}
    counts = {"Samples": samples, "Histograms": histograms, "Exemplars": exemplars}
    return {_WRITTEN.format(name): str(count) for name, count in counts.items()}


def _too_large(most: int) -> RefusedError:
    return RefusedError(413, f"the body has more than {most} bytes", "send less at a time")


def _count(method: str, route: str, status: int, _seconds: float) -> None:
    if method == "POST":
        metrics.REQUESTS.labels(route, str(status)).inc()
