"""Retries and bisection against an HTTP server that answers as configured."""

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import SecretStr

from services.kit.errors import UserError
from services.kit.wait import until
from services.sink import metrics
from services.sink.connection import Connection, seconds_of
from services.sink.delivery import Delivery, OtherProtocolError, Parcel
from services.sink.encode import Samples
from services.sink.offsets import Ledger, Ticket
from services.sink.pages import Catalogue
from services.sink.settings import SinkSettings
from tests.answering import Answer, Request, serving

WRITTEN = "X-Prometheus-Remote-Write-Samples-Written"
NOW = 1_763_650_000_000
Read = Callable[[bytes, str], list[Any]]


@dataclass
class Target:
    """Refuses values of 100 and more; before that it answers with the next of `answers` (status, headers) if any."""

    read: Read
    protocol: str = "v2"
    counts: bool = True
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    stored: set[tuple[str, int, float]] = field(default_factory=set)
    order: list[tuple[str, int, float]] = field(default_factory=list)
    requests: list[dict[str, str]] = field(default_factory=list)
    url: str = ""
    silent: threading.Event = field(default_factory=threading.Event)
    """Cleared, it answers nothing."""

    def answer(self, request: Request) -> Answer:
        answer = self._taken(request)
        self.silent.wait(60)
        return answer

    def _taken(self, request: Request) -> Answer:
        self.requests.append({"path": request.target, **request.headers})
        if self.answers:
            status, more = self.answers.pop(0)
            return Answer(status, b"not now", more)
        found = [
            (dict(labels)["__name__"], at_ms, float(np.frombuffer(value)[0]))
            for labels, samples in self.read(request.body, self.protocol)
            for at_ms, value in samples
        ]
        self.order += found
        good = {sample for sample in found if sample[2] < 100}
        bad = len(found) - len(good)
        # v1 refuses a request whole.
        if self.protocol == "v2" or not bad:
            self.stored |= good
        headers = {WRITTEN: str(len(good))} if self.counts else {}
        return Answer(400, b"value too large", headers) if bad else Answer(204, headers=headers)


@pytest.fixture
def target(read_request: Read) -> Iterator[Target]:
    state = Target(read_request)
    state.silent.set()

    with serving(state.answer) as url:
        state.url = f"{url}/api/v1/write"
        yield state


def sent(
    target: Target, values: list[list[float]], **settings: Any
) -> tuple[Ticket, list[tuple[str, int, str]], Delivery]:
    """Send values (series, ticks); return the ticket, what was refused, and the delivery, done or failed."""
    refused: list[tuple[str, int, str]] = []

    def note(parcel: Parcel, samples: Samples, words: str) -> None:
        for number, times in zip(samples.series, samples.times, strict=True):
            refused.extend((parcel.page.names[int(number)]["__name__"], int(t) - NOW, words) for t in times)

    series = Catalogue(target.protocol)  # type: ignore[arg-type] # v1 or v2
    for number in range(len(values)):
        series.add({"__name__": f"m{number}"})
    chosen = SinkSettings.model_validate(
        {"url": target.url, "protocol": target.protocol, "retry_first_s": 0.001, "retry_most_s": 0.01} | settings
    )
    delivery = Delivery(chosen, note)
    ticket = Ticket({})
    ticket.expect(1)
    matrix = np.array(values)
    times = NOW + np.broadcast_to(np.arange(matrix.shape[1]), matrix.shape)
    delivery.submit(Parcel(series.pages[0], [Samples(np.arange(len(values)), times, matrix)], "u", "r1", 0, ticket))
    assert delivery.drained(30.0)
    delivery.close()
    return ticket, refused, delivery


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        *((status, "") for status in (408, 429, 500, 502, 503)),
        (401, "HINDCAST_SINK_BEARER_FILE"),
        (403, "HINDCAST_SINK_BEARER_FILE"),
        *((status, "HINDCAST_SINK_URL") for status in (301, 404, 405, 418)),
        # What speaks v2 says how much it has written: this is a proxy's answer, or a page's.
        (400, "HINDCAST_SINK_URL"),
    ],
)
def test_what_is_not_the_datas_fault_is_retried_and_named(
    target: Target, caplog: pytest.LogCaptureFixture, status: int, remedy: str
) -> None:
    counted = metrics.MISDIRECTED.labels("prometheus", str(status))
    before = counted._value.get()
    target.answers = [(status, {})] * 3
    ticket, refused, _ = sent(target, [[1.0, 2.0]])
    assert ticket.done
    assert refused == []
    assert target.stored == {("m0", NOW, 1.0), ("m0", NOW + 1, 2.0)}
    assert len(target.requests) == 4
    assert counted._value.get() - before == (3 if remedy else 0)
    assert remedy in caplog.text
    assert caplog.text.count("target does not take samples") == 1


@pytest.mark.parametrize("text", ["12, 12", "²", "12, 13", "", "9" * 5000, "-1", "1e3", "0x2"])
def test_a_header_that_is_no_number_ends_nothing(target: Target, text: str) -> None:
    target.answers = [(503, {"Retry-After": "²"}), (204, {WRITTEN: text})]
    ticket, refused, delivery = sent(target, [[1.0, 2.0]])
    assert (ticket.done, refused, delivery.failure) == (True, [], None)
    assert len(target.requests) == 2


def test_more_written_than_was_sent_is_written_and_counted(target: Target) -> None:
    before = metrics.MISCOUNTED.labels("prometheus")._value.get()
    target.answers = [(204, {WRITTEN: "7"})]
    ticket, refused, _ = sent(target, [[1.0, 2.0]])
    assert (ticket.done, refused, len(target.requests)) == (True, [], 1)
    assert metrics.MISCOUNTED.labels("prometheus")._value.get() == before + 1


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("7", 7.0), ("12, 12", 12.0), ("9" * 18, 3600.0)),
        *((text, None) for text in ("²", "soon", "", "9" * 5000, "12, 13")),
        *(("Fri, 31 Dec 1999 23:59:59 GMT", 0.0), ("Fri, 31 Dec 9999 23:59:59 GMT", 3600.0)),
    ],
)
def test_how_long_a_target_asks_to_wait(text: str, seconds: float | None) -> None:
    assert seconds_of(text) == seconds


def test_a_target_that_refuses_all_is_asked_a_few_times_with_pauses_and_nothing_is_lost(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = waited(monkeypatch)
    target.protocol, target.counts = "v1", False
    ticket, refused, _ = sent(target, [[500.0] * 64 for _ in range(100)], retry_first_s=0.1, retry_most_s=15.0)
    assert ticket.done
    assert len(refused) == 6400
    assert len(set(refused)) == 6400
    assert len(target.requests) == 24
    assert sum(waits) > 5.0


def test_what_is_too_large_is_halved_and_all_of_it_lands(target: Target) -> None:
    target.answers = [(413, {})] * 3
    ticket, refused, _ = sent(target, [[1.0, 2.0], [3.0, 4.0]])
    assert (ticket.done, refused, len(target.stored)) == (True, [], 4)


def test_a_target_that_reads_v1_only_is_named(target: Target) -> None:
    target.answers = [(415, {})]
    ticket, refused, delivery = sent(target, [[1.0]])
    assert not ticket.done
    assert refused == []
    assert isinstance(delivery.failure, OtherProtocolError)


def test_it_ends_without_waiting_for_an_answer_that_does_not_come(target: Target) -> None:
    series = Catalogue("v2")
    series.add({"__name__": "m"})
    delivery = Delivery(SinkSettings.model_validate({"url": target.url, "timeout_s": 3600}), lambda *_: None)
    ticket = Ticket({})
    ticket.expect(2)
    target.silent.clear()
    for tick in range(2):
        part = Samples(np.array([0]), np.array([[NOW + tick]]), np.array([[1.0]]))
        delivery.submit(Parcel(series.pages[0], [part], "u", "r", 0, ticket))
    until(lambda: target.requests, what="the first request")
    delivery.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "lane-0"]
    assert not delivery.drained(3600)
    assert not ticket.done
    target.silent.set()


def test_a_bearer_token_in_a_file_is_the_one_that_is_there_now(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "bearer"
    file.write_text("first\n")
    monkeypatch.setenv("HINDCAST_SINK_BEARER_FILE", str(file))
    connection = Connection(SinkSettings.model_validate({"url": target.url}))
    for word in ("first", "zweité"):
        file.write_text(f"{word}\n", encoding="utf-8")
        os.utime(file, ns=(0, len(word)))
        target.answers = [(204, {WRITTEN: "1"})]
        connection.post(b"", "")
    connection.close()
    assert [request["Authorization"] for request in target.requests] == ["Bearer first", "Bearer zweitÃ©"]


def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Have lanes wait for nothing; return a list that gets the seconds that they would have."""
    waits: list[float] = []
    original = threading.Event.wait

    def wait(event: threading.Event, timeout: float | None = None) -> bool:
        if timeout is not None and threading.current_thread().name.startswith("lane-"):
            waits.append(timeout)
            timeout = 0.0
        return original(event, timeout)

    monkeypatch.setattr(threading.Event, "wait", wait)
    return waits


def test_retry_after_is_honoured(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = waited(monkeypatch)
    target.answers = [(429, {"Retry-After": "7"}), (503, {})]
    ticket, _, _ = sent(target, [[1.0]])
    assert ticket.done
    assert waits[0] == 7.0
    assert waits[1] < 1.0


@pytest.mark.parametrize(("protocol", "counts"), [("v2", True), ("v1", False)])
def test_only_the_offending_samples_are_refused(target: Target, protocol: str, *, counts: bool) -> None:
    target.protocol, target.counts = protocol, counts
    values = [[float(series), 2.0, 3.0] for series in range(9)]
    values[4][1] = 500.0
    values[7][2] = 100.0
    ticket, refused, _ = sent(target, values)
    assert ticket.done
    assert sorted(refused) == [("m4", 1, "400 value too large"), ("m7", 2, "400 value too large")]
    want = {(f"m{s}", NOW + t, v) for s, row in enumerate(values) for t, v in enumerate(row) if v < 100}
    assert target.stored == want


def test_a_request_refused_whole_is_not_bisected(target: Target) -> None:
    ticket, refused, _ = sent(target, [[100.0 + s] * 4 for s in range(50)])
    assert ticket.done
    assert len(refused) == 200
    assert len(target.requests) == 1


def test_a_target_that_does_not_count_v2_samples_fails_loudly(target: Target) -> None:
    target.counts = False
    ticket, _, delivery = sent(target, [[1.0]])
    assert not ticket.done
    assert isinstance(delivery.failure, UserError)
    assert "HINDCAST_SINK_PROTOCOL=v1" in str(delivery.failure)
    assert delivery.failure.exit_code == 2


def test_an_unreachable_target_is_retried_until_the_sink_stops() -> None:
    chosen = SinkSettings.model_validate({"url": "http://127.0.0.1:9/", "retry_first_s": 0.001, "retry_most_s": 0.01})
    series = Catalogue("v2")
    series.add({"__name__": "m"})
    delivery = Delivery(chosen, lambda *_: None)
    ticket = Ticket({})
    ticket.expect(1)
    delivery.submit(
        Parcel(series.pages[0], [Samples(np.array([0]), np.array([[NOW]]), np.array([[1.0]]))], "u", "r", 0, ticket)
    )
    assert not delivery.drained(0.2)
    delivery.close()
    assert not ticket.done
    assert delivery.failure is None


def test_headers(target: Target) -> None:
    sent(target, [[1.0]], tenant_header="THANOS-TENANT", bearer=SecretStr("s3cret"))
    sent(target, [[1.0]], username="u", password=SecretStr("p"))
    first, second = target.requests
    assert first["Content-Type"] == "application/x-protobuf;proto=io.prometheus.write.v2.Request"
    assert first["X-Prometheus-Remote-Write-Version"] == "2.0.0"
    assert first["Content-Encoding"] == "snappy"
    assert first["THANOS-TENANT"] == "r1"
    assert first["Authorization"] == "Bearer s3cret"
    assert second["Authorization"] == "Basic dTpw"
    assert "THANOS-TENANT" not in second


def test_offsets_are_safe_in_order_only() -> None:
    ledger = Ledger()
    place: Any = ("t", 0)
    first, second = Ticket({place: 5}), Ticket({place: 9})
    ledger.add(first)
    ledger.add(second)
    first.expect(1)
    second.expect(0)
    assert ledger.safe() == {}
    first.one_done()
    assert ledger.safe() == {place: 9}
    assert ledger.safe() == {}


def test_a_lane_keeps_the_order(target: Target) -> None:
    series = Catalogue("v2")
    series.add({"__name__": "m"})
    delivery = Delivery(SinkSettings.model_validate({"url": target.url}), lambda *_: None)
    ticket = Ticket({})
    ticket.expect(20)
    for tick in range(20):
        part = Samples(np.array([0]), np.array([[NOW + tick]]), np.array([[1.0]]))
        delivery.submit(Parcel(series.pages[0], [part], "u", "r", 3, ticket))
    until(lambda: ticket.done, what="all to be sent")
    delivery.close()
    assert [at_ms for _, at_ms, _ in target.order] == [NOW + tick for tick in range(20)]


@pytest.mark.parametrize(
    ("protocol", "version", "content"),
    [
        ("v1", "0.1.0", "application/x-protobuf"),
        ("v2", "2.0.0", "application/x-protobuf;proto=io.prometheus.write.v2.Request"),
    ],
)
def test_mimir_gets_what_its_http_api_asks_for(target: Target, protocol: str, version: str, content: str) -> None:
    """grafana.com/docs/mimir/latest/references/http-api/#remote-write, and the remote-write specification it names."""
    target.protocol = protocol
    mimir = {"url": target.url.replace("/api/v1/write", "/api/v1/push"), "tenant_header": "X-Scope-OrgID"}
    sent(target, [[1.0, 2.0]], tenant="gpu-team", **mimir)
    sent(target, [[3.0]], **mimir)
    first, second = target.requests
    assert {name: first[name] for name in ("path", "Content-Type", "Content-Encoding", "User-Agent")} == {
        "path": "/api/v1/push",
        "Content-Type": content,
        "Content-Encoding": "snappy",
        "User-Agent": "hindcast-sink",
    }
    assert first["X-Prometheus-Remote-Write-Version"] == version
    assert (first["X-Scope-OrgID"], second["X-Scope-OrgID"]) == ("gpu-team", "r1")
    assert target.stored == {("m0", NOW, 1.0), ("m0", NOW + 1, 2.0), ("m0", NOW, 3.0)}
