"""One open finding an entity and fault, and no identity twice."""

from detectors.contract import Finding, Instant
from detectors.fleet import Fleet
from detectors.gpus import GpuLayout
from detectors.ledger import WHOLE_NODE, Ledger

NOW: Instant = 1_711_958_405_000


def _ledger() -> Ledger:
    layout = GpuLayout(Fleet({"nodes": [{"name": "v001", "gpus": [{"gpu": 4}]}]}))
    layout.extend()
    return Ledger("gpu_lost", layout)


def _fire(ledger: Ledger, now: Instant, started_at: Instant, gpu: int = 0) -> list[Finding]:
    return ledger.fire(
        now,
        "gpu_lost",
        "v001",
        gpu,
        started_at=started_at,
        severity="page",
        score=1,
        summary="",
        action="",
        evidence={},
    )


def test_a_gpu_is_named_by_its_number_and_a_node_without_one() -> None:
    ledger = _ledger()
    assert _fire(ledger, NOW, NOW)[0].entity == {"node": "v001", "gpu": 4}
    assert _fire(ledger, NOW, NOW, WHOLE_NODE)[0].entity == {"node": "v001"}
    assert (ledger.where("v001", 0), ledger.where("v001", WHOLE_NODE)) == ("v001 GPU 4", "v001")


def test_what_is_open_does_not_fire_again() -> None:
    ledger = _ledger()
    assert len(_fire(ledger, NOW, NOW)) == 1
    assert _fire(ledger, NOW + 5000, NOW + 5000) == []


def test_a_second_finding_with_the_same_onset_has_an_identity_of_its_own() -> None:
    ledger = _ledger()
    (first,) = _fire(ledger, NOW, NOW - 300)
    ledger.resolve(ledger.entries()[0], NOW, "over", {})
    (second,) = _fire(ledger, NOW + 5000, NOW - 200)
    assert second.id != first.id
    assert first.started_at < second.started_at <= second.detected_at


def test_nothing_begins_in_the_future() -> None:
    ledger = _ledger()
    _fire(ledger, NOW, NOW)
    ledger.resolve(ledger.entries()[0], NOW, "over", {})
    assert _fire(ledger, NOW, NOW) == []


def test_a_snapshot_carries_what_is_open_and_what_was() -> None:
    ledger, restored = _ledger(), _ledger()
    (first,) = _fire(ledger, NOW, NOW)
    restored.load(ledger.snapshot())
    assert _fire(restored, NOW + 5000, NOW + 5000) == []
    over = restored.resolve(restored.entries("gpu_lost")[0], NOW + 5000, "over", {})
    assert (over.id, over.started_at, over.evidence["lasted_s"]) == (first.id, NOW, 5.0)
    assert _fire(restored, NOW, NOW) == []
