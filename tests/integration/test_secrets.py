"""A replay from end to end by services whose secrets are in files: the alert arrives, and no secret is anywhere."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from services.cli.pipeline import Pipeline
from services.kit import topics
from services.kit.access import new_token
from services.kit.wait import until
from services.stack.configs import WEBHOOK_URL_FILE
from services.stack.hindcast_services import services
from services.stack.runner import Stack
from tests import web
from tests.integration.secured import PIPELINE_PASSWORD, settings
from tests.small import Brake, small_recording

FILES = ("KAFKA_SASL_PASSWORD", "SINK_BEARER", "NOTIFY_BEARER_TOKEN", "API_REPLAY_TOKEN", "REPLAY_TOKEN")
LISTENING = ("STATUS", "REPLAY", "RECEIVER")


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Give every service its secrets in files; return them by setting, and the tokens by role."""
    made = {role: new_token(f"the {role}", role) for role in ("viewer", "operator", "sender")}
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text("".join(f"- {token.model_dump_json()}\n" for _, token in made.values()))
    secrets = {role: secret for role, (secret, _) in made.items()}
    given = dict.fromkeys(("API_REPLAY_TOKEN", "REPLAY_TOKEN"), secrets["operator"])
    given["KAFKA_SASL_PASSWORD"] = PIPELINE_PASSWORD
    for name in FILES:
        secrets[name] = given.get(name) or f"planted-{name.lower().replace('_', '-')}"
        (tmp_path / name).write_text(secrets[name])
        if name != "KAFKA_SASL_PASSWORD":  # the tests' own clients are of another user
            monkeypatch.setenv(f"HINDCAST_{name}_FILE", str(tmp_path / name))
    for name in LISTENING:
        monkeypatch.setenv(f"HINDCAST_{name}_TOKENS_FILE", str(tokens))
    return secrets


@pytest.fixture
def guarded(stack: Stack, planted: dict[str, str], secured: dict[str, Any], tmp_path: Path) -> Iterator[Stack]:
    """Run all services with the planted secrets, and have Alertmanager show a sender's token to the receiver."""
    over = {
        "HINDCAST_KAFKA_BOOTSTRAP": secured["bootstrap"],
        "HINDCAST_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "HINDCAST_KAFKA_SASL_MECHANISM": "PLAIN",
        "HINDCAST_KAFKA_SASL_USERNAME": "pipeline",
        "HINDCAST_KAFKA_SASL_PASSWORD_FILE": str(tmp_path / "KAFKA_SASL_PASSWORD"),
        "HINDCAST_KAFKA_SSL_CAFILE": str(secured["ssl_cafile"]),
    }
    # The topics are made by who may: these services may read and write them.
    described = [spec for spec in services(stack.service_context()) if spec.name != "topics"]
    own = [replace(spec, env={**spec.env, **over}) for spec in described]
    for spec in own:
        stack.add_process(spec)
    webhook = stack.state_dir / "config" / WEBHOOK_URL_FILE
    address = urlsplit(webhook.read_text())
    webhook.write_text(address._replace(netloc=f"alerting:{planted['sender']}@{address.netloc}").geturl())
    yield stack
    for spec in reversed(own):
        stack.remove(spec.name)


def test_over_sasl_ssl_and_acls_a_replay_ends_in_a_webhook_and_planted_secrets_are_nowhere(
    guarded: Stack, planted: dict[str, str], secured: dict[str, Any], tmp_path: Path
) -> None:
    recording = small_recording(tmp_path, "planted", nodes=3, minutes=6, brakes=[Brake("v002", 100, 200)])
    at = guarded.addresses.services
    # Nobody gets in without a token, and the pages that others get have none either.
    for name in ("replay", "receiver", "sink-prometheus", "detect", "notify"):
        assert web.get(f"{at[name]}/metrics").status_code == 401, name
    assert web.post(f"{at['receiver']}/webhook", json={}).status_code == 401
    body = {"recording": str(recording), "name": "planted", "speed": "max"}
    operator = {"Authorization": f"Bearer {planted['operator']}"}
    assert web.post(f"{at['replay']}/api/v1/replays", json=body).status_code == 401
    assert web.post(f"{at['replay']}/api/v1/replays", json=body, headers=operator).status_code == 201

    def heard() -> bool:
        answer = web.get(f"{at['receiver']}/received", params={"replay": "planted"}, headers=operator)
        return bool(answer.raise_for_status().json())

    until(heard, what="the alert at the receiver", interval_s=0.2)

    seen: dict[str, str] = {}
    viewer = {"Authorization": f"Bearer {planted['viewer']}"}
    for name in ("replay", "receiver", "sink-prometheus", "detect", "notify"):
        seen[f"metrics of {name}"] = web.get(f"{at[name]}/metrics", headers=viewer).raise_for_status().text
    for process in guarded.processes:
        if process.pid is not None:
            for what in ("cmdline", "environ"):
                text = Path(f"/proc/{process.pid}/{what}").read_bytes().decode(errors="replace")
                seen[f"{what} of {process.name}"] = text
    for log in guarded.logs.iterdir():
        seen[f"log {log.name}"] = log.read_text(errors="replace")
    kept = [path for path in (guarded.state_dir / "services").rglob("*") if path.is_file()]
    seen |= {str(path): path.read_bytes().decode(errors="replace") for path in kept}
    seen |= {f"topic {topic}": text for topic, text in records(secured).items()}
    assert len(seen) > 40
    found = [(place, name) for place, text in seen.items() for name, secret in planted.items() if secret in text]
    assert found == []


def records(secured: dict[str, Any]) -> dict[str, str]:
    """Return what lies in the topics of what services say."""
    pipeline = Pipeline(settings(secured, "PLAIN", "admin", "admin-secret"), {})
    return {
        name: "".join(f"{one.headers}{one.value!r}" for one in pipeline.records(name))
        for name in (topics.DEAD_LETTER, topics.FINDINGS, "replays")
    }
