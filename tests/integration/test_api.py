"""The API on the real servers: replays are steered by it, and what is found and alerted comes back through it, live."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from services.api.app import build
from services.api.settings import ApiSettings, SourceSettings
from services.cli.pipeline import Pipeline, sink_group
from services.kit.kafka import KafkaSettings
from services.kit.times import format_time
from services.kit.wait import until
from services.recording.embedded import findings_of
from services.recording.reader import Recording
from services.stack.runner import Stack
from tests import web
from tests.small import Brake, small_recording

BRAKE = Brake("v004", 150, 280)
_WAIT_S = 300.0


class Followed(threading.Thread):
    """A browser that follows a replay: all events in order."""

    def __init__(self, url: str, seen: str = "") -> None:
        super().__init__(daemon=True)
        self.events: list[tuple[str, str, Any]] = []
        self._url = url
        self._headers = {"Last-Event-ID": seen} if seen else {}

    def run(self) -> None:
        kind = name = ""
        with web.stream("GET", self._url, headers=self._headers, timeout=_WAIT_S) as answer:
            for line in answer.iter_lines():
                field, _, value = line.partition(": ")
                if field == "id":
                    name = value
                elif field == "event":
                    kind = value
                elif field == "data":
                    self.events.append((kind, name, json.loads(value)))
                    name = ""

    def of(self, kind: str, run: str) -> list[Any]:
        """Return the bodies of the events of a kind that are of a run."""
        return [body for one, _, body in list(self.events) if one == kind and body and body["run"] == run]


class Api:
    """The API on a port of its own."""

    def __init__(self, url: str) -> None:
        self.url = f"{url}/api/v1"

    def __call__(self, method: str, path: str, **body: Any) -> Any:
        answer = web.request(method, f"{self.url}{path}", json=body or None, timeout=300)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def wait(self, path: str, **wanted: Any) -> Any:
        """Return what a path answers once it is as wanted."""

        def reached() -> Any:
            answer = self("GET", path)
            assert answer["error"] is None, answer
            return answer if all(answer[name] == value for name, value in wanted.items()) else None

        return until(reached, what=f"{path} to have {wanted}")


@contextmanager
def served(settings: ApiSettings, kafka: KafkaSettings) -> Iterator[Api]:
    app = build(settings, kafka)
    with web.served(app) as url:
        try:
            yield Api(url)
        finally:
            app.state.streams.closing = True


@pytest.fixture(scope="module")
def brake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four nodes, six minutes, one brake."""
    return small_recording(tmp_path_factory.mktemp("recordings"), "braked", nodes=4, minutes=6, brakes=[BRAKE])


@contextmanager
def served_beside(stack: Stack, folder: Path, library: Path) -> Iterator[Api]:
    settings = ApiSettings(
        data_dir=folder / "data",
        library=(library,),
        console_dir=folder / "none",
        replay_url=stack.addresses.services["replay"],
        alertmanager_url=stack.addresses.alertmanager,
        sources={"prometheus": SourceSettings(url=stack.addresses.prometheus)},
    )
    with served(settings, KafkaSettings(bootstrap=stack.addresses.kafka)) as api:
        yield api


@pytest.fixture(scope="module")
def api(running: Stack, brake: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with served_beside(running, tmp_path_factory.mktemp("api"), brake.parent) as api:
        yield api


def test_a_replay_is_steered_and_followed_live(api: Api, brake: Path) -> None:
    replay = api("POST", "/replays", recording="braked", speed=20, name="steered")
    run = replay["run"]
    assert (replay["recording"], replay["state"], replay["generation"]) == ("braked", "running", 0)
    browser = Followed(f"{api.url}/replays/steered/events")
    browser.start()
    paused = api("POST", "/replays/steered/pause")
    assert paused["state"] == "paused"
    until(lambda: any(body["state"] == "paused" for body in browser.of("replay", run)), what="the pause")
    assert not browser.of("finding", run)
    assert api("GET", f"/runs/{run}")["state"] == "running"
    assert api("POST", "/replays/steered/speed", speed=60)["speed"] == 60
    assert api("POST", "/replays/steered/resume")["state"] == "running"
    until(lambda: browser.of("finding", run), what="the finding")
    fired = browser.of("finding", run)[0]
    assert (fired["fault"], fired["entity"], fired["state"]) == ("power_throttle", {"node": BRAKE.node}, "firing")
    until(lambda: browser.of("alert", run), what="the alert")

    done = api.wait(f"/runs/{run}", state="done")
    assert (done["replay"], done["recording"], done["progress"]) == ("steered", "braked", 1)
    # The services behind Kafka found what the embedded engine finds.
    expected = [one.id for one in findings_of(Recording.open(brake)) if one.state == "firing"]
    found = api("GET", f"/runs/{run}/findings")["items"]
    assert [one["id"] for one in found] == expected
    assert [(one["state"], one["verdict"]) for one in found] == [("resolved", "hit")]
    (incident,) = api("GET", f"/runs/{run}/incidents")["items"]
    detail = api("GET", f"/runs/{run}/incidents/{incident['id']}")
    (alert,) = detail["alerts"]
    assert (alert["name"], alert["findings"], alert["receivers"]) == ("PowerThrottle", expected, ["replays"])
    assert 0 <= alert["delay_s"] < 60
    assert {one["id"] for one in browser.of("incident", run)} == {incident["id"]}
    numbers = [int(name.partition("-")[2]) for _, name, _ in browser.events if name.startswith(run)]
    assert numbers == list(range(1, len(numbers) + 1))
    again = Followed(f"{api.url}/replays/steered/events", seen=f"{run}-1")  # as a browser that lost its connection
    again.start()
    until(lambda: any(name for _, name, _ in again.events), what="the rest")
    assert next(name for _, name, _ in again.events if name) == f"{run}-2"

    sought = api("POST", "/replays/steered/seek", to="+00:02:00")
    assert (sought["generation"], sought["state"]) == (1, "running")
    assert sought["run"] != run
    # Slowly enough that the run is not over when it is stopped.
    assert api("POST", "/replays/steered/speed", speed=10)["speed"] == 10
    until(lambda: browser.of("finding", sought["run"]), what="the finding again")
    assert browser.of("finding", sought["run"])[0]["entity"] == {"node": BRAKE.node}
    stopped = api("POST", "/replays/steered/stop")
    assert stopped["state"] == "stopped"
    api.wait(f"/runs/{sought['run']}", state="cancelled")
    until(lambda: api("GET", f"/alerts?run={run}")["items"][0]["state"] == "resolved", what="the alert to be resolved")
    # The same with a configuration of its own: what it has in shadow alerts nobody, what it has off says nothing.
    other = api("POST", "/replays", recording="braked", speed="max", detectors={"power_throttle": {"shadow": True}})
    api.wait(f"/runs/{other['run']}", state="done")
    assert api("GET", f"/runs/{other['run']}")["detectors"] == {"power_throttle": {"shadow": True}}
    (seen,) = api("GET", f"/runs/{other['run']}/findings")["items"]
    assert (seen["entity"], seen["shadow"]) == ({"node": BRAKE.node}, True)
    off = api("POST", "/replays", recording="braked", speed="max", detectors={"power_throttle": {"enabled": False}})
    api.wait(f"/runs/{off['run']}", state="done")
    assert api("GET", f"/runs/{off['run']}/findings")["items"] == []
    assert api("GET", f"/alerts?run={other['run']}")["items"] == []
    for name in (other["name"], off["name"]):
        api("DELETE", f"/replays/{name}")
    api("DELETE", "/replays/steered")
    until(lambda: ("replay", "", None) in browser.events, what="the browser to hear of its removal")
    assert [one["id"] for one in api("GET", "/runs?replay=steered")["items"]] == [sought["run"], run]


def test_what_landed_is_captured_and_an_api_that_comes_later_knows_it_all(
    api: Api, running: Stack, brake: Path, tmp_path: Path
) -> None:
    replay = api("POST", "/replays", recording="braked", speed="max", name="landed")
    api.wait(f"/runs/{replay['run']}", state="done")
    pipeline = Pipeline(KafkaSettings(bootstrap=running.addresses.kafka), running.addresses.services)
    pipeline.wait_caught_up(sink_group("prometheus"))
    manifest, shift_ms = Recording.open(brake).manifest, replay["shift_ms"]
    window = {"from": format_time(manifest.start + shift_ms), "to": format_time(manifest.end + shift_ms)}
    asked = {"source": "prometheus", "name": "captured", "replay": "landed", "shift_s": shift_ms / 1000, **window}
    task = api("POST", "/captures", **asked)
    done = api.wait(f"/tasks/{task['id']}", state="done")
    assert done["result"]["recording"] == "captured"
    captured, original = (
        {one["kind"]: one["rows"] for one in api("GET", f"/recordings/{name}")["streams"]}
        for name in ("captured", "braked")
    )
    assert captured["dcgm"] == original["dcgm"]
    assert api("GET", "/recordings/captured")["origin"] == "captured"

    run = f"/runs/{replay['run']}"
    with served_beside(running, tmp_path, brake.parent) as later:
        until(lambda: later("GET", "/runs?replay=landed")["total"], what="the later one to hear of it")
        later.wait(run, state="done")
        for what in ("findings", "incidents"):
            assert later("GET", f"{run}/{what}") == api("GET", f"{run}/{what}")
        # What is read from Kafka's start again and again is sent once.
        events = web.get(f"{later.url}{run}/events", timeout=300).text
        assert events.count("event: finding") == 2 * later("GET", f"{run}/findings")["total"]
