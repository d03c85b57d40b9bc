"""Which conditions are written, against a server of this test's own; against a real one: tests/kubernetes."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from detectors.contract import Finding, Severity, State
from services.detect.warmup import Line, finding_line
from services.kit.wire import Origin
from services.live.api_server import access_to
from services.live.conditions import NodeConditions
from services.live.poll_loop import News
from services.recording.embedded import Step
from tests.answering import Server, answering

AT = 1_700_000_000_000
ORIGIN = Origin("vela", "live")


@pytest.fixture
def server() -> Iterator[Server]:
    with answering() as serving:
        serving.answers = {f"/api/v1/nodes/v00{number}/status": (200, "{}") for number in (1, 2)}
        yield serving


def nodes(server: Server, **conditions: Sequence[dict[str, str]]) -> None:
    """Let the server have nodes with these conditions, listed or by a watch that begins anew."""
    items = [{"metadata": {"name": name}, "status": {"conditions": list(has)}} for name, has in conditions.items()]
    server.answers["/api/v1/nodes?limit=500"] = 200, json.dumps({"metadata": {"resourceVersion": "1"}, "items": items})
    watch = "/api/v1/nodes?watch=1&resourceVersion=1&allowWatchBookmarks=1&timeoutSeconds=1"
    server.answers[watch] = 410, "{}"


def line(
    name: str, node: str = "v001", state: State = "firing", severity: Severity = "page", *, shadow: bool = False
) -> Line:
    entity: dict[str, str | int] = {"node": node} if node else {"job_id": "1"}
    finding = Finding(
        id=name, detector="gpu_lost", fault="gpu_lost", entity=entity, state=state, started_at=AT,
        detected_at=AT + 5000, severity=severity, score=1.0, summary=f"{name} is lost", recommended_action="look",
    )  # fmt: skip
    return finding_line(finding, shadow=shadow)


def news(*lines: Line) -> News:
    return News(Step(AT + 60_000, [], []), lines)


def patched(server: Server) -> dict[str, list[tuple[str, str, str, str, str]]]:
    """Return what was patched since, by node."""
    found = {
        path.split("/")[4]: [
            (one["type"], one["status"], one["reason"], one["message"], one["lastTransitionTime"])
            for one in json.loads(body)["status"]["conditions"]
        ]
        for path, body in server.patched
    }
    server.patched.clear()
    return found


def watcher(server: Server, kept: Sequence[Line] | None = None) -> NodeConditions:
    return NodeConditions(access_to(server.url, None, None), ORIGIN, lambda: AT + 70_000, kept)


LOST: dict[str, Any] = {"type": "HindcastGpuLost", "status": "True", "reason": "GpuLost"}


def test_only_what_alerts_on_a_node_that_is_there_becomes_a_condition(server: Server) -> None:
    nodes(server, v001=[{"type": "Ready", "status": "True"}], v002=[])
    watching = watcher(server)
    watching.news(news(line("a"), line("b"), line("c", "v009"), line("d", ""), line("e", "v002", severity="info")))
    watching.news(news(line("f", "v002", shadow=True)))
    assert patched(server) == {}
    watching.following()
    began = "2023-11-14T22:13:20Z"
    assert patched(server) == {"v001": [("HindcastGpuLost", "True", "GpuLost", "a is lost (and 1 more)", began)]}
    nodes(server, v001=[LOST | {"message": "a is lost (and 1 more)"}], v002=[])
    watching.news(news(line("a", state="resolved")))
    assert patched(server) == {"v001": [("HindcastGpuLost", "True", "GpuLost", "b is lost", began)]}
    nodes(server, v001=[LOST | {"message": "b is lost"}], v002=[])
    watching.following()
    assert patched(server) == {}
    watching.news(news(line("b", state="resolved")))
    over = "2023-11-14T22:14:20Z"
    assert patched(server) == {"v001": [("HindcastGpuLost", "False", "Resolved", "it is over", over)]}


def test_what_an_earlier_run_left_is_cleared_up_but_for_what_is_open_still(server: Server) -> None:
    other = {"type": "HindcastNodeDown", "status": "True", "reason": "NodeDown", "message": "silent"}
    nodes(server, v001=[LOST | {"message": "a is lost"}, other], v002=[{"type": "KernelDeadlock", "status": "True"}])
    going_on = watcher(server, kept=[line("a")])
    going_on.news(news())
    over = "2023-11-14T22:14:20Z"
    assert patched(server) == {"v001": [("HindcastNodeDown", "False", "Resolved", "it is over", over)]}
    # A node that was registered anew has lost its conditions.
    nodes(server, v001=[], v002=[])
    going_on.following()
    assert [one[:2] for one in patched(server)["v001"]] == [("HindcastGpuLost", "True")]


def test_while_the_server_is_away_what_is_open_is_remembered(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    watching = watcher(server)
    watching.news(news(line("a")))
    watching.following()
    watching.following()
    assert [record.getMessage().count("conditions of nodes are not written") for record in caplog.records] == [1]
    nodes(server, v001=[])
    watching.following()
    assert patched(server).keys() == {"v001"}
