"""Who may ask what: bearer tokens with a role, of which only the SHA-256 is kept; off on loopback only.

The tokens file is YAML, a list of ``{name: grafana, role: viewer, sha256: ...}``. A viewer may look; an operator may
also start, change and delete.
"""

import hashlib
import hmac
import secrets
from pathlib import Path
from typing import Annotated, Literal

import yaml
from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from services.api.models import Me
from services.api.problems import RefusedError
from services.api.settings import ApiSettings
from services.kit.errors import UserError


class Token(BaseModel):
    """Who has a token and what they may do."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = Field(min_length=1, max_length=100)
    role: Literal["viewer", "operator"]
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


def new_token(name: str, role: Literal["viewer", "operator"]) -> tuple[str, Token]:
    """Return a new secret, to be handed over once, and what the tokens file has of it."""
    secret = secrets.token_urlsafe(32)
    return secret, Token(name=name, role=role, sha256=_digest(secret))


def read_tokens(settings: ApiSettings) -> tuple[Token, ...] | None:
    """Return the tokens, None where authentication is off; UserError (exit code 2) where it must not be."""
    path = settings.tokens_file
    if path is None:
        if settings.loopback:
            return None
        raise UserError(
            f"{settings.host} can be reached from elsewhere, and nobody is asked for a token",
            remedy="name a file of tokens in HINDCAST_API_TOKENS_FILE (hindcast api-token makes one), or listen on"
            " 127.0.0.1",
            exit_code=2,
        )
    return _read(path)


def _read(path: Path) -> tuple[Token, ...]:
    remedy = "write a list of {name: ..., role: viewer or operator, sha256: ...}; hindcast api-token prints one"
    try:
        found = TypeAdapter(tuple[Token, ...]).validate_python(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path}: cannot be read: {type(error).__name__}", remedy=remedy, exit_code=2) from None
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}"
            for item in error.errors(include_input=False)
        )
        raise UserError(f"{path}: {wrong}", remedy=remedy, exit_code=2) from None
    if not found:
        raise UserError(f"{path}: has no token, so that nobody could ask", remedy=remedy, exit_code=2)
    return found


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


class Gate:
    """Tells who asks."""

    def __init__(self, tokens: tuple[Token, ...] | None) -> None:
        self._tokens = tokens

    def who(self, authorization: str | None) -> Me:
        """Return who has the token in an Authorization header; RefusedError (401) where nobody has."""
        if self._tokens is None:
            return Me(name="local", role="operator", authentication=False)
        scheme, _, secret = (authorization or "").partition(" ")
        if scheme.lower() == "bearer" and secret:
            digest = _digest(secret.strip())
            # All are compared, so that time tells nothing.
            matching = [token for token in self._tokens if hmac.compare_digest(token.sha256, digest)]
            if matching:
                return Me(name=matching[0].name, role=matching[0].role, authentication=True)
        raise RefusedError(
            401,
            "no valid token was given",
            remedy="send `Authorization: Bearer TOKEN`; an operator of hindcast has one",
        )


_bearer = HTTPBearer(auto_error=False, description="A token of HINDCAST_API_TOKENS_FILE; none where it is off.")


def viewer(request: Request, _: Annotated[object, Depends(_bearer)]) -> Me:
    """Let pass whoever has a token."""
    gate: Gate = request.app.state.gate
    return gate.who(request.headers.get("authorization"))


def operator(me: Annotated[Me, Depends(viewer)]) -> Me:
    """Let pass operators only."""
    if me.role != "operator":
        raise RefusedError(403, f"{me.name} may look and not change anything", remedy="ask with an operator's token")
    return me


Viewer = Annotated[Me, Depends(viewer)]
Operator = Annotated[Me, Depends(operator)]
