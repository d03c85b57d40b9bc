"""What is open on a node as conditions of its Kubernetes object: `HindcastPowerThrottle`, until it is over."""

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from detectors.contract import Finding
from services.detect.warmup import Line
from services.kit import topics
from services.kit.errors import ServerError, UsageError, UserError
from services.kit.times import to_the_second
from services.kit.wire import Origin
from services.live.alerts import alerted, finding_record
from services.live.api_server import Collection, Entrance
from services.live.poll_loop import News
from services.recording.importers.parts.objects import part, parts, text
from services.recording.importers.parts.schedulers.pods import name_of
from services.recording.importers.parts.series.matrix import words_of
from services.recording.model import Topology

if TYPE_CHECKING:
    import httpx

_log = logging.getLogger(__name__)
PREFIX = "Hindcast"
_NODES = "/api/v1/nodes"
_AGAIN_MS = 60_000
"""How often the server is asked whether conditions are still as they should be."""
_MOST = 1024
"""Characters of a message."""


class Condition(NamedTuple):
    """The status of a condition, why, and since when (epoch ms)."""

    status: str
    reason: str
    message: str
    since: int


class NodeConditions:
    """Keeps the conditions of nodes as the findings are that alert. `wall_ms`: wall time, epoch ms.

    `kept`: the findings of a run that goes on; None where a lookback comes first.
    What an earlier run left True is set False, unless it is still open; conditions of others stay as they are.
    """

    def __init__(
        self, access: Entrance, origin: Origin, wall_ms: Callable[[], int], kept: Sequence[Line] | None = None
    ) -> None:
        self._access, self._origin, self._wall_ms = access, origin, wall_ms
        self._open: dict[str, Finding] = {}
        self._known: dict[str, dict[str, Condition]] = {}
        self._nodes = Collection(_NODES, self._known, self._take_node)
        self._begun = kept is not None
        self._at = self._looked = 0
        self._failed = ""
        self._take(kept or ())

    def news(self, news: News) -> None:
        """Take what opens and closes, and write it where the lookback is over."""
        self._at = news.step.at
        changed = self._take(news.reported)
        if self._begun and (changed or self._wall_ms() - self._looked >= _AGAIN_MS):
            self._write()

    def following(self) -> None:
        """Write what is open at the end of the lookback."""
        self._begun = True
        self._write()

    def away(self, error: UserError) -> None:
        """Nothing is known of that: what was open stays so."""

    def _take(self, lines: Iterable[Line]) -> bool:
        before = dict(self._open)
        for line in lines:
            if line.topic == topics.FINDINGS:
                one = finding_record(self._origin, line, Topology())  # its place is no part of it
                self._open.pop(one.finding.id, None)
                if one.finding.state == "firing" and alerted(one) is not None and "node" in one.finding.entity:
                    self._open[one.finding.id] = one.finding
        return self._open != before

    def _write(self) -> None:
        """Patch what differs; what cannot be written now is tried again, and named once."""
        self._looked = self._wall_ms()
        try:
            with self._access.client() as client:
                self._nodes.update(client)
                for node, changes in self._differences().items():
                    _patch(client, node, changes, self._looked)
        except UserError as error:
            if error.message != self._failed:
                _log.warning("conditions of nodes are not written: %s", error)
            self._failed = error.message
        else:
            self._failed = ""

    def _differences(self) -> dict[str, dict[str, Condition]]:
        """Return by node the conditions that are not as they should be; a node that is not there has none."""
        wanted: dict[str, dict[str, list[Finding]]] = {}
        for finding in sorted(self._open.values(), key=lambda one: (one.started_at, one.id)):
            wanted.setdefault(str(finding.entity["node"]), {}).setdefault(type_of(finding.fault), []).append(finding)
        differences: dict[str, dict[str, Condition]] = {}
        for node, known in self._known.items():
            due = {kind: _condition(found) for kind, found in wanted.get(node, {}).items()}
            over = {kind for kind, one in known.items() if one.status == "True"} - due.keys()
            changes = {kind: one for kind, one in due.items() if kind not in known or known[kind][:3] != one[:3]}
            changes |= {kind: Condition("False", "Resolved", "it is over", self._at or self._looked) for kind in over}
            if changes:
                differences[node] = changes
        return differences

    def _take_node(self, item: Mapping[str, Any]) -> None:
        conditions = parts(part(item, "status"), "conditions")
        self._known[name_of(item)] = {
            kind: Condition(text(one, "status"), text(one, "reason"), text(one, "message"), 0)
            for one in conditions
            if (kind := text(one, "type")).startswith(PREFIX)
        }


def type_of(fault: str) -> str:
    """Return the type of the condition of a fault: ``HindcastPowerThrottle`` of ``power_throttle``."""
    return PREFIX + _camel(fault)


def _camel(fault: str) -> str:
    return "".join(word.capitalize() for word in fault.split("_"))


def _condition(found: list[Finding]) -> Condition:
    """Return the condition of a fault that is found once or more on a node, the earliest first."""
    first, more = found[0], f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    # The server is given what it gives back: as `text` reads it.
    message = text({"": f"{first.summary[: _MOST - 200]}{more}"}, "")
    return Condition("True", _camel(first.fault), message, first.started_at)


def _patch(client: "httpx.Client", node: str, changes: Mapping[str, Condition], now: int) -> None:
    import httpx

    conditions = [
        {
            "type": kind,
            "status": one.status,
            "reason": one.reason,
            "message": one.message,
            "lastTransitionTime": to_the_second(one.since),
            "lastHeartbeatTime": to_the_second(now),
        }
        for kind, one in sorted(changes.items())
    ]
    headers = {"Content-Type": "application/strategic-merge-patch+json"}
    path = f"{_NODES}/{node}/status"
    try:
        answer = client.patch(path, content=json.dumps({"status": {"conditions": conditions}}), headers=headers)
    except httpx.HTTPError as error:
        remedy = "check --kubernetes and the network"
        raise ServerError(f"{client.base_url} cannot be reached: {error}", remedy=remedy) from error
    if not answer.is_success and answer.status_code != httpx.codes.NOT_FOUND:  # gone meanwhile
        raise UsageError(
            f"{client.base_url} does not take conditions of {node} ({answer.status_code}): {words_of(answer.content)}",
            remedy="give the account the right to patch nodes/status: docs/live.md",
        )
