"""Requests as httpx has them, but the machine's certificates are read once: that takes longer than a request.

And an application that is served, to be asked.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx
import uvicorn

from services.kit.wait import until

_TRUST = httpx.create_ssl_context()

get = partial(httpx.get, verify=_TRUST)
post = partial(httpx.post, verify=_TRUST)
delete = partial(httpx.delete, verify=_TRUST)
request = partial(httpx.request, verify=_TRUST)
stream = partial(httpx.stream, verify=_TRUST)


def healthy(url: str) -> bool:
    """Return whether a service answers that it lives."""
    try:
        return get(f"{url}/healthz").is_success
    except httpx.TransportError:
        return False


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Serve an application on a port of its own; give its URL."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, timeout_graceful_shutdown=3))
    thread = threading.Thread(target=server.run)
    thread.start()
    until(lambda: server.started, what="the server")
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
