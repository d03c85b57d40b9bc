"""Prometheus' compliance tests of remote-write receivers, on the gateway as its own process before a real Kafka."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from services.kit import topics
from services.kit.kafka import KafkaSettings
from services.stack.hindcast_services import python_service
from services.stack.runner import Stack
from services.stack.settings import load_settings
from tests.compliance import built, outcomes

pytestmark = [pytest.mark.compliance, pytest.mark.timeout(1200)]
TESTS = 205
"""How many the suite has; there are fewer where it ended before its end."""
EXPECTED_FAILURES: Mapping[str, str] = {}
"""Tests that the gateway does not pass, each with the reason why it does not apply: none today."""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Run Kafka and a gateway; return where the gateway takes remote-write."""
    with Stack.start(tmp_path / "stack", load_settings(), only=("kafka",)) as stack:
        topics.create(KafkaSettings(bootstrap=stack.addresses.kafka))
        port = stack.service_context().ports.take()
        env = {
            "HINDCAST_KAFKA_BOOTSTRAP": stack.addresses.kafka,
            "HINDCAST_GATEWAY_CLUSTER": "compliance",
            "HINDCAST_GATEWAY_PORT": str(port),
        }
        gateway = stack.add_process(python_service("gateway", "services.gateway", port=port, env=env))
        yield f"{gateway.spec.url}/api/v1/write"


def test_the_gateway_passes_all_but_what_is_listed(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yml"
    config.write_text(yaml.safe_dump({"remote_write": [{"name": outcomes.RECEIVER, "url": url}]}), encoding="utf-8")
    done = subprocess.run(
        (built.program(), "-test.v", "-test.timeout=10m"),
        env={"PROMETHEUS_RW2_COMPLIANCE_CONFIG_FILE": str(config)}, cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    found = outcomes.read(done.stdout)
    with capsys.disabled():
        listed = f", {len(EXPECTED_FAILURES)} are known to fail" if EXPECTED_FAILURES else ""
        sys.stdout.write(f"\n{built.MODULE} {built.VERSION}: {found.passed} of {TESTS} tests passed{listed}\n")
    assert len(found.of) == TESTS, done.stdout[-4000:]
    unexpected = found.unexpected(EXPECTED_FAILURES)
    assert unexpected == [], "\n".join(unexpected)
    assert EXPECTED_FAILURES or done.returncode == 0, done.stdout[-4000:]
