"""What is asked of the API that is not as it should be: pages of other sites, two masters, services that are away."""

from pathlib import Path

import pytest

from services.api.__main__ import serve
from services.api.conftest import Client, client_of, settings_at
from services.kit.errors import UserError
from services.kit.kafka import KafkaSettings


def test_pages_of_other_sites_are_kept_out(api: Client) -> None:
    body = {"recording": "vela-healthy"}
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "http://["},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
    ):
        answer = api.post("/api/v1/runs", json=body, headers=headers)
        assert (answer.status_code, answer.headers["content-type"]) == (403, "application/problem+json")
    own = api.put(
        "/api/v1/detectors/straggler/shadow", json={"shadow": False}, headers={"Origin": "http://127.0.0.1:8490"}
    )
    assert own.status_code == 200
    for host, status in (("rebound.example", 400), ("[", 400), ("", 400), ("LOCALHOST:1", 200), ("[::1]:8490", 200)):
        answer = api.get("/api/v1/me", headers={"Host": host})
        assert answer.status_code == status, host
        assert answer.headers["content-type"] == "application/json" if status == 200 else "application/problem+json"


def test_health_readiness_and_metrics(api: Client) -> None:
    assert api.get("/healthz").json()["status"] == "ok"
    assert api.get("/readyz").json() == {**api.get("/readyz").json(), "status": "ok", "checks": {"store": "ok"}}
    api.get("/api/v1/recordings/nothing")
    text = api.get("/metrics").text
    counted = 'hindcast_api_requests_total{method="GET",route="/api/v1/recordings/{name}",status="404"}'
    assert counted in text
    assert 'hindcast_api_runs{state="queued"} 0.0' in text
    for number in range(3):  # whatever people invent, there are so many series and no more
        api.request(f"INVENTED{number}", "/api/v1/runs")
    text = api.get("/metrics").text
    assert "INVENTED" not in text
    assert 'hindcast_api_requests_total{method="other",' in text


def test_a_data_folder_has_one_master(tmp_path: Path) -> None:
    settings = settings_at(tmp_path)
    with client_of(settings):
        with pytest.raises(UserError, match="another hindcast api uses"), client_of(settings):
            pass
        with pytest.raises(UserError, match="another hindcast api uses"):
            serve(settings, KafkaSettings())


def test_a_store_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    import sqlite3

    settings = settings_at(tmp_path)
    with client_of(settings):
        pass
    with sqlite3.connect(settings.data_dir / "api.sqlite") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(UserError, match="later hindcast"), client_of(settings):
        pass


def test_browsers_may_load_from_here_only(api: Client) -> None:
    headers = api.get("/api/v1/recordings").headers
    assert "default-src 'self'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_without_the_replay_service_the_rest_works(api: Client) -> None:
    answer = api.get("/api/v1/replays")
    assert answer.status_code == 503
    assert "HINDCAST_API_REPLAY_URL" in answer.json()["remedy"]
    assert api.post("/api/v1/replays", json={"recording": "nothing"}).status_code == 404
    assert api.post("/api/v1/replays", json={"recording": "/etc/passwd"}).status_code == 400


def test_a_method_that_a_path_has_not_is_answered_with_those_it_has_beside_the_console(tmp_path: Path) -> None:
    console = tmp_path / "console"
    console.mkdir()
    (console / "index.html").write_text("<title>hindcast</title>")
    with client_of(settings_at(tmp_path, console_dir=console)) as client:
        for method, path, status, allow in (
            ("POST", "/api/v1/me", 405, "GET"),
            ("PUT", "/api/v1/recordings/nothing", 405, "DELETE, GET"),
            ("DELETE", "/api/v1/runs", 405, "GET, POST"),
            ("POST", "/", 405, "GET, HEAD"),
            ("POST", "/runs/1", 405, "GET, HEAD"),
            ("GET", "/api/v1/nothing", 404, None),
            ("POST", "/api/nothing", 404, None),
        ):
            answer = client.request(method, path)
            assert (answer.status_code, answer.headers.get("allow")) == (status, allow), path
            assert answer.headers["content-type"] == "application/problem+json"
        for path in ("/", "/runs/1"):
            assert "<title>hindcast</title>" in client.get(path).text
        assert client.get("/nothing.js").status_code == 404
