"""Serves an application until it is told to end."""

import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp


class Server(uvicorn.Server):
    """uvicorn as all services have it; `closing` is called first when it ends, before it waits for who is connected."""

    def __init__(self, app: ASGIApp, *, grace_s: int | None = None, closing: Callable[[], None] = lambda: None) -> None:
        # Who asks is told by tokens: X-Forwarded-For is believed of nobody.
        super().__init__(
            uvicorn.Config(
                app, log_config=None, access_log=False, proxy_headers=False, timeout_graceful_shutdown=grace_s
            )
        )
        self._closing = closing

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End."""
        self._closing()
        await super().shutdown(sockets)
