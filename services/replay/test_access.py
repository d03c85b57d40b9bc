"""`python -m services.replay` as an attacker finds it: a page of another site, somebody without a token."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from services.kit.access import token_of
from services.kit.wait import until
from tests import web

REPO = Path(__file__).parents[2]
OPERATOR, VIEWER = "an-operator-of-this-test", "a-viewer-of-this-test"


def environment(folder: Path, **env: str) -> dict[str, str]:
    return os.environ | {"HINDCAST_REPLAY_STATE_DIR": str(folder), "HINDCAST_REPLAY_PORT": "0"} | env


@contextmanager
def service(folder: Path, **env: str) -> Iterator[str]:
    """Run the service; give its URL on loopback."""
    log = folder / "log"
    command = [sys.executable, "-m", "services.replay"]
    with log.open("w") as file:
        process = subprocess.Popen(command, env=environment(folder, **env), cwd=REPO, stderr=file)

    def address() -> str | None:
        found = re.search(r"address=http://\S+:(\d+)", log.read_text())
        return f"http://127.0.0.1:{found[1]}" if found else None

    try:
        url = until(address, what="the replay service")
        until(lambda: web.healthy(url), what="its first answer")
        yield url
    finally:
        process.terminate()
        assert process.wait(60) == 0
    assert OPERATOR not in log.read_text()


def test_on_loopback_a_page_of_another_site_steers_nothing(tmp_path: Path) -> None:
    with service(tmp_path) as url, httpx.Client(base_url=url) as client:
        stop = "/api/v1/replays/nobody/stop"
        assert client.post(stop).status_code == 400  # let in: there is no such replay
        for page in (
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Origin": "http://127.0.0.1:3000"},  # another port is another site
            {"Sec-Fetch-Site": "cross-site"},
        ):
            assert client.post(stop, headers=page).status_code == 403, page
            assert client.delete("/api/v1/replays/nobody", headers=page).status_code == 403, page
        assert client.get("/api/v1/replays", headers={"Host": "rebound.example"}).status_code == 400
        assert client.get("/api/v1/replays").headers.get("access-control-allow-origin") is None
        answer = client.put("/api/v1/replays/nobody")
        assert (answer.status_code, answer.headers["allow"]) == (405, "DELETE, GET")


def test_beyond_loopback_it_starts_with_tokens_only_and_lets_in_by_role(tmp_path: Path) -> None:
    everywhere = {"HINDCAST_REPLAY_HOST": "0.0.0.0", "HINDCAST_REPLAY_RECORDINGS": f'["{tmp_path}"]'}  # noqa: S104
    ended = subprocess.run(
        [sys.executable, "-m", "services.replay"],
        env=environment(tmp_path, **everywhere, HINDCAST_KAFKA_SECURITY_PROTOCOL="TELEGRAPH"),
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    # All that is wrong, at once, before anything is connected.
    assert "HINDCAST_REPLAY_TOKENS_FILE" in ended.stderr
    assert "HINDCAST_KAFKA_SECURITY_PROTOCOL" in ended.stderr
    tokens = tmp_path / "tokens.yaml"
    known = [token_of(OPERATOR, "on-call", "operator"), token_of(VIEWER, "grafana", "viewer")]
    tokens.write_text("".join(f"- {token.model_dump_json()}\n" for token in known))
    with service(tmp_path, **everywhere, HINDCAST_REPLAY_TOKENS_FILE=str(tokens)) as url, httpx.Client() as client:
        listing = f"{url}/api/v1/replays"
        assert client.get(listing).status_code == 401
        assert client.get(f"{url}/metrics").status_code == 401
        assert client.get(listing, headers={"Authorization": f"Bearer {VIEWER}"}).json() == []
        for token, status in ((VIEWER, 403), (OPERATOR, 400)):
            shown = {"Authorization": f"Bearer {token}"}
            assert client.post(f"{listing}/nobody/stop", headers=shown).status_code == status
        # By any name it is asked: whoever has a token is no page that lures a browser.
        shown = {"Authorization": f"Bearer {OPERATOR}", "Host": "replay.example"}
        assert client.get(listing, headers=shown).status_code == 200
        command = [sys.executable, "-m", "services.cli", "replay", "list"]
        secret = tmp_path / "secret"
        secret.write_text(OPERATOR)
        for given, code, words in (
            ({}, 2, "HINDCAST_REPLAY_TOKEN_FILE"),
            ({"HINDCAST_REPLAY_TOKEN_FILE": str(secret)}, 0, "no replays"),
        ):
            env = os.environ | {"HINDCAST_REPLAY_URL": url} | given
            done = subprocess.run(command, env=env, cwd=REPO, capture_output=True, text=True, check=False)
            assert done.returncode == code, done.stderr
            assert words in done.stdout + done.stderr


@pytest.mark.parametrize("module", ["services.notify.receiver", "services.sink", "services.notify", "services.detect"])
def test_no_service_listens_beyond_loopback_without_tokens(tmp_path: Path, module: str) -> None:
    name = "RECEIVER" if module.endswith("receiver") else "STATUS"
    ended = subprocess.run(
        [sys.executable, "-m", module],
        env=os.environ | {f"HINDCAST_{name}_HOST": "0.0.0.0", "HINDCAST_RECEIVER_STATE_DIR": str(tmp_path)},  # noqa: S104
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert f"HINDCAST_{name}_TOKENS_FILE" in ended.stderr
    assert "Traceback" not in ended.stderr
