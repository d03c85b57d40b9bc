"""Columns over entities: declared once; growth, snapshot and restore follow from the declaration."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

Declaration = Mapping[str, tuple[Any, float] | tuple[Any, float, int]]
"""By name: dtype, the value of an entity of which nothing is known yet, and how many rows, where more than one."""


class Columns:
    """Arrays by entity that grow together, of shape (count,), or (rows, count) where rows are declared.

    A subclass declares them in `BLANK` and annotates each by its name; `grow` makes room, `arrays` and `load` carry
    them over a snapshot.
    """

    BLANK: ClassVar[Declaration] = {}

    def __init__(self) -> None:
        self.count = 0
        for name in self.BLANK:
            setattr(self, name, self._blank(name, 0))

    def __len__(self) -> int:
        return self.count

    def grow(self, count: int) -> None:
        """Make room for `count` entities; fewer than there are changes nothing."""
        more = count - self.count
        if more <= 0:
            return
        for name in self.BLANK:
            setattr(self, name, np.concatenate([getattr(self, name), self._blank(name, more)], axis=-1))
        self.count = count

    def forget(self, entities: Any) -> None:
        """Set everything that is kept of some entities (an index or a mask) back to what it is of a new one."""
        for name, (_, blank, *_rest) in self.BLANK.items():
            getattr(self, name)[..., entities] = blank

    def arrays(self, prefix: str = "") -> dict[str, NDArray[Any]]:
        """Return the arrays by name, for a snapshot."""
        return {prefix + name: getattr(self, name) for name in self.BLANK}

    def load(self, arrays: Mapping[str, NDArray[Any]], prefix: str = "") -> Self:
        """Take what `arrays` returned."""
        for name in self.BLANK:
            setattr(self, name, arrays[prefix + name])
            self.count = getattr(self, name).shape[-1]
        return self

    def _blank(self, name: str, count: int) -> NDArray[Any]:
        dtype, blank, *rows = self.BLANK[name]
        return np.full((*rows, count), blank, dtype)
