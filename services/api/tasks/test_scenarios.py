"""The scenarios that come with hindcast over HTTP, and recordings made of them by the real generator."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.api.conftest import SMALL, Client, client_of, over, run_over, settings_at
from services.api.store import Store
from services.kit.wait import until
from services.recording.reader import Recording
from services.synth.library import ensure_recording, scenario_paths
from services.synth.make import Variant
from tests.disks import small_disk

NAME = "sakuraone-spine-loss"
"""The quickest of them."""
SMALLEST: dict[str, Any] = {"scale": 0.02}
MADE = f"{NAME}-scale-0-02"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Client]:
    with client_of(settings_at(tmp_path, library=(SMALL / "vela-power-brake",))) as client:
        yield client


def make(client: Client, scenario: str = NAME, **asked: object) -> Any:
    return client.post(f"/api/v1/scenarios/{scenario}/make", json=asked)


def listed(client: Client) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in client.get("/api/v1/scenarios").json()}


def test_every_scenario_is_listed_with_its_story_cluster_faults_and_source(api: Client) -> None:
    found = listed(api)
    assert list(found) == list(scenario_paths())
    brake = found["vela-power-brake"]
    assert brake["title"] == "One power card fault makes a 768-GPU job three times slower"
    assert brake["summary"].startswith("A Granite-20B training job runs on 768 A100 GPUs. At 09:30 a power supply")
    assert (brake["duration_s"], brake["seed"], brake["faults"]) == (10800, 20240401, ["power_throttle"])
    assert (brake["cluster"]["nodes"], brake["cluster"]["gpus"]) == (96, 768)
    assert "2407.05467" in brake["source"]["document"]
    assert found["vela-healthy"]["faults"] == []
    assert 2 < found[NAME]["making_s"] < brake["making_s"] < 60
    assert {one["recording"] for one in found.values()} == {None}, "the small part of one is not the whole"


def test_a_recording_is_made_as_the_command_line_makes_it_and_is_in_the_library(api: Client, tmp_path: Path) -> None:
    task = over(api, make(api, **SMALLEST, seed=7))
    name = f"{NAME}-seed-7-scale-0-02"
    assert (task["state"], task["progress"], task["result"]["recording"]) == ("done", 1.0, name), task
    assert task["asked"] == {
        "scenario": NAME,
        "recording": name,
        "seed": 7,
        "world": None,
        "overwrite": False,
        **SMALLEST,
    }
    recording = api.get(f"/api/v1/recordings/{name}").json()
    assert (recording["origin"], recording["seed"], recording["read_only"]) == ("synthetic", 7, False)
    ours = tmp_path / "data" / "recordings" / name
    theirs = ensure_recording(NAME, tmp_path / "by-command" / name, Variant(seed=7, scale=0.02)).path
    assert {path.name: path.read_bytes() for path in ours.iterdir()} == {
        path.name: path.read_bytes() for path in theirs.iterdir()
    }
    assert listed(api)[NAME]["recording"] is None, "another seed and size is not the scenario as it is written"
    assert [path.name for path in (tmp_path / "data" / "tasks" / task["id"]).iterdir()] == []


def test_what_is_there_is_replaced_only_where_that_is_asked_for(api: Client, tmp_path: Path) -> None:
    over(api, make(api, **SMALLEST))
    again = make(api, **SMALLEST)
    assert (again.status_code, again.headers["content-type"]) == (409, "application/problem+json")
    assert (again.json()["detail"], "overwrite" in again.json()["remedy"]) == (f"there is a recording {MADE}", True)
    header = tmp_path / "data" / "recordings" / MADE / "recording.yaml"
    whole = header.read_text(encoding="utf-8")
    title = Recording.open(header.parent).manifest.title
    header.write_text(whole.replace(title, "An earlier version"), encoding="utf-8")
    task = over(api, make(api, **SMALLEST, overwrite=True))
    assert (task["state"], header.read_text(encoding="utf-8")) == ("done", whole), task
    assert api.get(f"/api/v1/recordings/{MADE}").json()["title"] == title
    others = [one["name"] for one in api.get("/api/v1/detectors").json()][1:]
    run = run_over(api, MADE, **{name: {"enabled": False} for name in others})
    with Store(tmp_path / "data" / "api.sqlite").writing() as db:
        db.execute("UPDATE runs SET state = 'running' WHERE id = ?", (run,))
    assert make(api, **SMALLEST, overwrite=True).json()["detail"] == f"a run of {MADE} waits or is running"


def test_the_whole_of_what_comes_with_hindcast_in_part_can_be_made_and_comes_before_it(api: Client) -> None:
    part = api.get("/api/v1/recordings/vela-power-brake").json()
    assert part["read_only"]
    task = over(api, make(api, "vela-power-brake"))
    assert task["state"] == "done", task
    whole = api.get("/api/v1/recordings/vela-power-brake").json()
    assert (whole["read_only"], whole["duration_s"], whole["cluster"]["gpus"]) == (False, 10800, 768)
    assert listed(api)["vela-power-brake"]["recording"] == "vela-power-brake"
    assert make(api, "vela-power-brake").status_code == 409


@pytest.mark.parametrize(
    ("scenario", "asked", "words"),
    [
        ("sakuraone-spine-los", {}, "there is no scenario sakuraone-spine-los; did you mean sakuraone-spine-loss?"),
        ("..", {}, ""),
        ("%2Fetc%2Fpasswd", {}, ""),
        (NAME, {"seed": -1}, "seed -1 is out of range"),
        (NAME, {"seed": 2**32}, "seed 4294967296 is out of range"),
        (NAME, {"scale": 0.01}, "scale 0.01 is out of range"),
        (NAME, {"scale": 11}, "scale 11.0 is out of range"),
        (NAME, {"world": 0}, "world 0 is out of range"),
        ("vela-healthy", {"scale": 0.02}, "has 2 nodes, and the scenario names more"),
    ],
)
def test_what_nothing_can_be_made_of_is_refused_at_once(
    api: Client, scenario: str, asked: dict[str, Any], words: str
) -> None:
    answer = make(api, scenario, **asked)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.status_code == (422 if words else 404), answer.text
    assert words in answer.json()["detail"]
    assert answer.json()["remedy"]
    assert api.get("/api/v1/tasks").json()["total"] == 0


def test_a_scale_that_is_no_number_is_refused(api: Client) -> None:
    body = json.dumps({"scale": float("nan")}).encode()
    answer = api.post(f"/api/v1/scenarios/{NAME}/make", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json"), answer.text


def test_one_that_is_being_made_is_not_begun_again_and_leaves_nothing_when_it_is_cancelled(
    api: Client, tmp_path: Path
) -> None:
    slow = {"scale": 10}
    task = make(api, "vela-power-brake", **slow).json()["id"]
    again = make(api, "vela-power-brake", **slow)
    assert (again.status_code, again.json()["detail"]) == (409, "vela-power-brake-scale-10 is being made")
    path, scratch = f"/api/v1/tasks/{task}", tmp_path / "data" / "tasks" / task / "scratch"
    until(lambda: any(scratch.glob(".*.partial")), what="the generator to write")
    assert api.post(f"{path}/cancel").json()["state"] == "cancelled"
    until(lambda: not scratch.exists(), what="the generator to end")
    assert not list((tmp_path / "data").glob("recordings/*"))
    assert make(api, "vela-power-brake", **slow).status_code == 201, "it may be asked for again"


def test_a_disk_without_room_refuses_it_and_one_that_fills_up_says_so(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "6m") as disk, client_of(settings_at(tmp_path, data_dir=disk.folder)) as client:
        refused = make(client, "vela-power-brake")
        assert (refused.status_code, refused.json()["title"]) == (507, "Insufficient Storage"), refused.text
        assert refused.json()["detail"].startswith("the disk is full: vela-power-brake is about 76 MB")
        assert "smaller scale" in refused.json()["remedy"]
        task = make(client, **SMALLEST).json()["id"]
        ballast = disk.folder / ".ballast"
        ballast.write_bytes(bytes(shutil.disk_usage(disk.folder).free - 200_000))  # the store can still write
        path = f"/api/v1/tasks/{task}"
        until(lambda: client.get(path).json()["state"] == "failed", what="the making to fail")
        assert client.get(path).json()["error"].startswith("the disk is full")
        assert not list((disk.folder / "tasks" / task).iterdir()), "what was not whole is deleted"
        disk.free()
        assert over(client, make(client, **SMALLEST))["state"] == "done"
