"""The book of open findings: one an entity and fault, no identity twice, the same after a restart."""

import json

from detectors.case_book import CaseBook, in_words
from detectors.contract import Fault, Finding, Instant

NOW: Instant = 1_711_958_400_000
MOUNT = {"mount": "/scale"}


def fire(
    book: CaseBook, now: Instant, started_at: Instant, fault: Fault = "storage_slow", aspect: str = ""
) -> list[Finding]:
    return book.fire(
        now,
        fault,
        MOUNT,
        started_at=started_at,
        severity="page",
        score=0.9,
        summary="slow",
        action="look",
        evidence={},
        aspect=aspect,
    )


def test_a_case_fires_once_and_is_over_once() -> None:
    book = CaseBook("storage")
    (fired,) = fire(book, NOW, NOW - 5000)
    assert fire(book, NOW + 5000, NOW) == []
    case = book.get("storage_slow", MOUNT)
    assert case is not None
    resolved = book.resolve(case, NOW + 10_000, "it is")
    assert (resolved.id, resolved.state, resolved.entity) == (fired.id, "resolved", MOUNT)
    assert resolved.evidence == {"lasted_s": 15.0}
    assert book.cases("storage_slow") == []


def test_one_that_comes_again_with_the_same_onset_has_another_identity() -> None:
    book = CaseBook("storage")
    (first,) = fire(book, NOW, NOW - 5000)
    book.resolve(book.cases("storage_slow")[0], NOW, "it is")
    (second,) = fire(book, NOW + 1000, NOW - 5000)
    assert second.id != first.id
    assert second.started_at > first.started_at


def test_nothing_begins_in_the_future() -> None:
    book = CaseBook("storage")
    fire(book, NOW, NOW)
    book.resolve(book.cases()[0], NOW, "it is")
    assert fire(book, NOW, NOW) == []


def test_faults_and_aspects_of_one_entity_are_distinguished() -> None:
    book = CaseBook("storage")
    (one,), (other,) = fire(book, NOW, NOW), fire(book, NOW, NOW, "job_hang")
    (third,) = fire(book, NOW, NOW, aspect="writes")
    assert len({one.id, other.id, third.id}) == 3
    case = book.get("storage_slow", MOUNT, "writes")
    assert case is not None
    assert book.resolve(case, NOW, "it is").id == third.id
    assert book.get("storage_slow", MOUNT) is not None


def test_an_entity_in_words() -> None:
    assert in_words({"node": "v001", "gpu": 4}) == in_words({"gpu": 4, "node": "v001"}) == "v001 GPU 4"
    assert in_words({"port": "Ethernet8", "switch": "leaf-1"}) == "leaf-1 Ethernet8"


def test_the_book_survives_a_restart() -> None:
    book = CaseBook("storage")
    (fired,) = fire(book, NOW, NOW - 5000)
    restored = CaseBook("storage")
    restored.load(json.loads(json.dumps(book.snapshot())))
    assert fire(restored, NOW, NOW) == []
    assert restored.resolve(restored.cases("storage_slow")[0], NOW + 1, "it is").id == fired.id
    assert restored.snapshot()["latest"] == book.snapshot()["latest"]
