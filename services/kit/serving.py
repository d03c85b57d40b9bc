"""Serves an application until it is to end."""

import socket
import threading
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from services.kit.listening import Listening

_RENEW_TICKS = 50
"""Of a tenth of a second: how often it is looked whether a certificate was renewed."""


class Server(uvicorn.Server):
    """uvicorn as all services have it: it ends when `stop` is set.

    `closing` is called first when it ends, before it waits for who is connected.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: Listening,
        stop: threading.Event,
        *,
        grace_s: int | None = None,
        closing: Callable[[], None] = lambda: None,
    ) -> None:
        # Who asks is known by tokens: X-Forwarded-For is believed of nobody.
        config = uvicorn.Config(
            app, log_config=None, access_log=False, proxy_headers=False, timeout_graceful_shutdown=grace_s
        )
        super().__init__(config)
        self._stop = stop
        self._closing = closing
        self._tls = settings.tls()
        config.load()
        config.ssl = self._tls.context if self._tls is not None else None

    async def on_tick(self, counter: int) -> bool:
        """Look after the certificate; return whether to end."""
        if self._tls is not None and counter % _RENEW_TICKS == 0:
            self._tls.renew()
        return self._stop.is_set() or await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End."""
        self._closing()
        await super().shutdown(sockets)
