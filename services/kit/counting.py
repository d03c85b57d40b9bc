"""Counts requests: what was asked, what was answered, and after how long."""

import time
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})
Note = Callable[[str, str, int, float], None]
"""Takes method, route, status and seconds until the answer began; whatever people invent is `other` and `none`."""


class Counting:
    """A layer that calls `note` with each answer."""

    def __init__(self, app: ASGIApp, note: Note) -> None:
        self._app = app
        self._note = note

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        began_s = time.perf_counter()

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                method = scope["method"] if scope["method"] in _METHODS else "other"
                route = getattr(scope.get("route"), "path", "none")
                self._note(method, route, message["status"], time.perf_counter() - began_s)
            await send(message)

        await self._app(scope, receive, answer)
