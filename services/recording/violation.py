"""A breach of the format: where it is and what to do about it."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_MOST_PROBLEMS = 1000  # that are listed one by one in one file
_MOST_RANGES = 50  # of one check in one file; beyond it only a count helps


@dataclass(frozen=True)
class Violation:
    """One breach, or several of a kind.

    ``where`` is a row range (rows count from 0), a line (lines count from 1), a field, or empty.
    """

    file: str
    where: str
    problem: str
    remedy: str
    count: int = field(default=1, compare=False)
    """For how many breaches it stands: rows, or lines."""

    def __str__(self) -> str:
        """Return the breach on one line, with its remedy."""
        place = f"{self.file}: {self.where}" if self.where else self.file
        return f"{place}: {self.problem} ({self.remedy})"


class RowProblems:
    """Collects the rows of one stream file that fail a check, and gives them back as ranges."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._found: dict[tuple[str, str], list[list[int]]] = {}
        self._more: dict[tuple[str, str], list[int]] = {}
        """Beyond the ranges that are kept: how many rows, and the first."""

    def add(self, rows: NDArray[np.int64], problem: str, remedy: str) -> None:
        """Note that ``rows``, ascending, have ``problem``."""
        if not len(rows):
            return
        if (problem, remedy) not in self._found and len(self._found) >= _MOST_PROBLEMS:
            problem, remedy = "more is wrong", "mend the first, and validate again"
        ranges = self._found.setdefault((problem, remedy), [])
        breaks = np.flatnonzero(np.diff(rows) != 1)
        firsts, lasts = rows[np.r_[0, breaks + 1]], rows[np.r_[breaks, len(rows) - 1]]
        if ranges and ranges[-1][1] == firsts[0] - 1:
            ranges[-1][1] = int(lasts[0])
            firsts, lasts = firsts[1:], lasts[1:]
        room = _MOST_RANGES - len(ranges)
        ranges.extend([int(first), int(last)] for first, last in zip(firsts[:room], lasts[:room], strict=True))
        if len(firsts) > room:
            more = self._more.setdefault((problem, remedy), [0, int(firsts[room])])
            more[0] += int((lasts[room:] - firsts[room:] + 1).sum())

    def violations(self) -> Iterator[Violation]:
        """Yield one violation per range of rows, up to a bound per check, and then how many more there are."""
        for (problem, remedy), ranges in self._found.items():
            for first, last in ranges:
                where = f"row {first}" if first == last else f"rows {first} to {last}"
                yield Violation(self._file, where, problem, remedy, last - first + 1)
            if (problem, remedy) in self._more:
                rows, first = self._more[problem, remedy]
                yield Violation(self._file, f"{rows} further rows from {first} on", problem, remedy, rows)
