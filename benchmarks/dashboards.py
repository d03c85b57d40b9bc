"""How long the dashboards' queries take at the size of a cluster: an hour of 768 GPUs held by the real servers.

The hour around the power brake of vela-power-brake is replayed at max into Prometheus; then every query of every panel
is asked as Grafana asks it for the time range "last hour", of Prometheus and of Thanos Query. Replay and Pipeline are
left out: their series are hindcast's own services', whose number does not grow with the GPUs.
"""

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from services.cli.pipeline import DETECT_GROUP, Pipeline, sink_group
from services.dashboards.catalogue import NAMES, dashboard
from services.dashboards.live import Answer, Source, Window
from services.kit.kafka import KafkaSettings
from services.kit.times import format_time
from services.kit.wait import until
from services.recording.reader import Recording
from services.stack.addresses import Addresses
from services.stack.hindcast_services import services
from services.stack.runner import Stack
from services.synth.library import cached_recording

BAR_MS = 500
REPLAY = "dashboards"
BEFORE_MS, AFTER_MS = 40 * 60_000, 20 * 60_000
"""What is shown around the onset."""
OWN = ("replay", "pipeline")
_WAIT_S = 1800.0


def main() -> None:
    """Replay, ask, print by dashboard and over all the 95th percentile beside the bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often every query is asked")
    parser.add_argument("--recording", type=Path, help="instead of vela-power-brake")
    arguments = parser.parse_args()
    recording = Recording.open(arguments.recording or cached_recording("vela-power-brake"))
    root = next(label for label in recording.labels() if label.root)
    begin, end = root.onset - BEFORE_MS, root.onset + AFTER_MS
    with tempfile.TemporaryDirectory() as scratch, Stack.start(Path(scratch), services=services) as stack:
        pipeline = Pipeline(KafkaSettings(bootstrap=stack.addresses.kafka), stack.addresses.services)
        status = pipeline.start_replay(
            str(recording.path), speed="max", name=REPLAY, **{"from": format_time(begin), "to": format_time(end)}
        )
        print(f"replaying an hour of {recording.manifest.cluster.gpus} GPUs ...", flush=True)
        sent = sum(pipeline.wait_over(REPLAY, timeout_s=_WAIT_S)["samples"].values())
        pipeline.wait_caught_up(sink_group("prometheus"), DETECT_GROUP, timeout_s=_WAIT_S)
        shift_ms = int(status["shift_ms"])
        window = Window(begin + shift_ms, end + shift_ms)
        node = str(root.entity["node"])
        _wait_served(stack.addresses, window)
        print(f"{sent:,} samples held")
        for server in ("prometheus", "thanos_query"):
            _report(server, getattr(stack.addresses, server), window, node, arguments.rounds)


def _wait_served(addresses: Addresses, window: Window) -> None:
    def served() -> bool:
        source = Source(addresses.thanos_query, window)
        try:
            return bool(source.ask_range(f'hindcast_finding_active{{replay="{REPLAY}"}}', 5))
        finally:
            source.close()

    until(served, timeout_s=120, what="the finding to be served", interval_s=1)


def _report(server: str, url: str, window: Window, node: str, rounds: int) -> None:
    every: list[Answer] = []
    for name in NAMES:
        if name in OWN:
            continue
        chosen = {"replay": REPLAY} | ({"node": node} if name == "node" else {})
        answers = [answer for _ in range(rounds) for answer in asked(url, window, name, chosen)]
        print(f"{server} {name}: {_figures(answers)}", flush=True)
        every += answers
    print(f"{server} all: {_figures(every)}; bar: p95 {BAR_MS} ms, ratio {1000 * p95_s(every) / BAR_MS:.2f}")
    for answer in sorted(every, key=lambda one: -one.seconds)[: 3 * rounds : rounds]:
        print(f"    slowest: {1000 * answer.seconds:.0f} ms {answer.panel.title} {answer.target.ref_id}", flush=True)


def asked(url: str, window: Window, name: str, chosen: Mapping[str, str]) -> tuple[Answer, ...]:
    """Return the answers to every query of a dashboard, asked once."""
    source = Source(url, window)
    try:
        board = dashboard(name)
        return source.answers(board, source.values(board, chosen))
    finally:
        source.close()


def p95_s(answers: list[Answer]) -> float:
    """Return the 95th percentile of the seconds that answers took."""
    return float(np.quantile([answer.seconds for answer in answers], 0.95))


def _figures(answers: list[Answer]) -> str:
    taken_ms = 1000 * np.array([answer.seconds for answer in answers])
    empty = len({answer.panel.id for answer in answers}) - len({a.panel.id for a in answers if a.series})
    return (
        f"{len(answers)} queries, median {np.median(taken_ms):.0f} ms, p95 {np.quantile(taken_ms, 0.95):.0f} ms, "
        f"slowest {taken_ms.max():.0f} ms, {empty} panels empty"
    )


if __name__ == "__main__":
    main()
