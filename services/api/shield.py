"""What stands before every request: sizes and times of bodies, pages of other sites, headers for browsers, counts."""

import asyncio
import re
import time
from urllib.parse import urlsplit

from fastapi import HTTPException
from prometheus_client import Counter, Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.api.problems import problem

REQUESTS = Counter("hindcast_api_requests_total", "Requests answered.", ["method", "route", "status"])
SECONDS = Histogram("hindcast_api_request_seconds", "Seconds until an answer began.", ["route"])
_LARGEST_BODY = 1 << 20
_PATIENCE_S = 30.0
_SLOWEST = 16 << 10
"""Bytes a second: a body that comes slower, once the first seconds are over, keeps others from being received."""
_UPLOADS = re.compile(r"/api/v1/(recordings|imports/[a-z-]+)")
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_METHODS = _SAFE | {"POST", "PUT", "PATCH", "DELETE"}
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline';"
    " frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
}


class Shield:
    """The outermost layer. `names`: where nobody is asked for a token, those under which it may be reached.

    Then a page of another site must be kept out, and one that has its own name point here, too.
    """

    def __init__(self, app: ASGIApp, *, names: frozenset[str] | None) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                route = getattr(scope.get("route"), "path", "none")
                method = scope["method"] if scope["method"] in _METHODS else "other"
                REQUESTS.labels(method, route, message["status"]).inc()
                SECONDS.labels(route).observe(time.perf_counter() - began)
            await send(message)

        headers = Headers(scope=scope)
        if self._names is not None:
            if _host_of(f"//{headers.get('host', '')}") not in self._names:
                refusal = problem(400, "no name of this API", "ask by a name of HINDCAST_API_HOST_NAMES, or localhost")
                await refusal(scope, receive, answer)
                return
            if scope["method"] not in _SAFE and _is_foreign(headers):
                words = "a page of another site may change nothing here"
                await problem(403, words, "use the console, or no browser")(scope, receive, answer)
                return
        upload = _UPLOADS.fullmatch(scope["path"]) is not None and scope["method"] == "POST"
        await self._app(scope, _bounded(receive, None if upload else _LARGEST_BODY), answer)


def _host_of(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


def _is_foreign(headers: Headers) -> bool:
    origin = headers.get("origin")
    if headers.get("sec-fetch-site") == "cross-site":
        return True
    return origin is not None and origin.partition("://")[2] != headers.get("host")


def _bounded(receive: Receive, most: int | None) -> Receive:
    """Return a source of the body that ends in an error where it is more than `most` bytes, or does not come."""
    got, whole = 0, False
    due_s: float | None = None

    async def next_part() -> Message:
        nonlocal got, due_s, whole
        if whole:  # what comes now is that they have gone
            return await receive()
        clock = asyncio.get_running_loop().time
        if due_s is None:
            due_s = clock() + _PATIENCE_S
        try:
            async with asyncio.timeout_at(due_s + got / _SLOWEST):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, "the body does not come, or too slowly") from None
        got += len(message.get("body", b""))
        whole = not message.get("more_body", False)
        if most is not None and got > most:
            raise HTTPException(413, f"the body is more than {most:,} bytes")
        return message

    return next_part
