"""docker-compose.yml, brought up for real: a recording goes in by the command line, a webhook comes out."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from services.kit.access import new_token
from services.kit.wait import until
from tests.compose import images
from tests.compose.engine import ROOT, Docker, engine
from tests.small import Brake, small_recording

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1800)]
# A project of its own: a hindcast that somebody runs beside it keeps its volumes.
COMPOSE = ("compose", "-p", "hindcast-compose-test", "-f", "docker-compose.yml")
NODE = "v003"


@pytest.fixture(scope="module")
def docker() -> Iterator[Docker]:
    with engine() as docker:
        yield docker


@pytest.fixture(scope="module")
def recordings() -> Iterator[Path]:
    """A folder that the containers' user may read."""
    with tempfile.TemporaryDirectory(prefix="hindcast-recordings-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="module")
def up(docker: Docker, recordings: Path) -> Iterator[Docker]:
    compose: tuple[str, ...] = COMPOSE
    if docker.ours:  # on the machine's own engine the official images are pulled, and no name of theirs is taken
        compose = (*COMPOSE, "-f", str(images.make(docker)))
    secret, token = new_token("test", "operator")
    tokens = recordings / "tokens.yaml"
    tokens.write_text(yaml.safe_dump([token.model_dump()]), encoding="utf-8")
    docker.env |= {"HINDCAST_RECORDINGS": str(recordings), "HINDCAST_TOKENS_FILE": str(tokens), "TOKEN": secret}
    compose = (*compose, "--profile", "console")
    docker(*compose, "down", "--volumes", "--remove-orphans")
    try:
        docker(*compose, "up", "--detach", "--wait", "--wait-timeout", "240")
        yield docker
    finally:
        docker(*compose, "down", "--volumes", "--timeout", "20")


def test_the_file_is_valid_with_and_without_grafana(docker: Docker) -> None:
    docker("compose", "config", "-q")
    docker("compose", "--profile", "grafana", "config", "-q")
    services = docker("compose", "--profile", "grafana", "config", "--services").split()
    assert "grafana" in services
    sys.stderr.write("grafana: not run, no image of it can be had here; its part of the file is checked only\n")


def test_the_monitor_sees_every_server_and_service(up: Docker) -> None:
    config = yaml.safe_load((ROOT / "docker/config/monitor.yml").read_text(encoding="utf-8"))
    named = {g["labels"]["service"] for scrape in config["scrape_configs"] for g in scrape["static_configs"]}

    def seen() -> bool:
        answer = httpx.get("http://127.0.0.1:9095/api/v1/query", params={"query": "up == 1"}).json()
        return {one["metric"]["service"] for one in answer["data"]["result"]} == named

    until(seen, what=f"{sorted(named)} to be scraped", interval_s=1)


_NEIGHBOUR = """
import json, sys, urllib.error, urllib.request
status = {}
for method, url in json.loads(sys.argv[1]):
    request = urllib.request.Request(url, method=method, data=b"{}" if method == "POST" else None)
    try:
        status[f"{method} {url}"] = urllib.request.urlopen(request, timeout=300).status
    except urllib.error.HTTPError as error:
        status[f"{method} {url}"] = error.code
print(json.dumps(status))
"""


def test_a_neighbour_without_a_token_can_do_nothing(up: Docker) -> None:
    replays, api = "http://replay:8480/api/v1/replays", "http://api:8490/api/v1"
    changes = [replays, f"{replays}/composed/stop", "http://receiver:9099/webhook", f"{api}/runs"]
    status = [f"http://{name}:8080" for name in ("sink-prometheus", "sink-receive", "detect", "notify")]
    looks = [replays, "http://receiver:9099/received", f"{api}/recordings", "http://replay:8480/metrics"]
    looks += [f"{place}/metrics" for place in status]
    asked = [*(("POST", url) for url in changes), *(("GET", url) for url in looks)]
    run = (*COMPOSE, "run", "--rm", "--no-deps", "--entrypoint", "python3", "topics", "-c", _NEIGHBOUR)
    status = json.loads(up(*run, json.dumps(asked)))
    assert status == {f"{method} {url}": 401 for method, url in asked}


def test_a_replay_by_the_command_line_ends_in_a_webhook_that_names_the_node(up: Docker, recordings: Path) -> None:
    recording = small_recording(recordings, "brake", nodes=6, minutes=12, brakes=[Brake(NODE, 300, 480)])
    hindcast = [sys.executable, "-m", "services.cli", "replay", "start", str(recording)]
    steering = up(*COMPOSE, "run", "--rm", "--entrypoint", "cat", "tokens", "/steering/token").strip()
    done = subprocess.run(
        [*hindcast, "--speed", "60", "--name", "composed", "--wait"],
        cwd=ROOT, env=os.environ | {"HINDCAST_REPLAY_TOKEN": steering},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    known = {"Authorization": f"Bearer {steering}"}

    def heard() -> list[tuple[str, str]] | None:
        answer = httpx.get("http://127.0.0.1:9099/received", params={"replay": "composed"}, headers=known).json()
        alerts = [alert for entry in answer for alert in entry["body"]["alerts"]]
        received = [(alert["status"], alert["labels"]["node"]) for alert in alerts]
        return received if len(received) >= 2 else None

    received = until(heard, what="a firing and a resolved webhook", interval_s=0.5)
    assert received == [("firing", NODE), ("resolved", NODE)]

    def landed() -> bool:
        query = 'count(count_over_time(DCGM_FI_DEV_POWER_USAGE{replay="composed"}[1h]))'
        answer = httpx.get("http://127.0.0.1:10902/api/v1/query", params={"query": query}).json()
        result = answer["data"]["result"]
        return bool(result) and float(result[0]["value"][1]) == 6 * 8

    until(landed, what="the series of 48 GPUs, by Thanos Query", interval_s=0.5)

    browser = httpx.Client(base_url="http://127.0.0.1:8490", headers={"Authorization": f"Bearer {up.env['TOKEN']}"})
    with browser:
        assert "<title>hindcast</title>" in browser.get("/").text
        assert [one["name"] for one in browser.get("/api/v1/recordings").json()] == ["brake"]
        (replay,) = browser.get("/api/v1/replays").json()
        assert (replay["name"], replay["state"]) == ("composed", "ended")

        def followed() -> bool:
            found = browser.get(f"/api/v1/runs/{replay['run']}/findings").json()["items"]
            return [one["entity"]["node"] for one in found] == [NODE]

        until(followed, what="the finding, by the API", interval_s=0.5)
