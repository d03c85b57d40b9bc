from services.kit.findings import Position
from services.notify.ledger import Ledger, Offsets


def test_a_held_resolve_holds_the_offset_but_not_the_firings_behind_it() -> None:
    ledger = Ledger({})
    for offset in range(4):
        ledger.read(Position(0, offset))
    ledger.await_firing(Position(0, 0))
    ledger.await_resolve(Position(0, 1))
    ledger.await_firing(Position(0, 2))
    ledger.delivered(Position(0, 0))
    assert ledger.to_commit() == {0: Offsets(1, 2)}
    ledger.delivered(Position(0, 2))
    assert ledger.to_commit() == {0: Offsets(1, 4)}
    assert not ledger.is_durable(Position(0, 2))
    ledger.committed(ledger.to_commit())
    assert ledger.is_durable(Position(0, 2))
    assert ledger.to_commit() == {}
    ledger.delivered(Position(0, 1))
    assert ledger.to_commit() == {0: Offsets(4, 4)}


def test_reading_from_the_start_again_never_moves_the_marks_back() -> None:
    ledger = Ledger({0: Offsets(10, 12)})
    ledger.read(Position(0, 3))
    assert ledger.to_commit() == {}
    assert ledger.was_delivered(Position(0, 11), firing=True)
    assert not ledger.was_delivered(Position(0, 11), firing=False)


def test_marks_survive_their_commit_and_a_commit_by_other_means() -> None:
    offsets = Offsets(5, 9)
    assert Offsets.of_commit(5, offsets.metadata) == offsets
    assert Offsets.of_commit(5, "") == Offsets(5, 5)
    assert Offsets.of_commit(5, None) == Offsets(5, 5)
    assert Offsets.of_commit(5, "fired=junk") == Offsets(5, 5)
