"""`hindcast live` on a real Prometheus and a real Alertmanager: the findings are those of what is captured there.

The clock is the test's: all samples are there beforehand, and time goes as fast as it is read.
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from detectors.incidents.knowledge import TABLE
from detectors.registry import choose
from detectors.tapes.heads import heads
from services.api.served import shown
from services.api.settings import ApiSettings
from services.kit.settings import load
from services.kit.times import wall_ms
from services.kit.wait import until
from services.live.feed import Detection
from services.live.follower import Follower
from services.live.start import Asked, Run, prepare
from services.live.stretches import Site
from services.notify.settings import NotifySettings
from services.recording.embedded import findings_of
from services.recording.importers.parts.series.query_api import QueryApi
from services.recording.importers.prometheus import convert
from services.recording.instants import format_instant
from services.recording.model import Node, Topology
from services.recording.reader import Recording
from services.stack.runner import Stack
from tests import web
from tests.integration.receivers import Receiver, notified
from tests.integration.watched import EVERY_S, Watch, api_of, followed
from tests.remote_written import HEADERS_V2, requests_of
from tests.small import Brake, small_recording


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, webhook: Receiver) -> Iterator[Stack]:
    """A Prometheus and an Alertmanager of this test's own, which may be stopped."""
    with notified(tmp_path_factory.mktemp("live"), webhook, only=("prometheus", "alertmanager")) as stack:
        yield stack


@pytest.fixture(scope="module")
def span(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, int]:
    """Write ten minutes of four nodes with a brake into Prometheus; return the first and the last instant."""
    folder = tmp_path_factory.mktemp("brake")
    made = small_recording(folder, "brake", nodes=4, minutes=10, brakes=[Brake("v002", 240, 390)])
    recording = Recording.open(made)
    shift = wall_ms() - recording.manifest.end
    with httpx.Client() as client:
        for _, body in requests_of(recording, "v2", shift_ms=shift):
            client.post(
                f"{stack.addresses.prometheus}/api/v1/write", content=body, headers=HEADERS_V2
            ).raise_for_status()
    return recording.manifest.start + shift, recording.manifest.end + shift


@pytest.fixture(scope="module")
def replayed(stack: Stack, span: tuple[int, int], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return what the detectors find in what is captured of the same time."""
    out = tmp_path_factory.mktemp("captured") / "brake"
    url, (start, end) = stack.addresses.prometheus, span
    convert(out, url=url, from_=format_instant(start), to=format_instant(end))
    found = [finding.to_json() for finding in findings_of(Recording.open(out))]
    assert any('"power_throttle"' in line for line in found)
    return found


def _prepared(
    stack: Stack, api: QueryApi, watch: Watch, overrides: Mapping[str, Any] | None = None, **asked: Any
) -> Run:
    detection = Detection(choose(overrides), TABLE.configure({}))
    wanted = Asked(lateness_ms=5_000, **asked)
    return prepare(api, wanted, detection, wall_ms=watch.now, monotonic=time.monotonic)


@contextmanager
def _kept_open(stack: Stack, api: QueryApi, watch: Watch, asked: Mapping[str, Any]) -> Iterator[Run]:
    run = _prepared(stack, api, watch, **asked)
    assert run.alerts is not None
    with closing(run.alerts):
        yield run


def _delivered(run: Run) -> bool:
    assert run.alerts is not None
    run.alerts.deliver()
    return True


def _notify(stack: Stack) -> NotifySettings:
    # The test's clock is behind Alertmanager's: an alert is to outlast the difference.
    settings = {"alertmanager_url": stack.addresses.alertmanager, "resend_interval_s": 300, "live_resolve_hold_s": 1}
    return NotifySettings.model_validate(settings)


def test_live_findings_are_those_of_what_was_captured(stack: Stack, span: tuple[int, int], replayed: list[str]) -> None:
    start, end = span
    watch = Watch(start + 180_000)
    with api_of(stack) as api:
        run = _prepared(stack, api, watch, lookback_ms=240_000)
        assert (run.origin.cluster, len(run.feed.topology.nodes)) == ("vela", 4)
        followed(Follower(run, [watch], wall_ms=watch.now), watch, end + 30_000)
    assert watch.found == replayed
    # The brake came after the lookback: it is reported as it is found.
    assert watch.reported == watch.found


def test_machines_whose_series_ended_are_forgotten_but_for_those_that_are_given(
    stack: Stack, span: tuple[int, int]
) -> None:
    _, end = span
    watch = Watch(end - 30_000)
    site = Site(Topology(nodes=[Node(name="v003", rack="r1")]), forget_ms=120_000)
    detection = Detection(choose(), TABLE.configure({}))
    with api_of(stack) as api:
        asked = Asked(lateness_ms=5_000, lookback_ms=60_000, site=site)
        run = prepare(api, asked, detection, wall_ms=watch.now, monotonic=time.monotonic)
        follower = Follower(run, [watch], wall_ms=watch.now)
        followed(follower, watch, end + 30_000)
        assert {node.name for node in run.feed.topology.nodes} == {"v001", "v002", "v003", "v004"}
        # Their job counts as running for five minutes after its last trace, and holds them.
        followed(follower, watch, end + 480_000)
    assert [node.name for node in run.feed.topology.nodes] == ["v003"]
    assert run.feed.snapshot()["topology"] == run.feed.engine.topology
    assert b'["v001",0]' not in heads(run.feed.engine.snapshot())


def test_neither_an_outage_nor_a_kill_changes_a_finding_or_an_alert(
    stack: Stack, span: tuple[int, int], replayed: list[str], webhook: Receiver, tmp_path: Path
) -> None:
    start, end = span
    asked: dict[str, Any] = {"lookback_ms": 240_000, "state": tmp_path / "state", "alertmanager": _notify(stack)}
    watch = Watch(start + 180_000)
    with api_of(stack) as api:
        follower = Follower(_prepared(stack, api, watch, **asked), [watch], wall_ms=watch.now)
        followed(follower, watch, start + 300_000)
        assert [line for line in watch.reported if '"power_throttle"' in line]
        follower.save()
        saved = len(watch.found)
        # Killed a minute after its state was saved: what was found since is found again.
        followed(follower, watch, start + 360_000)
    del watch.found[saved:]
    with api_of(stack) as api:
        run = _prepared(stack, api, watch, **asked)
        assert run.goes_on
        assert [line.id for line in run.open_lines] == [json.loads(line)["id"] for line in watch.found]
        follower = Follower(run, [watch], wall_ms=watch.now)
        stack.process("prometheus").stop()
        for _ in range(4):
            assert follower.turn(EVERY_S) > 0
            watch.at += 15_000
        assert len(watch.outages) == 4
        stack.start_all()
        followed(follower, watch, end + 30_000)
        assert watch.found == replayed
        assert run.alerts is not None
        alerts = run.alerts

        def resolved() -> bool:
            alerts.deliver()
            follower.save()
            return any(one["status"] == "resolved" for one in webhook.taken)

        until(resolved, what="the webhook to hear that the brake is over")
    states = [(note["status"], alert["labels"]["node"]) for note in webhook.taken for alert in note["alerts"]]
    assert states == [("firing", "v002"), ("resolved", "v002")]


def test_a_restart_with_other_settings_leaves_nothing_open_and_raises_nothing_again(
    stack: Stack, span: tuple[int, int], tmp_path: Path
) -> None:
    start, _ = span
    watch = Watch(start + 180_000)
    asked: dict[str, Any] = {"lookback_ms": 240_000, "state": tmp_path / "state"}
    changed: list[dict[str, Any]] = [
        {},
        {"power_throttle": {"clock_ratio": 0.65}},
        {"power_throttle": {"enabled": False}},
    ]
    for until_ms, overrides in zip((300_000, 330_000, 420_000), changed, strict=True):
        with api_of(stack) as api:
            run = _prepared(stack, api, watch, overrides, **asked)
            assert run.goes_on is bool(overrides)
            follower = Follower(run, [watch], wall_ms=watch.now)
            followed(follower, watch, start + until_ms)
            follower.save()
    brake = [one for line in watch.found if (one := json.loads(line))["detector"] == "power_throttle"]
    assert [one["state"] for one in brake] == ["firing", "resolved"]
    assert brake[0]["id"] == brake[1]["id"]
    assert brake[1]["summary"].endswith("is over: power_throttle does not run any more")


def test_what_people_do_about_a_finding_reaches_alertmanager_and_outlasts_a_kill(
    stack: Stack, span: tuple[int, int], webhook: Receiver, tmp_path: Path
) -> None:
    start, end = span
    asked: dict[str, Any] = {"lookback_ms": 240_000, "state": tmp_path / "state", "alertmanager": _notify(stack)}
    api_settings, server = (
        load(ApiSettings, port=0, data_dir=tmp_path / "api"),
        f"{stack.addresses.alertmanager}/api/v2",
    )
    watch, before = Watch(start + 300_000), len(webhook.taken)
    with (
        api_of(stack) as api,
        _kept_open(stack, api, watch, asked) as run,
        shown(api_settings, run) as (live, address),
        httpx.Client(base_url=f"{address}/api/v1") as console,
    ):
        follower = Follower(run, [watch, live], wall_ms=watch.now, closings=live.closings)
        followed(follower, watch, start + 315_000)
        follower.save()
        (brake,) = [json.loads(line)["id"] for line in watch.reported if '"power_throttle"' in line]
        finding = f"runs/{live.name}/findings/{brake}"
        until(lambda: _delivered(run) and len(webhook.taken) > before, what="the alert")
        assert console.post(f"{finding}/close", json={"note": ""}).status_code == 400
        console.post(f"{finding}/acknowledge", json={"note": "I look at it"}).raise_for_status()
        silenced = console.post(f"{finding}/silence", json={"note": "its PSU is swapped", "for_s": 600})
        link = silenced.raise_for_status().json()["actions"][1]["link"]
        (silence,) = web.get(f"{server}/silences").json()
        assert link.endswith(f"/#/silences/{silence['id']}")
        assert (silence["createdBy"], silence["comment"]) == ("local", "its PSU is swapped")
        (alert,) = web.get(f"{server}/alerts").json()
        assert alert["status"]["silencedBy"] == [silence["id"]]
        assert {one["name"]: one["value"] for one in silence["matchers"]} == alert["labels"]
        web.delete(f"{server}/silence/{silence['id']}").raise_for_status()
        closed = console.post(f"{finding}/close", json={"note": "a known supply"}).raise_for_status().json()
        assert (closed["state"], len(closed["actions"])) == ("resolved", 3)
        assert console.post(f"{finding}/close", json={"note": "again"}).status_code == 409
        # Killed before the follower took it: the store has it, the state has not.
    with (
        api_of(stack) as api,
        _kept_open(stack, api, watch, asked) as run,
        shown(api_settings, run) as (live, address),
        httpx.Client(base_url=f"{address}/api/v1") as console,
    ):
        assert brake in [line.id for line in run.open_lines]
        follower = Follower(run, [watch, live], wall_ms=watch.now, closings=live.closings)
        followed(follower, watch, end + 30_000)

        def resolved() -> bool:
            follower.save()
            return _delivered(run) and webhook.taken[-1]["status"] == "resolved"

        until(resolved, what="the webhook to hear that it was closed")
        detail = console.get(f"runs/{live.name}/findings/{brake}").json()
    assert [(one["kind"], one["author"], one["note"]) for one in detail["actions"]] == [
        ("acknowledged", "local", "I look at it"),
        ("silenced", "local", "its PSU is swapped"),
        ("closed", "local", "a known supply"),
    ]
    notes = webhook.taken[before:]
    assert [note["status"] for note in notes] == ["firing", "resolved"]
    assert notes[1]["alerts"][0]["annotations"]["resolve_reason"] == "closed by local: a known supply"
    # Its detector sees the brake end later: that is no news any more.
    assert [json.loads(line)["state"] for line in watch.reported if brake in line] == ["firing", "resolved"]


def test_what_was_open_before_there_was_an_alertmanager_is_sent_to_the_one_that_is_named_later(
    stack: Stack, span: tuple[int, int], webhook: Receiver, tmp_path: Path
) -> None:
    start, _ = span
    watch = Watch(start + 300_000)
    asked: dict[str, Any] = {"lookback_ms": 240_000, "state": tmp_path / "state"}
    with api_of(stack) as api:
        follower = Follower(_prepared(stack, api, watch, **asked), [watch], wall_ms=watch.now)
        followed(follower, watch, start + 315_000)
        follower.save()
    before = len(webhook.taken)
    with (
        api_of(stack) as api,
        _kept_open(stack, api, watch, asked | {"alertmanager": _notify(stack)}) as run,
    ):
        assert [json.loads(line.body)["fault"] for line in run.open_lines] == ["power_throttle"]
        until(lambda: _delivered(run) and len(webhook.taken) > before, timeout_s=60, what="the alert")
    assert [alert["labels"]["fault"] for alert in webhook.taken[before]["alerts"]] == ["power_throttle"]
