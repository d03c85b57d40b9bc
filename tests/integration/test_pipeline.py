"""The whole pipeline on the real servers: what goes in lands, once; what is found is found everywhere alike."""

import contextlib
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.soak.blows import Blow
from benchmarks.soak.judged import Played, Round
from benchmarks.soak.releases import Releases
from services.cli.expected_samples import expected
from services.cli.pipeline import DETECT_GROUP, NOTIFY_GROUP, Pipeline, sink_group
from services.cli.stored_samples import Held, differences, held
from services.kit import topics, wire
from services.kit.errors import UserError
from services.kit.kafka import KafkaSettings, producer
from services.kit.times import parse_time
from services.kit.wait import until
from services.recording.embedded import findings_of
from services.recording.model import Label
from services.recording.reader import Recording
from services.stack.runner import Stack
from tests import web
from tests.data import mlperf_power
from tests.small import Brake, small_recording

BRAKE = Brake("v004", 150, 280)
LONG = Brake("v002", 400, 900)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recordings")


@pytest.fixture(scope="module")
def brake(folder: Path) -> Path:
    """Four nodes, six minutes, one brake."""
    return small_recording(folder, "brake", nodes=4, minutes=6, brakes=[BRAKE])


@pytest.fixture(scope="module")
def two_brakes(folder: Path) -> Path:
    """Eight nodes, twenty minutes, two brakes, one of them long: something to crash in the middle of."""
    return small_recording(folder, "two-brakes", nodes=8, minutes=20, brakes=[BRAKE, LONG])


@pytest.fixture
def pipeline(running: Stack) -> Pipeline:
    running.check()
    return Pipeline(KafkaSettings(bootstrap=running.addresses.kafka), running.addresses.services)


def _root(recording: Path) -> Label:
    return next(label for label in Recording.open(recording).labels() if label.root)


def _settle(pipeline: Pipeline, name: str, target: str = "prometheus") -> dict[str, object]:
    status = pipeline.wait_over(name)
    pipeline.wait_caught_up(sink_group(target), DETECT_GROUP)
    return status


def _same(got: dict[str, Held], want: dict[str, Held]) -> None:
    """Every metric has as many samples as it should, and the same sum of values."""
    assert differences(got, want) == []


def _landed(url: str, recording: Path, name: str, shift_ms: int) -> dict[str, Held]:
    manifest = Recording.open(recording).manifest
    return held(url, replay=name, start_ms=manifest.start + shift_ms, end_ms=manifest.end + shift_ms)


def _served(stack: Stack, recording: Path, name: str, shift_ms: int, want: dict[str, Held]) -> dict[str, Held]:
    """Return what Thanos Query holds, once it is all: it looks for its stores every few seconds, not at once."""
    total = sum(entry.samples for entry in want.values())
    got: dict[str, Held] = {}

    def all_there() -> bool:
        got.update(_landed(stack.addresses.thanos_query, recording, name, shift_ms))
        return sum(entry.samples for metric, entry in got.items() if metric != "up") >= total

    with contextlib.suppress(UserError):  # the comparison says what is missing
        until(all_there, what="Thanos Query to serve everything", interval_s=1)
    return got


def _expected(recording: Path) -> dict[str, Held]:
    opened = Recording.open(recording)
    return expected(opened, start_ms=opened.manifest.start, end_ms=opened.manifest.end)


def _embedded(recording: Path) -> list[str]:
    return sorted(finding.to_json() for finding in findings_of(Recording.open(recording)))


def _check_all(pipeline: Pipeline, stack: Stack, recording: Path, name: str) -> None:
    """Samples as sent, findings as embedded, one webhook and its resolve a fault."""
    status = pipeline.status(name)
    want = _expected(recording)
    shift_ms = int(str(status["shift_ms"]))
    assert sum(status["samples"].values()) == sum(entry.samples for entry in want.values())
    _same(_landed(stack.addresses.prometheus, recording, name, shift_ms), want)
    _same(_served(stack, recording, name, shift_ms, want), want)
    embedded = _embedded(recording)
    assert pipeline.findings(f"{status['cluster']}/{name}") == embedded
    nodes = sorted({json.loads(line)["entity"]["node"] for line in embedded})
    for word in ("firing", "resolved"):
        assert sorted(_delivered(pipeline, name, word, len(nodes))) == nodes, word


def _delivered(pipeline: Pipeline, name: str, word: str, at_least: int) -> list[str]:
    """Return the nodes of the alerts that webhooks of status `word` carried, one entry a webhook."""

    def enough() -> list[str] | None:
        hooks = [hook["body"] for hook in pipeline.webhooks(name) if hook["body"]["status"] == word]
        nodes = [alert["labels"]["node"] for hook in hooks for alert in hook["alerts"]]
        return nodes if len(nodes) >= at_least else None

    return until(enough, what=f"{at_least} webhook(s) {word} of {name}")


@pytest.mark.parametrize("speed", [60, "max"])
def test_replay_lands_exactly_and_finds_what_the_embedded_engine_finds(
    running: Stack, pipeline: Pipeline, brake: Path, speed: float | str
) -> None:
    name = f"brake-{speed}"
    pipeline.start_replay(str(brake), speed=speed, name=name)
    _settle(pipeline, name)
    _check_all(pipeline, running, brake, name)


def test_the_webhook_names_the_node_in_time(pipeline: Pipeline, brake: Path) -> None:
    firing = [json.loads(line) for line in _embedded(brake) if '"state":"firing"' in line]
    label = _root(brake)
    assert [finding["entity"] for finding in firing] == [{"node": BRAKE.node}]
    assert 0 <= parse_time(firing[0]["detected_at"]) - label.onset <= 30_000


def test_history_is_served_from_the_object_store_alone(running: Stack, pipeline: Pipeline, brake: Path) -> None:
    pipeline.start_replay(str(brake), speed="max", shift="keep", name="kept")
    _settle(pipeline, "kept", "receive")
    running.flush_receive()
    receive = running.process("receive")
    receive.stop()
    try:
        want = _expected(brake)
        _same(_served(running, brake, "kept", 0, want), want)
    finally:
        receive.start()


@pytest.fixture
def releases(running: Stack, tmp_path: Path) -> Iterator[Releases]:
    """Other releases of detect; afterwards it is the one that it was."""
    detect = running.process("detect")
    spec = detect.spec
    yield Releases(tmp_path)
    detect.spec = spec
    detect.restart()


def test_kills_freezes_and_upgrades_in_the_middle_change_nothing(
    running: Stack, pipeline: Pipeline, brake: Path, two_brakes: Path, releases: Releases
) -> None:
    """A short soak (benchmarks/soak): all of ours that work on data, the broker, and those who send alerts."""
    replays = [Played(two_brakes, "struck-now", 60, "prometheus"), Played(brake, "struck-kept", 60, "receive")]
    blows = [
        Blow(4, "detect", "kill", 0.5),
        Blow(6, "sink-prometheus", "kill", 1),
        Blow(7, "kafka", "freeze", 4),
        Blow(9, "notify", "kill", 2),
        Blow(10, "detect", "upgrade", 0.5),
        Blow(12, "alertmanager", "kill", 1),
        Blow(13, "replay", "kill", 1),
        Blow(14, "sink-receive", "freeze", 3),
        Blow(16, "detect", "crash-up", 0.5),
    ]
    assert Round(running, pipeline, replays, releases=releases).run(blows) == []


def test_one_prometheus_of_the_pair_killed_and_back_leaves_no_gap_and_no_alert_twice(
    running: Stack, pipeline: Pipeline, brake: Path
) -> None:
    name, by_rule = "one-killed", "one-killed-by-rule"  # as pair-rules.yaml has them
    at, node = running.addresses, BRAKE.node
    pipeline.start_replay(str(brake), speed=60, name=name)
    until(lambda: pipeline.status(name)["progress"] > 0.1, what="the replay to be under way")
    victim = running.process("prometheus")
    victim.kill()
    # All of the rest, the brake too, comes while it is away: the other is written to as if nothing were.
    status = pipeline.wait_over(name)
    pipeline.wait_caught_up(sink_group("prometheus-1"))
    assert pipeline.lag(sink_group("prometheus")) > 0
    want, shift_ms = _expected(brake), int(str(status["shift_ms"]))
    _same(_landed(at.prometheus_1, brake, name, shift_ms), want)
    _same(_served(running, brake, name, shift_ms, want), want)
    assert _delivered(pipeline, by_rule, "firing", 1) == [node]

    victim.start()
    _settle(pipeline, name)
    _check_all(pipeline, running, brake, name)

    def both_alert() -> bool:
        """Both evaluate the rule to the same alert, and have sent something to Alertmanager since they started."""
        for url in (at.prometheus, at.prometheus_1):
            alerts = web.get(f"{url}/api/v1/alerts").json()["data"]["alerts"]
            seen = [a["labels"]["node"] for a in alerts if a["labels"]["alertname"] == "BrakeSeen"]
            sent = re.findall(
                r"^prometheus_notifications_sent_total\{.*\} ([1-9].*)", web.get(f"{url}/metrics").text, re.MULTILINE
            )
            if seen != [node] or not sent:
                return False
        return True

    until(both_alert, what="both of the pair to send the rule's alert")
    asked = {"filter": f'replay="{by_rule}"'}
    known = web.get(f"{at.alertmanager}/api/v2/alerts", params=asked).raise_for_status().json()
    assert [alert["labels"]["node"] for alert in known] == [node]
    assert _delivered(pipeline, by_rule, "firing", 1) == [node]


def test_two_replays_at_once_are_kept_apart(running: Stack, pipeline: Pipeline, brake: Path, two_brakes: Path) -> None:
    pipeline.start_replay(str(brake), speed=120, name="left")
    pipeline.start_replay(str(two_brakes), speed=120, name="right")
    for name in ("left", "right"):
        _settle(pipeline, name)
    _check_all(pipeline, running, brake, "left")
    _check_all(pipeline, running, two_brakes, "right")
    # Who watches hindcast scrapes what the replay service reports of each: that is none of its samples.
    query, now_ms = running.addresses.thanos_query, int(time.time() * 1000)
    by_name, asked = f"{query}/api/v1/label/__name__/values", {"match[]": '{replay="left",job="hindcast"}'}
    until(lambda: bool(web.get(by_name, params=asked).json()["data"]), timeout_s=120, what="a scrape of the replay")
    names = held(query, replay="left", start_ms=now_ms - 3_600_000, end_ms=now_ms + 3_600_000)
    assert not [name for name in names if name.startswith("hindcast_replay_")]


def test_a_seek_back_finds_and_alerts_again(running: Stack, pipeline: Pipeline, brake: Path) -> None:
    pipeline.start_replay(str(brake), speed=120, name="sought")
    _settle(pipeline, "sought")
    pipeline.command("sought", "seek", to="+00:04:00")
    status = _settle(pipeline, "sought")
    assert status["generation"] == 1
    again = pipeline.findings(f"{status['cluster']}/sought", generation=1)
    first = pipeline.findings(f"{status['cluster']}/sought")
    assert [json.loads(line)["entity"] for line in again] == [json.loads(line)["entity"] for line in first]
    want = _expected(brake)
    _same(_landed(running.addresses.prometheus, brake, "sought", int(str(status["shift_ms"]))), want)


def test_poison_on_every_topic_goes_to_dead_letter_and_the_rest_flows(
    running: Stack, pipeline: Pipeline, brake: Path
) -> None:
    before = len(pipeline.records(topics.DEAD_LETTER))
    poisoned = [*topics.declared().streams(), topics.FINDINGS]
    client = producer(pipeline.kafka)
    for topic in poisoned:
        origin = wire.Origin("vela", "poison")
        client.send(topic, key=b"vela/poison", value=b"\x00 no such thing", headers=origin.headers(wire.ARROW)).get(10)
        client.send(topic, key=b"vela/poison", value=b"no headers at all").get(10)
    client.close()
    pipeline.start_replay(str(brake), speed="max", name="after-poison")
    _settle(pipeline, "after-poison")
    pipeline.wait_caught_up(NOTIFY_GROUP)
    _check_all(pipeline, running, brake, "after-poison")
    dead = [dict(record.headers) for record in pipeline.records(topics.DEAD_LETTER)[before:]]
    assert {headers["dead-letter-topic"].decode() for headers in dead} == set(poisoned)
    assert all(headers["dead-letter-reason"] for headers in dead)


def test_real_power_of_64_nodes_lands_exactly_and_raises_nothing(
    running: Stack, pipeline: Pipeline, folder: Path
) -> None:
    recording = mlperf_power(folder / "mlperf-power")
    pipeline.start_replay(str(recording), speed="max", name="mlperf")
    status = _settle(pipeline, "mlperf")
    _same(
        _landed(running.addresses.prometheus, recording, "mlperf", int(str(status["shift_ms"]))), _expected(recording)
    )
    assert pipeline.findings(f"{status['cluster']}/mlperf") == []
    assert pipeline.webhooks("mlperf") == []


def test_removing_a_replay_takes_its_tenant_with_it(running: Stack, pipeline: Pipeline, brake: Path) -> None:
    pipeline.start_replay(str(brake), speed="max", shift="keep", name="gone")
    _settle(pipeline, "gone", "receive")
    url = f"{running.addresses.services['replay']}/api/v1/replays"
    assert web.delete(f"{url}/gone", timeout=300).is_success
    assert "gone" not in [replay["name"] for replay in web.get(url).json()]
    with pytest.raises(UserError, match="still holds"):
        pipeline.start_replay(str(brake), speed="max", shift="keep", name="gone")
    running.process("receive").restart()
    assert not (running.state_dir / "data" / "receive" / "gone").exists()
    until(
        lambda: not _landed(running.addresses.thanos_query, brake, "gone", 0),
        what="the removed replay to be served no more",
        interval_s=1,
    )
