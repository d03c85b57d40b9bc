"""Retries and bisection against an HTTP server that answers as it is told to."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
from pydantic import SecretStr

from services.kit.errors import UserError
from services.kit.wait import until
from services.sink.delivery import Delivery, Parcel
from services.sink.encode import Samples
from services.sink.offsets import Ledger, Ticket
from services.sink.pages import Catalogue
from services.sink.settings import SinkSettings

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

    def answer(self, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], str]:
        self.requests.append(headers)
        if self.answers:
            status, more = self.answers.pop(0)
            return status, more, "not now"
        found = [
            (dict(labels)["__name__"], at_ms, float(np.frombuffer(value)[0]))
            for labels, samples in self.read(body, self.protocol)
            for at_ms, value in samples
        ]
        self.order += found
        good = {sample for sample in found if sample[2] < 100}
        bad = len(found) - len(good)
        # v1 refuses a request whole.
        if self.protocol == "v2" or not bad:
            self.stored |= good
        said = {"X-Prometheus-Remote-Write-Samples-Written": str(len(good))} if self.counts else {}
        return (400, said, "value too large") if bad else (204, said, "")


@pytest.fixture
def target(read_request: Read) -> Iterator[Target]:
    state = Target(read_request)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, headers, text = state.answer(dict(self.headers.items()), body)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
            """Keep requests out of the log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}/api/v1/write"
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


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


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 404, 401])
def test_what_is_not_the_datas_fault_is_retried(target: Target, status: int) -> None:
    target.answers = [(status, {})] * 3
    ticket, refused, _ = sent(target, [[1.0, 2.0]])
    assert ticket.done
    assert refused == []
    assert target.stored == {("m0", NOW, 1.0), ("m0", NOW + 1, 2.0)}
    assert len(target.requests) == 4


def test_retry_after_is_honoured(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    original = threading.Event.wait

    def wait(event: threading.Event, timeout: float | None = None) -> bool:
        if timeout is not None and threading.current_thread().name.startswith("lane-"):
            waits.append(timeout)
            timeout = 0.0
        return original(event, timeout)

    monkeypatch.setattr(threading.Event, "wait", wait)
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


def test_an_unreachable_target_is_retried_until_told_to_stop() -> None:
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
    until(lambda: ticket.done, timeout_s=30, what="all to be sent")
    delivery.close()
    assert [at_ms for _, at_ms, _ in target.order] == [NOW + tick for tick in range(20)]
