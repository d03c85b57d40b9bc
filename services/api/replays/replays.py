"""Replays, steered through the control API of the replay service: its address is a setting, never a user's."""

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
from pydantic import TypeAdapter, ValidationError

from services.api.recordings.library import Library
from services.api.replays.generations import Generation, Generations
from services.api.replays.models import Replay, ReplayStart
from services.api.runs.runs import Runs
from services.api.settings import ApiSettings
from services.kit.problems import RefusedError
from services.kit.tls import client_context
from services.replay.status import ReplayStatus

if TYPE_CHECKING:
    from collections.abc import Callable

_Answer = TypeVar("_Answer")
_ONE, _MANY = TypeAdapter(ReplayStatus), TypeAdapter(list[ReplayStatus])
_PATIENCE_S = 65.0
"""The replay service itself gives up waiting for Kafka before that."""


class Replays:
    """The replay service, as the API needs it; `changed`: called when a replay was started, steered or removed."""

    def __init__(self, library: Library, runs: Runs, generations: Generations, settings: ApiSettings) -> None:
        self._library = library
        self._runs = runs
        self._generations = generations
        self._url = f"{settings.replay_url.rstrip('/')}/api/v1/replays"
        token = settings.replay_token
        headers = {"Authorization": f"Bearer {token.get_secret_value()}"} if token is not None else {}
        tls = client_context(settings.replay_ca_file)
        self._client = httpx.Client(timeout=_PATIENCE_S, trust_env=False, headers=headers, verify=tls)
        self.changed: Callable[[], None] = lambda: None

    def start(self, asked: ReplayStart) -> Replay:
        """Start a replay of a recording of the library, with the detectors in shadow that are so here.

        RefusedError (404) where there is no such recording, else as `_call`; UserError: the configuration is wrong.
        """
        path = self._library.place(asked.recording).path.resolve()
        detectors = self._runs.configured(dict(asked.detectors))
        body = asked.model_dump(by_alias=True, exclude_none=True)
        body |= {"recording": str(path), "detectors": detectors}
        return self._opened(self._call("POST", "", body))

    def statuses(self) -> list[ReplayStatus]:
        """Return all replays as the service has them."""
        return _read(_MANY, self._call("GET", ""))

    def all(self) -> list[Replay]:
        """Return all replays."""
        return [self.replay(one) for one in self.statuses()]

    def one(self, name: str) -> Replay:
        """Return one."""
        return self.replay(_read(_ONE, self._call("GET", f"/{name}")))

    def steer(self, name: str, order: str, body: dict[str, Any] | None = None) -> Replay:
        """Have a replay carry out an order."""
        return self._opened(self._call("POST", f"/{name}/{order}", body))

    def remove(self, name: str) -> None:
        """Stop a replay and forget it."""
        self._call("DELETE", f"/{name}")
        self.changed()

    def replay(self, status: ReplayStatus) -> Replay:
        """Return a replay as the API shows it."""
        recording = self._generations.named(status.recording)
        return Replay.model_validate({**status.model_dump(), "recording": recording, "run": _generation(status).run})

    def _opened(self, answer: Any) -> Replay:
        """Return a replay that was started or steered; from now on its run can be looked at."""
        status = _read(_ONE, answer)
        self._generations.opened(_generation(status), status.recording, status.detectors)
        self.changed()
        return self.replay(status)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return what the service answers; RefusedError with what it says is wrong, or 503 where it does not answer."""
        try:
            answer = self._client.request(method, f"{self._url}{path}", json=body)
        except httpx.TransportError as error:
            raise RefusedError(
                503,
                f"the replay service does not answer ({type(error).__name__})",
                remedy="start it (hindcast stack up), or set HINDCAST_API_REPLAY_URL to where it is",
            ) from None
        try:
            content: Any = answer.json() if answer.content else None
            if answer.is_success:
                return content
            detail, remedy = str(content["detail"]), str(content["remedy"])
        except (ValueError, KeyError, TypeError):
            raise _strange(f"answers {answer.status_code}, and not as it does") from None
        if answer.is_server_error and answer.status_code != HTTPStatus.SERVICE_UNAVAILABLE:
            raise _strange(f"answers {answer.status_code}: {detail}")
        if answer.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):  # ours is wrong, not the caller's
            raise RefusedError(
                502,
                f"the replay service does not let the API in: {detail}",
                remedy="give it an operator's token in HINDCAST_API_REPLAY_TOKEN_FILE",
            )
        status = 404 if detail.startswith("there is no replay named") else answer.status_code
        raise RefusedError(status, detail, remedy=remedy)


def _strange(what: str) -> RefusedError:
    return RefusedError(
        502, f"the replay service {what}", remedy="look at its log, and whether HINDCAST_API_REPLAY_URL is its address"
    )


def _read(kind: TypeAdapter[_Answer], content: Any) -> _Answer:
    try:
        return kind.validate_python(content)
    except ValidationError:
        raise _strange("answers with what is no replay") from None


def _generation(status: ReplayStatus) -> Generation:
    return Generation(f"{status.cluster}/{status.name}", status.generation, status.shift_ms)
