"""A real broker with SASL_SSL and ACLs: who it knows gets as far as its rights, everybody else learns why not."""

import base64
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import TopicAuthorizationFailedError

from services.kit.kafka import admin, consumer, producer
from tests.certificates import authority
from tests.integration.secured import settings


def unsecured_token(user: str) -> str:
    """A token as Kafka takes it where it checks no signature."""
    now = int(time.time())
    parts = ({"alg": "none"}, {"sub": user, "iat": now, "exp": now + 3600})
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."


def test_it_is_reached_by_every_mechanism_and_rights_hold(
    secured: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = settings(secured, "PLAIN", "admin", "admin-secret")
    by_scram = settings(secured, "SCRAM-SHA-512", "scram", "scram-secret")
    token = tmp_path / "token"
    token.write_text(unsecured_token("token"))
    monkeypatch.setenv("HINDCAST_KAFKA_SASL_TOKEN_FILE", str(token))
    by_token = settings(secured, "OAUTHBEARER")
    monkeypatch.delenv("HINDCAST_KAFKA_SASL_TOKEN_FILE")
    for one in (known, by_scram, by_token):
        with admin(one) as client:
            assert "findings" in client.list_topics()
        sender = producer(one)
        sender.send("findings", key=b"a", value=b"b").get(timeout=300)
        sender.close()
    # Known, and without rights: reads and writes nothing.
    reader = settings(secured, "PLAIN", "reader", "reader-secret")
    sender = producer(reader, max_block_ms=10_000)
    with pytest.raises(TopicAuthorizationFailedError):
        sender.send("findings", key=b"a", value=b"b").get(timeout=300)
    sender.close()
    looking = consumer(reader, group=None)
    assert "findings" not in looking.topics()
    looking.close()


def test_who_is_not_known_or_believes_nobody_learns_why(secured: dict[str, Any], tmp_path: Path) -> None:
    other = authority(tmp_path).certificate
    known = {"HINDCAST_KAFKA_SASL_USERNAME": "admin", "HINDCAST_KAFKA_SASL_PASSWORD": "admin-secret"}
    over = {
        "HINDCAST_KAFKA_BOOTSTRAP": secured["bootstrap"],
        "HINDCAST_KAFKA_BOOTSTRAP_TIMEOUT_S": "2",
        "HINDCAST_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "HINDCAST_KAFKA_SASL_MECHANISM": "PLAIN",
        "HINDCAST_KAFKA_SSL_CAFILE": str(secured["ssl_cafile"]),
    }
    for changed, code, words in (
        (known, 0, "all topics are there"),
        (known | {"HINDCAST_KAFKA_SASL_PASSWORD": "planted"}, 3, "correct HINDCAST_KAFKA_SASL_USERNAME"),
        (known | {"HINDCAST_KAFKA_SSL_CAFILE": str(other)}, 3, "HINDCAST_KAFKA_SSL_CAFILE"),
        ({"HINDCAST_KAFKA_SASL_USERNAME": "admin"}, 2, "HINDCAST_KAFKA_SASL_PASSWORD: Value error, PLAIN needs it"),
        ({"HINDCAST_KAFKA_SASL_MECHANISM": "OAUTHBEARER"}, 2, "HINDCAST_KAFKA_SASL_TOKEN"),
    ):
        command = [sys.executable, "-m", "services.cli", "topics", "create"]
        env = os.environ | over | changed
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=300)
        output = done.stdout + done.stderr
        assert done.returncode == code, output
        assert words in output
        assert "planted" not in output
        assert "Traceback" not in output
