"""A real broker with SASL_SSL and ACLs: who it knows gets as far as its rights, everybody else is told why not."""

import base64
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import TopicAuthorizationFailedError

from services.kit import topics
from services.kit.kafka import KafkaSettings, admin, consumer, producer
from services.stack import configs
from services.stack.runner import Stack
from tests.certificates import Pair, authority, signed

pytestmark = pytest.mark.integration
_LOGIN = "org.apache.kafka.common.security"


@dataclass(frozen=True)
class _Listens:
    """Healthy when its port is open: who asks more of it must be known to it."""

    port: int

    def check(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=2).close()
        except OSError:
            return False
        return True


@pytest.fixture(scope="module")
def secured(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Start a broker beside the stack's; return what all settings for it have."""
    plain = stack.process("kafka").spec
    if not Path(plain.argv[0]).is_file() and not plain.argv[0].endswith("java"):
        pytest.skip("the servers run in containers: there is no broker to start with a configuration of its own")
    folder = tmp_path_factory.mktemp("secured")
    ours = authority(folder)
    server = signed(folder, ours, "server")
    port, controller = (stack.service_context().ports.take() for _ in range(2))
    properties = folder / "server.properties"
    properties.write_text(_properties(folder, port, controller, ours, server))
    changed = {str(stack.state_dir / "config" / "server.properties"): str(properties)}
    assert plain.prepare is not None
    prepare = [changed.get(word, word) for word in plain.prepare]
    prepare += ["--add-scram", "SCRAM-SHA-512=[name=scram,password=scram-secret]"]
    spec = replace(
        plain,
        name="kafka-secured",
        argv=tuple(changed.get(word, word) for word in plain.argv),
        prepare=tuple(prepare),
        prepared_by=folder / "data" / "meta.properties",
        health=_Listens(port),
        ports=(port, controller),
    )
    (folder / "data").mkdir()
    stack.add_process(spec)
    given = {"bootstrap": f"127.0.0.1:{port}", "security_protocol": "SASL_SSL", "ssl_cafile": ours.certificate}
    yield given
    stack.remove("kafka-secured")


def _properties(folder: Path, port: int, controller: int, ours: Pair, server: Pair) -> str:
    text = configs.kafka(port=port, controller_port=controller, data=folder / "data")
    text = text.replace(f"PLAINTEXT://127.0.0.1:{port}", f"SASL_SSL://127.0.0.1:{port}")
    text = text.replace("PLAINTEXT:PLAINTEXT", "SASL_SSL:SASL_SSL")
    text = text.replace("inter.broker.listener.name=PLAINTEXT", "inter.broker.listener.name=SASL_SSL")
    store = folder / "server.store.pem"
    store.write_text(server.key.read_text() + server.certificate.read_text())
    users = 'user_admin="admin-secret" user_reader="reader-secret"'
    plain = f'{_LOGIN}.plain.PlainLoginModule required username="admin" password="admin-secret" {users};'
    oauth = f'{_LOGIN}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="token";'
    more = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512,OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": plain,
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{_LOGIN}.scram.ScramLoginModule required;",
        "listener.name.sasl_ssl.oauthbearer.sasl.jaas.config": oauth,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": store,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": ours.certificate,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin;User:scram;User:token;User:ANONYMOUS",
    }
    return text + "".join(f"{name}={value}\n" for name, value in more.items())


def settings(secured: dict[str, Any], mechanism: str, user: str = "", password: str = "") -> KafkaSettings:
    given = secured | {"sasl_mechanism": mechanism, "bootstrap_timeout_s": 3.0}
    return KafkaSettings.model_validate(given | ({"sasl_username": user, "sasl_password": password} if user else {}))


def unsecured_token(user: str) -> str:
    """A token as Kafka takes it where it checks no signature."""
    now = int(time.time())
    parts = ({"alg": "none"}, {"sub": user, "iat": now, "exp": now + 3600})
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."


def test_it_is_reached_by_every_mechanism_and_rights_hold(
    secured: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = settings(secured, "PLAIN", "admin", "admin-secret")
    topics.create(known)
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
        sender.send("findings", key=b"a", value=b"b").get(timeout=30)
        sender.close()
    # Known, and without rights: reads and writes nothing.
    reader = settings(secured, "PLAIN", "reader", "reader-secret")
    sender = producer(reader, max_block_ms=10_000)
    with pytest.raises(TopicAuthorizationFailedError):
        sender.send("findings", key=b"a", value=b"b").get(timeout=30)
    sender.close()
    looking = consumer(reader, group=None)
    assert "findings" not in looking.topics()
    looking.close()


def test_who_is_not_known_or_believes_nobody_is_told_why(secured: dict[str, Any], tmp_path: Path) -> None:
    other = authority(tmp_path).certificate
    known = {"HINDCAST_KAFKA_SASL_USERNAME": "admin", "HINDCAST_KAFKA_SASL_PASSWORD": "admin-secret"}
    over = {
        "HINDCAST_KAFKA_BOOTSTRAP": secured["bootstrap"],
        "HINDCAST_KAFKA_BOOTSTRAP_TIMEOUT_S": "5",
        "HINDCAST_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "HINDCAST_KAFKA_SASL_MECHANISM": "PLAIN",
        "HINDCAST_KAFKA_SSL_CAFILE": str(secured["ssl_cafile"]),
    }
    for changed, code, words in (
        (known, 0, "all topics are there"),
        (known | {"HINDCAST_KAFKA_SASL_PASSWORD": "planted"}, 3, "correct HINDCAST_KAFKA_SASL_USERNAME"),
        (known | {"HINDCAST_KAFKA_SSL_CAFILE": str(other)}, 3, "correct HINDCAST_KAFKA_SSL_CAFILE"),
        ({"HINDCAST_KAFKA_SASL_USERNAME": "admin"}, 2, "HINDCAST_KAFKA_SASL_PASSWORD: Value error, PLAIN needs it"),
        ({"HINDCAST_KAFKA_SASL_MECHANISM": "OAUTHBEARER"}, 2, "HINDCAST_KAFKA_SASL_TOKEN"),
    ):
        command = [sys.executable, "-m", "services.cli", "topics", "create"]
        env = os.environ | over | changed
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
        said = done.stdout + done.stderr
        assert done.returncode == code, said
        assert words in said
        assert "planted" not in said
        assert "Traceback" not in said
