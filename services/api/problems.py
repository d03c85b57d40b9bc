"""Errors as problem+json (RFC 9457), each with a remedy."""

import errno
import logging
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from services.api.models import Problem
from services.kit.errors import TooMuchError, UserError

_log = logging.getLogger(__name__)
PROBLEM = "application/problem+json"
_STATUS_BY_EXIT_CODE = {1: 422, 2: 400, 3: 503}
_REMEDIES = {
    404: "see /api/v1/openapi.json for what there is",
    405: "see /api/v1/openapi.json for the methods there are",
    408: "send it again, over a better line",
    413: "send less",
}


class RefusedError(UserError):
    """An error with a status of its own."""

    def __init__(self, status: int, message: str, *, remedy: str) -> None:
        super().__init__(message, remedy=remedy)
        self.status = status


def missing(what: str, name: str, remedy: str) -> RefusedError:
    """Return the error that says that something is not there."""
    return RefusedError(404, f"there is no {what} {name}", remedy=remedy)


def problem(status: int, detail: str, remedy: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return an error as an answer."""
    body = Problem(title=HTTPStatus(status).phrase, status=status, detail=detail, remedy=remedy)
    return JSONResponse(body.model_dump(), status_code=status, media_type=PROBLEM, headers=headers)


def install(app: FastAPI) -> None:
    """Have `app` answer every error so."""
    app.add_exception_handler(UserError, _user_error)
    app.add_exception_handler(RequestValidationError, _bad_request)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(OSError, _disk_error)
    app.add_exception_handler(Exception, _defect)


def _user_error(_: Request, error: Any) -> JSONResponse:
    status = error.status if isinstance(error, RefusedError) else _STATUS_BY_EXIT_CODE.get(error.exit_code, 400)
    status = 413 if isinstance(error, TooMuchError) else status
    headers = {"WWW-Authenticate": "Bearer"} if status == HTTPStatus.UNAUTHORIZED else None
    return problem(status, error.message, error.remedy or "see the detail", headers)


def _bad_request(_: Request, error: Any) -> JSONResponse:
    wrong = "; ".join(f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors())
    return problem(400, wrong, "mend what is named")


def _http_error(_: Request, error: Any) -> JSONResponse:
    remedy = _REMEDIES.get(error.status_code, "see /api/v1/openapi.json for what can be asked")
    return problem(error.status_code, str(error.detail), remedy, error.headers)


def _disk_error(_: Request, error: Any) -> JSONResponse:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return problem(507, "the disk is full", "make room where HINDCAST_API_DATA_DIR is")
    if isinstance(error, FileNotFoundError):
        _log.warning("gone while it was read path=%s", error.filename)
        return problem(404, "it was deleted while it was read", "see whether it is still there")
    raise error


def _defect(_: Request, __: Any) -> JSONResponse:
    return problem(500, "the request ended in a defect of hindcast", "see the service's log, and report it")
