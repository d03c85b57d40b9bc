"""A backtest asked of the API: what is wrong is refused with its line, its figures are those of the command line."""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from services.api.conftest import Client, client_of, over, settings_at
from services.cli.main import app
from services.recording.instants import format_instant
from services.recording.model import Label
from services.recording.reader import Recording
from services.rules.evaluation import evaluator_program
from services.stack.runner import Stack
from services.stack.settings import load_settings
from tests import web
from tests.remote_written import HEADERS_V2, requests_of
from tests.small import Brake, small_recording

pytestmark = pytest.mark.integration

BRAKES = [Brake("v002", 120, 240), Brake("v003", 330, 420)]
COLUMNS = ["id", "created", "resolved", "host", "summary", "gpu_hours_lost"]
RULES = """\
groups:
  - name: mine
    rules:
      - alert: DrawsLittle
        expr: avg by (Hostname) (DCGM_FI_DEV_POWER_USAGE) < 190
        for: 40s
"""
CHANGED = "power_throttle:\n  confirm_readings: 3\n"
MINUTE_MS = 60_000


@pytest.fixture(scope="module")
def braked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three nodes for eight minutes, two of them braked for a while."""
    evaluator_program()
    return small_recording(tmp_path_factory.mktemp("recordings"), "braked", nodes=3, minutes=8, brakes=BRAKES)


@pytest.fixture(scope="module")
def labels(braked: Path) -> list[Label]:
    return [one for one in Recording.open(braked).labels() if not one.distractor]


@pytest.fixture(scope="module")
def tickets(labels: list[Label]) -> str:
    """Return a ticket for each label, opened a minute after its onset, and three that are no label's."""
    rows = [COLUMNS]
    for label in labels:
        opened, closed = format_instant(label.onset + MINUTE_MS), format_instant(label.end)
        rows.append([f"of-{label.id}", opened, closed, str(label.entity["node"]), "power brake", "2"])
    opened = format_instant(labels[0].onset)
    rows.append(["bios", opened, "", "v001", "please update the BIOS", ""])
    rows.append(["paper", opened, "", "printer-7", "out of paper", ""])
    rows.append(["old", "2019-04-01T09:00:00Z", "", "v001", "power brake", ""])
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


@pytest.fixture(scope="module")
def api(braked: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with client_of(settings_at(tmp_path_factory.mktemp("api"), library=(braked,))) as client:
        yield client


@pytest.fixture(scope="module")
def asked(tickets: str) -> dict[str, Any]:
    """Return what is asked of both the API and the command line."""
    configurations = [{"name": "defaults"}, {"name": "changed", "yaml": CHANGED}]
    rules = [{"name": "mine", "rules": RULES}]
    return {
        "recordings": ["braked"], "tickets": tickets, "configurations": configurations, "rules": rules, "grid_s": 15,
    }  # fmt: skip


@pytest.fixture(scope="module")
def made(api: Client, asked: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a backtest's task and its figures."""
    return done(api, api.post("/api/v1/backtests", json=asked))


def done(api: Client, answer: Any) -> tuple[str, dict[str, Any]]:
    task = over(api, answer)
    assert task["state"] == "done", task
    return task["id"], api.get(f"/api/v1/backtests/{task['id']}").json()


def counts(subject: dict[str, Any]) -> dict[str, int]:
    return {name: subject[name] for name in ("truths", "caught", "missed", "unclear", "outside", "false")}


HEAD = ",".join(COLUMNS)
OF = {"name": "mine"}


@pytest.mark.parametrize(
    ("wrong", "detail", "remedy"),
    [
        ({"tickets": f"{HEAD}\n1,yesterday,,,,\n"}, "tickets: line 2: 'yesterday' is not a time", "write it as 2026-"),
        ({"tickets": "id,entity\n1,v1\n"}, "tickets: no column says when a ticket was opened", "name it one of opened"),
        ({"tickets": f"{HEAD},entity\n1,2024-04-01,,,,,v1\n"}, "tickets: line 2: 'v1' is no entity", "node=v041,gpu=3"),
        ({"timezone": "Nowhere"}, "time zone Nowhere: no time zone that is known here", "Europe/Zurich"),
        (
            {"rules": [OF | {"rules": RULES.replace("< 190", "< < 190")}]},
            "rules 'mine', line 5, column 15: ",
            "",
        ),
        ({"rules": [OF | {"rules": "groups: []"}]}, "rules 'mine': there is no alert in it", "- alert: NAME"),
        (
            {"configurations": [OF | {"yaml": CHANGED.replace("confirm_", "confrm_")}]},
            "configuration 'mine', line 2: power_throttle.confrm_readings: no such setting; did you mean confirm_read",
            "hindcast config init",
        ),
        (
            {"configurations": [OF | {"yaml": f"# ours\n{CHANGED}power_throtle: {{}}\nincidents: {{gap: 1}}\n"}]},
            "configuration 'mine', line 4: power_throtle: no such detector; did you mean power_throttle?",
            "hindcast config init",
        ),
        ({"configurations": [OF | {"yaml": "incidents: {gap: 1}"}]}, "configuration 'mine', line 1: incidents.gap", ""),
        ({"configurations": [OF | {"yaml": "a: [1\nb: 2"}]}, "configuration 'mine', line 2: not YAML: ", "config init"),
        ({"configurations": [OF | {"yaml": "- power_throttle"}]}, "configuration 'mine': not a mapping", "config init"),
        ({"configurations": [OF | {"yaml": "a: &a {}\nb: *a"}]}, "configuration 'mine', line 2: has an alias", "write"),
        (
            {"configurations": [OF | {"yaml": "\ncalibration: /etc/passwd"}]},
            "configuration 'mine', line 2: names a calibration",
            "hindcast backtest --config",
        ),
        ({"configurations": [OF], "rules": [OF | {"rules": RULES}]}, "two of them are called 'mine'", "a name of its"),
        ({"recordings": []}, "a backtest is of recordings or of a server's time", "give one of the two"),
    ],
)
def test_what_is_wrong_is_refused_with_its_line_before_anything_runs(
    api: Client, wrong: dict[str, Any], detail: str, remedy: str
) -> None:
    before = api.get("/api/v1/tasks").json()["total"]
    answer = api.post("/api/v1/backtests", json={"recordings": ["braked"]} | wrong)
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
    assert answer.json()["detail"].startswith(detail)
    assert remedy in answer.json()["remedy"]
    assert api.get("/api/v1/tasks").json()["total"] == before


def test_a_year_of_tickets_fits_and_more_does_not(api: Client) -> None:
    row = "1,2024-04-01 09:00,,v001,{},\n"
    long = {"recordings": ["braked"], "tickets": f"{HEAD}\n{row.format('x' * 100_000) * 50}2,yesterday,,,,\n"}
    answer = api.post("/api/v1/backtests", json=long)
    assert (answer.status_code, answer.json()["detail"]) == (400, "tickets: line 52: 'yesterday' is not a time")
    answer = api.post("/api/v1/backtests", json=long | {"tickets": "x" * (17 << 20)})
    assert (answer.status_code, answer.json()["detail"]) == (413, "the body is more than 16,777,216 bytes")


def test_what_is_caught_is_what_the_labels_say(made: tuple[str, dict[str, Any]], labels: list[Label]) -> None:
    _, found = made
    assert (found["truth"], found["tickets_of_other_times"]) == ("tickets", 1)
    assert found["node_days"] == pytest.approx(3 * 8 / 60 / 24, rel=0.02)
    defaults, changed, rules = found["subjects"]
    assert [(one["name"], one["kind"]) for one in (defaults, changed, rules)] == [
        ("defaults", "detectors"), ("changed", "detectors"), ("mine", "rules"),
    ]  # fmt: skip
    expected = {"truths": len(labels) + 2, "caught": len(labels), "missed": 0, "unclear": 1, "outside": 1, "false": 0}
    assert counts(defaults) == counts(changed) == counts(rules) == expected
    assert defaults["against_ticket_p50_s"] < changed["against_ticket_p50_s"] < rules["against_ticket_p50_s"]
    for label in labels:
        (match,) = [one for one in defaults["matches"] if one["ticket"] == f"of-{label.id}"]
        assert (match["fault"], match["alert"]["entity"], match["how"]) == (
            label.fault,
            label.entity,
            "time, host, words",
        )
        assert 0 <= match["against_s"] + 60 <= label.within_s
    assert defaults["gpu_hours"]["lost"] == 2 * len(labels)


def test_its_figures_are_those_of_the_command_line(
    made: tuple[str, dict[str, Any]], api: Client, braked: Path, tickets: str, tmp_path: Path
) -> None:
    task, _ = made
    files = {"tickets.csv": tickets, "defaults.yaml": "", "changed.yaml": CHANGED, "mine.yaml": RULES}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    given = [
        ("--incidents", "tickets.csv"), ("--config", "defaults.yaml"), ("--config", "changed.yaml"),
        ("--rules", "mine.yaml"), ("--work", "work"), ("--out", "out"),
    ]  # fmt: skip
    options = [part for option, name in given for part in (option, str(tmp_path / name))]
    printed = CliRunner().invoke(app, ["backtest", str(braked), *options, "--grid", "15s", "--workers", "1"])
    assert printed.exit_code == 0, printed.output
    path = f"/api/v1/backtests/{task}/report"
    assert api.get(path, params={"form": "json"}).json() == json.loads((tmp_path / "out" / "backtest.json").read_text())
    for form, name in (("html", "report.html"), ("csv", "matches.csv")):
        answer = api.get(path, params={"form": form})
        assert answer.text == (tmp_path / "out" / name).read_text(encoding="utf-8")
        assert "sandbox" in answer.headers["content-security-policy"]


def test_without_tickets_the_labels_count_and_hindcasts_own_rules_may_stand_beside(
    api: Client, labels: list[Label]
) -> None:
    asked = {"recordings": ["braked"], "rules": [{"name": "hindcast"}], "grid_s": 15}
    _, found = done(api, api.post("/api/v1/backtests", json=asked))
    defaults, rules = found["subjects"]
    assert (found["truth"], defaults["name"], defaults["caught"]) == ("labels", "defaults", len(labels))
    assert {one["ticket"] for one in defaults["matches"]} == {label.id for label in labels}
    assert "NodePowerBrake" in {one["alert"]["detector"] for one in rules["matches"] if one["alert"] is not None}


def test_a_match_is_corrected_and_other_assumptions_are_made_without_looking_again(
    made: tuple[str, dict[str, Any]], api: Client
) -> None:
    task, before = made
    path = f"/api/v1/backtests/{task}/again"
    for ticket, words, status, detail in (
        ("bios", "nonsense", 400, "ticket bios: 'nonsense' is no fault"),
        ("bios", "node=", 400, "ticket bios: 'node=' is no entity"),
        ("old-paper", "none", 404, "there is no ticket old-paper"),
    ):
        refused = api.post(path, json={"corrections": {ticket: words}})
        assert (refused.status_code, refused.json()["detail"]) == (status, detail)
    corrected = {"corrections": {"bios": "none"}, "assumptions": {"checkpoint_min": 60, "reaction_min": 0}}
    second, again = done(api, api.post(path, json=corrected))
    assert (before["worked"], again["worked"]) == (4, 0)
    assert (again["subjects"][0]["unclear"], again["subjects"][0]["outside"]) == (0, 2)
    usual = before["assumptions"]
    assert again["assumptions"] == usual | {"checkpoint_min": 60, "reaction_min": 0} != usual
    third, back = done(api, api.post(f"/api/v1/backtests/{second}/again", json={"corrections": {"bios": " "}}))
    assert (back["subjects"][0]["unclear"], back["assumptions"]) == (1, again["assumptions"])
    assert api.get(f"/api/v1/tasks/{third}").json()["asked"]["corrections"] == {}
    unlabelled = over(api, api.post("/api/v1/backtests", json={"recordings": ["braked"], "grid_s": 15}))
    refused = api.post(f"/api/v1/backtests/{unlabelled['id']}/again", json={"corrections": {"bios": "none"}})
    assert (refused.status_code, refused.json()["detail"]) == (409, "this backtest has no tickets")


def test_what_waits_is_cancelled_and_what_cannot_be_done_says_why(api: Client, braked: Path, tmp_path: Path) -> None:
    with client_of(settings_at(tmp_path, library=(braked, small_recording(
        tmp_path, "beside", nodes=3, minutes=8, brakes=[],
    )))) as client:  # fmt: skip
        both = client.post("/api/v1/backtests", json={"recordings": ["beside", "braked"]})
        waits = client.post("/api/v1/backtests", json={"recordings": ["braked"]}).json()["id"]
        assert client.post(f"/api/v1/tasks/{waits}/cancel").json()["state"] == "cancelled"
        assert client.get(f"/api/v1/backtests/{waits}").status_code == 409
        task = over(client, both)
        assert task["state"] == "failed"
        assert "beside and braked are of the same cluster and time. `hindcast merge`" in task["error"]
        assert str(tmp_path) not in json.dumps(task)
    assert api.get(f"/api/v1/backtests/{waits}").status_code == 404


def test_the_history_of_a_server_is_asked_for_once(
    braked: Path, labels: list[Label], tickets: str, tmp_path: Path
) -> None:
    recording = Recording.open(braked)
    window = {"from": format_instant(recording.manifest.start), "to": format_instant(recording.manifest.end)}
    asked = {"of": {"source": "prometheus", **window}, "tickets": tickets, "grid_s": 15}
    with Stack.start(tmp_path / "stack", load_settings(), only=("prometheus",)) as stack:
        for _, body in requests_of(recording, "v2"):
            url = stack.addresses.prometheus_write
            assert web.post(url, content=body, headers=HEADERS_V2, timeout=300).status_code == 204
        sources = {"prometheus": stack.addresses.prometheus}
        with client_of(settings_at(tmp_path, library=(), sources=sources)) as api:
            wrong = asked | {"of": {"source": "prometheus", "from": window["to"], "to": window["from"]}}
            refused = api.post("/api/v1/backtests", json=wrong)
            assert (refused.status_code, refused.json()["detail"]) == (400, "`to` is not after `from`")
            elsewhere = api.post("/api/v1/backtests", json=asked | {"of": {"source": "http://127.0.0.1:9", **window}})
            assert (elsewhere.status_code, "HINDCAST_API_SOURCES" in elsewhere.json()["remedy"]) == (404, True)
            _, found = done(api, api.post("/api/v1/backtests", json=asked))
    (defaults,) = found["subjects"]
    assert {name: counts(defaults)[name] for name in ("caught", "missed", "false")} == {
        "caught": len(labels), "missed": 0, "false": 0,
    }  # fmt: skip
    with client_of(settings_at(tmp_path, library=(), sources=sources)) as api:  # the server is gone: all is known
        _, again = done(api, api.post("/api/v1/backtests", json=asked))
    assert (again["worked"], again["subjects"]) == (0, found["subjects"])
