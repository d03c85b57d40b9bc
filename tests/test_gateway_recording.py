"""A recording that comes in by the gateway, request by request, is what it was: the same findings, the same series."""

from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from kafka import TopicPartition

from detectors.engine.engine import Engine
from detectors.registry import choose
from services.detect.intake import feed
from services.gateway.conftest import Client
from services.gateway.remote_write import read, unpack
from services.gateway.symbols import Symbols
from services.kit.wire import ARROW, origin_of, payload_of
from services.recording.embedded import findings_of
from services.recording.reader import Recording
from services.sink.encode import STALE
from services.sink.pages import Catalogue, Protocol
from services.sink.units import Stream
from tests.remote_written import lines_of, requests_of
from tests.small import Brake, small_recording

STALE_BITS = int(np.float64(STALE).view(np.uint64))
Written = dict[frozenset[tuple[str, str]], set[tuple[int, float]]]
"""Of each series, by its labels, its samples: epoch ms and value."""


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


def test_the_sink_writes_what_was_sent_and_ends_no_series_between_the_parts_of_a_scrape(recording: Recording) -> None:
    client = Client()
    sent: Written = defaultdict(set)
    for _, body in requests_of(recording, "v2"):
        request = read(unpack(body, 2**24), "v2", Symbols())
        labels = [frozenset(request.labels(series)) for series in range(len(request.keys))]
        for series, at_ms, value in zip(request.owner, request.times.tolist(), request.values, strict=True):
            if int(value.view(np.uint64)) != STALE_BITS:
                sent[labels[series]].add((at_ms, float(value)))
        assert client.write("v2", body).status_code == 204
    assert _written(client, recording) == sent


def _written(client: Client, recording: Recording) -> Written:
    """Return what a sink writes of what a gateway took, each record read by itself."""
    origin = origin_of(client.settings.origin().headers(ARROW))
    topology = recording.topology.model_dump(mode="json", exclude_unset=True)
    catalogue = Catalogue("v2")
    streams: dict[str, Stream] = {}
    found: Written = defaultdict(set)
    for parcel in client.outlet.parcels:
        name = parcel.stream
        if name not in streams:
            streams[name] = Stream(name, origin, topology, catalogue, TopicPartition(name, 0))
            streams[name].begin(origin, None, 0)
        with pa.ipc.open_stream(parcel.value) as batches:
            outcomes = [streams[name].take(streams[name].reader.decoded(batch), []) for batch in batches]
        for block in [block for outcome in outcomes for block in outcome.in_order()]:
            for series, times, values in zip(block.series.tolist(), block.times, block.values, strict=True):
                labels = frozenset(catalogue.labels(series).items())
                ordered = max((at for at, _ in found[labels]), default=0)
                assert times.min() >= ordered, f"{dict(labels)}: a server would refuse it"
                found[labels] |= set(zip(times.tolist(), values.tolist(), strict=True))
    return found
