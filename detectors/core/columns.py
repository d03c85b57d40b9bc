"""Columns over entities: declared once; growth, snapshot and restore follow from the declaration."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from detectors.core.kept import Kept

GPU_NODES: Final = "nodes of GPUs"
"""Nodes, numbered in the order in which their first GPU became known, as in `detectors.fleet.gpus.GpuLayout`."""
REUSED: Final = "reused"
"""What gets free numbers again (`detectors.core.slots`), or has numbers of its own, such as the ranks of a job: none of
these change when the fleet's do."""


class Column(NamedTuple):
    """What is declared of a column: see `column`."""

    blank: float
    dtype: Any
    rows: tuple[int, ...]


def column(blank: float, rows: int | None = None, *, dtype: Any = None) -> Any:
    """Declare a column by the value of an entity of which nothing is known yet, and `rows` where more than one.

    It has the type of the blank (bool, int64, float64) if no other `dtype` is given.
    """
    own = np.bool_ if isinstance(blank, bool) else np.int64 if isinstance(blank, int) else np.float64
    return Column(blank, dtype or own, () if rows is None else (rows,))


def keep_known(kept: NDArray[np.float64], where: Any, value: NDArray[np.float64]) -> None:
    """Put readings (n,) into a column, at an index of n of its places; NaN leaves what was there."""
    put(kept, where, value, np.isfinite(value))


def put(kept: NDArray[Any], where: Any, values: NDArray[Any], those: NDArray[np.bool_]) -> None:
    """Put `those` (n,) of some values (n,) into a column, at an index of n of its places; the rest stays as it was."""
    some = np.count_nonzero(those)
    if some == len(those):
        kept[where] = values
    elif some:
        kept[where] = np.where(those, values, kept[where])


class Columns(Kept):
    """Arrays by entity that grow together, of shape (count,), or (rows, count) where rows are declared.

    A subclass declares them as attributes, each by `column`, and names in `BESIDE` the attributes that are `Columns` of
    the same entities (or lists of such). `grow` makes room, `forget` makes entities new again; the state is all of it.

    `axis` says what the columns are by: a kind of entity as in `Fleet.entities`, `GPU_NODES`, `REUSED`, or what numbers
    names and knows which of these numbers survive (`presence.Roster`). What is None is by what the columns that it is a
    part of are by; `detectors.core.survivors` goes by it.
    """

    axis: Any = None
    COLUMNS: ClassVar[Mapping[str, Column]] = {}
    BESIDE: ClassVar[tuple[str, ...]] = ()
    rows: tuple[int, ...] = ()
    """Of every column, in front of those declared: where a subclass keeps several of what it keeps of each entity."""

    def __init_subclass__(cls) -> None:
        own = {name: declared for name, declared in vars(cls).items() if isinstance(declared, Column)}
        cls.COLUMNS = {**cls.COLUMNS, **own}
        inherited, more = super(cls, cls).KEPT, vars(cls).get("KEPT", ())
        cls.KEPT = tuple(dict.fromkeys((*inherited, "count", *own, *cls.BESIDE, *more)))

    def __init__(self) -> None:
        self.count = 0
        for name in self.COLUMNS:
            setattr(self, name, self._blank(name, 0))

    def __len__(self) -> int:
        return self.count

    def along(self, axis: Any) -> Self:
        """Say what the columns are by; see `axis`."""
        self.axis = axis
        return self

    def grow(self, count: int) -> None:
        """Make room for `count` entities; fewer than there are changes nothing."""
        more = count - self.count
        if more > 0:
            for name in self.COLUMNS:
                setattr(self, name, np.concatenate([getattr(self, name), self._blank(name, more)], axis=-1))
            self.count = count
        for _, part in self._beside():
            part.grow(count)

    def forget(self, entities: Any) -> None:
        """Set everything that is kept of some entities (an index or a mask) back to what it is of a new one."""
        if not np.size(entities):
            return
        for name, declared in self.COLUMNS.items():
            getattr(self, name)[..., entities] = declared.blank
        for _, part in self._beside():
            part.forget(entities)

    def keep(self, entities: NDArray[np.int64]) -> None:
        """Go on with some of the entities (n,), in this order; `go_on` asks of what is beside them by itself."""
        for name in self.COLUMNS:
            setattr(self, name, getattr(self, name)[..., entities])
        self.count = len(entities)

    def begin_afresh(self, name: str) -> None:
        """Leave a column blank that a snapshot does not have; where it has none of them, room is made before use."""
        if name == "count":
            return
        if name not in self.COLUMNS:
            raise KeyError(name)
        setattr(self, name, self._blank(name, self.count))

    def arrays(self, prefix: str = "") -> dict[str, NDArray[Any]]:
        """Return the arrays by name, for a snapshot."""
        own = {prefix + name: getattr(self, name) for name in self.COLUMNS}
        for name, part in self._beside():
            own |= part.arrays(f"{prefix}{name}_")
        return own

    def load(self, arrays: Mapping[str, NDArray[Any]], prefix: str = "") -> Self:
        """Take what `arrays` returned; what an older version did not have begins afresh."""
        kept = {name: arrays[prefix + name] for name in self.COLUMNS if prefix + name in arrays}
        self.count = next(iter(kept.values())).shape[-1] if kept else 0
        for name in self.COLUMNS:
            setattr(self, name, kept[name] if name in kept else self._blank(name, self.count))
        for name, part in self._beside():
            part.load(arrays, f"{prefix}{name}_")
            part.grow(self.count)
        return self

    def _beside(self) -> Iterator[tuple[str, "Columns"]]:
        for name in self.BESIDE:
            held = getattr(self, name)
            if isinstance(held, list):
                yield from ((f"{name}{place}", part) for place, part in enumerate(held))
            else:
                yield name, held

    def _blank(self, name: str, count: int) -> NDArray[Any]:
        blank, dtype, rows = self.COLUMNS[name]
        return np.full((*self.rows, *rows, count), blank, dtype)
