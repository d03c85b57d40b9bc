"""Numbers for what comes and goes, such as jobs: free for another once it is forgotten."""

from collections.abc import Iterable, Sequence

import numpy as np

from detectors.contract import IntArray
from detectors.fleet.fleet import Fleet

_UNKNOWN = -1


class Slots:
    """The number of each name, and of each entity of a kind by one part of its key (a job of its ranks).

    Columns indexed by these numbers do not grow with what is over. `names` has None where a number is free.
    """

    def __init__(self, fleet: Fleet, kind: str, part: int = 0) -> None:
        self._fleet, self._kind, self._part = fleet, kind, part
        self.names: list[str | None] = []
        self._numbers: dict[str, int] = {}
        self._of_entity: IntArray = np.empty(0, np.int64)

    def __len__(self) -> int:
        """Return how many numbers there are, free ones included."""
        return len(self.names)

    @property
    def taken(self) -> int:
        """How many of them are given."""
        return len(self._numbers)

    def find(self, name: str) -> int:
        """Return the number of a name; -1 if it has none."""
        return self._numbers.get(name, _UNKNOWN)

    def number(self, name: str) -> int:
        """Return the number of a name; it is given the lowest free one if it has none."""
        if name not in self._numbers:
            number = self.names.index(None) if None in self.names else len(self.names)
            self.names[number : number + 1] = [name]
            self._numbers[name] = number
        return self._numbers[name]

    def of(self, entities: IntArray) -> IntArray:
        """Return the number (n,) of each of `entities` (n,), indices into ``fleet.entities(kind)``."""
        known = len(self._of_entity)
        count = int(entities.max(initial=-1)) + 1
        if count > known:
            self._of_entity = np.concatenate([self._of_entity, np.full(count - known, _UNKNOWN, np.int64)])
        fresh = entities[self._of_entity[entities] == _UNKNOWN]
        keys = self._fleet.entities(self._kind)
        for entity in fresh.tolist():
            self._of_entity[entity] = self.number(str(keys[entity][self._part]))
        numbers: IntArray = self._of_entity[entities]
        return numbers

    def forget(self, numbers: Iterable[int]) -> None:
        """Free some numbers; the caller sets what is kept under them back."""
        for number in numbers:
            name = self.names[number]
            if name is not None:
                del self._numbers[name]
                self.names[number] = None
                self._of_entity[self._of_entity == number] = _UNKNOWN

    def snapshot(self) -> list[str | None]:
        """Return the state as JSON can say it."""
        return self.names

    def load(self, names: Sequence[str | None]) -> None:
        """Take the `names` of a snapshot."""
        self.names = list(names)
        self._numbers = {name: number for number, name in enumerate(names) if name is not None}
        self._of_entity = np.empty(0, np.int64)
