"""Which records of the findings topic are delivered, as far as a consumer group's committed offsets can hold it.

A resolve is held back while later findings go out, so one offset a partition is not enough. Each commit holds
two: its offset (all records before it are delivered), and in its metadata a second offset, before which every
*firing* record is delivered. A resolve is sent only once the second one has passed its firing record and is committed:
after a crash, a firing record before that offset is never sent again, so that no alert fires again after its resolve.
"""

from typing import NamedTuple

from services.kit.findings import Position


class Offsets(NamedTuple):
    """Offsets of one partition: all records before `done`, and all firing ones before `fired`, are delivered."""

    done: int
    fired: int

    @property
    def metadata(self) -> str:
        """Return what is committed beside the offset `done`."""
        return f"fired={self.fired}"

    @classmethod
    def of_commit(cls, offset: int, metadata: str | None) -> "Offsets":
        """Return the offsets of a commit; one made by other means (a reset by hand) says nothing of `fired`."""
        name, _, value = (metadata or "").partition("=")
        fired = int(value) if name == "fired" and value.isdecimal() else offset
        return cls(offset, max(offset, fired))


NOTHING = Offsets(0, 0)


class Ledger:
    """What was read, what of it is not delivered yet, and what is committed."""

    def __init__(self, committed: dict[int, Offsets]) -> None:
        self._committed = dict(committed)
        self._next: dict[int, int] = {}
        self._firing: dict[int, set[int]] = {}
        self._rest: dict[int, set[int]] = {}

    def read(self, at: Position) -> None:
        """Note that the record at `at` was read; without `await_…` there is nothing to deliver of it."""
        self._next[at.partition] = at.offset + 1

    def was_delivered(self, at: Position, *, firing: bool) -> bool:
        """Return whether an earlier run had delivered the record."""
        offsets = self.committed_offsets(at.partition)
        return at.offset < (offsets.fired if firing else offsets.done)

    def await_firing(self, at: Position) -> None:
        """Note that the firing record at `at` is to be delivered."""
        self._firing.setdefault(at.partition, set()).add(at.offset)

    def await_resolve(self, at: Position) -> None:
        """Note that the resolved record at `at` is to be delivered."""
        self._rest.setdefault(at.partition, set()).add(at.offset)

    def delivered(self, at: Position) -> None:
        """Note that what was to be delivered of the record at `at` is."""
        self._firing.get(at.partition, set()).discard(at.offset)
        self._rest.get(at.partition, set()).discard(at.offset)

    def is_durable(self, at: Position) -> bool:
        """Return whether it is committed that the firing record at `at` is delivered."""
        return at.offset < self.committed_offsets(at.partition).fired

    def to_commit(self) -> dict[int, Offsets]:
        """Return the offsets of the partitions where they have moved on."""
        moved = {}
        for partition, upcoming in self._next.items():
            before = self.committed_offsets(partition)
            fired = min(self._firing.get(partition, set()), default=upcoming)
            done = min(self._rest.get(partition, set()), default=upcoming)
            now = Offsets(max(before.done, min(done, fired)), max(before.fired, fired))
            if now != before:
                moved[partition] = now
        return moved

    def committed_offsets(self, partition: int) -> Offsets:
        """Return what is committed of a partition."""
        return self._committed.get(partition, NOTHING)

    def committed(self, offsets: dict[int, Offsets]) -> None:
        """Note that `offsets` are committed."""
        self._committed.update(offsets)
