"""What the service says when something around it is not as it should be: a port in use, wrong settings, wrong names."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from services.kit.errors import UserError
from services.kit.kafka import KafkaSettings
from services.kit.replays import REMOVED_MARK
from services.kit.settings import load
from services.replay.api import build
from services.replay.manager import Manager, mark_removed
from services.replay.settings import ReplaySettings

REPO = Path(__file__).parents[2]


class Client:
    """Asks the application in this process."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    def request(self, method: str, path: str, **given: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                return await client.request(method, path, **given)

        return asyncio.run(ask())


@pytest.fixture
def client(tmp_path: Path) -> Client:
    settings = ReplaySettings(state_dir=tmp_path / "state")
    return Client(build(Manager(settings, KafkaSettings()), settings))


def test_what_is_not_there_is_a_problem_too(client: Client) -> None:
    for method, path in (("GET", ""), ("POST", "/pause"), ("DELETE", "")):
        answer = client.request(method, f"/api/v1/replays/nobody{path}")
        assert (answer.status_code, answer.json()["detail"]) == (400, "there is no replay named nobody")


def test_a_page_under_another_name_is_not_served(client: Client) -> None:
    assert client.request("GET", "/healthz").status_code == 200
    assert client.request("GET", "/healthz", headers={"host": "rebound.example"}).status_code == 400


def run_service(tmp_path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    settings = {"HINDCAST_REPLAY_STATE_DIR": str(tmp_path)} | env
    command = [sys.executable, "-m", "services.replay"]
    return subprocess.run(
        command, env=os.environ | settings, cwd=REPO, capture_output=True, text=True, timeout=300, check=False
    )


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run_service(tmp_path, HINDCAST_REPLAY_PORT=str(port))
    assert ended.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in ended.stderr
    assert "HINDCAST_REPLAY_PORT" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_beyond_loopback_the_folders_to_read_must_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HINDCAST_REPLAY_HOST", "10.0.0.1")
    (tmp_path / "tokens.yaml").write_text(f"- {{name: a, role: viewer, sha256: {'a' * 64}}}")
    with pytest.raises(UserError, match=r"(?s)REPLAY_TOKENS_FILE.*REPLAY_RECORDINGS"):
        load(ReplaySettings)
    monkeypatch.setenv("HINDCAST_REPLAY_TOKENS_FILE", str(tmp_path / "tokens.yaml"))
    with pytest.raises(UserError, match="HINDCAST_REPLAY_RECORDINGS") as caught:
        load(ReplaySettings)
    assert caught.value.exit_code == 2
    monkeypatch.setenv("HINDCAST_REPLAY_RECORDINGS", '["/recordings"]')
    assert load(ReplaySettings).recordings == (Path("/recordings"),)


def test_only_a_tenants_own_folder_is_marked(tmp_path: Path) -> None:
    receive, elsewhere = tmp_path / "receive", tmp_path / "elsewhere"
    (receive / "mine" / "wal").mkdir(parents=True)
    elsewhere.mkdir()
    (receive / "linked").symlink_to(elsewhere)
    mark_removed(receive, "mine")
    mark_removed(receive, "never-there")
    for tenant in ("linked", "..", "../elsewhere", "."):
        with pytest.raises(UserError, match="nothing was marked"):
            mark_removed(receive, tenant)
    assert [path.parent.name for path in tmp_path.glob(f"**/{REMOVED_MARK}")] == ["mine"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "receive"]
