"""Alertmanager's API v2, and what its answers mean for what was sent."""

import base64
import logging
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import httpx
from prometheus_client import Counter, Histogram

from services.kit.problems import RefusedError
from services.kit.times import format_time
from services.notify.payload import Labels
from services.notify.settings import NotifySettings

_log = logging.getLogger(__name__)
REQUESTS = Counter("hindcast_notify_requests_total", "Requests to Alertmanager by what became of them.", ["outcome"])
SECONDS = Histogram("hindcast_notify_request_seconds", "Duration of requests to Alertmanager.")

# These say that the alerts themselves are wrong. Other 4xx (401, 403, 404) speak of the address or of credentials:
# the alerts are good and go out once the operator has mended the setting.
_REFUSALS = frozenset({400, 413, 422})


@dataclass(frozen=True, slots=True)
class Answer:
    """`accepted`: it has them; `refused`: it never will; `away`: try again. `words`: what the server answered."""

    outcome: Literal["accepted", "refused", "away"]
    words: str = ""


class Alerting(Protocol):
    """What takes alerts."""

    def post(self, alerts: Sequence[object]) -> Answer:
        """Send alerts as of API v2."""
        ...

    def started(self) -> str | None:
        """Return when it was started, as it says; None while it cannot be reached."""
        ...


class _Credential(httpx.Auth):
    """Says who asks; a secret in a file is what it is now."""

    def __init__(self, settings: NotifySettings) -> None:
        self._settings = settings

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Add the header to a request."""
        user, password, token = self._settings.username, self._settings.password, self._settings.bearer_token
        if user is not None and password is not None:
            pair = base64.b64encode(f"{user}:{password.get_secret_value()}".encode()).decode()
            request.headers["Authorization"] = f"Basic {pair}"
        if token is not None:
            request.headers["Authorization"] = f"Bearer {token.get_secret_value()}"
        yield request


class Alertmanager:
    """One Alertmanager, or several behind one address."""

    def __init__(self, settings: NotifySettings) -> None:
        self._url = str(settings.alertmanager_url).rstrip("/")
        self._client = httpx.Client(
            base_url=f"{self._url}/api/v2/",
            auth=_Credential(settings),
            verify=settings.tls(),
            timeout=settings.timeout_s,
        )

    def post(self, alerts: Sequence[object]) -> Answer:
        """Send alerts."""
        answer = self._post(alerts)
        REQUESTS.labels(answer.outcome).inc()
        return answer

    def _post(self, alerts: Sequence[object]) -> Answer:
        try:
            with SECONDS.time():
                response = self._client.post("alerts", json=list(alerts))
        except httpx.TransportError as error:
            return Answer("away", f"{type(error).__name__}: {error}")
        if response.is_success:
            return Answer("accepted")
        words = f"{response.status_code} {response.text.strip()[:2000]}"
        return Answer("refused" if response.status_code in _REFUSALS else "away", words)

    def started(self) -> str | None:
        """Return when it was started."""
        try:
            response = self._client.get("status")
            if not response.is_success:
                return None
            return str(response.json()["uptime"])
        except (httpx.TransportError, ValueError, KeyError) as error:
            _log.debug("status not read error=%s", type(error).__name__)
            return None

    def silence(self, labels: Labels, *, author: str, note: str, span_ms: tuple[int, int]) -> str:
        """Have nobody notified of the alert with these labels from and until (epoch ms); return the silence's page.

        RefusedError: 503 where it does not answer, 502 with what it says where it takes no silence.
        """
        matchers = [{"name": name, "value": value, "isRegex": False, "isEqual": True} for name, value in labels]
        begins, ends = (format_time(at_ms) for at_ms in span_ms)
        body = {"matchers": matchers, "startsAt": begins, "endsAt": ends, "createdBy": author, "comment": note}
        remedy = "see that --alertmanager is its address and lets us in; the silence was not made"
        try:
            response = self._client.post("silences", json=body)
            if response.is_success:
                return f"{self._url}/#/silences/{response.json()['silenceID']}"
        except (httpx.TransportError, ValueError, KeyError) as error:
            raise RefusedError(503, f"Alertmanager does not answer ({type(error).__name__})", remedy) from None
        raise RefusedError(502, f"Alertmanager answers {response.status_code} {response.text.strip()[:500]}", remedy)

    def close(self) -> None:
        """Close its connections."""
        self._client.close()
