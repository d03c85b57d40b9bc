"""What stands before every request: sizes, pages of other sites, headers for browsers, counts."""

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
_UPLOADS = re.compile(r"/api/v1/(recordings|imports/[a-z-]+)")
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline';"
    " frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
}


class Shield:
    """The outermost layer. `trusting`: nobody is asked for a token, so that a page of another site must be kept out."""

    def __init__(self, app: ASGIApp, *, trusting: bool) -> None:
        self._app = app
        self._trusting = trusting

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
                REQUESTS.labels(scope["method"], route, message["status"]).inc()
                SECONDS.labels(route).observe(time.perf_counter() - began)
            await send(message)

        headers = Headers(scope=scope)
        if self._trusting and scope["method"] not in _SAFE and _is_foreign(headers):
            refusal = problem(403, "a page of another site may change nothing here", "use the console, or no browser")
            await refusal(scope, receive, answer)
            return
        upload = _UPLOADS.fullmatch(scope["path"]) is not None and scope["method"] == "POST"
        await self._app(scope, receive if upload else _counted(receive), answer)


def _is_foreign(headers: Headers) -> bool:
    origin = headers.get("origin")
    if headers.get("sec-fetch-site") == "cross-site":
        return True
    return origin is not None and urlsplit(origin).netloc != headers.get("host")


def _counted(receive: Receive) -> Receive:
    """Return a source of the body that ends in an error beyond what a request of JSON may have."""
    left = _LARGEST_BODY

    async def next_part() -> Message:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        if left < 0:
            raise HTTPException(413, f"the body is more than {_LARGEST_BODY:,} bytes")
        return message

    return next_part
