"""What makes up a state: attributes, named once; saved and restored from that.

An attribute may be `Kept` itself (or `Columns`, which are), several of these in a list or by name, an object that gives
its state as JSON by `snapshot` and takes it by `load`, an array, or what JSON can say as it stands.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray


class _Documented(Protocol):
    def snapshot(self) -> Any: ...
    def load(self, document: Any, /) -> Any: ...


def _is_documented(value: object) -> TypeGuard[_Documented]:
    return hasattr(value, "snapshot") and hasattr(value, "load")


class Kept:
    """Has a state: the attributes that are named in `KEPT`."""

    KEPT: ClassVar[tuple[str, ...]] = ()

    def saved(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the state: what JSON can say, and arrays, each by the path to the attribute."""
        document: dict[str, Any] = {}
        arrays: dict[str, NDArray[Any]] = {}
        for path, owner, name in self._leaves():
            value = getattr(owner, name)
            if isinstance(value, np.ndarray):
                arrays[path] = value
            else:
                document[path] = value.snapshot() if _is_documented(value) else value
        return document, arrays

    def take_saved(self, document: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take what `saved` returned, into an object that was made with the same settings.

        A column that an older version did not have begins afresh; KeyError for anything else that is missing.
        """
        for path, owner, name in self._leaves():
            value = getattr(owner, name)
            if path not in arrays and path not in document:
                owner.begin_afresh(name)
            elif isinstance(value, np.ndarray):
                setattr(owner, name, arrays[path])
            elif _is_documented(value):
                value.load(document[path])
            else:
                setattr(owner, name, document[path])

    def begin_afresh(self, name: str) -> None:
        """Go on without what a snapshot lacks of an attribute. KeyError where nothing can be gone on with."""
        raise KeyError(name)

    def _leaves(self, path: str = "") -> Iterator[tuple[str, "Kept", str]]:
        for name in self.KEPT:
            value = getattr(self, name)
            parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
            several = [(f"{path}{name}.{key}.", part) for key, part in parts if isinstance(part, Kept)]
            if isinstance(value, Kept):
                several = [(f"{path}{name}.", value)]
            for where, part in several:
                yield from part._leaves(where)  # noqa: SLF001  of its own kind
            if not several:
                yield path + name, self, name
