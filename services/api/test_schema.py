"""The API against what docs/openapi.json says of it: whatever is asked, the answer is as said there, and no defect."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
import uvicorn
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
from services.kit.wait import until

_DOCUMENT = Path(__file__).parents[2] / "docs" / "openapi.json"
_KNOWN = {"recording": "sakuraone-job-hang", "detector": "power_throttle", "importer": "slurm"}
_CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
_EXAMPLES = 10
_NOT_BY_CHANCE = "^(start_run|start_comparison|start_score|start_postmortem)$"
"""Of these every second request would start a process: the tests of each start what is needed."""

for kind in ("application/zip", "application/gzip"):
    schemathesis.serializer.alias(kind, "application/octet-stream")
schema = schemathesis.openapi.from_path(
    _DOCUMENT, config=Config.from_dict({"phases": {"coverage": {"enabled": False}}})
)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give the API on a port of its own, with one recording and a run over it that is done."""
    folder = tmp_path_factory.mktemp("api")
    app = build(settings_at(folder, library=(SMALL / "sakuraone-job-hang",), waiting=1, unpacked_bytes=1_000_000))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, timeout_graceful_shutdown=3))
    thread = threading.Thread(target=server.run)
    thread.start()
    until(lambda: server.started, timeout_s=30, what="the API")
    found = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    detectors = [one["name"] for one in requests.get(f"{found}/api/v1/detectors", timeout=60).json()]
    only = {name: {"enabled": False} for name in detectors if name != "job_health"}  # one is enough, and quicker
    asked = {"recording": _KNOWN["recording"], "detectors": only}
    run = requests.post(f"{found}/api/v1/runs", json=asked, timeout=60).json()["id"]
    path = f"{found}/api/v1/runs/{run}"
    until(lambda: requests.get(path, timeout=60).json()["state"] == "done", timeout_s=240, what="the run")
    _KNOWN["run"] = run
    yield found
    app.state.streams.closing = True
    server.should_exit = True
    thread.join()


@schema.hook
def map_path_parameters(context: HookContext, path_parameters: dict[str, Any] | None) -> dict[str, Any] | None:
    """Ask of every second request for something that is there."""
    if not path_parameters or context.operation is None:
        return path_parameters
    for name, value in path_parameters.items():
        word = context.operation.path.split("/")[3].removesuffix("s") if name == "name" else name
        if word in _KNOWN and len(str(value)) % 2:
            path_parameters[name] = _KNOWN[word]
    return path_parameters


@schema.include(path_regex="^/").exclude(operation_id_regex=_NOT_BY_CHANCE).parametrize()
@settings(max_examples=_EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_answer_is_a_defect(case: Case[Any], url: str) -> None:
    response = case.call(base_url=url, timeout=60)
    if response.status_code == 503:  # there is no replay service here
        assert response.headers["content-type"][0] == "application/problem+json"
        assert "replay service" in response.json()["detail"]
        return
    case.validate_response(response, checks=[not_a_server_error, *_CHECKS])
