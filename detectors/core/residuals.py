"""Residuals: how far a reading lies from its peers' at the same time, and from the entity's own past."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from detectors.contract import FloatArray, IntArray, index_of
from detectors.core.columns import Columns, column
from detectors.core.statistics import stable_order

MAD_TO_SIGMA: Final = 1.4826
"""A normal distribution's standard deviation over its median absolute deviation."""
MEDIAN_ERROR: Final = 1.2533
"""The standard error of a median of normal values over that of their mean: the root of pi / 2."""
_LARGE: Final = 16
"""Groups of more values are sorted one by one, the others side by side: values sort in less time than places."""
_AT_ONCE: Final = 8192
"""So many values stay in a core's cache from one step to the next: of more, parts are gone through one by one."""


def group_medians(
    values: FloatArray, group: IntArray, groups: int, *, lower: bool = False
) -> tuple[FloatArray, IntArray]:
    """Return the median (groups,) of the finite values (n,) of each group, NaN where there are none, and their number.

    `group` (n,) is the number of each value's group, negative where it belongs to none. Of an even number of values the
    median is the mean of the two in the middle, or the `lower` one: half of a group may then be high and not move it.
    """
    ranked, starts, sizes = _ranked(values, group, groups)
    medians = np.full(groups, np.nan)
    some = sizes > 0
    low = starts[some] + (sizes[some] - 1) // 2
    high = low if lower else starts[some] + sizes[some] // 2
    medians[some] = ranked[low] / 2 + ranked[high] / 2
    return medians, sizes


def _ranked(values: FloatArray, group: IntArray, groups: int) -> tuple[FloatArray, IntArray, IntArray]:
    """Return the finite values in order of group and size, where each group begins, and how many it has (groups,)."""
    known = (np.isfinite(values) & (group >= 0)).nonzero()[0]
    of, ranked = group.take(known), values.take(known)
    sizes = np.bincount(of, minlength=groups)
    starts, large = np.cumsum(sizes) - sizes, sizes > _LARGE
    if np.count_nonzero(of[1:] < of[:-1]):  # mostly groups are numbered as their entities are
        ranked = ranked[stable_order(of)]
    width = int(sizes.max(initial=0, where=~large))
    if width > 1:
        cells = np.arange(width) < sizes[~large, None]
        places = (starts[~large, None] + np.arange(width))[cells]
        beside = np.full(cells.shape, np.inf)
        beside[cells] = ranked[places]
        beside.sort(axis=1)
        ranked[places] = beside[cells]
    for start, size in zip(starts[large].tolist(), sizes[large].tolist(), strict=True):
        ranked[start : start + size].sort()
    return ranked, starts, sizes


@dataclass(frozen=True)
class Groups:
    """Groups that stay as they are, for medians of many signals at once, or quantiles, in a fraction of the time.

    `group` (n,) and `groups` are as `group_medians` takes them.
    """

    group: IntArray
    groups: int

    @cached_property
    def _tables(self) -> list[tuple[IntArray, IntArray, IntArray]]:
        """All groups side by side; where too many cells were empty, those of about the same size.

        Of each table its groups, how many values these have, and where these values are; n where a cell is empty.
        """
        order = stable_order(self.group)
        order = order[self.group[order] >= 0]
        sizes = np.bincount(self.group[order], minlength=self.groups)
        starts, widths = np.cumsum(sizes) - sizes, np.ceil(np.log2(np.maximum(sizes, 1)))
        if np.count_nonzero(sizes) * sizes.max(initial=0) <= 2 * len(order):
            widths[:] = 0
        places, found = np.append(order, len(self.group)), []
        for width in np.unique(widths[sizes > 0]).tolist():
            those = np.flatnonzero((widths == width) & (sizes > 0))
            cells = np.arange(sizes[those].max())
            at = np.where(cells < sizes[those, None], starts[those, None] + cells, len(order))
            found.append((those, sizes[those], places[at]))
        return found

    def medians(self, values: FloatArray, *, lower: bool = False) -> tuple[FloatArray, IntArray]:
        """Return the medians (rows, groups) of `values` (rows, n), and of how many each is, as `group_medians` does."""
        rows, n = values.shape
        known = np.isfinite(values)
        whole = np.count_nonzero(known) == known.size
        padded = np.full((rows, n + 1), np.inf)
        np.copyto(padded[:, :n], values, where=known)
        medians, counts = np.full((rows, self.groups), np.nan), np.zeros((rows, self.groups), np.int64)
        for those, sizes, places in self._tables:
            ranked = padded.take(places, axis=1)
            ranked.sort(axis=2)
            if whole:  # of every row the same places are in the middle
                count, cells = sizes, np.arange(len(those)) * places.shape[1]
                by_row = ranked.reshape(rows, -1)
                low = by_row.take(cells + (sizes - 1) // 2, axis=1)
                high = low if lower else by_row.take(cells + sizes // 2, axis=1)
                medians[:, those] = low / 2 + high / 2
            else:
                count = (ranked < np.inf).sum(axis=2)
                cells = np.arange(count.size).reshape(count.shape) * places.shape[1]
                low = ranked.take(cells + np.maximum(count - 1, 0) // 2)
                high = low if lower else ranked.take(cells + np.minimum(count // 2, places.shape[1] - 1))
                medians[:, those] = np.where(count > 0, low / 2 + high / 2, np.nan)
            counts[:, those] = count
        return medians, counts

    def quantiles(self, values: FloatArray, share: float) -> tuple[FloatArray, IntArray]:
        """Return what `share` of the finite `values` (n,) of each group do not exceed, (groups,), and their number.

        Of an even choice the lower; NaN where a group has none.
        """
        padded = np.full(len(values) + 1, np.inf)
        np.copyto(padded[:-1], values, where=np.isfinite(values))
        quantiles, counts = np.full(self.groups, np.nan), np.zeros(self.groups, np.int64)
        for those, sizes, places in self._tables:
            ranked, rows, count = padded.take(places), np.arange(len(those)), sizes
            ranked.sort(axis=1)
            if np.count_nonzero(ranked[rows, sizes - 1] == np.inf):  # mostly all are finite
                count = np.count_nonzero(ranked < np.inf, axis=1)
            cells = np.floor(share * np.maximum(count - 1, 0)).astype(np.int64)
            quantiles[those] = np.where(count > 0, ranked[rows, cells], np.nan)
            counts[those] = count
        return quantiles, counts


def peer_residuals(
    values: FloatArray, group: IntArray, groups: int, floor: float | FloatArray, fewest: int = 4
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return by how many robust deviations each of `values` (n,) lies above its group's median; median; deviation.

    The deviation is 1.4826 MAD of the group, at least `floor` (in the values' unit; per value or one for all): peers
    that all say the same, as clocks do, must not make every trifle infinitely far. NaN in groups of less than `fewest`.
    """
    medians, sizes = group_medians(values, group, groups)
    grouped = np.maximum(group, 0)
    centre = np.where((group >= 0) & (sizes[grouped] >= fewest), medians[grouped], np.nan)
    spreads, _ = group_medians(np.abs(values - centre), group, groups)
    spread = np.maximum(MAD_TO_SIGMA * spreads[grouped], floor)
    return (values - centre) / spread, centre, np.where(np.isfinite(centre), spread, np.nan)


class Habit(Columns):
    """What is usual of each entity: `level` and mean absolute deviation `spread` of a value, over `learnt_s` seconds.

    The first values are averaged evenly, later ones with the time constant `memory_s`. A value counts with at most
    three deviations, so that one outlier moves little; what the caller holds to be a fault must not be learnt at all.
    """

    level: FloatArray = column(np.nan)
    spread: FloatArray = column(0.0)
    learnt_s: FloatArray = column(0.0)

    def __init__(self, memory_s: float) -> None:
        super().__init__()
        self._memory_s = memory_s

    def learn_all(self, values: FloatArray, spent_s: FloatArray) -> None:
        """Take one value (count,) of every entity, NaN left out, that stands for `spent_s` (count,) seconds."""
        known, level = np.isfinite(values), self.level
        if np.count_nonzero(known & np.isnan(level)):
            level = np.where(np.isnan(level), values, level)
        for own, learnt in zip(
            (self.level, self.spread, self.learnt_s),
            self.learnt(level, self.spread, self.learnt_s, values, spent_s),
            strict=True,
        ):
            np.copyto(own, learnt, where=known)

    def learn(self, entities: IntArray, values: FloatArray, spent_s: float | FloatArray) -> None:
        """Take one value (n,) of each of `entities`, NaN left out, that stands for `spent_s` seconds."""
        known = np.isfinite(values)
        those, value, spent = entities, values, np.asarray(spent_s, float)
        if np.count_nonzero(known) < len(known):
            those, value = entities[known], values[known]
            spent = spent[known] if spent.ndim else spent
        learnt, level, spread = self.learnt_s.take(those), self.level.take(those), self.spread.take(those)
        fresh = np.isnan(level)
        if np.count_nonzero(fresh):
            level[fresh] = value[fresh]
        after = self.learnt(level, spread, learnt, value, spent)
        self.level[those], self.spread[those], self.learnt_s[those] = after

    def learnt(
        self, level: FloatArray, spread: FloatArray, learnt: FloatArray, value: FloatArray, spent: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return what `level`, `spread` and `learnt_s` are after one `value` more, all of one shape."""
        after = learnt + spent
        weight = spent / np.minimum(after, self._memory_s)
        np.minimum(weight, 1.0, out=weight)
        reach = np.abs(level)
        reach *= 1e-3
        np.maximum(spread, reach, out=reach)
        reach *= 3
        np.copyto(reach, np.inf, where=learnt < 10 * spent)
        moved = value - level
        np.minimum(moved, reach, out=moved)
        np.maximum(moved, -reach, out=moved)
        off = np.abs(moved)
        off -= spread
        off *= weight
        off += spread
        moved *= weight
        moved += level
        return moved, off, np.minimum(after, 1e9, out=after)

    def residual(self, entities: IntArray, values: FloatArray, floor: float | FloatArray) -> FloatArray:
        """Return by how many mean absolute deviations (at least `floor`) each value lies above its entity's level."""
        return (values - self.level[entities]) / np.maximum(self.spread[entities], floor)


def learn_together(
    habits: Sequence[Habit], entities: IntArray, values: FloatArray, spent_s: float | FloatArray
) -> None:
    """Let each of some habits of one memory learn its row of `values` (rows, n), as `Habit.learn` does, all at once.

    `entities` ascend.
    """
    if len(habits) == 1:
        habits[0].learn(entities, values[0], spent_s)
        return
    spent = np.broadcast_to(spent_s, entities.shape)
    step = _AT_ONCE // len(habits)
    for start in range(0, len(entities), step):
        part = slice(start, start + step)
        _learn_part(habits, entities[part], values[:, part], spent[part])


def _learn_part(habits: Sequence[Habit], entities: IntArray, values: FloatArray, spent: FloatArray) -> None:
    place = index_of(entities, len(habits[0]))
    level, spread, learnt = (
        np.array([getattr(habit, name)[place] for habit in habits]) for name in ("level", "spread", "learnt_s")
    )
    known, value = np.isfinite(values), values
    whole = np.count_nonzero(known) == known.size
    if not whole:
        value = np.where(known, values, level)
    fresh = np.isnan(level)
    if np.count_nonzero(fresh):
        level[fresh] = value[fresh]
    after = zip(*habits[0].learnt(level, spread, learnt, value, spent), strict=True)
    for row, (habit, learns) in enumerate(zip(habits, after, strict=True)):
        those, here = (place, slice(None)) if whole else (entities[known[row]], known[row])
        habit.level[those], habit.spread[those], habit.learnt_s[those] = (column[here] for column in learns)
