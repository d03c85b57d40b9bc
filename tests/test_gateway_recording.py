"""A recording that comes in by the gateway, request by request, is what it was: the same findings."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from detectors.engine import Engine
from detectors.registry import choose
from services.detect.intake import feed
from services.gateway.conftest import Client
from services.kit.wire import payload_of
from services.recording.embedded import findings_of
from services.recording.reader import Recording
from services.sink.pages import Protocol
from tests.remote_written import lines_of, requests_of
from tests.small import Brake, small_recording


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Four nodes, four minutes, a power brake."""
    folder: Path = tmp_path_factory.mktemp("recordings")
    return Recording.open(small_recording(folder, "brake", nodes=4, minutes=4, brakes=[Brake("v002", 100, 239)]))


@pytest.mark.parametrize("protocol", ["v1", "v2"])
def test_the_findings_are_those_of_the_recording(recording: Recording, protocol: Protocol) -> None:
    client = Client()
    jobs, logs = lines_of(recording)
    assert client.post("/api/v1/jobs", jobs).status_code == 200
    assert client.post("/api/v1/logs", logs).status_code == 200
    sent = 0
    for _, body in requests_of(recording, protocol):
        answer = client.write(protocol, body)
        assert answer.status_code == 204, answer.text
        sent += 1
    assert sent > 50
    topology = recording.topology.model_dump(mode="json", exclude_unset=True)
    engine = Engine(topology, choose(), ("jobs", "logs", *recording.streams()))
    for parcel in client.outlet.parcels:
        record = SimpleNamespace(value=parcel.value, headers=[("content-type", parcel.content_type)])
        feed(engine, parcel.stream, payload_of(record))  # type: ignore[arg-type]  # as far as payload_of looks
    expected = [finding.to_json() for finding in findings_of(recording)]
    assert any('"power_throttle"' in line for line in expected)
    assert sorted(finding.to_json() for finding in engine.finish(recording.manifest.end)) == sorted(expected)
