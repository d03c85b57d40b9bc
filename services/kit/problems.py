"""Errors as problem+json (RFC 9457), each with a remedy."""

from http import HTTPStatus

from pydantic import BaseModel
from starlette.responses import JSONResponse

from services.kit.errors import UserError

PROBLEM = "application/problem+json"


class Problem(BaseModel):
    """An error as RFC 9457 has it, and what to do about it."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    remedy: str


class RefusedError(UserError):
    """An error with a status, and perhaps headers, of its own."""

    def __init__(self, status: int, message: str, remedy: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.status = status
        self.headers = headers


def missing(what: str, name: str, remedy: str) -> RefusedError:
    """Return the error that says that something is not there."""
    return RefusedError(404, f"there is no {what} {name}", remedy=remedy)


def problem(status: int, detail: str, remedy: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return an error as an answer."""
    body = Problem(title=HTTPStatus(status).phrase, status=status, detail=detail, remedy=remedy)
    return JSONResponse(body.model_dump(), status_code=status, media_type=PROBLEM, headers=headers)
