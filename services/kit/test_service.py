"""What services do alike."""

import io
import os
import signal
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyarrow import csv

from services.kit.service import StatusSettings, status_application, stop_on_signals
from services.kit.serving import Server

_READS = 2_000


@pytest.fixture
def as_before() -> Iterator[None]:
    """Leave the signals' handlers as they were."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    pa.enable_signal_handlers(True)


@pytest.mark.usefixtures("as_before")
def test_a_signal_during_a_read_stops_the_service_and_not_the_read() -> None:
    table = b"1,2\n" * 100_000
    stop = stop_on_signals()
    sender = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM))
    sender.start()
    reads = 0
    while not stop.is_set() and reads < _READS:
        assert csv.read_csv(io.BytesIO(table)).num_rows == 100_000 - 1
        reads += 1
    sender.join()
    assert stop.is_set()


@pytest.mark.usefixtures("as_before")
def test_a_signal_before_a_service_serves_ends_it_too() -> None:
    settings, stop = StatusSettings(), stop_on_signals()
    os.kill(os.getpid(), signal.SIGTERM)
    server = Server(status_application(lambda: True, settings), settings, stop)
    with settings.listen() as listening:
        server.run(sockets=[listening])
    assert stop.is_set()
