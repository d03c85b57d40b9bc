"""Who may ask what: bearer tokens with a role, of which only the SHA-256 is kept.

The tokens file is YAML, a list of ``{name: grafana, role: viewer, sha256: ...}``. A viewer may look; an operator may
also start, change and delete; a sender may hand in telemetry or alerts, and look at nothing. A proxy asks for people
whom it knows (OIDC): it names each in X-Forwarded-User. Whoever is in one of its `operators` groups
(X-Forwarded-Groups, separated by commas) is an operator, all others are viewers. From nobody else are these headers
believed.
"""

import base64
import hashlib
import hmac
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from services.kit.documents import NOT_YAML, parse_yaml

_log = logging.getLogger(__name__)

Role = Literal["viewer", "operator", "sender"]
TokenRole = Literal["viewer", "operator", "sender", "proxy"]
_USER, _GROUPS = "x-forwarded-user", "x-forwarded-groups"


class Token(BaseModel):
    """Who has a token and what they may do."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = Field(min_length=1, max_length=100)
    role: TokenRole
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    operators: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Caller:
    """Who is asking; `authenticated` is False where nobody is asked for a token: on loopback only."""

    name: str
    role: Role
    authenticated: bool = True

    def may(self, needed: Role) -> bool:
        """Return whether the role is enough: an operator's is for all."""
        return self.role in (needed, "operator")


def new_token(name: str, role: TokenRole) -> tuple[str, Token]:
    """Return a new secret, to be handed over once, and what the tokens file has of it."""
    secret = secrets.token_urlsafe(32)
    return secret, token_of(secret, name, role)


def token_of(secret: str, name: str, role: TokenRole) -> Token:
    """Return what the tokens file has of a secret."""
    return Token(name=name, role=role, sha256=_digest(secret))


def tokens_in(path: Path) -> tuple[Token, ...]:
    """Return the tokens of a file; raise ValueError, which names the file, where it has none or is none."""
    remedy = "write a list of {name: ..., role: viewer, operator, sender or proxy, sha256: ...}: hindcast token does"
    try:
        found = TypeAdapter(tuple[Token, ...]).validate_python(parse_yaml(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}"
            for item in error.errors(include_input=False)
        )
        raise ValueError(f"{path}: {wrong}; {remedy}") from None
    except (OSError, *NOT_YAML) as error:
        raise ValueError(f"{path}: cannot be read: {type(error).__name__}; {remedy}") from None
    if not found:
        raise ValueError(f"{path}: has no token, so that nobody could ask; {remedy}")
    return found


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


class Gate:
    """Knows who asks. A tokens file that changes is read again; one that is damaged changes nothing, and is logged."""

    def __init__(self, tokens_file: Path | None) -> None:
        """Read the tokens, None: nobody is asked. Raises ValueError as `tokens_in`."""
        self._path = tokens_file
        self._stamp = _stamp(tokens_file)
        self._tokens = tokens_in(tokens_file) if tokens_file is not None else ()

    @property
    def open(self) -> bool:
        """Whether nobody is asked for a token."""
        return self._path is None

    def who(self, headers: Mapping[str, str]) -> Caller | None:
        """Return who sent a request with these headers (names in lower case), None where nobody is known so."""
        if self._path is None:
            return Caller("local", "operator", authenticated=False)
        self._reread(self._path)
        digest = _digest(_secret(headers.get("authorization", "")))
        # All are compared, so that the time taken shows nothing.
        matching = [token for token in self._tokens if hmac.compare_digest(token.sha256, digest)]
        if not matching:
            return None
        token = matching[0]
        if token.role != "proxy":
            return Caller(token.name, token.role)
        user = headers.get(_USER, "").strip()
        groups = {group.strip() for group in headers.get(_GROUPS, "").split(",")}
        return Caller(user, "operator" if groups & set(token.operators) else "viewer") if user else None

    def _reread(self, path: Path) -> None:
        stamp = _stamp(path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._tokens = tokens_in(path)
            _log.info("tokens read again file=%s tokens=%d", path, len(self._tokens))
        except ValueError as error:
            _log.error("tokens not read again, those of before hold reason=%s", error)


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    """Return what changes with a file's content; None where there is none."""
    try:
        found = path.stat() if path is not None else None
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino) if found is not None else None


def _secret(authorization: str) -> str:
    """Return the token of an Authorization header, the password of a basic one; empty where it has none."""
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return given.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(given.strip(), validate=True).decode().partition(":")[2]
        except ValueError:
            return ""
    return ""
