"""Asks a Prometheus, or what answers as one (Thanos Query, Mimir, VictoriaMetrics), for raw samples over HTTP."""

import json
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from services.kit.errors import ServerError, UsageError, UserError
from services.recording.importers.parts.series.matrix import Matrix, document_of, matrix_of, words_of

if TYPE_CHECKING:
    import httpx

TOKEN_VARIABLE = "HINDCAST_PROMETHEUS_TOKEN"  # noqa: S105 - a variable's name
PASSWORD_VARIABLE = "HINDCAST_PROMETHEUS_PASSWORD"  # noqa: S105 - a variable's name
MOST_BYTES = 256 * 1024 * 1024
"""An answer that grows larger is broken off, and a shorter stretch asked for."""
_PATIENCE_S = 60.0
_RETRIED = frozenset({429, 500, 502, 503, 504})
_NOT_LET_IN = frozenset({401, 403})
_TOO_MUCH = re.compile(r"too many samples|exceed|limit|timed out|too large", re.IGNORECASE)
_WARNINGS = b'"warnings":'


class TooMuchError(ServerError):
    """The server does not answer for that many samples at once: a shorter stretch may do."""

    def __init__(self, words: str) -> None:
        super().__init__(
            f"the server does not answer for so much at once: {words}",
            remedy="take fewer series with --match, or raise the server's sample limit",
        )
        self.words = words


@dataclass(frozen=True)
class Access:
    """How to get in. A secret comes from a file, or from the environment, never from the command line."""

    url: str
    bearer_file: Path | None = None
    user: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    tenant: str | None = None
    certificate_file: Path | None = None
    """What a client shows, PEM; its private key is in `key_file`, or in the same file."""
    key_file: Path | None = None
    option: str = "--url"
    token_variable: str = TOKEN_VARIABLE
    token_header: str = ""
    """The header that takes the token alone, where that is not Authorization."""
    retries: int = 6
    backoff_s: float = 0.5
    timeout_s: float = 120.0

    @property
    def is_open(self) -> bool:
        """Whether the address alone is enough, with what the environment has."""
        return not (self.bearer_file or self.user or self.tenant or any(self._files))

    @property
    def _files(self) -> tuple[Path | None, Path | None, Path | None]:
        return self.ca_file, self.certificate_file, self.key_file

    @property
    def address(self) -> str:
        """The URL, checked; UserError where it is none, or holds a password."""
        return _checked(self.url, self.option)

    def client(self) -> "httpx.Client":
        """Return an HTTP client; UserError where a file is missing or the URL is none."""
        import httpx

        from services.kit.tls import client_context

        headers = {"Accept": "application/json"}
        token = _secret(self.bearer_file, self.token_variable)
        if token and not self.user:
            headers |= {self.token_header: token} if self.token_header else {"Authorization": f"Bearer {token}"}
        if self.tenant:
            # Thanos reads the one, Mimir and Cortex the other.
            headers |= {"THANOS-TENANT": self.tenant, "X-Scope-OrgID": self.tenant}
        auth = httpx.BasicAuth(self.user, _secret(self.password_file, PASSWORD_VARIABLE) or "") if self.user else None
        try:
            verify = client_context(*self._files) if any(self._files) else True
        except ValueError as error:
            raise UsageError(
                f"cannot be read as certificates: {error}",
                remedy="give files of PEM certificates, and a private key with its certificate",
            ) from error
        return httpx.Client(base_url=self.address, headers=headers, auth=auth, verify=verify, timeout=self.timeout_s)


def _checked(url: str, option: str) -> str:
    import httpx

    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL("")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise UsageError(f"{option} {url!r} is no URL", remedy="write http://host:port or https://host/path")
    if parsed.userinfo:
        raise UsageError(
            f"{option} holds a password, which others can read in the list of processes",
            remedy=f"use --user with --password-file or {PASSWORD_VARIABLE}",
        )
    return url.rstrip("/")


def _secret(path: Path | None, variable: str) -> str | None:
    if path is None:
        return os.environ.get(variable)
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}", remedy="correct the path") from error


@dataclass
class QueryApi:
    """The query API of one server; use as a context manager."""

    access: Access
    warnings: dict[str, int] = field(default_factory=dict)
    """What the server itself reports as incomplete in its answers, with how often."""
    requests: int = 0

    def __post_init__(self) -> None:
        self._client = self.access.client()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def label_values(self, label: str, match: str, start_ms: int, end_ms: int) -> list[str]:
        """Return the values of a label among the series that `match` selects."""
        fields = {"match[]": match, "start": _seconds(start_ms), "end": _seconds(end_ms), "partial_response": "false"}
        data = self._data(self._ask("GET", f"/api/v1/label/{label}/values", fields))
        return [str(value) for value in data] if isinstance(data, list) else []

    def series(self, match: str, start_ms: int, end_ms: int) -> list[dict[str, str]]:
        """Return the labels of the series that `match` selects, in the order of their labels."""
        fields = {"match[]": match, "start": _seconds(start_ms), "end": _seconds(end_ms), "partial_response": "false"}
        data = self._data(self._ask("POST", "/api/v1/series", fields))
        found = [one for one in data if isinstance(one, dict)] if isinstance(data, list) else []
        return sorted(({str(k): str(v) for k, v in one.items()} for one in found), key=lambda one: sorted(one.items()))

    def raw(self, selector: str, after_ms: int, end_ms: int) -> Matrix:
        """Return every sample with ``after_ms < time <= end_ms`` as it was scraped. TooMuchError: ask for less."""
        fields = {"query": f"{selector}[{end_ms - after_ms}ms]", "time": _seconds(end_ms)}
        found = matrix_of(self._ask("POST", "/api/v1/query", fields | _EXACT))
        # Prometheus 2 counts the left end of a range in, Prometheus 3 does not.
        return _within(found, after_ms, end_ms)

    def stepped(self, selector: str, start_ms: int, end_ms: int, step_s: float) -> Matrix:
        """Return what a graph of the series would show, a value every `step_s`. TooMuchError: ask for less."""
        fields = {"query": selector, "start": _seconds(start_ms), "end": _seconds(end_ms), "step": f"{step_s:g}"}
        return _within(matrix_of(self._ask("POST", "/api/v1/query_range", fields | _EXACT)), start_ms - 1, end_ms)

    def instant(self, query: str, at_ms: int) -> list[dict[str, str]]:
        """Return the labels of an instant query's series."""
        data = self._data(self._ask("POST", "/api/v1/query", {"query": query, "time": _seconds(at_ms)}))
        result = data.get("result") if isinstance(data, dict) else None
        named = [item.get("metric") for item in result or () if isinstance(item, dict)]
        return [{str(k): str(v) for k, v in labels.items()} for labels in named if isinstance(labels, dict)]

    def _ask(self, method: str, path: str, fields: Mapping[str, str]) -> bytes:
        """Return a good answer's body; waits and tries again where that may help."""
        import httpx

        pause = self.access.backoff_s
        for attempt in range(self.access.retries + 1):
            last = attempt == self.access.retries
            wanted: float | None = None
            try:
                status, body, wanted = self._once(method, path, fields)
            except httpx.TransportError as error:
                if last or isinstance(error, httpx.UnsupportedProtocol):
                    self._renew()
                    raise self._unreachable(error) from error
            else:
                if status < 300:
                    self._note_warnings(body)
                    return body
                if status not in _RETRIED:
                    if status in _NOT_LET_IN:
                        self._renew()
                    raise self._refused(status, body)
                if _TOO_MUCH.search(words_of(body)) and (last or status == 503) and status != 429:
                    raise TooMuchError(words_of(body))
                if last:
                    raise ServerError(
                        f"{self.access.url} answers {status} still after {attempt} retries: {words_of(body)}",
                        remedy="try later, or ask for less at once (--chunk)",
                    )
            threading.Event().wait(min(_PATIENCE_S, pause if wanted is None else wanted))
            pause *= 2
        raise AssertionError  # the last attempt returned or raised

    def _once(self, method: str, path: str, fields: Mapping[str, str]) -> tuple[int, bytes, float | None]:
        self.requests += 1
        sent: dict[str, Any] = {"params": fields} if method == "GET" else {"data": fields}
        with self._client.stream(method, path, **sent) as answer:
            body = bytearray()
            for piece in answer.iter_bytes():
                body += piece
                if len(body) > MOST_BYTES:
                    raise TooMuchError(f"an answer of more than {MOST_BYTES} bytes")
            after = answer.headers.get("Retry-After", "")
            wanted = float(after) if after.isascii() and after.isdigit() else None
            return answer.status_code, bytes(body), wanted

    def _renew(self) -> None:
        """Read again what lets us in: a secret that was renewed meanwhile is shown the next time."""
        renewed = self.access.client()
        self._client.close()
        self._client = renewed

    def _refused(self, status: int, body: bytes) -> Exception:
        words = words_of(body)
        if status in (400, 413, 422) and _TOO_MUCH.search(words):
            return TooMuchError(words)
        if status in _NOT_LET_IN:
            remedy = f"give --bearer-file, --user or {TOKEN_VARIABLE}, and --tenant where there are tenants"
            return UsageError(f"{self.access.url} does not let us in ({status}): {words}", remedy=remedy)
        if status == 404:
            remedy = "give the address that has /api/v1/query below it, such as http://host:9090"
            return UsageError(f"{self.access.url} has no Prometheus query API there (404)", remedy=remedy)
        if 300 <= status < 400:
            remedy = "give the address that it points to"
            return UsageError(f"{self.access.url} answers with a redirect ({status})", remedy=remedy)
        remedy = "correct --match, --from, --to or --step"
        return UsageError(f"{self.access.url} refuses the query ({status}): {words}", remedy=remedy)

    def _unreachable(self, error: Exception) -> UserError:
        return ServerError(
            f"{self.access.url} cannot be reached: {error}",
            remedy="check --url, the network and, for https, --ca-file and the certificate that a client is to show",
        )

    def _data(self, body: bytes) -> Any:
        return document_of(body, self.access.url).get("data")

    def _note_warnings(self, body: bytes) -> None:
        """Take what comes after the data; inside a label its quotes would be escaped."""
        at = body.rfind(_WARNINGS)
        if at >= 0:
            try:
                warnings, _ = json.JSONDecoder().raw_decode(body[at + len(_WARNINGS) :].decode())
            except (ValueError, RecursionError):
                return
            for warning in warnings if isinstance(warnings, list) else ():
                self.warnings[str(warning)] = self.warnings.get(str(warning), 0) + 1


_EXACT = {"partial_response": "false", "max_source_resolution": "0s"}
"""For Thanos: fail where a store is missing instead of leaving its series out, and never downsampled data."""


def _seconds(ms: int) -> str:
    return f"{ms // 1000}.{ms % 1000:03d}"


def _within(found: Matrix, after_ms: int, end_ms: int) -> Matrix:
    keep = (found.times > after_ms) & (found.times <= end_ms)
    if keep.all():
        return found
    owner = np.repeat(np.arange(len(found.counts)), found.counts)[keep]
    counts = np.bincount(owner, minlength=len(found.counts)).astype(np.int64)
    return Matrix(found.labels, counts, found.times[keep], found.values[keep])
