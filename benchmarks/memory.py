"""Resident memory of replay, sink and detect over the three hours of vela-power-brake, at max through all servers."""

import tempfile
import threading
import time
from pathlib import Path

from benchmarks.measured import resident_mb
from services.cli.pipeline import DETECT_GROUP, Pipeline, sink_group
from services.kit.kafka import KafkaSettings
from services.stack.hindcast_services import services
from services.stack.runner import Stack
from services.synth.library import cached_recording

WATCHED = ("replay", "sink-prometheus", "detect")
BAR_MB = 400
EVERY_S = 0.25


def main() -> None:
    """Run it; print, by service, the memory at each quarter of the way, the most, and the ratio to the bar."""
    recording = cached_recording("vela-power-brake")
    seen: dict[str, list[float]] = {name: [] for name in WATCHED}
    over = threading.Event()
    with tempfile.TemporaryDirectory() as scratch, Stack.start(Path(scratch), services=services) as stack:
        pids = {name: stack.process(name).pid for name in WATCHED}

        def watch() -> None:
            while not over.wait(EVERY_S):
                for name, pid in pids.items():
                    seen[name].append(resident_mb(pid or 0))

        watcher = threading.Thread(target=watch)
        watcher.start()
        pipeline = Pipeline(KafkaSettings(bootstrap=stack.addresses.kafka), stack.addresses.services)
        began = time.monotonic()
        pipeline.start_replay(str(recording), speed="max", name="memory")
        sent = sum(pipeline.wait_over("memory", timeout_s=900)["samples"].values())
        pipeline.wait_caught_up(sink_group("prometheus"), DETECT_GROUP, timeout_s=900)
        took_s = time.monotonic() - began
        over.set()
        watcher.join()
    print(f"{sent:,} samples of three hours in {took_s:.0f} s")
    for name, values in seen.items():
        quarters = [values[min(len(values) - 1, len(values) * part // 4)] for part in range(1, 5)]
        print(
            f"{name:16} at the quarters {', '.join(f'{value:.0f}' for value in quarters)} MB, "
            f"most {max(values):.0f} MB (bar {BAR_MB} MB, ratio {max(values) / BAR_MB:.2f})"
        )


if __name__ == "__main__":
    main()
