"""The safe position and the bound on what is under way, with the acknowledgements in the test's hands.

The futures are kafka-python's own; only the network between them and a broker is left out. The same against a real
broker is in tests/integration/test_replay.py.
"""

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import MessageSizeTooLargeError
from kafka.future import Future

from services.replay.outbox import Abandoned, Checkpoint, Outbox, SendError


class Held:
    """A producer whose records are acknowledged when the test says so."""

    def __init__(self) -> None:
        self.futures: list[Any] = []

    def send(
        self, topic: str, *, key: bytes, partition: int, value: bytes | None, headers: list[tuple[str, bytes]]
    ) -> Any:
        self.futures.append(Future())
        return self.futures[-1]


def outbox(held: Held, limit: int = 1000, *, abandoned: bool = False) -> Outbox:
    return Outbox(held, Checkpoint(0), limit_bytes=limit, abandoned=lambda: abandoned)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_a_position_is_safe_when_all_before_it_is_acknowledged(sizes: list[int], random: Any) -> None:
    held = Held()
    box = outbox(held)
    owner: list[int] = []
    for position, records in enumerate(sizes, start=1):
        for _ in range(records):
            box.send("t", key=b"k", partition=2, value=b"v", headers=[], oldest_ms=position)
            owner.append(position)
        box.checkpoint(Checkpoint(position))
    waiting = list(range(len(owner)))
    random.shuffle(waiting)
    while True:
        left = [owner[index] for index in waiting]
        assert box.safe.position_ms == (min(left) - 1 if left else len(sizes))
        assert box.oldest_ms() == (min(left) if left else None)
        if not waiting:
            break
        held.futures[waiting.pop()].success(None)
    box.drain()


def test_no_more_is_under_way_than_the_limit() -> None:
    held = Held()
    box = outbox(held, limit=100)
    box.send("t", key=b"k", partition=2, value=b"x" * 60, headers=[])
    sent = threading.Event()

    def send_more() -> None:
        box.send("t", key=b"k", partition=2, value=b"x" * 60, headers=[])
        sent.set()

    thread = threading.Thread(target=send_more)
    thread.start()
    assert not sent.wait(0.3)
    assert (len(held.futures), box.in_flight_bytes) == (1, 60)
    held.futures[0].success(None)
    thread.join(10)
    assert sent.is_set()
    assert box.in_flight_bytes == 60


def test_a_record_larger_than_the_limit_goes_alone() -> None:
    held = Held()
    box = outbox(held, limit=10)
    box.send("t", key=b"k", partition=2, value=b"x" * 60, headers=[])
    assert len(held.futures) == 1


def test_nothing_is_sent_behind_a_record_that_failed() -> None:
    held = Held()
    box = outbox(held)
    box.send("t", key=b"k", partition=2, value=b"v", headers=[], oldest_ms=1)
    box.checkpoint(Checkpoint(1))
    held.futures[0].failure(MessageSizeTooLargeError("too large"))
    with pytest.raises(SendError, match="too large"):
        box.send("t", key=b"k", partition=2, value=None, headers=[])
    with pytest.raises(SendError):
        box.drain()
    assert len(held.futures) == 1
    assert box.safe.position_ms == 0


def test_waiting_is_given_up_when_the_service_ends() -> None:
    held = Held()
    box = outbox(held, limit=10, abandoned=True)
    box.send("t", key=b"k", partition=2, value=b"x" * 60, headers=[])
    with pytest.raises(Abandoned):
        box.send("t", key=b"k", partition=2, value=b"x", headers=[])
