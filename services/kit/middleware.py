"""What stands before every request of every service: who asks, pages of other sites, sizes and times of bodies."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.kit.access import Gate, Role
from services.kit.audit import Trail
from services.kit.listening import LOOPBACK, Listening
from services.kit.problems import problem

MIB = 1 << 20
_PATIENCE_S = 30.0
_SLOWEST = 16 << 10
"""Bytes a second: a body that comes slower, once the first seconds are over, keeps others from being received."""
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_OPEN = frozenset({"/healthz", "/readyz"})
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline';"
    " frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
}


def _no(_path: str) -> bool:
    return False


class Middleware:
    """The outermost layer: what it lets through comes from somebody with the role that method and path need.

    Looking needs a viewer, all else an operator. `senders`: where a sender may post, too. `page`: which paths are
    files of a page that asks for a token itself. `larger`: by path, how many bytes a body may have that may be more
    than `largest_body`. `large`: where it may be more, as the route counts it. Who asks is in the request's
    `state.caller`.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: Listening,
        *,
        senders: frozenset[str] = frozenset(),
        largest_body: int = MIB,
        page: Callable[[str], bool] = _no,
        large: Callable[[str], bool] = _no,
        larger: Mapping[str, int] | None = None,
    ) -> None:
        """Raise ValueError where the tokens file is none, or the file of the audit trail cannot be written."""
        self._app = app
        self._gate = Gate(settings.tokens_file)
        self._trail = Trail(settings.audit_file, access_log=settings.access_log)
        self._names = frozenset(name.lower() for name in (*LOOPBACK, settings.host, *settings.host_names))
        self._senders, self._page, self._large = senders, page, large
        self._largest_body, self._larger = largest_body, larger or {}

    def role(self, method: str, path: str) -> Role | None:
        """Return which role a request needs, None: anybody may."""
        if method in _SAFE:
            return None if path in _OPEN or self._page(path) else "viewer"
        return "sender" if path in self._senders else "operator"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        began_s, at_ms = time.monotonic(), time.time_ns() // 1_000_000
        method, path = scope["method"], scope["path"]
        changes = method not in _SAFE and path not in self._senders

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                took_s = time.monotonic() - began_s
                self._trail.note(scope, message["status"], seconds=took_s, at_ms=at_ms, changes=changes)
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, answer)
            return
        large = method == "POST" and self._large(path)
        most = None if large else self._larger.get(path, self._largest_body)
        await self._app(scope, _bounded(receive, most), answer)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        # Where nobody is asked, a page that has its own name point here must be kept out, too.
        if self._gate.open and _host_of(f"//{headers.get('host', '')}") not in self._names:
            return problem(400, "that is no name of this service", "ask by one of its HOST_NAMES, or localhost")
        if scope["method"] not in _SAFE and self._is_foreign(headers):
            return problem(403, "a page of another site may change nothing here", "use the console, or no browser")
        needed = self.role(scope["method"], scope["path"])
        if needed is None:
            return None
        caller = self._gate.who(headers)
        if caller is None:
            words = "send `Authorization: Bearer TOKEN`; an operator of hindcast has one (hindcast token)"
            return problem(401, "no valid token was given", words, {"WWW-Authenticate": "Bearer"})
        if not caller.may(needed):
            scope.setdefault("state", {})["caller"] = caller
            words = f"ask with {'an' if needed == 'operator' else 'a'} {needed}'s token"
            return problem(403, f"{caller.name} is a {caller.role} and may not do that", words)
        state: dict[str, Any] = scope.setdefault("state", {})
        state["caller"] = caller
        return None

    def _is_foreign(self, headers: Headers) -> bool:
        if headers.get("sec-fetch-site") == "cross-site":
            return True
        origin = headers.get("origin")
        if origin is None or origin.partition("://")[2] == headers.get("host"):
            return False
        # A proxy may put a name of its own into Host.
        return self._gate.open or _host_of(origin) not in self._names - frozenset(LOOPBACK)


def _host_of(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


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
