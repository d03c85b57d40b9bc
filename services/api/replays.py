"""Replays, steered through the control API of the replay service: its address is a setting, never a user's."""

from typing import Any

import httpx

from services.api.library import Library
from services.api.models import ReplayStart
from services.api.problems import RefusedError
from services.replay.status import ReplayStatus

_PATIENCE_S = 65.0
"""The replay service itself gives up waiting for Kafka before that."""


class Replays:
    """The replay service, as the API needs it."""

    def __init__(self, library: Library, url: str) -> None:
        self._library = library
        self._url = url.rstrip("/")

    def start(self, asked: ReplayStart) -> ReplayStatus:
        """Start a replay of a recording of the library; RefusedError (404) where there is none, else as `_call`."""
        path = self._library.place(asked.recording).path.resolve()
        body = asked.model_dump(by_alias=True, exclude_none=True) | {"recording": str(path)}
        return ReplayStatus.model_validate(self._call("POST", "", body))

    def all(self) -> list[ReplayStatus]:
        """Return all replays."""
        return [ReplayStatus.model_validate(one) for one in self._call("GET", "")]

    def one(self, name: str) -> ReplayStatus:
        """Return one."""
        return ReplayStatus.model_validate(self._call("GET", f"/{name}"))

    def tell(self, name: str, order: str, body: dict[str, Any] | None = None) -> ReplayStatus:
        """Have a replay carry out an order."""
        return ReplayStatus.model_validate(self._call("POST", f"/{name}/{order}", body))

    def remove(self, name: str) -> None:
        """Stop a replay and forget it."""
        self._call("DELETE", f"/{name}")

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return what the service answers; RefusedError with what it says is wrong, or 503 where it does not answer."""
        try:
            answer = httpx.request(
                method, f"{self._url}/api/v1/replays{path}", json=body, timeout=_PATIENCE_S, trust_env=False
            )
        except httpx.TransportError as error:
            raise RefusedError(
                503,
                f"the replay service does not answer ({type(error).__name__})",
                remedy="start it (hindcast stack up), or set HINDCAST_API_REPLAY_URL to where it is",
            ) from None
        if answer.is_success:
            return answer.json() if answer.content else None
        try:
            said = answer.json()
            detail, remedy = str(said["detail"]), str(said["remedy"])
        except (ValueError, KeyError, TypeError):
            raise RefusedError(
                502, f"the replay service answers {answer.status_code}, and not as it does", remedy="look at its log"
            ) from None
        status = 404 if detail.startswith("there is no replay named") else answer.status_code
        raise RefusedError(status, detail, remedy=remedy)
