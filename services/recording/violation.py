"""A breach of the format: where it is and what to do about it."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_MOST_RANGES = 50  # of one check in one file; beyond it only a count helps


@dataclass(frozen=True)
class Violation:
    """One breach. ``where`` is a row range (rows count from 0), a line (lines count from 1), a field, or empty."""

    file: str
    where: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        """Return the breach on one line, with its remedy."""
        place = f"{self.file}: {self.where}" if self.where else self.file
        return f"{place}: {self.problem} ({self.remedy})"


class RowProblems:
    """Collects the rows of one stream file that fail a check, and gives them back as ranges."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._found: dict[tuple[str, str], list[list[int]]] = {}

    def add(self, rows: NDArray[np.int64], problem: str, remedy: str) -> None:
        """Note that ``rows``, ascending, have ``problem``."""
        ranges = self._found.setdefault((problem, remedy), []) if len(rows) else []
        if not len(rows):
            return
        breaks = np.flatnonzero(np.diff(rows) != 1)
        for first, last in zip(rows[np.r_[0, breaks + 1]], rows[np.r_[breaks, len(rows) - 1]], strict=True):
            if ranges and ranges[-1][1] == first - 1:
                ranges[-1][1] = int(last)
            else:
                ranges.append([int(first), int(last)])

    def violations(self) -> Iterator[Violation]:
        """Yield one violation per range of rows, up to a bound per check, and then how many more there are."""
        for (problem, remedy), ranges in self._found.items():
            for first, last in ranges[:_MOST_RANGES]:
                where = f"row {first}" if first == last else f"rows {first} to {last}"
                yield Violation(self._file, where, problem, remedy)
            rest = ranges[_MOST_RANGES:]
            if rest:
                rows = sum(last - first + 1 for first, last in rest)
                yield Violation(self._file, f"{rows} further rows from {rest[0][0]} on", problem, remedy)
