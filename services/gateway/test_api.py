"""What senders are answered, and that nothing is answered before it is safe."""

import asyncio
import gzip
import json
import math
import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from services.gateway.__main__ import topology_of
from services.gateway.conftest import CONTENT, Client, Series, histogram, packed, written
from services.kit.errors import UserError
from services.kit.varint import varint

NOW = 1_763_650_000_000
GPU = [("Hostname", "v001"), ("__name__", "DCGM_FI_DEV_SM_CLOCK"), ("gpu", "0")]
WRITTEN = "X-Prometheus-Remote-Write-Samples-Written"


@pytest.mark.parametrize("protocol", ["v1", "v2"])
def test_what_is_written_is_acknowledged_and_there(client: Client, protocol: str) -> None:
    unknown = Series([("__name__", "up")], [(NOW, 1.0)], histogram=histogram())
    answer = client.write(protocol, packed(written(protocol, [Series(GPU, [(NOW, 1410.0)]), unknown])))
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers.get(WRITTEN) == ("2" if protocol == "v2" else None)
    assert answer.headers.get("X-Prometheus-Remote-Write-Histograms-Written") == ("1" if protocol == "v2" else None)
    (row,) = client.outlet.rows("dcgm")
    assert (row["node"], row["gpu"], row["DCGM_FI_DEV_SM_CLOCK"]) == ("v001", 0, 1410.0)


def test_more_series_than_are_remembered_are_taken_and_evictions_counted() -> None:
    def evicted() -> float:
        return REGISTRY.get_sample_value("hindcast_gateway_series_evicted_total") or 0.0

    client, before = Client(series=10_000), evicted()
    clock = ("__name__", "DCGM_FI_DEV_SM_CLOCK")
    gpus = [
        Series([("Hostname", f"n{at // 200}"), clock, ("gpu", str(at % 200))], [(NOW, 1.0)]) for at in range(10_100)
    ]
    for body in (gpus, gpus[:1], gpus[-1:]):
        assert client.write("v1", packed(written("v1", body))).status_code == 204
    # What is too much goes, and a sixteenth with it.
    assert evicted() - before == 100 + 625
    assert REGISTRY.get_sample_value("hindcast_gateway_series") in {9_375, 9_376, 9_377}
    assert len(client.outlet.rows("dcgm")) == 10_102


@pytest.mark.parametrize(("path", "headers"), [("/api/v1/write", {}), ("/api/v1/logs", {}), ("/api/v1/jobs", {})])
def test_while_kafka_is_away_senders_come_again(client: Client, path: str, headers: dict[str, str]) -> None:
    client.outlet.away = True
    if path == "/api/v1/write":
        answer = client.write("v2", packed(written("v2", [Series(GPU, [(NOW, 1.0)])])))
    else:
        answer = client.post(path, b"", headers)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert "Kafka has not acknowledged" in answer.json()["detail"]


@pytest.mark.parametrize("protocol", ["v1", "v2"])
def test_a_malformed_request_is_refused_with_the_reason_and_kept(client: Client, protocol: str) -> None:
    answer = client.write(protocol, packed(b"\x2f"))
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
    assert "ends in the middle" in answer.json()["detail"]
    assert answer.headers.get(WRITTEN) == ("0" if protocol == "v2" else None)
    ((kind, _, reason),) = client.outlet.buried
    assert (kind, reason) == (f"remote-write {protocol}", answer.json()["detail"])
    assert client.write(protocol, b"no snappy").status_code == 400


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (histogram(schema=9), "schema 9"),
        (histogram(spans=(2, 2)), "positive spans of 4 buckets, and 3 of them"),
        (histogram(counts=(100, 101, 103, 104)), "positive spans of 3 buckets, and 4 of them"),
        (histogram(more=1), "305 observations in its buckets, and says that it has 306"),
        (histogram(more=-1), "305 observations in its buckets, and says that it has 304"),
        (histogram(more=-1, total=math.nan), "305 observations in its buckets, and says that it has 304"),
        (histogram(counts=(100, -1, 103)), "a bucket of -1 observations"),
        (histogram() + b"\x82\x01\x08" + bytes(8), "bounds of its own, and schema 3"),
    ],
)
def test_a_histogram_that_is_not_valid_is_refused_and_not_counted_as_written(
    client: Client, wrong: bytes, words: str
) -> None:
    every = [Series(GPU, [(NOW, 1.0)]), Series([("__name__", "a")], [], histogram=histogram(schema=-4))]
    answer = client.write("v2", packed(written("v2", [*every, Series([("__name__", "b")], [], histogram=wrong)])))
    assert answer.status_code == 400
    assert words in answer.json()["detail"]
    assert answer.headers[WRITTEN] == answer.headers["X-Prometheus-Remote-Write-Histograms-Written"] == "1"
    assert len(client.outlet.rows("dcgm")) == 1


@pytest.mark.parametrize(
    "right",
    [
        histogram(more=2, total=math.nan),  # NaN was observed twice
        histogram(counts=(3 << 40, 0, 1)),
        histogram(spans=(), counts=()),
        histogram(more=9) + b"\x11" + struct.pack("<d", 7.0),  # of broken numbers: their sum is not exact
    ],
)
def test_a_histogram_that_is_valid_is_counted_as_written(client: Client, right: bytes) -> None:
    answer = client.write("v2", packed(written("v2", [Series([("__name__", "a")], [], histogram=right)])))
    assert (answer.status_code, answer.headers["X-Prometheus-Remote-Write-Histograms-Written"]) == (204, "1")


@pytest.mark.parametrize("buckets", [b"\x80", b"\x80" * 10 + b"\x01", b"\x02\x80"])
def test_buckets_that_are_no_numbers_are_malformed(client: Client, buckets: bytes) -> None:
    broken = histogram() + b"\x62" + varint(len(buckets)) + buckets
    answer = client.write("v2", packed(written("v2", [Series([("__name__", "b")], [], histogram=broken)])))
    assert (answer.status_code, "cut off or too long" in answer.json()["detail"]) == (400, True)


def test_a_histogram_that_is_no_message_is_malformed(client: Client) -> None:
    answer = client.write("v2", packed(written("v2", [Series([("__name__", "b")], [], histogram=b"\x22\x00")])))
    assert (answer.status_code, answer.headers[WRITTEN]) == (400, "0")
    assert "field 4 of a histogram has wire type 2" in answer.json()["detail"]


def test_of_a_request_with_bad_series_the_others_are_taken(client: Client) -> None:
    answer = client.write("v2", packed(written("v2", [Series([], [(NOW, 1.0)]), Series(GPU, [(NOW, 2.0)])])))
    assert answer.status_code == 400
    assert "a series has no name" in answer.json()["detail"]
    assert answer.headers[WRITTEN] == "1"
    assert len(client.outlet.rows("dcgm")) == 1
    assert [reason for _, _, reason in client.outlet.buried] == ["a series has no name (label __name__)"]


def test_what_is_far_ahead_of_the_clock_is_refused(client: Client) -> None:
    ahead = time.time_ns() // 1_000_000 + 3_600_000
    answer = client.write("v1", packed(written("v1", [Series(GPU, [(ahead, 1.0)])])))
    assert (answer.status_code, "too far ahead" in answer.json()["detail"]) == (400, True)
    assert client.outlet.parcels == []


@pytest.mark.parametrize(
    "headers",
    [
        {"content-encoding": "gzip"},
        {"content-encoding": ""},
        {"content-type": "application/json"},
        {"content-type": "application/x-protobuf;proto=io.prometheus.write.v3.Request"},
    ],
)
def test_what_is_not_read_here_is_reported(client: Client, headers: dict[str, str]) -> None:
    assert client.write("v1", b"", **headers).status_code == 415


def test_sizes_are_looked_at_before_anything_is_unpacked() -> None:
    client = Client(body_bytes=1024, decoded_bytes=2048)
    assert client.write("v2", bytes(1025)).status_code == 413

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield bytes(100)

    own = {"content-encoding": "snappy", "content-type": CONTENT["v1"]}
    assert client.post("/api/v1/write", endless(), own).status_code == 413
    answer = client.write("v2", packed(bytes(4096)))
    assert (answer.status_code, "4096 bytes unpacked" in answer.json()["detail"]) == (413, True)
    bomb = client.post("/api/v1/logs", gzip.compress(bytes(4096)), {"content-encoding": "gzip"})
    assert (bomb.status_code, "more than 2048 bytes" in bomb.json()["detail"]) == (400, True)
    assert client.outlet.parcels == []


def test_a_page_under_another_name_is_not_served(client: Client) -> None:
    assert client.post("/api/v1/jobs", b"", {"host": "rebound.example"}).status_code == 400


def test_a_page_of_another_site_sends_nothing(client: Client) -> None:
    answer = client.post("/api/v1/jobs", b"", {"origin": "null", "content-type": "text/plain"})
    assert (answer.status_code, answer.headers["content-type"]) == (403, "application/problem+json")


def test_a_body_that_does_not_come_is_not_waited_for(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async def stuck() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    monkeypatch.setattr("services.kit.middleware._PATIENCE_S", 0.05)
    assert client.post("/api/v1/logs", stuck()).status_code == 408


def test_the_message_of_a_large_request_is_cut(client: Client) -> None:
    gpus = [Series([("Hostname", "v001"), ("__name__", "DCGM_FI_DEV_SM_CLOCK"), ("gpu", "1")],
                   [(NOW + number, 1.0) for number in range(10_000)])]  # fmt: skip
    assert client.write("v1", packed(written("v1", gpus))).status_code == 204
    assert [parcel.rows for parcel in client.outlet.parcels] == [8192, 1808]
    assert len(client.outlet.rows("dcgm")) == 10_000


def test_log_lines_are_taken_and_what_is_wrong_with_others_is_reported(client: Client) -> None:
    good = {"timestamp": "2024-04-01T08:00:00Z", "source": "kernel", "node": "v001", "message": "NVRM: Xid"}
    answer = client.post("/api/v1/logs", b"\n".join(json.dumps(row).encode() for row in (good, {"source": "sel"})))
    assert answer.status_code == 400
    assert "1 lines not taken" in answer.json()["detail"]
    (parcel,) = client.outlet.parcels
    assert json.loads(parcel.value) == good | {"severity": "info"}
    assert json.loads(client.outlet.buried[0][1]) == {"source": "sel"}


def test_a_topology_is_read_or_refused(tmp_path: Path) -> None:
    file = tmp_path / "topology.json"
    file.write_text('{"nodes": [{"name": "v001", "gpus": [{"gpu": 0}]}]}')
    assert topology_of(file) == {"nodes": [{"name": "v001", "gpus": [{"gpu": 0}]}]}
    file.write_text('{"nodes": 5}')
    with pytest.raises(UserError, match="nodes"):
        topology_of(file)
