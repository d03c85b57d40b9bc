"""Every panel of every dashboard after a replay: no query fails, none is empty, on Prometheus and on Thanos Query.

hindcast's own services are scraped by the stack's monitor, whom Query asks too: the Prometheus that takes telemetry
scrapes nothing.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from services.cli.pipeline import DETECT_GROUP, NOTIFY_GROUP, Pipeline, sink_group
from services.dashboards.catalogue import NAMES, dashboard
from services.dashboards.live import Answer, Source, Window
from services.kit.kafka import KafkaSettings
from services.kit.wait import until
from services.recording.reader import Recording
from services.stack.runner import Stack
from services.synth.small import FOLDER
from tests.integration.monitored import hurried

RECORDING = FOLDER / "vela-power-brake"
REPLAY = "dashboards"
OWN = ("replay", "pipeline")
"""Dashboards about hindcast's own services."""
ELSEWHERE = {(name, "prometheus") for name in OWN}
"""The Prometheus that takes telemetry scrapes nothing, so it has no series of those."""
CHOSEN = {"node": {"node": "v002"}}


@pytest.fixture(scope="module")
def window(running: Stack) -> Iterator[Window]:
    """Replay the recording; give the time range in which it lies."""
    with hurried(running):  # the replay is over in seconds
        yield _replayed(running)


def _replayed(running: Stack) -> Window:
    pipeline = Pipeline(KafkaSettings(bootstrap=running.addresses.kafka), running.addresses.services)
    status = pipeline.start_replay(str(RECORDING), speed=300, name=REPLAY)
    pipeline.wait_over(REPLAY)
    pipeline.wait_caught_up(DETECT_GROUP)
    pipeline.wait_caught_up(sink_group("prometheus"), NOTIFY_GROUP)
    manifest = Recording.open(RECORDING).manifest
    shift_ms = int(status["shift_ms"])
    landed = Window(manifest.start + shift_ms, manifest.end + shift_ms)
    active = f'hindcast_finding_active{{replay="{REPLAY}"}}'
    until(lambda: _held(running, active, landed), what="the findings to be served", interval_s=1)
    # A rate needs two scrapes, and the last counter moves when alerts have been sent.
    sent = "rate(hindcast_notify_requests_total[2m]) > 0"
    until(lambda: _held(running, sent, _to_now(landed)), what="scrapes to be served", interval_s=1)
    return landed


def _held(stack: Stack, query: str, window: Window) -> bool:
    source = Source(stack.addresses.thanos_query, window)
    try:
        return bool(source.ask_range(query, 5))
    finally:
        source.close()


def _to_now(window: Window) -> Window:
    """Return the window up to now: hindcast's own services were scraped after what they replayed."""
    return Window(window.start_ms, round(time.time() * 1000))


def _answers(url: str, window: Window, name: str) -> tuple[Answer, ...]:
    source = Source(url, window)
    try:
        board = dashboard(name)
        return source.answers(board, source.values(board, CHOSEN.get(name, {}) | {"replay": REPLAY}))
    finally:
        source.close()


@pytest.mark.parametrize(
    ("name", "server"),
    [(name, server) for name in NAMES for server in ("prometheus", "thanos_query") if (name, server) not in ELSEWHERE],
)
def test_no_query_fails_and_no_panel_is_empty(running: Stack, window: Window, name: str, server: str) -> None:
    answers = _answers(getattr(running.addresses, server), _to_now(window) if name in OWN else window, name)
    taken_ms = np.array([1000 * answer.seconds for answer in answers])
    sys.stderr.write(
        f"{name} on {server}: {len(answers)} queries, median {np.median(taken_ms):.0f} ms, "
        f"95th percentile {np.quantile(taken_ms, 0.95):.0f} ms, slowest {taken_ms.max():.0f} ms\n"
    )
    empty = [
        f"{answer.panel.title} {answer.target.ref_id}"
        for answer in answers
        if not any(np.isfinite(series.values).any() for series in answer.series)
    ]
    assert empty == []


def test_the_incident_is_seen(running: Stack, window: Window) -> None:
    """The node that the label names is the one that the panels point to."""
    root = next(label for label in Recording.open(RECORDING).labels() if label.root)
    answers = _answers(running.addresses.thanos_query, window, "fleet")
    series_of = {
        answer.target.ref_id: [series for series in answer.series if "alertname" not in series.labels]
        for answer in answers
        if answer.panel.title.startswith("Findings and alerts")
    }
    (found,), (since,) = series_of["A"], series_of["B"]
    assert (found.labels["fault"], found.labels["node"]) == (root.fault, root.entity["node"])
    shift_ms = window.start_ms - Recording.open(RECORDING).manifest.start
    assert abs(since.values[-1] - (root.onset + shift_ms)) < 30_000
    (health,) = [a.series for a in answers if a.panel.title == "Health by node"]
    assert {one.labels["node"] for one in health if one.values.min() < 1} == {root.entity["node"]}
    assert {one.labels["node"] for one in health} == {"v001", "v002", "v003"}


def test_variables_offer_what_there_is(running: Stack, window: Window) -> None:
    source = Source(running.addresses.thanos_query, window)
    board = dashboard("node")
    offered = {one.name: source.options(one, {"cluster": ".*", "replay": REPLAY}) for one in board.templating.list}
    source.close()
    assert REPLAY in offered["replay"]
    assert "vela" in offered["cluster"]
    assert offered["node"] == ["v001", "v002", "v003"]


@pytest.mark.parametrize("server", ["prometheus", "thanos_query"])
def test_an_incident_is_picked_and_its_page_follows(running: Stack, window: Window, server: str) -> None:
    source = Source(getattr(running.addresses, server), window)
    board = dashboard("incident")
    listed = {one.name: one for one in board.templating.list}

    def follows(**chosen: str) -> tuple[list[str], list[str]]:
        values = source.values(board, {"replay": REPLAY, **chosen})
        return source.options(listed["node"], values), source.options(listed["peers"], values)

    everybody = ["v001", "v002", "v003"]
    opened = source.values(board, {"replay": REPLAY})
    # Unasked, the newest incident: its node, the job on that node, and the job's other nodes as peers.
    assert source.options(listed["incident"], opened) == ["power_throttle of v002", "none"]
    assert (opened["incident"], opened["node"], opened["job"]) == ("power_throttle of v002", "v002", "812")
    assert follows(incident="power_throttle of v002") == (["v002"], everybody)
    # None is chosen, or one that was not found: any node may be.
    assert follows(incident="none") == follows(incident="gpu_lost of v003") == (everybody, everybody)
    source.close()


def test_pictures_are_drawn(running: Stack, window: Window, tmp_path: Path) -> None:
    from services.dashboards.render import render  # matplotlib, which nothing else here needs

    for name in ("fleet", "job"):
        chosen = CHOSEN.get(name, {}) | {"replay": REPLAY}
        (made,) = render([name], running.addresses.thanos_query, window, tmp_path, chosen, dpi=30)
        assert made.empty == []
        assert made.path.read_bytes().startswith(b"\x89PNG")
        assert made.path.stat().st_size > 5_000
