"""Who goes on when some of a fleet's entities are forgotten, and how all that is numbered by them goes on."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from detectors.core.columns import Columns
from detectors.fleet.fleet import Fleet

_HOLD_NOTHING: Final = (
    str, bytes, int, float, type(None), np.ndarray, type, FunctionType, MethodType, ModuleType, BaseModel, Fleet,
)  # fmt: skip
"""No detector keeps anything in its settings, or in the fleet, which is the engine's."""


@dataclass(frozen=True)
class Survivors:
    """`kept`, by kind of entity or `GPU_NODES`: indices until now (n,), ascending, in order of the new ones; of what is
    not named all go on. `gone`, by ``machine``, ``job`` or ``mount``: the names that no entity has any more.
    """

    kept: Mapping[str, NDArray[np.int64]]
    gone: Mapping[str, frozenset[str]]

    def of(self, axis: Any) -> NDArray[np.int64] | None:
        """Return which places of an axis (see `Columns`) go on, in order of the new ones; None: all."""
        found: NDArray[np.int64] | None = self.kept.get(axis) if isinstance(axis, str) else axis.surviving(self)
        return found

    def names(self, what: str) -> frozenset[str]:
        """Return the names that are gone, of a ``machine``, ``job`` or ``mount``."""
        return self.gone.get(what, frozenset())

    def lost(self, entity: Mapping[str, str | int]) -> bool:
        """Return whether what a finding names is gone: its machine, or the mount."""
        whose = entity.get("node", entity.get("switch"))
        return whose in self.names("machine") if whose is not None else entity.get("mount") in self.names("mount")

    def number(self, kind: str, entity: int) -> int:
        """Return the new index of an entity; -1 if it is gone, or is none."""
        kept = self.kept.get(kind)
        if kept is None or entity < 0:
            return entity
        place = int(kept.searchsorted(entity))
        return place if place < len(kept) and kept[place] == entity else -1


class Part(NamedTuple):
    """What something holds, the path to it, and the axis of it or of the columns that it is a part of."""

    path: str
    held: object
    axis: Any


def go_on(root: object, survivors: Survivors) -> None:
    """Let all that `root` keeps go on with the survivors. TypeError where columns do not say what they are by.

    What keeps something by index or by name beside columns has a method `go_on_with`: it takes the survivors, forgets
    what is gone, and gives the rest new numbers. A snapshot follows, and what is restored of it goes on: what is
    derived from the fleet need not be renewed.
    """
    parts = parts_of(root)
    columns = [(part, part.held) for part in parts if isinstance(part.held, Columns)]
    if silent := [part.path for part, _ in columns if part.axis is None]:
        raise TypeError(f"{type(root).__name__}{silent[0]} does not say what its columns are by: call `along`")
    places = [survivors.of(part.axis) for part, _ in columns]
    for (_, held), kept in zip(columns, places, strict=True):
        if kept is not None:
            held.keep(kept[kept < len(held)])
    axes = {id(part.axis) for part in parts}
    for part in sorted(parts, key=lambda part: id(part.held) in axes):  # which places survive is asked of axes before
        if (go_on_with := getattr(part.held, "go_on_with", None)) is not None:
            go_on_with(survivors)


def parts_of(root: object) -> list[Part]:
    """Return `root` and every object that it holds, each once."""
    found: dict[int, Part] = {}
    ahead = [Part("", root, None)]
    while ahead:
        path, held, axis = ahead.pop()
        if isinstance(held, Columns):
            axis = axis if held.axis is None else held.axis
        if id(held) in found and (axis is None or found[id(held)].axis is not None):
            continue
        found[id(held)] = Part(path, held, axis)
        inherits = axis if isinstance(held, Columns | dict | list) else None
        inside: Iterable[tuple[object, object]]
        if isinstance(held, dict):
            inside = held.items()
        elif isinstance(held, list | tuple):
            inside = enumerate(held)
        else:
            inside = getattr(held, "__dict__", {}).items()
        ahead += [Part(f"{path}.{name}", one, inherits) for name, one in inside if not _holds_nothing(type(one))]
    return list(found.values())


_nothing: dict[type, bool] = {}


def _holds_nothing(kind: type) -> bool:
    """Return whether no object of a type holds anything that goes on by itself: asked of thousands of names."""
    if kind not in _nothing:
        _nothing[kind] = issubclass(kind, _HOLD_NOTHING)
    return _nothing[kind]
