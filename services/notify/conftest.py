"""Findings and records made by hand."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest

from detectors.contract import Finding, State, finding_id
from services.kit.wire import NDJSON, Headers, Origin


@dataclass
class MadeRecord:
    value: bytes | None
    headers: Iterable[tuple[str, bytes]]
    offset: int
    partition: int = 0
    topic: str = "findings"
    timestamp: int = 0
    key: bytes | None = None


Make = Callable[..., MadeRecord]


@pytest.fixture
def make() -> Make:
    return made


def made(
    offset: int,
    state: State = "firing",
    *,
    onset_ms: int = 1_700_000_000_000,
    at_ms: int | None = None,
    node: str = "node-7",
    generation: int = 0,
    shift_ms: int = 0,
    replay: str = "drill",
    headers: Headers | None = None,
) -> MadeRecord:
    """Return a finding's record; its identity is its node and onset."""
    finding = Finding(
        id=finding_id("power_throttle", {"node": node}, onset_ms),
        detector="power_throttle",
        fault="power_throttle",
        entity={"node": node},
        state=state,
        started_at=onset_ms,
        detected_at=onset_ms + 15_000 if at_ms is None else at_ms,
        severity="page",
        score=0.9731,
        summary=f"{node} throttled by its power brake",
        recommended_action="drain the node, reseat the power card",
        evidence={"power_w": 151.25, "peers_power_w": 398.5, "gpus": 8},
    )
    origin = Origin("vela", replay, generation, shift_ms)
    return MadeRecord(finding.to_json().encode(), [*origin.headers(NDJSON), *(headers or [])], offset)
