"""Slurm by its REST API: slurmrestd's jobs, nodes and reservations, read only, in the newest version that it offers."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from services.kit.errors import ServerError, UsageError
from services.live.slurm import Document
from services.recording.importers.parts.series.query_api import Access

if TYPE_CHECKING:
    import httpx

TOKEN_VARIABLE = "SLURM_JWT"  # noqa: S105 - a variable's name, that of Slurm's own programs
_OPENAPI = "/openapi/v3"
_NEWEST_KNOWN = 45
"""Of v0.0.N, that of Slurm 26.05; a newer one is asked for only where there is no other."""
_PATH = re.compile(r"/slurm/v0\.0\.(?P<version>\d{1,4})/(?P<kind>jobs|nodes|reservations)/?")
_KINDS = ("jobs", "nodes", "reservations")
_NOT_LET_IN = frozenset({401, 403, 511})
_NO_CONTROLLER = frozenset({500, 502, 503, 504})
_REMEDY = "give the address of slurmrestd, such as http://slurm:6820, started with -s slurmctld (or all its plugins)"


def is_address(given: str) -> bool:
    """Whether what was given for --slurm is the address of slurmrestd, rather than a command."""
    return given.startswith(("http://", "https://"))


@dataclass(frozen=True)
class Credentials:
    """Whose token it is, where its file is, and what the server's certificate is checked by."""

    user: str | None = None
    token_file: Path | None = None
    ca_file: Path | None = None


class Slurmrestd:
    """One slurmrestd. UserError where it cannot be reached (exit code 3), or does not let us in (2)."""

    def __init__(self, url: str, credentials: Credentials) -> None:
        self._access = Access(
            url,
            credentials.token_file,
            ca_file=credentials.ca_file,
            option="--slurm",
            token_variable=TOKEN_VARIABLE,
            token_header="X-SLURM-USER-TOKEN",  # noqa: S106 - a header's name
        )
        self._user = credentials.user
        self._paths: list[str] = []

    def documents(self) -> Iterable[Document]:
        """Return what it has by now: the token is read from its file each time, for tokens are short-lived."""
        with self._access.client() as client:
            if self._user:
                client.headers["X-SLURM-USER-NAME"] = self._user
            self._paths = self._paths or _paths(client)
            try:
                return [(f"{client.base_url}{path}", _answer(client, path)) for path in self._paths]
            except _NotThereError:  # another version of Slurm by now
                self._paths = _paths(client)
                return [(f"{client.base_url}{path}", _answer(client, path)) for path in self._paths]


class _NotThereError(UsageError):
    """The server has no such path."""


def _paths(client: "httpx.Client") -> list[str]:
    """Return the paths of the newest version that has jobs, nodes and reservations."""
    try:
        offered = json.loads(_answer(client, _OPENAPI))["paths"]
        found = [match for path in offered if (match := _PATH.fullmatch(path))]
    except (ValueError, KeyError, TypeError, RecursionError):
        found = []
    by_version: dict[int, dict[str, str]] = {}
    for match in found:
        by_version.setdefault(int(match["version"]), {})[match["kind"]] = match[0]
    whole = [version for version, paths in by_version.items() if len(paths) == len(_KINDS)]
    if not whole:
        message = f"{client.base_url}{_OPENAPI} names no /slurm/v0.0.N/ with jobs, nodes and reservations"
        raise UsageError(message, remedy=_REMEDY)
    known = [version for version in whole if version <= _NEWEST_KNOWN]
    return [by_version[max(known) if known else min(whole)][kind] for kind in _KINDS]


def _answer(client: "httpx.Client", path: str) -> bytes:
    import httpx

    try:
        answer = client.get(path)
    except httpx.HTTPError as error:
        message = f"{client.base_url} cannot be reached: {error}"
        raise ServerError(message, remedy="check --slurm and the network") from error
    if answer.status_code == httpx.codes.OK:
        return answer.content
    words = f"({answer.status_code}): {_words_of(answer.content)}"
    if answer.status_code in _NOT_LET_IN:
        raise UsageError(
            f"{client.base_url} does not let us read {path} {words}",
            remedy="give --slurm-token-file, with what `scontrol token` prints, and --slurm-user for a proxy's token",
        )
    if answer.status_code in _NO_CONTROLLER:
        message = f"{client.base_url}{path} has no answer {words}"
        raise ServerError(message, remedy="see whether slurmctld runs: `scontrol ping`")
    raise _NotThereError(f"{client.base_url} has no {path} to read {words}", remedy=_REMEDY)


def _words_of(body: bytes) -> str:
    """Return what an answer that is no success says: the errors in it, or its beginning."""
    try:
        errors = json.loads(body)["errors"]
        words = "; ".join(str(error.get("error") or error["description"]) for error in errors)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        words = body[:300].decode("utf-8", "replace")
    return " ".join(words.split())[:300]
