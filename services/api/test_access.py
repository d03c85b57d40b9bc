"""Who may ask what: every route there is, for everybody there is."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from services.api.__main__ import serve
from services.api.access import new_token, read_tokens
from services.api.app import build
from services.api.conftest import Client, client_of, settings_at
from services.api.settings import ApiSettings
from services.kit.errors import UserError
from services.kit.kafka import KafkaSettings

OPEN = {"/healthz", "/readyz"}
_PLACES = {"name": "vela-healthy", "run": "0123456789ab", "order": "pause"}


def routes() -> list[tuple[str, str]]:
    paths = build(ApiSettings()).openapi()["paths"]
    return [(method.upper(), path) for path, methods in paths.items() for method in methods]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, dict[str, str]]]:
    folder = tmp_path_factory.mktemp("guarded")
    made = {role: new_token(f"a {role}", role) for role in ("viewer", "operator")}
    file = folder / "tokens.yaml"
    file.write_text(yaml.safe_dump([token.model_dump() for _, token in made.values()]), encoding="utf-8")
    with client_of(settings_at(folder, tokens_file=file)) as client:
        yield client, {role: secret for role, (secret, _) in made.items()}


@pytest.mark.parametrize(("method", "path"), routes(), ids=str)
def test_every_route_asks_who_it_is(guarded: tuple[Client, dict[str, str]], method: str, path: str) -> None:
    client, secrets = guarded
    place = path
    for name in ("name", "run", "order", "finding", "incident", "label", "comparison"):
        place = place.replace(f"{{{name}}}", _PLACES.get(name, "0123456789ab"))

    def status(authorization: str | None) -> int:
        headers = {} if authorization is None else {"Authorization": authorization}
        return client.request(
            method, place, headers=headers, json={} if method in ("POST", "PUT", "PATCH") else None
        ).status_code

    if path in OPEN:
        assert status(None) == 200
        return
    for nobody in (None, "Bearer", "Bearer wrong", f"Basic {secrets['operator']}", f"Bearer {secrets['operator']}x"):
        assert status(nobody) == 401, nobody
    as_viewer = status(f"Bearer {secrets['viewer']}")
    as_operator = status(f"Bearer {secrets['operator']}")
    assert as_viewer == 403 if method != "GET" else as_viewer not in (401, 403)
    # Read-only recordings are refused to operators too.
    assert as_operator not in (401, 403) or (method, path) == ("DELETE", "/api/v1/recordings/{name}")
    assert as_operator != 500


def test_who_asks_is_told(guarded: tuple[Client, dict[str, str]]) -> None:
    client, secrets = guarded
    told = client.get("/api/v1/me", headers={"Authorization": f"Bearer {secrets['viewer']}"}).json()
    assert told == {"name": "a viewer", "role": "viewer", "authentication": True}
    refused = client.get("/api/v1/me")
    assert (refused.headers["www-authenticate"], refused.headers["content-type"]) == (
        "Bearer",
        "application/problem+json",
    )


def test_nobody_is_let_in_unasked_from_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="can be reached from elsewhere"):
        build(settings_at(tmp_path, host="0.0.0.0"))  # noqa: S104 - that is what is refused
    assert read_tokens(settings_at(tmp_path, host="::1")) is None


@pytest.mark.parametrize(
    "text", ["", "[]", "nonsense", "[{name: a, role: king, sha256: '00'}]", "a: [", "- {name: a, role: viewer}"]
)
def test_a_wrong_file_of_tokens_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tokens.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"tokens\.yaml"):
        read_tokens(settings_at(tmp_path, tokens_file=file))


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


def test_browsers_are_told_to_load_from_here_only(api: Client) -> None:
    headers = api.get("/api/v1/recordings").headers
    assert "default-src 'self'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_without_the_replay_service_the_rest_works(api: Client) -> None:
    answer = api.get("/api/v1/replays")
    assert answer.status_code == 503
    assert "HINDCAST_API_REPLAY_URL" in answer.json()["remedy"]
    assert api.post("/api/v1/replays", json={"recording": "nothing"}).status_code == 404
    assert api.post("/api/v1/replays", json={"recording": "/etc/passwd"}).status_code == 400
