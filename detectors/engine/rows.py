"""Rows of one stream as they arrive, in columns: what the engine is fed with."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Kind


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A key column, dictionary-encoded: row i has ``categories[codes[i]]``."""

    codes: NDArray[np.int64]
    categories: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """n rows, one a (time, entity), in any order: `times` (n,) epoch ms, keys as in `fleet.KEYS`, values by field."""

    kind: Kind
    times: NDArray[np.int64]
    keys: Mapping[str, KeyColumn]
    values: Mapping[str, NDArray[np.float64]]
    valid: Mapping[str, NDArray[np.bool_]]
    node: KeyColumn | None = None
    """Of steps: the node that each row's rank runs on, code -1 for none."""
