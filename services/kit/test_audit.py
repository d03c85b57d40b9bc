"""The audit trail has every change and every refusal, and no secret; logs are JSON where asked."""

import asyncio
import json
import logging
from pathlib import Path

import httpx
import pytest
import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from services.kit.access import token_of
from services.kit.logs import JsonLines
from services.kit.middleware import Middleware
from services.kit.service import StatusSettings

_SECRETS = {"operator": "an-operators-secret", "viewer": "a-viewers-secret", "sender": "a-senders-secret"}


async def _ok(_: Request) -> Response:
    return PlainTextResponse("ok")


def asked(folder: Path, *requests: tuple[str, str, str], access_log: bool = False) -> list[int]:
    """Send requests (method, path, role or "") to a service with all roles; return the statuses."""
    tokens = folder / "tokens.yaml"
    tokens.write_text(
        yaml.safe_dump([token_of(secret, f"a {role}", role).model_dump() for role, secret in _SECRETS.items()])  # type: ignore[arg-type] # a role
    )
    settings = StatusSettings(tokens_file=tokens, audit_file=folder / "audit.jsonl", access_log=access_log)
    app = Starlette(routes=[Route("/{path:path}", _ok, methods=["GET", "POST", "DELETE"])])
    app.add_middleware(Middleware, settings=settings, senders=frozenset({"/write"}))

    async def ask() -> list[int]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
            return [
                (await client.request(method, path, headers=_headers(role))).status_code
                for method, path, role in requests
            ]

    return asyncio.run(ask())


def _headers(role: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {_SECRETS.get(role, role)}"} if role else {}


def test_changes_and_refusals_are_in_the_trail_with_who_and_nothing_else_is(tmp_path: Path) -> None:
    statuses = asked(
        tmp_path,
        ("GET", "/replays", "viewer"),
        ("POST", "/replays", "operator"),
        ("DELETE", "/replays/a%0Ab", "viewer"),
        ("GET", "/replays", ""),
        ("GET", "/replays", "a-wrong-secret"),
        ("POST", "/write", "sender"),
        ("POST", "/write", "viewer"),
    )
    assert statuses == [200, 200, 403, 401, 401, 200, 403]
    text = (tmp_path / "audit.jsonl").read_text()
    entries = [json.loads(line) for line in text.splitlines()]
    assert [(entry["who"], entry["method"], entry["path"], entry["status"]) for entry in entries] == [
        ("a operator", "POST", "/replays", 200),
        ("a viewer", "DELETE", "/replays/a%0Ab", 403),
        (None, "GET", "/replays", 401),
        (None, "GET", "/replays", 401),
        ("a viewer", "POST", "/write", 403),
    ]
    assert all(entry["from"] == "127.0.0.1" and entry["at"].endswith("Z") for entry in entries)
    assert "secret" not in text
    assert (tmp_path / "audit.jsonl").stat().st_mode & 0o777 == 0o600


def test_the_trail_goes_on_in_a_new_file_when_it_is_rotated(tmp_path: Path) -> None:
    asked(tmp_path, ("POST", "/one", "operator"))
    (tmp_path / "audit.jsonl").rename(tmp_path / "audit.1")
    asked(tmp_path, ("POST", "/two", "operator"))
    assert "/one" in (tmp_path / "audit.1").read_text()
    assert "/two" in (tmp_path / "audit.jsonl").read_text()


def test_a_trail_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    settings = StatusSettings(audit_file=tmp_path / "none" / "audit.jsonl")
    with pytest.raises(ValueError, match=r"AUDIT_FILE .*audit\.jsonl cannot be written"):
        Middleware(Starlette(), settings)


def test_each_answer_is_logged_where_asked_and_a_path_cannot_forge_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hindcast.access")
    asked(tmp_path, ("GET", "/a%0Alevel=ERROR", "viewer"), access_log=True)
    (record,) = [record for record in caplog.records if record.name == "hindcast.access"]
    assert "path=/a%0Alevel%3DERROR status=404" in record.getMessage()
    line = json.loads(JsonLines("api").format(record))
    assert (line["service"], line["level"], line["method"], line["status"]) == ("api", "INFO", "GET", 404)


def test_json_lines_name_what_the_message_gives(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = logging.getLogger("x")
    log.info("started replay=%s generation=%d speed=%g share=50%%", "a\nb", 3, 2.5)
    log.info("two %s of %s", 1, 2)
    try:
        int("no")
    except ValueError:
        log.exception("failed at=%s", "node")
    lines = [json.loads(JsonLines("replay").format(record)) for record in caplog.records]
    assert lines[0] | {"at": ""} == {
        "at": "", "level": "INFO", "service": "replay",
        "message": "started replay=a\nb generation=3 speed=2.5 share=50%",
        "replay": "a\nb", "generation": 3, "speed": 2.5,
    }  # fmt: skip
    assert set(lines[1]) == {"at", "level", "service", "message"}
    assert lines[2]["at"].endswith("Z")
    assert "ValueError: invalid literal" in lines[2]["traceback"]
