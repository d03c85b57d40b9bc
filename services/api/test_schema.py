"""The API against docs/openapi.json: whatever is asked, the answer is as stated there, and no defect."""

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case, Config, HookContext
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from services.api.app import build
from services.api.conftest import SMALL, settings_at
from services.api.recordings.test_archive import FILES, zipped
from services.api.runs.runs import new_id
from services.api.store import Store
from services.kit.kafka import KafkaSettings
from services.kit.wait import until
from services.replay import api as replay_api
from services.replay.manager import Manager
from services.replay.settings import ReplaySettings
from tests.web import served

_DOCUMENT = Path(__file__).parents[2] / "docs" / "openapi.json"
_CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
_EXAMPLES = 8
_NOT_BY_CHANCE = "^(start_(run|comparison|score|postmortem|evaluation|backtest|make)|repeat_backtest)$"
"""Of these every second request would start a process: the tests of each start what is needed."""
_NEVER_WELL = {"start_replay", "show_replay", "delete_replay", "follow_replay"} | {
    "seek_replay",
    "set_replay_speed",
    "steer_replay",
    "acknowledge_finding",
    "close_finding",
    "silence_finding",
}
"""There is no Kafka here, and so no replay: tests/integration/test_api.py has one; nor a live cluster: test_live.py."""

for kind in ("application/zip", "application/gzip"):
    schemathesis.serializer.alias(kind, "application/octet-stream")
schema = schemathesis.openapi.from_path(
    _DOCUMENT, config=Config.from_dict({"phases": {"coverage": {"enabled": False}}})
)

_NOTHING_FOUND = {"weeks": 0, "node_days": 0, "tickets_of_other_times": 0, "assumptions": {}, "worked": 0}
_BACKTEST = json.dumps(
    _NOTHING_FOUND | {"from": "2024-06-12T12:00:00Z", "to": "2024-06-12T13:00:00Z", "truth": "labels", "subjects": []}
)


class There:
    """What is there to be asked for, and how often it is."""

    def __init__(self) -> None:
        self.chance = random.Random()  # noqa: S311 - of a test
        self.known: dict[str, str] = {"detector": "power_throttle", "importer": "slurm", "source": "here"}
        self.folder = Path()

    def often(self) -> bool:
        return self.chance.random() < 0.7

    def made(self, table: str, **row: str | int) -> str:
        """Write something that only its row says is there, and return its id."""
        row = {"id": new_id(), "created_ms": 0, **row}
        with Store(self.folder / "api.sqlite").writing() as db:
            places = ", ".join(f":{name}" for name in row)
            db.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})", row)  # noqa: S608 - of this test
        return str(row["id"])

    def run(self, state: str) -> str:
        path = str(SMALL / self.known["recording"])
        return self.made("runs", recording="gone", path=path, detectors="{}", state=state)

    def task(self, state: str, kind: str = "import", **files: str) -> str:
        name = self.made("tasks", kind=kind, asked="{}", needs="{}", state=state)
        (self.folder / "tasks" / name).mkdir(parents=True)
        for file, text in files.items():
            (self.folder / "tasks" / name / file.replace("_", ".")).write_text(text)
        return name

    def comparison(self) -> str:
        runs = [self.known["run"]]
        body = {"recordings": [self.known["recording"]], "before": {}, "after": {}}
        return self.made("comparisons", title="", body=json.dumps({**body, "before_runs": runs, "after_runs": runs}))

    def label(self) -> str:
        words = {"recording": "x", "run": self.known["run"], "mark": "right", "note": "", "author": "me"}
        return self.made("labels", updated_ms=0, **words)

    def recording(self) -> str:
        shutil.copytree(SMALL / "vela-healthy", self.folder / "recordings" / "vela-healthy", dirs_exist_ok=True)
        return "vela-healthy"

    def to_be(self, operation: str) -> dict[str, str]:
        """Return what an operation that ends or deletes something may have."""
        states = {"delete": "failed", "cancel": "running"}
        order, _, word = operation.partition("_")
        makes = {
            "run": lambda: self.run(states[order]),
            "task": lambda: self.task(states[order]),
            "comparison": self.comparison,
            "label": self.label,
            "recording": self.recording,
        }
        return {word: makes[word]()} if order in states and word in makes else {}

    def wanted(self, operation: str) -> dict[str, str]:
        task = operation.removeprefix("show_").removesuffix("_report")
        return {**self.known, "task": self.known.get(task, self.known["task"]), **self.to_be(operation)}


_FRAMES = frozenset({"connection", "content-length", "expect", "host", "transfer-encoding", "upgrade"})
_THERE = There()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give the API on a port of its own, with one recording, a run over it that is done, and what people do with it."""
    folder = tmp_path_factory.mktemp("api")
    own = ReplaySettings(state_dir=folder / "state", recordings=(SMALL,))
    with served(replay_api.build(Manager(own, KafkaSettings()), own)) as replay_url:
        given = {"waiting": 1, "unpacked_bytes": 5_000_000, "sources": {"here": "http://127.0.0.1:9"}}
        place = SMALL / "sakuraone-job-hang"
        app = build(settings_at(folder, library=(place,), replay_url=replay_url, **given))
        with served(app) as found:
            _fill(f"{found}/api/v1", place.name, folder / "data")
            yield found
            app.state.streams.close()


def _fill(api: str, recording: str, folder: Path) -> None:
    detectors = [one["name"] for one in requests.get(f"{api}/detectors", timeout=300).json()]
    only = {name: {"enabled": False} for name in detectors if name != "job_health"}  # one is enough, and quicker
    run = requests.post(f"{api}/runs", json={"recording": recording, "detectors": only}, timeout=300).json()["id"]
    path = f"{api}/runs/{run}"
    until(lambda: requests.get(path, timeout=300).json()["state"] == "done", what="the run")
    _THERE.folder = folder
    _THERE.known |= {"recording": recording, "run": run}
    for word in ("finding", "incident"):
        _THERE.known[word] = requests.get(f"{path}/{word}s", timeout=300).json()["items"][0]["id"]
    figures: dict[str, Any] = {"faults": {}, "controls": {}, "recordings": [], "curve": []}
    rate = "false_alarms_per_100_node_days"
    rest: dict[str, Any] = {"node_days": 0, rate: None, f"{rate}_upper_95": None, "manners": {}, "incidents": {}}
    _THERE.known |= {
        "label": _THERE.label(),
        "comparison": _THERE.comparison(),
        "task": _THERE.task("failed"),
        "postmortem": _THERE.task("done", "postmortem", report_html="x", report_md="x", detectors_yaml="x"),
        "evaluation": _THERE.task("done", "evaluation", evaluation_json='{"rules":null,"counts":[],"recordings":[]}'),
        "backtest": _THERE.task("done", "backtest", report_html="x", matches_csv="x", backtest_json=_BACKTEST),
        "score": _THERE.task("done", "score", score_json=json.dumps(figures | rest)),
    }


def _operation(context: HookContext) -> str:
    assert context.operation is not None
    return str(context.operation.definition.raw["operationId"])


@schema.hook
def map_path_parameters(context: HookContext, path_parameters: dict[str, Any] | None) -> dict[str, Any] | None:
    """Ask often for something that is there."""
    if path_parameters and _THERE.often():
        assert context.operation is not None
        known = _THERE.wanted(_operation(context))
        for name in path_parameters:
            word = context.operation.path.split("/")[3].removesuffix("s") if name == "name" else name
            path_parameters[name] = known.get(word, path_parameters[name])
    return path_parameters


@schema.hook
def map_headers(_: HookContext, headers: dict[str, str] | None) -> dict[str, str] | None:
    """Leave out what frames a message: where that is wrong, the HTTP server says so before the API hears of it."""
    return headers and {name: value for name, value in headers.items() if name.lower() not in _FRAMES}


@schema.hook
def map_query(context: HookContext, query: dict[str, Any] | None) -> dict[str, Any] | None:
    """Ask often for a column and a run that are there."""
    if query is not None and _THERE.often():
        if _operation(context) == "series":
            return {"kind": "dcgm", "field": "DCGM_FI_DEV_POWER_USAGE", "points": "50"}
        if "run" in query:
            query["run"] = _THERE.known["run"]
    return query


@schema.hook
def map_body(context: HookContext, body: Any) -> Any:
    """Send often what can be taken."""
    if not _THERE.often():
        return body
    known, operation = _THERE.known, _operation(context)
    if operation == "add_label":
        return {"run": known["run"], "finding": known["finding"], "mark": "right"}
    if operation == "start_capture":
        window = {"from": "2024-04-01T08:00:00Z", "to": "2024-04-01T09:00:00Z"}
        return {"source": "here", "name": "captured", **window}
    return zipped(FILES) if operation == "import_recording" else body


@pytest.fixture
def statuses(url: str, request: pytest.FixtureRequest) -> Iterator[dict[str, set[int]]]:
    """Give where answers' statuses are noted by operation; each must have been answered well once."""
    seen: dict[str, set[int]] = {}
    with Store(_THERE.folder / "api.sqlite").writing() as db:  # nobody has to wait for what was asked for before
        db.execute("UPDATE tasks SET state = 'cancelled' WHERE state IN ('queued', 'running')")
    _THERE.chance.seed(request.node.name)
    yield seen
    assert {name for name, found in seen.items() if not any(one < 300 for one in found)} <= _NEVER_WELL, seen


@schema.include(path_regex="^/").exclude(operation_id_regex=_NOT_BY_CHANCE).parametrize()
@settings(max_examples=_EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_no_answer_is_a_defect(case: Case[Any], url: str, statuses: dict[str, set[int]]) -> None:
    response = case.call(base_url=url, timeout=300)
    statuses.setdefault(case.operation.definition.raw["operationId"], set()).add(response.status_code)
    case.validate_response(response, checks=_CHECKS)


_THIS = "0123456789abcdef"
_STRETCH = {"source": "gone", "from": "2024-04-01T08:00:00Z", "to": "2024-04-01T09:00:00Z"}


@pytest.mark.parametrize(
    ("route", "schema_name", "rest", "first", "second"),
    [
        ("labels", "LabelRequest", {"run": _THIS, "mark": "right"}, {"finding": _THIS}, {"incident": _THIS}),
        ("postmortems", "PostmortemRequest", {}, {"run": _THIS}, {"recording": "gone"}),
        ("comparisons", "ComparisonRequest", {}, {"recordings": ["gone"]}, {"before_runs": [_THIS]}),
        ("backtests", "BacktestRequest", {}, {"recordings": ["gone"]}, {"of": _STRETCH}),
    ],
)
def test_where_one_of_two_must_be_given_the_document_says_so(
    url: str, route: str, schema_name: str, rest: dict[str, Any], first: dict[str, Any], second: dict[str, Any]
) -> None:
    document = json.loads(_DOCUMENT.read_text())
    stated = {"$ref": f"#/components/schemas/{schema_name}", "components": document["components"]}
    empty: dict[str, Any] = {key: [] if isinstance(value, list) else None for key, value in first.items()}
    for given, right in [(first, True), (second, True), (empty | second, True), ({}, False), (first | second, False)]:
        body = rest | given
        answer = requests.post(f"{url}/api/v1/{route}", json=body, timeout=300)
        assert (answer.status_code == 400) is not right, answer.text  # 404: what is named is not there
        assert jsonschema_rs.is_valid(stated, body) is right


@pytest.mark.parametrize("time", ["yesterday", "2024-04-01T08:00:00", ""])
def test_a_capture_of_no_time_is_refused_at_once(url: str, time: str) -> None:
    asked = {"source": "here", "name": "captured", "from": "2024-04-01T08:00:00Z", "to": time}
    answer = requests.post(f"{url}/api/v1/captures", json=asked, timeout=300)
    assert answer.status_code == 400
    assert "to" in answer.text
