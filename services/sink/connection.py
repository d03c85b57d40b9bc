"""One connection to the target: a request goes out, its answer comes back, whatever that is."""

import base64
import contextlib
import email.utils
import http.client
import socket
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

from services.sink.settings import SinkSettings

_WRITTEN = "X-Prometheus-Remote-Write-Samples-Written"
_LONGEST_S = 3600.0
"""A Retry-After is honoured up to this."""
_FORMATS = {
    "v2": {
        "Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request",
        "X-Prometheus-Remote-Write-Version": "2.0.0",
    },
    "v1": {"Content-Type": "application/x-protobuf", "X-Prometheus-Remote-Write-Version": "0.1.0"},
}


@dataclass(frozen=True, slots=True)
class Reply:
    """What the target answered: status 0 if nothing; `counts`: whether with a count; `written`: that count."""

    status: int
    text: str = ""
    counts: bool = False
    written: int | None = None
    retry_after_s: float | None = None


class Connection:
    """One kept-alive HTTP connection to the target."""

    def __init__(self, settings: SinkSettings) -> None:
        parts = urlsplit(str(settings.url))
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        host, port = parts.hostname or "", parts.port
        self._http = (
            http.client.HTTPSConnection(host, port, timeout=settings.timeout_s, context=settings.tls())
            if parts.scheme == "https"
            else http.client.HTTPConnection(host, port, timeout=settings.timeout_s)
        )
        self._settings = settings
        self._headers = {"Content-Encoding": "snappy", "User-Agent": "hindcast-sink", **_FORMATS[settings.protocol]}

    def _credential(self) -> dict[str, str | bytes]:
        """Return the header that says who asks; a secret in a file is what it is now."""
        settings = self._settings
        if settings.bearer:
            return {"Authorization": f"Bearer {settings.bearer.get_secret_value()}".encode()}
        if settings.username and settings.password:
            pair = f"{settings.username}:{settings.password.get_secret_value()}".encode()
            return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}
        return {}

    def post(self, body: bytes, tenant: str) -> Reply:
        """Send one request; a connection that fails is a reply of status 0."""
        headers = self._headers | self._credential()
        if self._settings.tenant_header:
            headers[self._settings.tenant_header] = self._settings.tenant or tenant
        try:
            self._http.request("POST", self._path, body, headers)
            answer = self._http.getresponse()
            text = answer.read().decode(errors="replace").strip()
        except (OSError, http.client.HTTPException) as error:
            self._http.close()
            return Reply(0, f"{type(error).__name__}: {error}")
        counted = answer.headers.get(_WRITTEN)
        waits_s = seconds_of(answer.headers.get("Retry-After", ""))
        return Reply(answer.status, text, counted is not None, _number(counted or ""), waits_s)

    def cut(self) -> None:
        """End a request that is under way on another thread: it comes back without an answer."""
        with contextlib.suppress(OSError, AttributeError):
            self._http.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._http.close()


def _number(text: str) -> int | None:
    """Return the number of a header that a proxy may have joined with its like ("12, 12"); None where it has none."""
    parts = {part.strip() for part in text.split(",")}
    part = parts.pop()
    return int(part) if not parts and part.isascii() and part.isdecimal() and len(part) < 19 else None


def seconds_of(retry_after: str) -> float | None:
    """Return how long a Retry-After header asks to wait, an hour at most; None where it is none."""
    number = _number(retry_after)
    if number is not None:
        return min(float(number), _LONGEST_S)
    try:
        wait_s = email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(0.0, wait_s), _LONGEST_S)
