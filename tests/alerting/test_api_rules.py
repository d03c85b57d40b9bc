"""Alert rules that somebody sends to the API: refused with their line, or evaluated over recordings of the library."""

from collections.abc import Iterator
from typing import Any

import pytest

from services.api.conftest import Client, client_of, over, run_over, settings_at
from services.rules.evaluation import evaluator_program
from tests.small import Brake, small_recording

pytestmark = pytest.mark.integration

OWN = """
groups:
  - name: mine
    interval: 10s
    rules:
      - alert: DrawsLittle
        expr: avg by (Hostname) (DCGM_FI_DEV_POWER_USAGE{Hostname="v002"}) < 160
        for: 20s
        keep_firing_for: 2m
        annotations: {summary: "{{ $labels.Hostname }} draws {{ $value }} W at work"}
      - alert: StillDrawsLittle
        expr: avg by (Hostname) (DCGM_FI_DEV_POWER_USAGE) < 190
        for: 40s
      - alert: Draws
        expr: max by (Hostname) (max_over_time(DCGM_FI_DEV_POWER_USAGE[1m])) > 0
      - alert: Warm
        expr: max(DCGM_FI_DEV_GPU_TEMP) > 0
      - alert: Never
        expr: DCGM_FI_DEV_GPU_TEMP > 300
"""
BRAKES = [Brake("v002", 120, 240), Brake("v003", 330, 445)]
WRONG = {
    OWN.replace("< 160", "< < 160"): "rules.yaml, line 7, column 15: ",
    OWN.replace("for: 20s", "for: 20x"): 'rules.yaml, near line 8: unknown unit "x" in duration "20x"',
    OWN.replace("alert: Never", "allert: Never"): "rules.yaml: yaml: line 18: field allert not found",
    OWN.replace("{{ $value }}", "{{ $value "): 'rules.yaml, near line 10: group "mine", rule 1, "DrawsLittle"',
    "groups: []": "rules.yaml: there is no alert in it",
}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Give an API with three nodes for seven minutes and a half, two of them braked for a while."""
    evaluator_program()
    folder = tmp_path_factory.mktemp("api")
    braked = small_recording(folder, "braked", nodes=3, minutes=7.5, brakes=BRAKES)
    with client_of(settings_at(folder, library=(braked,))) as client:
        yield client


def evaluated(api: Client, **asked: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    task = over(api, api.post("/api/v1/evaluations", json=asked), timeout_s=240)
    assert task["state"] == "done", task
    return task, api.get(f"/api/v1/evaluations/{task['id']}").json()


@pytest.mark.parametrize("text", WRONG, ids=["expression", "duration", "field", "template", "empty"])
def test_wrong_rules_are_refused_with_their_line(api: Client, text: str) -> None:
    before = api.get("/api/v1/tasks").json()["total"]
    answer = api.post("/api/v1/evaluations", json={"recordings": ["braked"], "rules": text})
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
    assert answer.json()["detail"].startswith(WRONG[text])
    assert answer.json()["remedy"]
    assert api.get("/api/v1/tasks").json()["total"] == before


def test_own_rules_are_judged_by_place_and_time_beside_what_detectors_find(api: Client) -> None:
    task, found = evaluated(api, recordings=["braked"], rules=OWN)
    assert task["result"]["title"] == "DrawsLittle and 4 more"
    assert found["rules"] == OWN
    counts = {one.pop("name"): one for one in found["counts"]}
    fared = {name: "".join(f"{what} {count} " for what, count in one.items() if count) for name, one in counts.items()}
    assert fared == {
        "DrawsLittle": "fired 1 hits 1 ",
        "StillDrawsLittle": "fired 2 late 1 repeats 1 ",
        "Draws": "fired 3 false_alarms 3 ",
        "Warm": "fired 1 ",
        "Never": "",
    }
    (braked,) = found["recordings"]
    assert (braked["run"], braked["labelled"]) == (None, True)
    figures = [[braked[side][what] for what in ("caught", "missed", "false_alarms")] for side in ("rules", "detectors")]
    assert figures == [[1, 1, 3], [2, 0, 0]]
    caught, late = braked["labels"]
    assert caught["rules"]["entity"] == caught["detectors"]["entity"] == {"node": "v002"}
    assert (
        caught["detectors"]["delay_s"]
        < caught["rules"]["delay_s"]
        <= caught["label"]["within_s"]
        < late["rules"]["delay_s"]
    )
    assert (late["rules"]["name"], late["rules"]["late"], late["detectors"]["late"]) == (
        "StillDrawsLittle",
        True,
        False,
    )
    fired = {one["name"]: one for one in braked["alerts"] if one["by"] == "rules"}
    hit = fired["DrawsLittle"]
    assert (hit["verdict"], hit["label"]) == ("hit", caught["label"]["id"])
    assert hit["summary"].startswith("v002 draws ")
    assert hit["started_at"] < hit["at"] < hit["resolved_at"]
    assert (fired["Warm"]["entity"], fired["Warm"]["verdict"]) == ({}, None)


def test_hindcasts_own_rules_stand_beside_the_last_run(api: Client) -> None:
    files = {one["name"]: one["text"] for one in api.get("/api/v1/rule-files").json()}
    assert "alert: NodePowerBrake" in files["power_throttle.yaml"]
    run = run_over(api, "braked")
    task, found = evaluated(api, recordings=["braked"])
    (braked,) = found["recordings"]
    assert (task["result"]["title"], found["rules"], braked["run"]) == ("hindcast's own rules", None, run)
    assert braked["labels"][0]["rules"]["name"] == "NodePowerBrake"
    of_run = api.get(f"/api/v1/runs/{run}/findings").json()["items"]
    beside = [one for one in braked["alerts"] if one["by"] == "detectors"]
    same = ("entity", "severity", "started_at", "resolved_at", "summary", "verdict")
    assert [[one[key] for key in same] for one in beside] == [[one[key] for key in same] for one in of_run]
