"""`hindcast live --kafka`, a real Prometheus and broker, and detect: what is found is what `hindcast live` finds."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
import pyarrow as pa
import pytest
from kafka import KafkaConsumer

from detectors.incidents.knowledge import TABLE
from detectors.registry import choose
from services.gateway.announced import withdraw
from services.kit import topics
from services.kit.kafka import KafkaSettings
from services.kit.replay_directory import ReplayDirectory
from services.kit.times import wall_ms
from services.kit.wait import until
from services.kit.wire import Watermark, payload_of
from services.live import kafka_feed
from services.live.feed import Detection
from services.live.follower import Follower
from services.live.poll_loop import PollLoop
from services.live.start import Asked, prepare
from services.live.stretches import Site
from services.recording.reader import Recording
from services.sink.encode import Samples, request
from services.sink.pages import Catalogue
from services.stack.process import ManagedProcess
from services.stack.runner import Stack
from tests import web
from tests.integration.conftest import detecting
from tests.integration.recorded_feed import records_of
from tests.integration.watched import Watch, api_of, followed
from tests.remote_written import HEADERS_V2, requests_of
from tests.small import Brake, small_recording

_WAIT_S = 300.0
_EVERY_S = 45.0
_SO_FAR_S = 360
"""Of the recording that is so much over when the test begins: the rest lasts while it runs."""
CLOCKED, KILLED = "live-clocked", "live-killed"


class Span(NamedTuple):
    """From when to when there are samples, epoch ms."""

    start: int
    end: int


@pytest.fixture(scope="module")
def span(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Span:
    """Write eleven minutes of two clusters of four nodes into Prometheus: a brake that is over, and one that lasts."""
    brakes = [Brake("v002", 60, 250), Brake("v003", 300, 659)]
    folder = tmp_path_factory.mktemp("brakes")
    recording = Recording.open(small_recording(folder, "brakes", nodes=4, minutes=11, brakes=brakes))
    shift = wall_ms() - recording.manifest.start - _SO_FAR_S * 1000
    with _prometheus(stack) as server:
        for cluster in (KILLED, CLOCKED):
            for _, body in requests_of(recording, "v2", cluster=cluster, shift_ms=shift):
                server.post("/api/v1/write", content=body).raise_for_status()
    return Span(recording.manifest.start + shift, recording.manifest.end + shift)


def _prometheus(stack: Stack) -> httpx.Client:
    return httpx.Client(base_url=stack.addresses.prometheus, headers=HEADERS_V2, timeout=300)


@pytest.fixture(scope="module")
def detect(stack: Stack, kafka: KafkaSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManagedProcess]:
    env = {
        # By watermarks: what is silent for long, and what comes late, is nothing to wait for or to drop.
        "HINDCAST_DETECT_LATENESS_S": "0",
        "HINDCAST_DETECT_IDLE_TIMEOUT_S": "0.1",
    }
    with detecting(stack, "detect-live-kafka", tmp_path_factory.mktemp("detect"), **env) as process:
        yield process


def _in_process(stack: Stack, watch: Watch, asked: Asked, end: int) -> Watch:
    """Return what `hindcast live` reports that detects by itself."""
    detection = Detection(choose(), TABLE.configure({}))
    with api_of(stack) as api:
        run = prepare(api, asked, detection, wall_ms=watch.now, monotonic=time.monotonic)
        followed(Follower(run, [watch], wall_ms=watch.now), watch, end, _EVERY_S)
    return watch


@contextmanager
def _sending(stack: Stack, kafka: KafkaSettings, watch: Watch, asked: Asked) -> Iterator[kafka_feed.Sending]:
    with api_of(stack) as api:
        sending = kafka_feed.prepare(api, asked, kafka, wall_ms=watch.now, ack_s=1.0)
        with closing(sending.outlet):
            yield sending


@contextmanager
def _standing_still(stack: Stack, name: str) -> Iterator[None]:
    pid = stack.process(name).pid
    if pid is None:
        pytest.skip("the servers run in containers: there is no process to halt")
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _lines(reader: KafkaConsumer, topic: str, cluster: str) -> list[str]:
    return [
        record.value.decode() for record in records_of(reader, topic, f"{cluster}/live") if record.value is not None
    ]


def _rows(reader: KafkaConsumer, cluster: str) -> list[tuple[int, str, str]]:
    """Return whose rows of DCGM are in Kafka, in order, with their times."""
    found: list[tuple[int, str, str]] = []
    for record in records_of(reader, topics.declared().of_stream("dcgm"), f"{cluster}/live"):
        batch = payload_of(record)
        if not isinstance(batch, Watermark):
            assert isinstance(batch, pa.RecordBatch)
            times = np.asarray(batch.column("timestamp").cast(pa.int64())).tolist()
            nodes, gpus = (map(str, batch.column(name).to_pylist()) for name in ("node", "gpu"))
            found += zip(times, nodes, gpus, strict=True)
    return found


def _come(reader: KafkaConsumer, cluster: str, count: int) -> list[str]:
    """Return the findings of a cluster once there are so many."""

    def found() -> list[str] | None:
        lines = _lines(reader, topics.FINDINGS, cluster)
        return lines if len(lines) >= count else None

    return until(found, what=f"{count} finding(s) of {cluster}", interval_s=0.2)


def _passed_over(detect: ManagedProcess, cluster: str) -> float:
    """Return how many rows of a cluster detect has dropped, as event time had passed them."""
    metrics = web.get(f"{detect.spec.url}/metrics").text.splitlines()
    line = f'hindcast_detect_late_rows{{unit="{cluster}/live"}} '
    return float(next(one.removeprefix(line) for one in metrics if one.startswith(line)))


@contextmanager
def _live(stack: Stack, kafka: KafkaSettings, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command until the block ends; it may have been killed by then."""
    options = ("--cluster", KILLED, "--lookback", "8m", "--every", "1", "--lateness", "1", "--state", str(folder))
    argv = ("live", "--prometheus", stack.addresses.prometheus, "--kafka", kafka.bootstrap, *options)
    with (folder.parent / "live.log").open("ab") as out:
        process = subprocess.Popen([sys.executable, "-m", "services.cli", *argv], stdout=out, stderr=out)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=_WAIT_S) in (0, -signal.SIGKILL), (folder.parent / "live.log").read_text()


@pytest.mark.usefixtures("detect")
def test_killed_and_started_again_it_has_detect_find_what_a_run_in_process_finds(
    stack: Stack, span: Span, kafka: KafkaSettings, reader: KafkaConsumer, tmp_path: Path
) -> None:
    folder = tmp_path / "state"
    with _live(stack, kafka, folder) as process:
        # A minute of the eight is in Kafka then.
        until((folder / "live-kafka.state").exists, what="a position to be kept", interval_s=0.005)
        process.kill()
        process.wait(timeout=_WAIT_S)
    with _live(stack, kafka, folder):
        found = _come(reader, KILLED, 1)
    printed = (tmp_path / "live.log").read_text()
    assert (printed.count("going on from"), printed.count("ended at")) == (1, 1)
    with closing(ReplayDirectory(kafka)) as directory:
        state = directory.states[f"{KILLED}/live"]
    now = state.from_ms + 1000
    expected = _in_process(stack, Watch(now), Asked(KILLED, now - state.warm_from_ms, 1000), now)
    assert found == expected.reported
    # The one that is open at the end of the lookback; the other was over before and alerts nobody.
    states = [(one["entity"]["node"], one["state"]) for one in map(json.loads, found)]
    assert states == [("v003", "firing")]
    assert [json.loads(line)["entity"]["node"] for line in expected.found] == ["v002", "v002", "v003"]


def test_rows_that_are_sent_again_change_no_finding_and_no_other_is_sent_twice(
    stack: Stack, span: Span, kafka: KafkaSettings, reader: KafkaConsumer, detect: ManagedProcess, tmp_path: Path
) -> None:
    folder, kept = tmp_path / "state", tmp_path / "kept"
    asked = Asked(CLOCKED, 60_000, 5_000, folder)
    watch = Watch(span.start + 90_000)
    with _sending(stack, kafka, watch, asked) as sending:
        loop = PollLoop(sending.feed, [watch], wall_ms=watch.now)
        assert not sending.goes_on
        followed(loop, watch, span.start + 150_000, _EVERY_S)
        halted = sending.feed.at
        with _standing_still(stack, "kafka"):
            loop.turn(_EVERY_S)
        assert ("has not acknowledged" in watch.outages[0].message, sending.feed.at) == (True, halted)
        until(lambda: loop.turn(_EVERY_S) == _EVERY_S, what="Kafka to be back", interval_s=0.1)
        assert not sending.feed.step(watch.at)
        shutil.copytree(folder, kept)
        before = sending.feed.at
        followed(loop, watch, span.start + 240_000, _EVERY_S)
        after = sending.feed.at
        _come(reader, CLOCKED, 1)
    # Killed when Kafka had acknowledged, and before the position was kept.
    shutil.rmtree(folder)
    kept.rename(folder)
    with _sending(stack, kafka, watch, asked) as sending:
        assert (sending.goes_on, sending.feed.at) == (True, before)
        loop = PollLoop(sending.feed, [watch], wall_ms=watch.now)
        followed(loop, watch, span.end, _EVERY_S)
    expected = _in_process(stack, Watch(span.start + 90_000), Asked(CLOCKED, 60_000, 5_000), span.end)
    assert len(expected.reported) == 3
    found = _come(reader, CLOCKED, len(expected.reported))
    assert found == expected.reported
    # Revisions go on after the last finding, and what was dropped is counted once detect has nothing else to do.
    last = expected.revisions[-1]
    until(lambda: last in _lines(reader, topics.INCIDENTS, CLOCKED), what="the last revision")
    assert _lines(reader, topics.INCIDENTS, CLOCKED) == expected.revisions
    sent = _rows(reader, CLOCKED)
    times = Counter(sent)
    again = {row for row, count in times.items() if count > 1}
    # What Kafka did not acknowledge may have come all the same, and was sent again.
    assert {halted < at <= after for at, _, _ in again} == {True}
    of_two_polls = {row for row in sent if before < row[0] <= after}
    assert of_two_polls <= again
    assert of_two_polls
    dropped = len(of_two_polls)
    until(lambda: _passed_over(detect, CLOCKED) >= dropped, what=f"{dropped} rows to be dropped")
    # What is one after the other came by one poll after the other.
    first = list(times)
    assert [at for at, _, _ in first] == sorted(at for at, _, _ in first)
    since = span.start + 30_000
    with api_of(stack) as api:
        held = api.raw(f'{{__name__="DCGM_FI_DEV_GPU_UTIL",cluster="{CLOCKED}"}}', since, watch.at)
    assert len([at for at, _, _ in first if at > since]) == int(np.count_nonzero(held.times <= sending.feed.at))


def test_machines_that_come_and_go_are_known_to_detect_until_another_feeds_it(
    stack: Stack, span: Span, kafka: KafkaSettings, detect: ManagedProcess, tmp_path: Path
) -> None:
    cluster, catalogue = "live-growing", Catalogue("v2")

    def reports(node: str, second: int) -> None:
        name = {"__name__": "hindcast_storage_waiters", "node": node, "mount": "/scratch", "cluster": cluster}
        number = catalogue.add(name)
        one = Samples(np.array([number]), np.array([[span.start + 1000 * second]]), np.zeros((1, 1)))
        server.post("/api/v1/write", content=request(catalogue.pages[0], [one])).raise_for_status()

    def known(wanted: set[str]) -> None:
        with closing(ReplayDirectory(kafka)) as directory:
            assert {node["name"] for node in directory.topologies[f"{cluster}/live"]["nodes"]} == wanted

    with _prometheus(stack) as server:
        for second in range(10, 160, 10):
            reports("v001", second)
        reports("v009", 90)
    watch = Watch(span.start + 60_000)
    site = Site(forget_ms=40_000)
    folder = tmp_path / "state"
    with _sending(stack, kafka, watch, Asked(cluster, 60_000, 5_000, folder, site=site)) as sending:
        loop = PollLoop(sending.feed, [watch], wall_ms=watch.now)
        followed(loop, watch, span.start + 75_000)
        known({"v001"})
        until(lambda: f"new unit={cluster}/live" in detect.log.read_text(), what="detect to begin")
        followed(loop, watch, span.start + 105_000)
        known({"v001", "v009"})
        goes_on = f"going on with unit={cluster}/live"
        until(lambda: goes_on in detect.log.read_text(), what="detect to take the machine")
        followed(loop, watch, span.start + 150_000)
        known({"v001"})
    with _sending(stack, kafka, watch, Asked(CLOCKED, 60_000, 5_000, folder)) as sending:
        # A position of another cluster is none of this one's.
        assert (sending.goes_on, sending.feed.at) == (False, watch.at - 60_000)
    withdraw(kafka, f"{cluster}/live")
    with closing(ReplayDirectory(kafka)) as directory:
        assert f"{cluster}/live" not in directory.states
    forgets = f"forgetting unit={cluster}/live"
    until(lambda: forgets in detect.log.read_text(), what="detect to wait for no watermark")
