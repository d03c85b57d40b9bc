"""Requests as httpx has them, but the machine's certificates are read once: that takes longer than a request."""

from functools import partial

import httpx

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
