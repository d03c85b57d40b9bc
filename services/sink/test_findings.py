"""What a finding leaves: a 1 when it fires and a 0 when it is resolved, under labels that stay the same."""

from collections.abc import Iterable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.contract import Finding, State, finding_id
from services.kit.findings import FindingRecord
from services.kit.series import table
from services.kit.wire import SHADOW, Origin, WireError
from services.sink.encode import EARLIEST_MS
from services.sink.findings import FindingWriter
from services.sink.pages import Catalogue

ONSET, FIRED, OVER, SHIFT = 1_700_000_000_000, 1_700_000_015_000, 1_700_000_900_000, 5_000
ORIGIN = Origin("vela", "drill", 0, SHIFT)
NAMES = table().findings


@dataclass
class Written:
    value: bytes | None
    headers: Iterable[tuple[str, bytes]]
    topic: str = "findings"
    partition: int = 0
    offset: int = 0
    timestamp: int = 0
    key: bytes | None = None


def finding(
    state: State, at_ms: int, entity: dict[str, str | int], headers: Iterable[tuple[str, bytes]] = ()
) -> FindingRecord:
    finding = Finding(
        finding_id("power_throttle", entity, ONSET), "power_throttle", "power_throttle", entity, state, ONSET, at_ms,
        "page", 0.9, "the brake is on", "look at the supply",
    )  # fmt: skip
    return FindingRecord(ORIGIN, finding, Written(None, headers))


def written(*records: FindingRecord) -> list[tuple[dict[str, str], int, float]]:
    catalogue = Catalogue("v2")
    writer = FindingWriter(NAMES, catalogue)
    return [
        (dict(catalogue.labels(int(block.series[0]))), int(block.times[0, 0]), float(block.values[0, 0]))
        for record in records
        for block in writer.samples(record)
    ]


def test_a_finding_is_one_when_it_fires_and_zero_when_it_is_resolved() -> None:
    entity: dict[str, str | int] = {"node": "v003", "gpu": 4}
    fired, began, over = written(finding("firing", FIRED, entity), finding("resolved", OVER, entity))
    labels = {
        "__name__": NAMES.active, "cluster": "vela", "replay": "drill", "job": "hindcast", "instance": "detect",
        "fault": "power_throttle", "severity": "page", "detector": "power_throttle", "node": "v003", "gpu": "4",
    }  # fmt: skip
    assert fired == (labels, FIRED + SHIFT, 1.0)
    assert began == (labels | {"__name__": NAMES.started}, FIRED + SHIFT, (ONSET + SHIFT) / 1000)
    assert over == (labels, OVER + SHIFT, 0.0)


@given(st.lists(st.sampled_from(["v001", "v002", "v003"]), max_size=8))
def test_read_again_a_record_leaves_the_same(nodes: list[str]) -> None:
    records = [finding("firing", FIRED, {"node": node}) for node in nodes]
    once = {(tuple(sorted(labels.items())), at, value) for labels, at, value in written(*records)}
    again = {(tuple(sorted(labels.items())), at, value) for labels, at, value in written(*records, *records[::-1])}
    assert once == again
    assert len({series for series, _, _ in once}) == 2 * len(set(nodes))


def test_a_series_is_named_once() -> None:
    catalogue = Catalogue("v2")
    writer = FindingWriter(NAMES, catalogue)
    for at_ms in (FIRED, FIRED + 60_000):
        list(writer.samples(finding("firing", at_ms, {"node": "v001"})))
    assert catalogue.size == 2


def test_a_time_that_prometheus_cannot_hold_is_refused_with_a_reason() -> None:
    with pytest.raises(WireError, match="not a time that Prometheus can hold"):
        written(finding("firing", EARLIEST_MS - SHIFT - 1, {"node": "v001"}))


def test_a_detector_in_shadow_leaves_nothing() -> None:
    assert written(finding("firing", FIRED, {"node": "v001"}, [(SHADOW, b"1")])) == []
