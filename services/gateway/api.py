"""The gateway over HTTP: remote-write, logs and jobs in; an answer when Kafka has them, and a reason when not.

=====================  ==============================================================================================
204 (200 for lines)    all of it is in Kafka, or has no place in hindcast; v2: the headers say how much was written
400                    malformed; where only parts are, the others were taken; what was not is in dead-letter
401, 403               no valid token; without tokens, a page in a browser
408, 413, 415          too slow; too large; not the encoding or message that is read here
503                    Kafka is away, or too much is under way: send it again
=====================  ==============================================================================================
"""

import asyncio
import hmac
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest
from starlette.concurrency import run_in_threadpool
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect

from services.gateway import lines, metrics, remote_write
from services.gateway.outlet import AwayError, Outlet, parcels_of, parcels_of_lines
from services.gateway.places import Places
from services.gateway.remote_write import MalformedError, Protocol, TooLargeError
from services.gateway.settings import GatewaySettings

PROBLEM = "application/problem+json"
_RETRY_S = "5"
_PATIENCE_S = 30.0
"""For a body to come: the largest takes a line of a megabit a second."""
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
_TITLES = {
    400: "The request is malformed",
    401: "No valid bearer token",
    403: "Not from a browser",
    408: "The request does not come",
    413: "The request is too large",
    415: "Not what is read here",
    503: "Try again",
}


class Refusal(Exception):  # noqa: N818 - an answer
    """A request that is answered with a problem."""

    def __init__(self, status: int, reason: str, remedy: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = " ".join(reason.split())
        self.remedy = remedy
        self.headers = headers or {}


class Gateway:
    """Takes what is sent and answers when it is safe; `token` is what senders must show."""

    def __init__(self, settings: GatewaySettings, outlet: Outlet, token: str | None = None) -> None:
        self._settings = settings
        self._outlet = outlet
        self._token = token.encode() if token is not None else None
        self._places = Places(settings.cluster)
        self._places_lock = threading.Lock()
        self._in_flight = 0

    async def body(self, request: Request) -> bytes:
        """Return a request's body; raise Refusal where it may not be sent, or is too long."""
        self._let_in(request)
        most = self._settings.body_bytes
        length = request.headers.get("content-length", "")
        if length.isdecimal() and len(length) < 20 and int(length) > most:
            raise _too_large(most)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(_PATIENCE_S):
                async for part in request.stream():
                    size += len(part)
                    if size > most:
                        raise _too_large(most)
                    parts.append(part)
        except TimeoutError:
            raise Refusal(408, "the body does not come, or too slowly", "send it again, or less at a time") from None
        except ClientDisconnect:
            raise Refusal(400, "the body ends early", "send it again") from None
        return b"".join(parts)

    def _let_in(self, request: Request) -> None:
        if self._token is None:
            if "origin" in request.headers or "sec-fetch-site" in request.headers:
                raise Refusal(403, "a page in a browser may send nothing here", "send it from elsewhere")
            return
        kind, _, shown = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(shown.strip().encode(), self._token):
            remedy = "send the header Authorization: Bearer TOKEN, the token of HINDCAST_GATEWAY_TOKEN_FILE"
            raise Refusal(401, "this gateway asks for a bearer token", remedy, {"WWW-Authenticate": "Bearer"})

    async def work(self, path: str, body: bytes, take: Callable[[bytes], Response]) -> Response:
        """Return what `take` makes of a body, on a thread of its own; raise Refusal where too much is under way."""
        if self._in_flight and self._in_flight + len(body) > self._settings.in_flight_bytes:
            raise Refusal(503, "too much is under way", "send it again", {"Retry-After": _RETRY_S})
        self._in_flight += len(body)
        metrics.IN_FLIGHT.set(self._in_flight)
        began_s = time.perf_counter()
        try:
            return await run_in_threadpool(take, body)
        except AwayError as error:
            remedy = "send it again; and see to Kafka"
            raise Refusal(503, str(error), remedy, {"Retry-After": _RETRY_S}) from error
        finally:
            self._in_flight -= len(body)
            metrics.IN_FLIGHT.set(self._in_flight)
            metrics.SECONDS.labels(path).observe(time.perf_counter() - began_s)

    def write(self, protocol: Protocol, body: bytes) -> Response:
        """Take a remote-write request; raise Refusal where it is malformed, AwayError where Kafka is away."""
        try:
            data = remote_write.unpack(body, self._settings.decoded_bytes)
            # One at a time: it is computing, and what is known of the series is shared.
            with self._places_lock:
                self._places.make_room()
                request = remote_write.read(data, protocol, self._places.symbols)
                rows = self._places.rows(request, time.time_ns() // 1_000_000 + _AHEAD_MS)
                metrics.SERIES.set(self._places.series)
        except TooLargeError as error:
            raise Refusal(413, str(error), "send less at a time (max_samples_per_send)") from None
        except MalformedError as error:
            metrics.SAMPLES.labels("malformed request").inc()
            self._outlet.bury(f"remote-write {protocol}", body, str(error))
            remedy = "send a remote-write request of the version that its content type names"
            raise Refusal(400, str(error), remedy, _written(protocol, 0, 0, 0)) from None
        parcels = [parcel for stream, batch in rows.batches.items() for parcel in parcels_of(stream, batch)]
        self._outlet.deliver(parcels)
        for outcome, count in rows.outcomes.items():
            metrics.SAMPLES.labels(outcome).inc(count)
        # What has no place here counts as written: the sender can do nothing about it, and must not warn of it.
        good = len(request.times) - sum(one.samples for one in rows.bad)
        headers = _written(protocol, good, request.histograms, request.exemplars)
        if rows.bad:
            for one in rows.bad[:_BURIED_MOST]:
                self._outlet.bury(f"remote-write {protocol}", repr(dict(one.labels)).encode(), one.reason)
            reason = f"{len(rows.bad)} series not taken, the first: {rows.bad[0].reason}"
            raise Refusal(400, reason, "the others were taken: mend those", headers)
        return Response(status_code=204, headers=headers)

    def take_lines(self, stream: str, body: bytes) -> Response:
        """Take log lines or job events; raise Refusal where some are bad, AwayError where Kafka is away."""
        try:
            found = (lines.logs if stream == "logs" else lines.jobs)(body)
        except lines.UnreadableError as error:
            self._outlet.bury(stream, body, str(error))
            raise Refusal(400, str(error), "send JSON lines, or a JSON array of objects") from None
        self._outlet.deliver(parcels_of_lines(stream, found.taken))
        for outcome, count in found.outcomes.items():
            metrics.LINES.labels(stream, outcome).inc(count)
        for line, reason in found.bad[:_BURIED_MOST]:
            self._outlet.bury(stream, line, reason)
        if found.bad:
            reason = f"{len(found.bad)} lines not taken, the first: {found.bad[0][1]}"
            raise Refusal(400, reason, f"the other {len(found.taken)} were taken: mend those")
        passed = sum(found.outcomes.values()) - found.outcomes["taken"]
        return JSONResponse({"taken": found.outcomes["taken"], "passed_over": passed})

    def unzipped(self, request: Request, body: bytes) -> bytes:
        """Return a body of lines as it was before it was compressed."""
        encoding = request.headers.get("content-encoding", "identity").lower()
        if encoding == "gzip":
            try:
                return lines.gunzip(body, self._settings.decoded_bytes)
            except lines.UnreadableError as error:
                raise Refusal(400, str(error), "send whole gzip, or none") from None
        if encoding != "identity":
            raise Refusal(415, f"lines in content encoding {encoding!r} are not read here", "send gzip, or none")
        return body


def build(gateway: Gateway, settings: GatewaySettings) -> FastAPI:
    """Return the application."""
    app = FastAPI(title="hindcast gateway", version="1")
    if settings.loopback and settings.token_file is None:
        # A page in a browser must not reach it under a name of its own.
        names = ["localhost", "127.0.0.1", "[::1]", settings.host]
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=names)
    app.add_exception_handler(Refusal, _refuse)
    app.middleware("http")(_count)

    @app.post("/api/v1/write", status_code=204)
    async def write(request: Request) -> Response:
        protocol = _protocol(request)
        body = await gateway.body(request)
        return await gateway.work("write", body, lambda data: gateway.write(protocol, data))

    async def take(stream: str, request: Request) -> Response:
        body = gateway.unzipped(request, await gateway.body(request))
        return await gateway.work(stream, body, lambda data: gateway.take_lines(stream, data))

    @app.post("/api/v1/logs")
    async def logs(request: Request) -> Response:
        return await take("logs", request)

    @app.post("/loki/api/v1/push", status_code=204)
    async def push(request: Request) -> Response:
        if not request.headers.get("content-type", "").startswith("application/json"):
            raise Refusal(415, "pushes are read as JSON only", "set the sender's encoding to JSON")
        await take("logs", request)
        return Response(status_code=204)

    @app.post("/api/v1/jobs")
    async def jobs(request: Request) -> Response:
        return await take("jobs", request)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics")
    async def own_metrics() -> Response:
        return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE_LATEST)

    return app


def _protocol(request: Request) -> Protocol:
    encoding = request.headers.get("content-encoding", "")
    if encoding.lower() != "snappy":
        raise Refusal(415, f"content encoding {encoding!r} is not read here", "compress with snappy (block format)")
    kind, _, rest = request.headers.get("content-type", "").partition(";")
    given = dict(part.strip().partition("=")[::2] for part in rest.split(";"))
    protocol = _PROTO.get(given.get("proto", "").strip('"'))
    if kind.strip().lower() != "application/x-protobuf" or protocol is None:
        remedy = "send application/x-protobuf, with proto=io.prometheus.write.v2.Request for version 2"
        raise Refusal(415, f"content type {kind.strip()!r} with {rest.strip()!r} is not read here", remedy)
    return protocol


def _written(protocol: Protocol, samples: int, histograms: int, exemplars: int) -> dict[str, str]:
    if protocol == "v1":
        return {}
    counts = {"Samples": samples, "Histograms": histograms, "Exemplars": exemplars}
    return {_WRITTEN.format(name): str(count) for name, count in counts.items()}


def _too_large(most: int) -> Refusal:
    return Refusal(413, f"the body has more than {most} bytes", "send less at a time")


async def _count(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    answer = await call_next(request)
    if request.method == "POST":
        route = request.scope.get("route")
        metrics.REQUESTS.labels(getattr(route, "path", "other"), str(answer.status_code)).inc()
    return answer


def _refuse(_: Request, refusal: Any) -> JSONResponse:
    problem = {
        "title": _TITLES[refusal.status],
        "status": refusal.status,
        "detail": refusal.reason,
        "remedy": refusal.remedy,
    }
    return JSONResponse(problem, status_code=refusal.status, media_type=PROBLEM, headers=refusal.headers)
