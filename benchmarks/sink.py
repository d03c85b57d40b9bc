"""How fast the sink carries DCGM readings from Kafka into Prometheus: `python -m benchmarks.sink [--samples N]`.

The topic is filled before; every run gets a Prometheus with an empty head; in order; remote-write v2; 400 samples a
message. Live shape: one tick of a series in a request. Max shape: as many as there are. Beside it what the same
Prometheus takes from the bare encoder (no Kafka, arrays ready in memory), and the max shape on the out-of-order path.
"""

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.dcgm_load import FIELDS, GPUS, NODES, SERIES, Load
from benchmarks.measured import cpu_s, resident_mb
from services.kit import topics
from services.kit.errors import ServerError, UserError
from services.kit.kafka import KafkaSettings, admin
from services.kit.series import table
from services.kit.wait import until
from services.sink.delivery import Delivery, Parcel
from services.sink.encode import Samples, by_page
from services.sink.naming import Naming
from services.sink.offsets import Ticket
from services.sink.pages import Catalogue
from services.sink.settings import SinkSettings
from services.stack.health import http_get
from services.stack.hindcast_services import python_service
from services.stack.runner import Stack
from services.stack.settings import load_settings

COLLECTOR, TELEGRAF = 138_000, 165_000  # samples/s on two cores: what users would pick instead
TARGET = "bench"


@dataclass(frozen=True)
class Result:
    """One run: samples/s, CPU-microseconds a sample of the sender and of Prometheus, peak resident MB of the sender."""

    name: str
    rate: float
    cpu_us: float
    prometheus_us: float
    resident_mb: float

    def __str__(self) -> str:
        return (
            f"{self.name:34} {self.rate:11,.0f} samples/s  {self.cpu_us:5.2f} us/sample  "
            f"(Prometheus {self.prometheus_us:4.2f})  {self.resident_mb:5.0f} MB"
        )


@contextmanager
def prometheus() -> Iterator[Stack]:
    """Start a Prometheus with an empty head."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Stack.start(Path(folder), load_settings(), only=("prometheus",)) as it,
    ):
        yield it


def pid_of(stack: Stack, name: str) -> int:
    """Return the pid of a server of a stack."""
    pid = stack.process(name).pid
    if pid is None:
        raise ServerError(f"{name} is not running")
    return pid


def parcels(load: Load, unit: Catalogue, per_series: int, ticket: Ticket) -> list[Parcel]:
    """Return the load as requests of `per_series` ticks of each series."""
    naming = Naming(table().streams["dcgm"], load.origin.cluster, load.origin.replay)
    made = []
    numbers = np.arange(SERIES)
    if not unit.size:
        for node in range(NODES):
            for gpu in range(GPUS):
                for name in FIELDS:
                    unit.add(naming.of_series((f"n{node:04d}", str(gpu)), name))
    for first in range(0, load.ticks, per_series):
        ticks = slice(first, first + per_series)
        values = load.values[ticks].astype(np.float64).reshape(-1, SERIES).T
        times = np.repeat(load.times[ticks], GPUS * len(FIELDS), axis=1).T
        made += [
            Parcel(unit.pages[page], [part], load.origin.unit, load.origin.replay, page, ticket)
            for page, part in by_page(Samples(numbers, np.ascontiguousarray(times), np.ascontiguousarray(values)))
        ]
    return made


def send(url: str, work: list[Parcel], ticket: Ticket) -> None:
    """Send ready-made requests through the sink's own delivery."""

    def refused(_parcel: Parcel, samples: Samples, words: str) -> None:
        raise UserError(f"{samples.count} samples refused: {words}")

    settings = SinkSettings.model_validate({"url": url})
    delivery = Delivery(settings, refused)
    ticket.expect(len(work))
    for parcel in work:
        delivery.submit(parcel)
    while not delivery.drained(60.0):
        pass
    delivery.close()
    if delivery.failure is not None:
        raise delivery.failure


def bare(load: Load, name: str, per_series: int) -> Result:
    """Measure the encoder by itself: everything is in memory, requests are encoded and sent."""
    with prometheus() as stack:
        ticket = Ticket({})
        work = parcels(load, Catalogue("v2"), per_series, ticket)
        server = pid_of(stack, "prometheus")
        used, own, start = cpu_s(server), time.process_time(), time.monotonic()
        send(stack.addresses.prometheus_write, work, ticket)
        wall = time.monotonic() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        scale = 1e6 / load.samples
        return Result(
            name, load.samples / wall, (time.process_time() - own) * scale, (cpu_s(server) - used) * scale, peak
        )


def counted(port: int, name: str) -> int:
    """Return a counter of the sink's /metrics."""
    _, body = http_get(f"http://127.0.0.1:{port}/metrics")
    lines = [line for line in body.decode().splitlines() if line.startswith(f"{name}{{")]
    return int(sum(float(line.split()[-1]) for line in lines))


def through_kafka(kafka: KafkaSettings, load: Load, name: str, per_series: int | None, *, late: bool = False) -> Result:
    """Measure the sink as users run it; `late`: every series already holds a newer sample."""
    with prometheus() as stack:
        if late:
            ticket = Ticket({})
            newest = Load(1, load.origin)
            send(stack.addresses.prometheus_write, parcels(newest, Catalogue("v2"), 1, ticket), ticket)
        port = stack.service_context().ports.take()
        env = {
            "HINDCAST_KAFKA_BOOTSTRAP": kafka.bootstrap,
            "HINDCAST_STATUS_PORT": str(port),
            "HINDCAST_SINK_URL": stack.addresses.prometheus_write,
            "HINDCAST_SINK_TARGET": TARGET,
            "HINDCAST_SINK_TOPOLOGY_WAIT_S": "0",
        }
        if per_series is not None:
            env["HINDCAST_SINK_SAMPLES_PER_SERIES"] = str(per_series)
        server = pid_of(stack, "prometheus")
        spec = python_service("sink", "services.sink", port=port, env=env, after=())
        stack.add_process(spec)
        sink = pid_of(stack, "sink")
        try:
            used, own, start = cpu_s(server), cpu_s(sink), time.monotonic()
            until(
                lambda: counted(port, "hindcast_sink_samples_written_total") >= load.samples,
                timeout_s=600,
                what="all samples to be written",
                interval_s=0.1,
            )
            wall = time.monotonic() - start
            scale = 1e6 / load.samples
            return Result(
                name,
                load.samples / wall,
                (cpu_s(sink) - own) * scale,
                (cpu_s(server) - used) * scale,
                resident_mb(sink, peak=True),
            )
        finally:
            stack.process("sink").stop()
            with admin(kafka) as client:
                client.delete_groups([f"hindcast-sink-{TARGET}"])


def main() -> None:
    """Run all shapes and print the ratios."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--samples", type=int, default=5_000_000)
    options.add_argument("--only", choices=("live", "max", "late"), default=None)
    chosen = options.parse_args()
    load = Load.ending_now(chosen.samples, TARGET)
    most = SinkSettings.model_fields["samples_per_series"].default
    with tempfile.TemporaryDirectory() as folder, Stack.start(Path(folder), load_settings(), only=("kafka",)) as stack:
        kafka = KafkaSettings(bootstrap=stack.addresses.kafka)
        topics.create(kafka)
        size = load.fill(kafka)
        print(f"{load.samples:,} samples of {SERIES:,} series in {size / 1e6:,.0f} MB; load {os.getloadavg()[0]:.1f}")
        results: dict[str, Result] = {}

        def note(key: str, result: Result) -> None:
            results[key] = result
            print(f"{result}   load {os.getloadavg()[0]:.1f}", flush=True)

        if chosen.only in (None, "live"):
            note("bare live", bare(load, "bare encoder, live shape", 1))
            note("live", through_kafka(kafka, load, "sink, live shape", 1))
        if chosen.only in (None, "max"):
            note("bare max", bare(load, "bare encoder, max shape", most))
            note("max", through_kafka(kafka, load, "sink, max shape", None))
        if chosen.only in (None, "late"):
            note("late", through_kafka(kafka, load, "sink, max shape, out of order", None, late=True))
    for key in ("live", "max"):
        if key in results:
            rate = results[key].rate
            print(
                f"{key:5}: {rate / COLLECTOR:.2f} x OpenTelemetry Collector, {rate / TELEGRAF:.2f} x Telegraf, "
                f"{100 * rate / results[f'bare {key}'].rate:.0f} % of the bare encoder"
            )


if __name__ == "__main__":
    main()
