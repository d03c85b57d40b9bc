"""services/gateway between a real Prometheus, a real broker and detect: a live cluster's fault is found."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import yaml
from kafka import KafkaConsumer

from services.cli.pipeline import Pipeline
from services.kit import topics
from services.kit.access import token_of
from services.kit.kafka import KafkaSettings
from services.kit.wait import until
from services.recording.embedded import findings_of
from services.recording.reader import Recording
from services.sink.encode import Samples, request
from services.sink.pages import Catalogue
from services.stack.health import HttpHealth
from services.stack.hindcast_services import python_service
from services.stack.runner import Stack
from services.stack.spec import ProcessSpec
from tests import web
from tests.integration.conftest import detecting
from tests.integration.recorded_feed import records_of
from tests.remote_written import lines_of, requests_of
from tests.small import Brake, small_recording

_TOKEN, _LOOKING = "of-this-test-0123456789", "a-viewer-of-this-test"
_V2 = "application/x-protobuf;proto=io.prometheus.write.v2.Request"
_HEADERS = {"Content-Encoding": "snappy", "Content-Type": _V2, "X-Prometheus-Remote-Write-Version": "2.0.0"}
Post = Callable[[bytes], None]
BRAKED_S = 20
_EACH_MS = 5_000
"""Of this length are the parts in which a recording is sent, each in any order."""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Four nodes, one minute, a power brake that detectors see at once."""
    folder = tmp_path_factory.mktemp("recordings")
    found = Recording.open(small_recording(folder, "brake", nodes=4, minutes=1, brakes=[Brake("v002", BRAKED_S, 59)]))
    assert [finding.fault for finding in findings_of(found)] == ["power_throttle"]
    return found


@pytest.fixture(scope="module")
def _detect(stack: Stack, kafka: KafkaSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    env = {
        # What of a stream comes later is at most that of one part, and a loaded machine may take seconds for the next.
        "HINDCAST_DETECT_LATENESS_S": str(2 * _EACH_MS // 1000),
        "HINDCAST_DETECT_IDLE_TIMEOUT_S": "10",
    }
    with detecting(stack, "detect-live", tmp_path_factory.mktemp("detect"), **env):
        yield


class Gateway:
    """`python -m services.gateway` as a process of its own, for one cluster."""

    def __init__(self, stack: Stack, kafka: KafkaSettings, recording: Recording, folder: Path, cluster: str) -> None:
        port = stack.service_context().ports.take()
        self.url = f"http://127.0.0.1:{port}"
        self.cluster = cluster
        self.token_file = folder / "token"
        self.token_file.write_text(_TOKEN)
        tokens = folder / "tokens.yaml"
        known = [token_of(_TOKEN, "prometheus", "sender"), token_of(_LOOKING, "monitor", "viewer")]
        tokens.write_text(yaml.safe_dump([token.model_dump(mode="json") for token in known]))
        env = {
            "HINDCAST_KAFKA_BOOTSTRAP": kafka.bootstrap,
            "HINDCAST_GATEWAY_CLUSTER": cluster,
            "HINDCAST_GATEWAY_PORT": str(port),
            "HINDCAST_GATEWAY_TOKENS_FILE": str(tokens),
            "HINDCAST_GATEWAY_ACK_TIMEOUT_S": "5",
            "HINDCAST_GATEWAY_TOPOLOGY": str(recording.path / "topology.json"),
        }
        self.name = f"gateway-{cluster}"
        stack.add_process(python_service(self.name, "services.gateway", port=port, env=env))

    def post(self, path: str, body: bytes, headers: dict[str, str] | None = None) -> httpx.Response:
        own = {"Authorization": f"Bearer {_TOKEN}"} | (headers or {})
        return web.post(f"{self.url}{path}", content=body, headers=own, timeout=300)

    def write(self, body: bytes) -> None:
        answer = self.post("/api/v1/write", body, _HEADERS)
        assert answer.status_code == 204, answer.text


Start = Callable[[str], Gateway]


@pytest.fixture
def start(stack: Stack, kafka: KafkaSettings, recording: Recording, tmp_path: Path) -> Iterator[Start]:
    started: list[Gateway] = []

    def begin(cluster: str) -> Gateway:
        started.append(Gateway(stack, kafka, recording, tmp_path, cluster))
        return started[-1]

    yield begin
    for gateway in started:
        stack.remove(gateway.name)


@pytest.fixture
def through_prometheus(stack: Stack, tmp_path: Path) -> Iterator[Callable[[Gateway], Post]]:
    """Start a Prometheus that forwards to a gateway; return what writes to it."""
    server = next(process.spec for process in stack.processes if process.name == "prometheus")
    if not Path(server.argv[0]).is_file():
        pytest.skip("the servers run in containers: there is no Prometheus to start with a configuration of its own")

    def begin(gateway: Gateway) -> Post:
        remote = {
            "url": f"{gateway.url}/api/v1/write",
            "protobuf_message": "io.prometheus.write.v2.Request",
            "authorization": {"credentials_file": str(gateway.token_file)},
            "queue_config": {"batch_send_deadline": "1s", "max_samples_per_send": 500, "max_shards": 1},
        }
        config = tmp_path / "prometheus.yml"
        config.write_text(yaml.safe_dump({"remote_write": [remote]}))
        port = stack.service_context().ports.take()
        url = f"http://127.0.0.1:{port}"
        flags = (
            f"--config.file={config}",
            f"--storage.tsdb.path={tmp_path / 'prometheus'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--web.enable-remote-write-receiver",
        )
        health = HttpHealth(f"{url}/-/ready")
        stack.add_process(ProcessSpec("prometheus-live", (server.argv[0], *flags), health, ports=(port,)))

        def write(body: bytes) -> None:
            answer = web.post(f"{url}/api/v1/write", content=body, headers=_HEADERS, timeout=300)
            assert answer.is_success, answer.text

        return write

    yield begin
    stack.remove("prometheus-live")


def heartbeat(cluster: str, at_ms: int) -> bytes:
    """A cluster never falls silent as a whole."""
    catalogue = Catalogue("v2")
    name = {"__name__": "hindcast_storage_waiters", "node": "v001", "mount": "/scratch", "cluster": cluster}
    number = catalogue.add(name)
    return request(catalogue.pages[0], [Samples(np.array([number]), np.array([[at_ms]]), np.zeros((1, 1)))])


def findings(reader: KafkaConsumer, cluster: str) -> list[dict[str, Any]]:
    """Return the findings of a live cluster."""
    every = records_of(reader, topics.FINDINGS, f"{cluster}/live")
    return [json.loads(record.value) for record in every if record.value is not None]


def power_brakes(
    recording: Recording, gateway: Gateway, write: Post, reader: KafkaConsumer, shift_ms: int
) -> list[dict[str, Any]]:
    """Send a recording, and more until the power brake is found."""
    jobs, logs = lines_of(recording, shift_ms=shift_ms)
    for path, body in (("/api/v1/jobs", jobs), ("/api/v1/logs", logs)):
        assert gateway.post(path, body).status_code == 200
    for _, body in requests_of(recording, "v2", cluster=gateway.cluster, shift_ms=shift_ms, each_ms=_EACH_MS):
        write(body)
    beats = iter(range(1_000_000))

    def found() -> list[dict[str, Any]] | None:
        write(heartbeat(gateway.cluster, recording.manifest.end + shift_ms + 1000 * next(beats)))
        return [one for one in findings(reader, gateway.cluster) if one["fault"] == "power_throttle"]

    return until(found, what="the power brake", interval_s=0.5)


@pytest.mark.usefixtures("_detect")
def test_what_is_written_to_the_gateway_raises_the_recordings_finding(
    recording: Recording, reader: KafkaConsumer, start: Start
) -> None:
    gateway = start("live-direct")
    (expected,) = findings_of(recording)
    (found,) = power_brakes(recording, gateway, gateway.write, reader, 0)
    # Live or replayed: the same finding, to the last number.
    assert found == json.loads(expected.to_json())


@pytest.mark.usefixtures("_detect")
def test_a_real_prometheus_forwards_and_the_power_brake_is_found(
    recording: Recording, reader: KafkaConsumer, start: Start, through_prometheus: Callable[[Gateway], Post]
) -> None:
    gateway = start("live-forwarded")
    write = through_prometheus(gateway)
    # A Prometheus forwards what is newer than its start, and takes what is up to ten minutes ahead. The brake is soon
    # to come: of streams that are silent detect takes nothing for past before it is.
    braked_ms = recording.manifest.start + 1000 * BRAKED_S
    shift_ms = (time.time_ns() // 1_000_000 + 2000 - braked_ms) // 5000 * 5000 + 5000
    (found,) = power_brakes(recording, gateway, write, reader, shift_ms)
    assert found["entity"] == {"node": "v002"}
    assert found["state"] == "firing"
    taken = 'hindcast_gateway_samples_total{outcome="taken"}'
    looking = {"Authorization": f"Bearer {_LOOKING}"}
    counted = web.get(f"{gateway.url}/metrics", headers=looking).text.splitlines()
    assert float(next(line.split()[-1] for line in counted if line.startswith(taken))) > 1000


def test_without_the_token_nothing_gets_in(start: Start) -> None:
    gateway = start("live-closed")
    answer = gateway.post("/api/v1/jobs", b"", {"Authorization": "Bearer another"})
    assert answer.status_code == 401


def test_while_kafka_is_away_senders_are_asked_to_try_again_and_what_was_taken_is_there(
    stack: Stack, recording: Recording, kafka: KafkaSettings, start: Start
) -> None:
    gateway = start("live-away")
    jobs, _ = lines_of(recording)
    broker = stack.process("kafka")
    broker.stop()
    try:
        answer = gateway.post("/api/v1/jobs", jobs)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    finally:
        broker.start()
    until(lambda: gateway.post("/api/v1/jobs", jobs).is_success, what="the gateway to take jobs again")
    # The same again and again does no harm; that something is missing would.
    assert jobs in {record.value for record in Pipeline(kafka, {}).records("jobs")}
