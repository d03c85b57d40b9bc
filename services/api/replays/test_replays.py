"""Replays by way of the real replay service, which has no Kafka here: what it says comes through as it is meant."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.api.conftest import Client, client_of, settings_at
from services.kit.kafka import KafkaSettings
from services.replay.api import build
from services.replay.manager import Manager
from services.replay.settings import ReplaySettings
from tests.web import served


@pytest.fixture
def steered(tmp_path: Path) -> Iterator[Client]:
    settings = ReplaySettings(state_dir=tmp_path / "state", recordings=(tmp_path / "elsewhere",))
    app = build(Manager(settings, KafkaSettings()), settings)
    with served(app) as url, client_of(settings_at(tmp_path, replay_url=url)) as client:
        yield client


def test_what_the_replay_service_says_comes_through(steered: Client) -> None:
    answer = steered.get("/api/v1/replays")
    assert (answer.status_code, answer.json()) == (200, []), answer.text
    for method, path, body in (
        ("GET", "nobody", None),
        ("DELETE", "nobody", None),
        ("POST", "nobody/pause", None),
        ("POST", "nobody/resume", None),
        ("POST", "nobody/stop", None),
        ("POST", "nobody/seek", {"to": "+00:01:00"}),
        ("POST", "nobody/speed", {"speed": "max"}),
    ):
        answer = steered.request(method, f"/api/v1/replays/{path}", json=body)
        assert (answer.status_code, answer.json()["detail"]) == (404, "there is no replay named nobody"), path
    # The path that it is given is that of the library's recording, which this replay service may not read.
    refused = steered.post("/api/v1/replays", json={"recording": "vela-healthy", "speed": 60})
    assert refused.status_code == 400
    assert "vela-healthy" in refused.json()["detail"]


def test_wrong_orders_do_not_get_there(steered: Client) -> None:
    wrong = {"recording": "vela-healthy", "detectors": {"straggler": {"no_such": 1}}}
    refused = steered.post("/api/v1/replays", json=wrong)
    assert (refused.status_code, "straggler.no_such" in refused.json()["detail"]) == (400, True)
    for path, body in (
        ("Nobody/pause", None),
        ("nobody/rewind", None),
        ("nobody/speed", {"speed": 0}),
        ("nobody/seek", {}),
    ):
        answer = steered.post(f"/api/v1/replays/{path}", json=body)
        assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json"), path


def test_what_is_no_replay_service_is_reported_as_none(tmp_path: Path) -> None:
    answered = [b""]

    async def another(scope: Any, _: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200})
            await send({"type": "http.response.body", "body": answered[0]})

    with served(another) as url, client_of(settings_at(tmp_path, replay_url=url)) as client:
        for path, answered[0] in (
            ("", b"<html>"),
            ("", b"[{}]"),
            ("", b"7"),
            ("", b""),
            ("/one", b"{}"),
            ("/one", b"[]"),
        ):
            answer = client.get(f"/api/v1/replays{path}")
            assert (answer.status_code, answer.headers["content-type"]) == (502, "application/problem+json"), answered
            assert "HINDCAST_API_REPLAY_URL" in answer.json()["remedy"]
