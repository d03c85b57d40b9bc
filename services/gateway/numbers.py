"""Keys and their numbers, by which columns name them."""

from collections.abc import Hashable
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
K = TypeVar("K", bound=Hashable)


class Numbers(Generic[K]):
    """Gives each key a number; that of a key that is not kept is given to another."""

    def __init__(self) -> None:
        self.of: dict[K, int] = {}
        self.keys: list[K] = []
        """The key of each number; of one that is free, a key of before."""
        self._free: list[int] = []

    def number(self, key: K) -> int:
        """Return the number of a key."""
        found = self.of.get(key)
        if found is None:
            if self._free:
                found = self._free.pop()
                self.keys[found] = key
            else:
                found = len(self.keys)
                self.keys.append(key)
            self.of[key] = found
        return found

    def keep(self, used: Bools) -> None:
        """Forget the keys whose numbers are not `used`, a flag for each number."""
        for number in np.flatnonzero(~used).tolist():
            if self.of.get(self.keys[number]) == number:
                del self.of[self.keys[number]]
                self._free.append(number)
