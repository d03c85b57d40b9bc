"""Four detects and four sinks share 24 replays at speed 60: the same bytes as one, also with one of each killed.

Three runs over the same servers: one detect and one sink; four of each; four of each, of which one is killed in the
middle. Findings, the last revision of each incident, and every sample in Prometheus are to be the same bytes in all.
"""

import argparse
import hashlib
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.measured import cpu_s
from services.cli.pipeline import DETECT_GROUP, Pipeline, sink_group
from services.kit import topics
from services.kit.kafka import KafkaSettings
from services.kit.series import table
from services.kit.units import assigned
from services.kit.wait import until
from services.stack.hindcast_services import python_service
from services.stack.process import ManagedProcess
from services.stack.runner import Stack
from tests.small import Brake, small_recording

SPEED = 60
RECORDINGS = 4
NODES = 2
TIMEOUT_S = 1800
RECORDS = (topics.FINDINGS, topics.INCIDENTS)


@dataclass(frozen=True)
class Run:
    """How many of each there are, and whether one of each is killed."""

    name: str
    instances: int
    killed: bool = False


RUNS = (Run("one", 1), Run("four", 4), Run("killed", 4, killed=True))


def main() -> None:
    """Run it, print what each run took, and exit with 1 where the bytes differ."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--units", type=int, default=24)
    asked.add_argument("--minutes", type=float, default=10.0, help="length of each recording (10)")
    asked.add_argument("--short", action="store_true", help="four replays of four minutes")
    given = asked.parse_args()
    units, minutes = (4, 4.0) if given.short else (given.units, given.minutes)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        recordings = [_recording(folder, number, minutes) for number in range(RECORDINGS)]
        with Stack.start(folder / "stack", only=("kafka", "prometheus")) as stack:
            kafka = KafkaSettings(bootstrap=stack.addresses.kafka, unit_partitions=units)
            topics.create(kafka)
            digests = [_run(stack, kafka, run, [recordings[n % RECORDINGS] for n in range(units)]) for run in RUNS]
    differ = [(run, unit, of_it) for run, found in zip(RUNS, digests, strict=True) for unit, of_it in enumerate(found)]
    lines = [
        f"{run.name}, replay {unit}: {name}"
        for run, unit, of_it in differ
        for name in sorted(of_it.keys() | digests[0][unit].keys())
        if of_it.get(name) != digests[0][unit].get(name)
    ]
    if lines:
        raise SystemExit("\n".join(["not the bytes of one:", *lines[:20], f"{len(lines)} in all"]))
    print("the same bytes in all runs")


def _recording(folder: Path, number: int, minutes: float) -> Path:
    over_s = minutes * 60 - 1
    brakes = [Brake("v001", 90, over_s * 0.6), Brake("v002", over_s * (0.5 + number / 20), over_s)]
    return small_recording(folder, f"shared-{number}", nodes=NODES, minutes=minutes, brakes=brakes, seed=number)


def _run(stack: Stack, kafka: KafkaSettings, run: Run, recordings: Sequence[Path]) -> list[dict[str, str]]:
    """Replay it all; return by replay a digest of each finding, incident and series, by its name."""
    state = stack.service_context().data_dir / f"state-{run.name}"
    detect = {"HINDCAST_DETECT_STATE_DIR": str(state)}
    sink = {"HINDCAST_SINK_URL": stack.addresses.prometheus_write}
    numbers = range(run.instances)
    detects = [_start(stack, f"detect-{run.name}-{number}", "detect", detect) for number in numbers]
    sinks = [_start(stack, f"sink-{run.name}-{number}", "sink", sink) for number in numbers]
    replay = _start(stack, "replay", "replay", {"HINDCAST_REPLAY_STATE_DIR": str(state / "replay")})
    pipeline = Pipeline(kafka, stack.addresses.services)
    began, names = time.monotonic(), [f"{run.name}-{number}" for number in range(len(recordings))]
    for name, recording in zip(names, recordings, strict=True):
        pipeline.start_replay(str(recording), speed=SPEED, name=name)
    used_s = 0.0
    if run.killed:
        until(lambda: pipeline.status(names[0])["progress"] > 0.5, timeout_s=TIMEOUT_S, what="the middle")
        for process in (detects.pop(), sinks.pop()):
            used_s += cpu_s(process.pid or 0)
            process.kill()
    over = [pipeline.wait_over(name, timeout_s=TIMEOUT_S) for name in names]
    sent_s = time.monotonic() - began
    pipeline.wait_caught_up(DETECT_GROUP, sink_group("prometheus"), timeout_s=TIMEOUT_S)
    took_s = time.monotonic() - began
    used_s += sum(cpu_s(process.pid or 0) for process in (*detects, *sinks))
    samples = sum(sum(status["samples"].values()) for status in over)
    partitions = {partition for unit, partition in assigned(kafka).items() if unit.partition("/")[2] in names}
    print(
        f"{run.name:6} {len(names)} replays, {len(partitions)} partitions: {samples:,} samples sent in {sent_s:.0f} s, "
        f"through after {took_s:.0f} s; detects and sinks {1e6 * used_s / samples:.2f} us of CPU a sample",
        flush=True,
    )
    records = {r.key.decode(): r.value.decode() for name in RECORDS for r in pipeline.records(name)}
    digests = [_digests(stack, records, status) for status in over]
    for process in (replay, *detects, *sinks):
        stack.remove(process.name)
    return digests


def _start(stack: Stack, name: str, module: str, env: dict[str, str]) -> ManagedProcess:
    port = stack.service_context().ports.take()
    listen = "HINDCAST_REPLAY_PORT" if module == "replay" else "HINDCAST_STATUS_PORT"
    own = {"HINDCAST_KAFKA_BOOTSTRAP": stack.addresses.kafka, listen: str(port)}
    return stack.add_process(python_service(name, f"services.{module}", port=port, env=own | env))


def _digests(stack: Stack, records: Mapping[str, str], status: Mapping[str, object]) -> dict[str, str]:
    prefix = f"{status['cluster']}/{status['name']}/"
    found = {key.removeprefix(prefix): value for key, value in records.items() if key.startswith(prefix)}
    shift_ms = int(str(status["shift_ms"]))
    asked = {"query": f'{{replay="{status["name"]}"}}[1d]'}
    answer = httpx.post(f"{stack.addresses.prometheus}/api/v1/query", data=asked, timeout=300).raise_for_status()
    for series in answer.json()["data"]["result"]:
        metric, samples = series["metric"], series["values"]
        del metric["replay"]
        if metric["__name__"] == table().findings.started:  # a time itself
            samples = [(at, round(float(value) * 1000) - shift_ms) for at, value in samples]
        found[json.dumps(metric)] = repr([(round(at * 1000) - shift_ms, value) for at, value in samples])
    return {name: hashlib.sha256(value.encode()).hexdigest() for name, value in found.items()}


if __name__ == "__main__":
    main()
