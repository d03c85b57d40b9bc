"""A broker with SASL_SSL and ACLs beside that of the stack, and who it knows."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType
from kafka.admin import ACLResourcePatternType as Pattern

from services.kit.kafka import KafkaSettings, admin
from services.stack import configs
from services.stack.runner import Stack
from tests.certificates import Pair, authority, signed

_LOGIN = "org.apache.kafka.common.security"
PIPELINE_PASSWORD = "planted-of-the-pipeline"  # noqa: S105 - of these tests


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


@contextmanager
def secured_broker(stack: Stack, folder: Path) -> Iterator[dict[str, Any]]:
    """Run the broker; give what all settings for it have. Users: admin, reader and pipeline, scram, and token."""
    plain = stack.process("kafka").spec
    if not Path(plain.argv[0]).is_file() and not plain.argv[0].endswith("java"):
        pytest.skip("the servers run in containers: there is no broker to start with a configuration of its own")
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
    with admin(settings(given, "PLAIN", "admin", "admin-secret")) as client:
        client.create_acls(_rights())
    yield given
    stack.remove("kafka-secured")


def settings(secured: dict[str, Any], mechanism: str, user: str = "", password: str = "") -> KafkaSettings:
    """Return how the broker is reached as somebody."""
    given = secured | {"sasl_mechanism": mechanism, "bootstrap_timeout_s": 10.0}
    return KafkaSettings.model_validate(given | ({"sasl_username": user, "sasl_password": password} if user else {}))


def _rights() -> list[ACL]:
    """Return what hindcast's services need, as docs/security.md has it."""
    operation = ACLOperation
    needed = [
        (ResourceType.TOPIC, "*", Pattern.LITERAL, (operation.READ, operation.WRITE, operation.DESCRIBE)),
        (ResourceType.GROUP, "hindcast-", Pattern.PREFIXED, (operation.READ, operation.DESCRIBE)),
    ]
    return [
        ACL("User:pipeline", "*", one, ACLPermissionType.ALLOW, ResourcePattern(kind, name, pattern))
        for kind, name, pattern, operations in needed
        for one in operations
    ]


def _properties(folder: Path, port: int, controller: int, ours: Pair, server: Pair) -> str:
    text = configs.kafka(port=port, controller_port=controller, data=folder / "data")
    text = text.replace(f"PLAINTEXT://127.0.0.1:{port}", f"SASL_SSL://127.0.0.1:{port}")
    text = text.replace("PLAINTEXT:PLAINTEXT", "SASL_SSL:SASL_SSL")
    text = text.replace("inter.broker.listener.name=PLAINTEXT", "inter.broker.listener.name=SASL_SSL")
    store = folder / "server.store.pem"
    store.write_text(server.key.read_text() + server.certificate.read_text())
    users = f'user_admin="admin-secret" user_reader="reader-secret" user_pipeline="{PIPELINE_PASSWORD}"'
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
