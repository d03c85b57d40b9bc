"""What a Kubernetes API server has of one kind: listed page by page, then kept up to date by what has changed."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from services.kit.errors import ServerError, UsageError, UserError
from services.live.kubeconfig import kubeconfig_of
from services.live.listing import PassedOver
from services.recording.importers.parts.objects import WrongObjectError, part, text
from services.recording.importers.parts.schedulers.pods import name_of
from services.recording.importers.parts.series.matrix import words_of
from services.recording.importers.parts.series.query_api import Access

if TYPE_CHECKING:
    import httpx

IN_CLUSTER = "in-cluster"
TOKEN_VARIABLE = "HINDCAST_KUBERNETES_TOKEN"  # noqa: S105 - a variable's name
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PAGE = 500
"""As kubectl asks for."""
_GONE = 410
"""The server no longer has the rest of a list, or what has changed since a version."""


class Entrance(Protocol):
    """How to get in."""

    def client(self) -> "httpx.Client":
        """Return an HTTP client, with the secrets of now; UserError where that cannot be."""


def entrance(server: str, token_file: Path | None, ca_file: Path | None) -> Entrance:
    """Return the one of a context of kubectl's, where `server` says `kubeconfig`; else as `access_to`."""
    return kubeconfig_of(server) or access_to(server, token_file, ca_file)


def access_to(server: str, token_file: Path | None, ca_file: Path | None) -> Access:
    """Return how to get in: `server` is a URL, or `in-cluster` for a pod with its own account; UserError elsewhere."""
    if server != IN_CLUSTER:
        return Access(server, token_file, ca_file=ca_file, option="--kubernetes", token_variable=TOKEN_VARIABLE)
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{name}") for name in ("HOST", "PORT"))
    if not host or not port:
        raise UsageError(
            f"--kubernetes {IN_CLUSTER} is for a pod: KUBERNETES_SERVICE_HOST and _PORT are not set here",
            remedy="give the API server's URL, or that of `kubectl proxy`: http://127.0.0.1:8001",
        )
    url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return replace(
        access_to(url, token_file or _ACCOUNT / "token", ca_file or _ACCOUNT / "ca.crt"), option="--kubernetes"
    )


class Collection:
    """The objects of one kind: `take` puts one into `known` under its name, and raises WrongObjectError for others.

    One that is not as it should be is named in the log and passed over.
    """

    def __init__(self, path: str, known: dict[str, Any], take: Callable[[Mapping[str, Any]], None]) -> None:
        self._path, self._known, self._take = path, known, take
        self._version = ""
        """All changes up to this resourceVersion are known."""
        self._passed_over = PassedOver()

    def update(self, client: "httpx.Client") -> None:
        """Take what is news; UserError where the server does not answer as it should: what is known holds then."""
        if not self._version or not self._follow(client):
            self._list(client)

    def _list(self, client: "httpx.Client") -> None:
        listed: set[str] = set()
        fields = {"limit": str(_PAGE)}
        while True:
            answer = _answer(client, self._path, fields)
            if answer is None:  # the rest of the list is gone: from the beginning
                listed, fields = set(), {"limit": str(_PAGE)}
                continue
            try:
                meta = part(answer, "metadata")
                version, rest = text(meta, "resourceVersion"), text(meta, "continue")
                items = answer["items"]
                listed.update(name for item in items if (name := self._have(item)) is not None)
            except (KeyError, TypeError, WrongObjectError) as error:
                raise _refused(client, self._path, f"what it answers is no list: {error}") from None
            if not rest:
                break
            fields = {"limit": str(_PAGE), "continue": rest}
        for name in self._known.keys() - listed:
            del self._known[name]
        self._version = version

    def _follow(self, client: "httpx.Client") -> bool:
        """Take the changes since the version that is known; False where the server does not know them any more."""
        for event in _changes(client, self._path, self._version):
            item, kind = event.get("object"), event.get("type")
            if kind == "ERROR":
                if isinstance(item, dict) and item.get("code") == _GONE:
                    return False
                raise _refused(client, self._path, json.dumps(item)[:300])
            if kind in {"ADDED", "MODIFIED", "DELETED"} and (name := self._have(item)) and kind == "DELETED":
                self._known.pop(name, None)
            self._version = _version_of(item) or self._version
        return True

    def _have(self, item: Any) -> str | None:
        """Take an object; return its name, None where it has none."""
        name = None
        try:
            name = name_of(item)
            self._known.pop(name, None)  # one of that name before it is another
            self._take(item)
        except WrongObjectError as error:
            self._passed_over.name(f"{self._path}: {name or json.dumps(item)[:120]}", error)
        return name


def _version_of(item: Any) -> str:
    try:
        return text(part(item, "metadata"), "resourceVersion") if isinstance(item, dict) else ""
    except WrongObjectError:
        return ""


def _answer(client: "httpx.Client", path: str, fields: Mapping[str, str]) -> Mapping[str, Any] | None:
    """Return the document that a GET answers, None where it is gone."""
    import httpx

    try:
        answer = client.get(path, params=fields)
    except httpx.HTTPError as error:
        raise _unreachable(client, error) from error
    if answer.status_code == _GONE:
        return None
    _check(client, path, answer.status_code, answer.content)
    try:
        document = answer.json()
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise _refused(client, path, "what it answers is no JSON object")
    return document


def _changes(client: "httpx.Client", path: str, version: str) -> Iterator[Mapping[str, Any]]:
    """Yield what has happened since a version, until the server ends it, after a second."""
    import httpx

    fields = {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "1", "timeoutSeconds": "1"}
    try:
        with client.stream("GET", path, params=fields) as answer:
            if answer.status_code == _GONE:
                yield {"type": "ERROR", "object": {"code": _GONE}}
                return
            if answer.status_code != httpx.codes.OK:
                _check(client, path, answer.status_code, answer.read())
            for line in answer.iter_lines():
                event = json.loads(line) if line.strip() else {}
                if not isinstance(event, dict):
                    raise _refused(client, path, "what it answers is no watch")
                yield event
    except httpx.HTTPError as error:
        raise _unreachable(client, error) from error
    except ValueError:
        raise _refused(client, path, "what it answers is no watch") from None


def _check(client: "httpx.Client", path: str, status: int, body: bytes) -> None:
    if status in (401, 403):
        raise UsageError(
            f"{client.base_url} does not let us read {path} ({status}): {words_of(body)}",
            remedy="give --kubernetes-token-file, of an account that may list and watch pods and nodes: docs/live.md",
        )
    if status != 200:
        raise _refused(client, path, f"{status}: {words_of(body)}")


def _refused(client: "httpx.Client", path: str, words: str) -> UserError:
    remedy = "give the address of a Kubernetes API server, or of `kubectl proxy`: http://127.0.0.1:8001"
    return UsageError(f"{client.base_url} has no {path} to read: {words}", remedy=remedy)


def _unreachable(client: "httpx.Client", error: Exception) -> UserError:
    return ServerError(
        f"{client.base_url} cannot be reached: {error}",
        remedy="check --kubernetes, the network and --kubernetes-ca-file",
    )
