"""Every route of every service, asked by everybody there is: the answer is as docs/authorisation.md has it."""

import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import get_args

import httpx
import pytest
import yaml
from starlette.applications import Starlette

from services.cli.generated import matrix
from services.kit.access import TokenRole, new_token
from services.kit.service import StatusSettings
from services.kit.serving import Server

TABLE = (Path(__file__).parents[2] / "docs" / "authorisation.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([^|]+) \| ([A-Z]+) \| `([^`]+)` \| (\w+) \|$", TABLE, re.MULTILINE)
ROLES = get_args(TokenRole)
ENOUGH = {"viewer": {"viewer", "operator"}, "operator": {"operator"}, "sender": {"sender", "operator"}}
PAGE = {"Origin": "https://evil.example"}


@contextmanager
def served(app: Starlette) -> Iterator[str]:
    settings, stop = StatusSettings(), threading.Event()
    with settings.listen() as listening:
        server = Server(app, settings, stop, grace_s=1)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            yield settings.address(listening)
        finally:
            stop.set()
            thread.join()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, str], dict[str, dict[str, str]]]]:
    """Serve all services; give their addresses, and the headers that everybody has to show."""
    folder = tmp_path_factory.mktemp("guarded")
    made = {role: new_token(f"a {role}", role) for role in ROLES}
    lines = [token.model_copy(update={"operators": ("on-call",)}) for _, token in made.values()]
    tokens = folder / "tokens.yaml"
    tokens.write_text(yaml.safe_dump([line.model_dump(mode="json") for line in lines]), encoding="utf-8")
    shown = {role: {"Authorization": f"Bearer {secret}"} for role, (secret, _) in made.items()}
    proxy = shown.pop("proxy")
    operator = shown["operator"]["Authorization"]
    everybody = shown | {
        "viewer by proxy": proxy | {"X-Forwarded-User": "ada", "X-Forwarded-Groups": "staff"},
        "operator by proxy": proxy | {"X-Forwarded-User": "ada", "X-Forwarded-Groups": "staff, on-call"},
        "a proxy that names nobody": proxy | {"X-Forwarded-Groups": "on-call"},
        "nobody": {},
        "who forges a proxy": {"X-Forwarded-User": "ada", "X-Forwarded-Groups": "on-call"},
        "who has half a token": {"Authorization": operator[:-1]},
        "who has no token but a scheme": {"Authorization": "Bearer"},
    }
    with ExitStack() as stack:
        apps = stack.enter_context(matrix.applications(folder, tokens))
        yield {name: stack.enter_context(served(app)) for name, app in apps.items()}, everybody


def test_every_route_is_in_the_table(tmp_path: Path) -> None:
    with matrix.applications(tmp_path) as apps:
        assert {name for name, *_ in ROWS} == set(apps)
        for name, app in apps.items():
            there = {(method, path) for service, method, path, _ in ROWS if service == name}
            assert there == set(matrix.routes(app))
            # What is not in the OpenAPI document is so small that it can be named.
            hidden = {path for route in app.routes if (path := getattr(route, "path", None))} - {p for _, p in there}
            assert hidden <= {"/", "/openapi.json", "/api/v1/openapi.json"}, name


@pytest.mark.parametrize("service", sorted({row[0] for row in ROWS}))
def test_everybody_is_answered_as_the_table_says(
    guarded: tuple[dict[str, str], dict[str, dict[str, str]]], service: str
) -> None:
    addresses, everybody = guarded
    wrong = []
    with httpx.Client(base_url=addresses[service], timeout=300) as client:
        for _, method, path, needed in [row for row in ROWS if row[0] == service]:
            place = re.sub(r"\{[a-z]+\}", "0123456789ab", path)
            body: object = {} if method in ("POST", "PUT", "PATCH") else None
            for who, headers in everybody.items():
                status = client.request(method, place, headers=headers, json=body).status_code
                role = who.split()[0]
                if needed == "nothing":
                    right = status not in (401, 403)
                elif role not in ("viewer", "operator", "sender"):
                    right = status == 401
                else:
                    right = (status != 403 and status != 401) if role in ENOUGH[needed] else status == 403
                if not right:
                    wrong.append((method, path, who, status))
            if method != "GET":
                for who in ("operator", "operator by proxy"):
                    status = client.request(method, place, headers=everybody[who] | PAGE, json=body).status_code
                    wrong += [(method, path, f"{who}, from a page of another site", status)] * (status != 403)
    assert wrong == []


@pytest.mark.parametrize("service", sorted({row[0] for row in ROWS}))
def test_a_path_that_nobody_wrote_down_lets_nobody_in(
    guarded: tuple[dict[str, str], dict[str, dict[str, str]]], service: str
) -> None:
    addresses, everybody = guarded
    with httpx.Client(base_url=addresses[service], timeout=300) as client:
        for path in ("/metrics/", "//metrics", "/METRICS", "/%6detrics", "/healthz/../metrics", "/api/v1//me"):
            answer = client.get(path)
            assert answer.status_code in (401, 404), path
            assert "hindcast_" not in answer.text, path
            assert client.post(path).status_code == 401, path
            assert client.post(path, headers=everybody["viewer"]).status_code == 403, path
