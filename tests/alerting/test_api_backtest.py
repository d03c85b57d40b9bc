"""A backtest asked of the API: tickets are refused with their line, held against recordings, and corrected."""

from collections.abc import Iterator
from typing import Any

import pytest

from services.api.conftest import Client, client_of, settings_at
from services.kit.wait import until
from services.rules.evaluation import evaluator_program
from tests.small import Brake, small_recording

pytestmark = pytest.mark.integration

TICKETS = """id,created,resolved,host,summary
OPS-1,2024-04-01 09:03,2024-04-01 09:10,v002,power brake
OPS-2,2024-04-01 09:05,,v001,please update the BIOS
"""
RULES = "groups: [{name: mine, rules: [{alert: Draws, expr: max by (Hostname) (DCGM_FI_DEV_POWER_USAGE) > 0}]}]"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Give an API with two nodes for five minutes, one of them braked for two."""
    evaluator_program()
    folder = tmp_path_factory.mktemp("api")
    brakes = [Brake("v002", 120, 240)]
    braked = small_recording(folder, "braked", nodes=2, minutes=5, brakes=brakes, start="2024-04-01T09:00:00Z")
    with client_of(settings_at(folder, library=(braked,))) as client:
        yield client


def done(api: Client, answer: Any) -> tuple[str, dict[str, Any]]:
    assert answer.status_code == 201, answer.text
    task = answer.json()["id"]
    path = f"/api/v1/tasks/{task}"
    until(lambda: api.get(path).json()["state"] not in ("queued", "running"), timeout_s=240, what=path)
    assert api.get(path).json()["state"] == "done", api.get(path).json()
    return task, api.get(f"/api/v1/backtests/{task}").json()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            {"tickets": TICKETS.replace("2024-04-01 09:05", "yesterday")},
            "tickets.csv: line 3: 'yesterday'",
        ),
        ({"tickets": TICKETS, "timezone": "Nowhere"}, "no time zone"),
        ({"rules": [{"name": "mine", "rules": RULES.replace("> 0", "> > 0")}]}, "rules-0.yaml, line 1"),
        ({"configurations": [{"name": "a"}, {"name": "a"}]}, "the same name"),
        ({"configurations": [{"name": "a", "detectors": {"nonsense": {}}}]}, "nonsense"),
        ({"recordings": []}, "of recordings or of a server's time"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_runs(api: Client, wrong: dict[str, Any], words: str) -> None:
    answer = api.post("/api/v1/backtests", json={"recordings": ["braked"]} | wrong)
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
    assert words in answer.json()["detail"]
    assert api.get("/api/v1/tasks").json()["total"] == 0


def test_tickets_are_matched_and_a_match_is_corrected(api: Client) -> None:
    asked = {"recordings": ["braked"], "tickets": TICKETS, "rules": [{"name": "mine", "rules": RULES}], "grid_s": 30}
    task, found = done(api, api.post("/api/v1/backtests", json=asked))
    assert found["truth"] == "tickets"
    detectors, rules = found["subjects"]
    assert (detectors["name"], detectors["caught"], detectors["unclear"], detectors["false"]) == ("defaults", 1, 1, 0)
    assert (rules["name"], rules["kind"]) == ("mine", "rules")
    (match,) = [one for one in detectors["matches"] if one["verdict"] == "caught"]
    assert (match["ticket"], match["fault"], match["alert"]["entity"]) == ("OPS-1", "power_throttle", {"node": "v002"})
    report = api.get(f"/api/v1/backtests/{task}/report")
    assert "sandbox" in report.headers["content-security-policy"]
    assert "OPS-1" in report.text
    assert "OPS-2" in api.get(f"/api/v1/backtests/{task}/report", params={"form": "csv"}).text
    path = f"/api/v1/backtests/{task}/corrections"
    refused = api.post(path, json={"corrections": {"OPS-2": "nonsense"}})
    assert (refused.status_code, "'nonsense' is no fault" in refused.json()["detail"]) == (400, True)
    _, again = done(api, api.post(path, json={"corrections": {"OPS-2": "none"}}))
    assert again["worked"] == 0, "all windows are known"
    assert (again["subjects"][0]["unclear"], again["subjects"][0]["outside"]) == (0, 1)
