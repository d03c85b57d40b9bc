"""What history costs: `python -m benchmarks.history_sizing`.

24 minutes of vela-power-brake (768 GPUs, all streams) are replayed through Kafka and the sink into a Prometheus, behind
24 minutes of the same at a tenth of the size. Measured: series and samples a GPU, Prometheus' memory a series, bytes a
sample and a series of the block it makes of them. Computed from these, and from what a sample of 5 minutes and of an
hour takes (`benchmarks.history`): memory and disk for 800, 8,000 and 100,000 GPUs.
"""

import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from benchmarks.history import DAY_MS, LARGEST_MS, STEP_MS
from benchmarks.measured import resident_mb
from benchmarks.sink import pid_of
from services.cli.pipeline import Pipeline, sink_group
from services.kit.kafka import KafkaSettings
from services.recording.reader import read_manifest
from services.stack.hindcast_services import services
from services.stack.runner import Stack
from services.stack.settings import load_settings
from services.stack.topology import RETENTION
from services.synth.library import ensure_recording
from services.synth.make import Variant

SCENARIO, FROM, MINUTES = "vela-power-brake", "+02:36:00", 24
GPUS = (800, 8_000, 100_000)
DOWNSAMPLED = {"5m": 2.84, "1h": 0.281}
"""Bytes that `benchmarks.history` finds stored for a raw sample at 60 s: so 4.1 kB and 0.40 kB a series and day."""
BLOCK_DAYS = LARGEST_MS // DAY_MS
"""Retention takes whole blocks, so a resolution is kept up to this much longer."""
_WAIT_S = 900.0


@dataclass(frozen=True)
class State:
    """A Prometheus at one moment: series in its head, samples taken, peak resident MB, live heap MB."""

    series: float
    samples: float
    resident_mb: float
    heap_mb: float


@dataclass(frozen=True)
class Cost:
    """What was measured: by GPU, by series, by sample."""

    series_a_gpu: float
    samples_a_gpu_s: float
    base_mb: float
    live_bytes_a_series: float
    resident_bytes_a_series: float
    bytes_a_sample: float
    index_bytes_a_series: float


def state(stack: Stack) -> State:
    """Return how a Prometheus is, garbage collected."""
    url = stack.addresses.prometheus
    httpx.get(f"{url}/debug/pprof/heap", params={"gc": "1"}, timeout=60).raise_for_status()
    text = httpx.get(f"{url}/metrics").text
    found = {line.split()[0]: float(line.split()[1]) for line in text.splitlines() if line[:1] not in {"#", ""}}
    return State(
        found["prometheus_tsdb_head_series"],
        sum(value for name, value in found.items() if name.startswith("prometheus_tsdb_head_samples_appended_total")),
        resident_mb(pid_of(stack, "prometheus"), peak=True),
        found["go_memstats_heap_alloc_bytes"] / 1e6,
    )


def block(stack: Stack) -> tuple[int, int, int, int]:
    """Have Prometheus write its head as a block; return its samples, series, bytes of chunks and bytes of index."""
    answer = httpx.post(f"{stack.addresses.prometheus}/api/v1/admin/tsdb/snapshot", timeout=300).raise_for_status()
    folder = stack.state_dir / "data" / "prometheus" / "snapshots" / answer.json()["data"]["name"]
    samples = series = chunks = index = 0
    for meta in folder.glob("*/meta.json"):
        stats = json.loads(meta.read_text(encoding="utf-8"))["stats"]
        samples += stats["numSamples"]
        series += stats["numSeries"]
        chunks += sum(file.stat().st_size for file in (meta.parent / "chunks").iterdir())
        index += (meta.parent / "index").stat().st_size
    return samples, series, chunks, index


def measure() -> Cost:
    """Replay the small and then the large recording; print what was seen and return what it costs."""
    recordings = [ensure_recording(SCENARIO, variant=Variant(scale=scale)).path for scale in (0.1, 1.0)]
    gpus = [read_manifest(path).cluster.gpus for path in recordings]
    with (
        tempfile.TemporaryDirectory() as folder,
        Stack(Path(folder), load_settings(), only=("kafka", "prometheus")) as stack,
    ):
        prometheus = stack.process("prometheus")
        prometheus.spec = replace(prometheus.spec, argv=(*prometheus.spec.argv, "--web.enable-admin-api"))  # snapshots
        stack.start_all()
        for spec in services(stack.service_context()):
            if spec.name in {"topics", "sink-prometheus", "replay"}:
                stack.add_process(spec)
        pipeline = Pipeline(KafkaSettings(bootstrap=stack.addresses.kafka), stack.addresses.services)
        seen = [state(stack)]
        for number, path in enumerate(recordings):
            name = f"sizing-{number}"
            pipeline.start_replay(str(path), speed="max", name=name, **{"from": FROM})
            pipeline.wait_over(name, timeout_s=_WAIT_S)
            pipeline.wait_caught_up(sink_group("prometheus"), timeout_s=_WAIT_S)
            seen.append(state(stack))
            print(
                f"{sum(gpus[: number + 1]):4} GPUs: {seen[-1].series:8,.0f} series, {seen[-1].samples:11,.0f} samples, "
                f"{seen[-1].resident_mb:5.0f} MB resident at most, {seen[-1].heap_mb:5.0f} MB live"
            )
        samples, series, chunks, index = block(stack)
    empty, small, large = seen
    # What the second replay added: what an empty server needs does not count.
    more = large.series - small.series
    return Cost(
        series_a_gpu=more / gpus[1],
        samples_a_gpu_s=(large.samples - small.samples) / gpus[1] / (MINUTES * 60),
        base_mb=empty.resident_mb,
        live_bytes_a_series=(large.heap_mb - small.heap_mb) * 1e6 / more,
        resident_bytes_a_series=(large.resident_mb - small.resident_mb) * 2**20 / more,
        bytes_a_sample=chunks / samples,
        index_bytes_a_series=index / series,
    )


def table(cost: Cost) -> list[str]:
    """Return a line for each size: series, samples/s, memory and disk of each Prometheus, the bucket by resolution.

    A Prometheus beside a sidecar has blocks of two hours, each with an index; in the bucket they become 14 days long.
    """
    kept = {name: int(days.removesuffix("d")) for name, days in RETENTION.items()}
    lines = []
    for gpus in GPUS:
        series, rate = gpus * cost.series_a_gpu, gpus * cost.samples_a_gpu_s
        memory_gb = cost.base_mb / 1e3 + series * cost.resident_bytes_a_series / 1e9
        day = rate * 86_400 * cost.bytes_a_sample
        local = (day + 12 * series * cost.index_bytes_a_series) * kept["raw"]
        bucket = {"raw": (day + series * cost.index_bytes_a_series / BLOCK_DAYS) * (kept["raw"] + BLOCK_DAYS)}
        for name, size in DOWNSAMPLED.items():  # a raw sample of `benchmarks.history` is one a minute
            bucket[name] = series * (kept[name] + BLOCK_DAYS) * DAY_MS / STEP_MS * size
        resolutions = ", ".join(f"{name} {size / 1e12:.3f}" for name, size in bucket.items())
        lines.append(
            f"{gpus:7,} GPUs: {series:9,.0f} series, {rate:7,.0f} samples/s; each Prometheus {memory_gb:5.1f} GB, "
            f"{day / 1e9:6.1f} GB a day, {local / 1e12:5.2f} TB in {kept['raw']} days; "
            f"bucket: {resolutions}, in all {sum(bucket.values()) / 1e12:.2f} TB"
        )
    return lines


def main() -> None:
    """Measure at the small end, print it, and compute the large."""
    cost = measure()
    print(
        f"a GPU: {cost.series_a_gpu:.1f} series, {cost.samples_a_gpu_s:.2f} samples/s\n"
        f"a million series: {cost.live_bytes_a_series / 1e3:.2f} GB live, {cost.resident_bytes_a_series / 1e3:.2f} GB "
        f"resident at most (an empty Prometheus: {cost.base_mb:.0f} MB)\n"
        f"a sample: {cost.bytes_a_sample:.3f} bytes of chunks\n"
        f"a series: {cost.index_bytes_a_series:.0f} bytes of index in each block"
    )
    print("\n".join(table(cost)))


if __name__ == "__main__":
    main()
