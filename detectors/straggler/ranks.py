"""The ranks of one job by their own times: who computes longest, for how long, while the others wait.

Some steps make up a look: it ends when nearly all ranks have reported 10 s of them. In it a rank is slow if it computes
longer than its own habit times what all ranks' has changed by, by a share of the computation that matters and by more
than the tails of this cluster's ranks explain (less than that share of the step only if its GPU does no more work, see
`late_ranks`); or, from the job's first steps on, longer than the others, unless such ranks form a pipeline stage. Who
computes no longer than its peers, waits as they do, or is hardly behind the longest of those that keep up, holds up
nobody.

What the ranks of a node wait for data, in the middle, counts as their computation: a host that does not feed its GPUs
holds up the job as a slow one does. Where most nodes wait for data it does not count; one rank's wait is its input's.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from detectors.contract import BoolArray, FloatArray, Instant, IntArray
from detectors.core.columns import REUSED, column
from detectors.core.evidence import Rises
from detectors.core.residuals import MAD_TO_SIGMA, Groups, group_medians
from detectors.core.statistics import clamp, known_or, masked_median, median_of
from detectors.core.tails import Tails
from detectors.straggler.comparison import APART, FLOOR, LATELY, Comparison, Look, Verdict
from detectors.straggler.config import StragglerConfig
from detectors.straggler.rank_places import Places, individuals

NODE_SHARE: Final = 0.75
"""Of a node's ranks: a slow host slows all its GPUs, though one may not show it; less than all but one of eight."""
WARM_UP_STEPS: Final = 3
"""Compilation, caches and allocators make the first steps of a rank slow and uneven."""
_MOST_RANKS: Final = 1 << 20
_LOOK_MS: Final = 10_000
_MOST_OF, _HALF_OF = 0.9, 0.5
"""A look ends when so many of the ranks have reported; or so many, if it takes long."""
_LONG_LOOK_MS: Final = 60_000
_GONE_MS: Final = 600_000
_FEW: Final = 4
"""So few ranks have no median to speak of; then each one's own past counts, for longer, and half as much again must be
lost, as there is no telling how ranks scatter."""
_FEW_NODES: Final = 3
_FEW_SHARE: Final = 1.5
_LEARN_S, _LEARN_FEW_S = 30.0, 90.0
_COST_LOOKS: Final = 16
"""A quarter of what is remembered: a lag that grows over forty minutes is not outweighed by its beginning."""
_ALIKE: Final = 0.02
"""Deviation of ranks' computation: that of dense models is 0.6 to 2 % in recordings of others, of experts 4 to 18 %."""
_MOST: Final = 2 / 3
"""Of the ranks of a dense model, that lie within its deviation: one stage of four may have more to do, and a host be
slow. Half may be alike by chance where work is uneven."""
_SPARSE: Final = 2.0
"""Less than every other step is reported: what else lies between two looks is pauses, and the grid."""
_LOOKS, _MOVED = 3, 0.5
"""By the middle of so many looks, this part of it: work that one has more need not all come from one other."""
_KEPT_UP_MS, _LASTS_MS = 900_000, 180_000
"""A quarter of an hour of keeping up is no chance; slow for three minutes is no hiccup (policy)."""
_NORMAL: Final = 1.2533
"""The standard deviation of a normal distribution, in mean absolute ones."""
_NOISY: Final = 0.75
"""Six looks say little of what one rank scatters by: as much as this part of all do, at least."""
_WAIT_SHARE: Final = 0.5
"""The others wait for all of the culprit's lag, it does not; half, as trainers measure the shares of a step."""


class Ranks(Comparison):
    """Columns by rank; a rank that never reported has `seen` 0.

    `sums` of computation, step, wait (s) and steps since the last look, of which the first began at `begun`, and of
    waits for data (`fed`); `first` begin, `at` last report (ms); `computes_s` with its node's wait for data, that
    (`data_s`) and `waits_s` in the last look, s a step, NaN where it had none; `usual_s` computation as it should be;
    `behind` how far it lags, smoothed over looks, as a share of the step; `recent` residuals, the newest first;
    `costs` what the job loses by it: by how much longer it computes than the longest of those that keep up, as a share
    of the step, in the mean of the `cost_looks` looks since it was first odd; of many, with the latest in more weight:
    of those of other nodes, for its node may be slow, and of all, as it is slow `alone`.
    """

    axis = REUSED
    sums: FloatArray = column(0.0, 4)
    fed: FloatArray = column(0.0)
    begun: IntArray = column(-1)
    first: IntArray = column(-1)
    at: IntArray = column(-1)
    seen: IntArray = column(0)
    computes_s: FloatArray = column(np.nan)
    data_s: FloatArray = column(np.nan)
    waits_s: FloatArray = column(np.nan)
    usual_s: FloatArray = column(np.nan)
    behind: FloatArray = column(0.0)
    recent: FloatArray = column(np.nan, 6)
    costs: FloatArray = column(0.0)
    alone: FloatArray = column(0.0)
    cost_looks: IntArray = column(0)
    KEPT = ("step_s", "look_s", "every_s", "_begun", "_apart_s")

    def begin_afresh(self, name: str) -> None:
        """Go on without what older versions did not keep: how often there is a look is soon known."""
        if name not in ("every_s", "_begun", "_apart_s"):
            super().begin_afresh(name)

    def forget(self, entities: Any) -> None:
        """Begin anew with some ranks; what they reported stays."""
        for name in Comparison.COLUMNS:
            getattr(self, name)[..., entities] = self.COLUMNS[name].blank
        for _, part in self._beside():
            part.forget(entities)

    def __init__(self, config: StragglerConfig, tails: Tails, rises: Rises) -> None:
        super().__init__(("rank",), 1, tails, rises)
        self._config, self._node, self._nodes = config, np.empty(0, np.int64), 0
        self.step_s, self.look_s = 0.0, 60.0
        self.every_s = 60.0
        """How often there is a look, s: longer than it takes where ranks report one step out of many."""
        self._begun, self._apart_s = -1, 0.0

    def add(
        self, ranks: IntArray, at: IntArray, step: FloatArray, compute: FloatArray, wait: FloatArray, data: FloatArray
    ) -> None:
        """Take one step of each of some ranks: its end (ms), how long it took, computed, waited, and for data (s)."""
        if (last := int(ranks.max())) >= _MOST_RANKS:
            return
        self.grow(last + 1)
        begun = at - np.round(step * 1000).astype(np.int64)
        self.begun[ranks] = np.where(self.sums[3, ranks] == 0, begun, self.begun[ranks])
        self.first[ranks] = np.where(self.first[ranks] < 0, begun, self.first[ranks])
        computed, waited = clamp(compute, 0.0, step), clamp(wait, 0.0, step)
        self.sums[:, ranks] += np.array([computed, step, waited, np.ones(len(step))])
        self.fed[ranks] += clamp(known_or(data, 0.0), 0.0, step - computed)
        self.seen[ranks] += 1
        self.at[ranks] = at

    def close(self, now: Instant, places: Places, held: Sequence[int]) -> bool:
        """End the look if it is time to; return whether it did. `held` ranks are under a finding."""
        who = np.flatnonzero(self.sums[3])
        if len(who) < 2:
            return False
        active = int(np.count_nonzero((self.seen > 0) & (now - self.at <= _GONE_MS + 3000 * self.step_s)))
        if len(who) < _HALF_OF * active:
            return False
        begun = int(self.begun[who].min())
        whole = int(self.at[who].max()) - begun >= _LOOK_MS and len(who) >= _MOST_OF * active
        if not whole and now - begun < _LONG_LOOK_MS + 2000 * self.step_s:
            return False
        (compute, step, wait, steps), data = self.sums[:, who], self.fed[who]
        self.sums[:], self.fed[:] = 0.0, 0.0
        if median_of(self.seen[who] - steps) < WARM_UP_STEPS:
            return False
        self.step_s = median_of(step / steps)
        self._node = places.node[who]
        self.computes_s[:], self.data_s[:], self.waits_s[:] = np.nan, np.nan, np.nan
        by_node, _ = group_medians(data / step, self._node, int(self._node.max()) + 1)
        most_are_fed = median_of(by_node) < self._config.effect_share  # else data are slow, and reach nodes unevenly
        self.data_s[who] = by_node[self._node] * self.step_s if most_are_fed else 0.0
        self.computes_s[who] = np.maximum(compute / step * self.step_s + self.data_s[who], 1e-6)
        self.waits_s[who] = wait / step * self.step_s
        self._nodes = int(np.count_nonzero(np.bincount(self._node)))
        one = np.zeros(len(who), np.int64)
        self.look_s = self.step_s * median_of(steps)
        apart_s = (begun - self._begun) / 1000 if self._begun >= 0 else 0.0
        self.every_s = max(self.look_s, min(apart_s, self._apart_s))  # one pause does not count
        self._begun, self._apart_s = begun, apart_s
        x, held_too = np.log(self.computes_s[who])[None, :], np.isin(who, held) if held else np.zeros(len(who), bool)
        self.look(Look(who, one, Groups(one, 1), x, steps, held_too, begun, self._stands_for_s, self.every_s))
        return True

    @property
    def _stands_for_s(self) -> float:
        """How long the last look is worth, s: where ranks report one step out of many, it stands for all of them. A
        job would be new for an hour else, and who becomes slow in it its own habit.
        """
        return self.every_s if self.every_s > _SPARSE * self.look_s else self.look_s

    def starved(self, share: float) -> tuple[IntArray, IntArray]:
        """Return the ranks that wait longer for data than the others do, by a share of the step, and those of them that
        take so much longer than they used to.
        """
        ranks = np.flatnonzero(self.data_s - median_of(self.data_s) >= share * self.step_s)
        longer = self.computes_s[ranks] * -np.expm1(-self.recent[0, ranks])
        return ranks, ranks[longer >= share * self.step_s]

    def slow_since(self, rank: int) -> Instant:
        """Return since when (ms) a rank has been slow without a pause; before, it may have had another reason."""
        looks = self.without_pause(rank)
        if looks == self.run[rank]:
            return int(self.since[rank])
        return self._begun - round(1000 * self.every_s * (looks - 1))

    def began_together(self, rank: int, others: IntArray) -> bool:
        """Return whether one of the `others`, of other nodes, came to be about as late within the same look, in a job
        whose ranks are not all alike.

        Uneven work is given out anew at one moment, to all; no two machines fail within seconds of each other.
        """
        if _are_alike(self.computes_s[np.isfinite(self.computes_s)]):
            return False
        alike = others[(self.behind[others] >= self.behind[rank] / 2) & (self.since[others] > self.first[others])]
        since, look_ms = self.slow_since(rank), 1000 * self.every_s
        return any(abs(self.slow_since(other) - since) <= look_ms for other in alike.tolist())

    def came_to_be_slow(self, rank: int) -> bool:
        """Return whether a rank that long kept up has been slow for minutes, in a job whose ranks are all alike,
        without its node and with it.

        Uneven work is so from a job's start on, or goes from rank to rank, and then few are as their peers.
        """
        known = np.flatnonzero(np.isfinite(self.computes_s))
        mine = self._node == self._node[known == rank] if self._nodes > 1 else known == rank
        compute = self.computes_s[known]
        if len(known) <= _FEW or not (_are_alike(compute) and _are_alike(compute[~mine])):
            return False
        since = self.slow_since(rank)
        return since - int(self.first[rank]) >= _KEPT_UP_MS and int(self.at[rank]) - since >= _LASTS_MS

    def took_over(self, rank: int, lag: float) -> bool:
        """Return whether some rank came to have less to do by a good part of a rank's `lag`, a share of the step: work
        moved from one to the other, as it does between experts or with batches; nobody is faster as a GPU slows down.
        """
        recent = self.recent[:, np.isfinite(self.computes_s)].T
        if len(recent) <= _FEW:
            return False
        changed = masked_median(recent[:, :_LOOKS], np.isfinite(recent[:, :_LOOKS]))
        noise = median_of(_own_scatter(recent))
        return bool((changed <= -max(_MOVED * self.longer(rank, lag), APART * noise)).any())

    def stands_apart(self, rank: int, lag: float, places: Places) -> bool:
        """Return whether a rank's `lag`, a share of the step, is more than ranks came to differ by in the last look."""
        changed = np.where(np.isfinite(self.computes_s), self.recent[0], np.nan)
        known = np.flatnonzero(np.isfinite(changed))
        few = len(known) <= _FEW
        return few or self.longer(rank, lag) >= APART * _spread(changed[known], places.node[known])

    def longer(self, rank: int, lag: float) -> float:
        """Return by how much longer a rank computes for its `lag`, a share of the step, as a logarithm."""
        longer_s = lag * self.step_s
        return float(np.log1p(longer_s / max(float(self.computes_s[rank]) - longer_s, 1e-6)))

    def _learn_s(self, look: Look) -> float:
        learn_s = _LEARN_FEW_S if len(look.who) <= _FEW else _LEARN_S
        return max(learn_s, _LOOKS * look.spent_s) if look.spent_s > self.look_s else learn_s

    def _change(self, moved: FloatArray, look: Look) -> FloatArray:
        known, n = np.isfinite(moved[0]), len(look.who)
        if n <= _FEW:
            others = np.where(np.eye(n, dtype=bool) | ~known, -np.inf, moved)
            highest = others.max(axis=1)
            return np.where(np.isfinite(highest), highest, np.nan)[None, :]
        nodes = np.flatnonzero(np.bincount(self._node[known]))
        if 1 < len(nodes) <= _FEW_NODES:  # of two nodes either may be the slow one: it is not the one that is as it was
            return np.full((1, n), min(median_of(moved[0, self._node == node]) for node in nodes))
        return np.full((1, n), median_of(moved[0]))

    def _scatter(self, apart: FloatArray, look: Look) -> FloatArray:
        """Return what ranks scatter by, or one by itself from look to look if that is more: in a bad minute a rank is
        far behind, then ahead; who is slow stays so.
        """
        recent = self.recent[:, look.who] = np.concatenate([apart, self.recent[:-1, look.who]])
        among = 0.0 if len(look.who) <= _FEW else _spread(apart[0], self._node)
        return np.asarray(np.fmax(_own_scatter(recent.T), among))[None, :]

    def _judge(self, apart: FloatArray, _among: FloatArray, z: FloatArray, usual: FloatArray, look: Look) -> Verdict:
        who, share, few = look.who, self._config.effect_share, len(look.who) <= _FEW
        compute, wait, length = self.computes_s[who], self.waits_s[who] / self.step_s, self.step_s
        self.usual_s[who] = np.exp(usual[0])
        over = (compute - median_of(compute)) / length
        lag = known_or(compute * -np.expm1(-apart[0]) / length, 0.0)
        always = np.zeros(len(who), bool)
        if not few:
            should = np.where(np.isfinite(apart[0]), self.usual_s[who], np.nan)
            ahead = (should - median_of(should)) / length
            with_node, over_with_node = self._with_node(ahead), self._with_node(over)
            always = with_node >= self._least(compute, with_node, always=True)
            if always.any():
                always &= with_node >= APART * _spread(ahead, self._node)
                always &= self._with_node(ahead / self._unsure(who, should)) >= APART
            if always.any():
                always &= individuals(ahead >= share / 2, should / median_of(should), self._node)
                lag = np.where(always, over_with_node, lag)
                enough = self._least(compute, over_with_node, always=True)
                always &= over_with_node >= np.fmax(enough, APART * _spread(over, self._node))
        least = self._least(compute, lag)
        # Who waits less than the others, and for nobody who is slower, need not compute longer than most.
        no_longer = wait - np.fmin.reduce(wait) <= (1 - _WAIT_SHARE) * lag
        longest = over >= np.where(no_longer, FLOOR, least / 2)
        may = longest & self._waits_least(wait, lag)
        certain = always & may
        self.behind[who] = (self.behind[who] + lag) / 2
        self._note_costs(who, np.where(lag >= least, -np.inf, compute))
        dated = np.where(certain & (self.odd[who] == 0), self.first[who], look.begun)
        lag = np.where(few & (lag < _FEW_SHARE * share), 0.0, lag)
        return Verdict(z, lag[None, :], least, may, certain[None, :], dated)

    def _unsure(self, who: IntArray, should: FloatArray) -> FloatArray:
        """Return by how much, as a share of the step, each rank `should` compute more or less, (n,) s, by chance:
        the standard error of a habit of so many looks.
        """
        (habit,) = self.habits
        scatter = _own_scatter(self.recent[:, who].T)
        scatter = np.where(np.isfinite(scatter), scatter, _NORMAL * habit.spread[who])
        looks = np.maximum(habit.learnt_s[who] / max(self._stands_for_s, 1e-6), 1.0)
        error = np.maximum(scatter, np.quantile(scatter, _NOISY)) / np.sqrt(looks)
        return np.asarray(np.maximum(error, FLOOR / APART) * should / self.step_s)

    def _with_node(self, behind: FloatArray) -> FloatArray:
        """Return how far each rank is behind, (n,), at least as far as its node's are in the middle, where all are.

        From the first step on each rank has a habit of its own beside what its host is slow by.
        """
        middle, _ = group_medians(behind, self._node, int(self._node.max()) + 1)
        along = np.bincount(self._node, behind >= known_or(middle, np.inf)[self._node] / 2)
        whole = along >= NODE_SHARE * np.bincount(self._node)
        return np.where(whole[self._node], np.fmax(behind, middle[self._node]), behind)

    def _note_costs(self, who: IntArray, keeping_up: FloatArray) -> None:
        """Note what the job loses by each rank in this look, by what those that keep up compute, (n,), s a step."""
        begins = (self.odd[who] & LATELY) == 0
        looks = np.where(begins, 1, np.minimum(self.cost_looks[who] + 1, _COST_LOOKS))
        one = np.arange(len(who))
        for noted, unit in ((self.costs, self._node if self._nodes > 1 else one), (self.alone, one)):
            others = _longest_of_others(keeping_up, unit)
            cost = np.where(np.isfinite(others), self.computes_s[who] - others, self.computes_s[who]) / self.step_s
            before = np.where(begins, 0.0, noted[who])
            noted[who] = before + (cost - before) / looks
        self.cost_looks[who] = looks

    def _least(self, compute: FloatArray, lag: FloatArray, *, always: bool = False) -> FloatArray:
        """Return the lag (n,) of each rank, as a share of the step, from which on it matters.

        It is that share of what they compute, if the job loses what counts by it. Where work may shift by as much
        (`always`, to experts in favour or a longer stage, or among few ranks), of a rank that is slow by itself it is
        that share of the step: work does not shift to all ranks of a node at once, and of no others.
        """
        share = self._config.effect_share
        least = min(max(share * median_of(compute) / self.step_s, self._config.job_share), share)
        if not always and len(lag) > _FEW:
            return np.full(len(lag), least)
        along = np.bincount(self._node, lag >= least)
        ranks = np.bincount(self._node)
        whole = (ranks > 1) & (along >= NODE_SHARE * ranks)
        return np.where(whole[self._node], least, share)

    def _waits_least(self, wait: FloatArray, lag: FloatArray) -> BoolArray:
        """Return who waits less than the others do by a good part of what they lag; all, where nobody reports it."""
        known = np.isfinite(wait)
        if not np.count_nonzero(known):
            return ~known
        ranked = np.sort(wait[known])
        others = float(ranked[(3 * len(ranked)) // 4])  # of two nodes that are half the ranks, those of one wait
        return np.asarray(~known | (np.where(known, wait, 0.0) <= others - _WAIT_SHARE * lag))


def _are_alike(compute: FloatArray) -> bool:
    """Return whether ranks compute equally long, (n,) s, but for a few of them."""
    logs = np.log(compute)
    away = np.abs(logs - median_of(logs))
    most = np.count_nonzero(away <= APART * _ALIKE) >= _MOST * len(away)
    return bool(most and median_of(away) <= _ALIKE / MAD_TO_SIGMA)


def _longest_of_others(compute: FloatArray, unit: IntArray) -> FloatArray:
    """Return by rank the longest that any of other units (nodes, or ranks, (n,)) computes, (n,) s; -inf if none."""
    longest = np.full(int(unit.max()) + 1, -np.inf)
    np.maximum.at(longest, unit, compute)
    second, first = np.argsort(longest, kind="stable")[-2:].tolist()
    return np.asarray(longest[np.where(unit == first, second, first)])


def _own_scatter(recent: FloatArray) -> FloatArray:
    """Return the robust deviation of ranks' residuals in the last looks, (n, looks), from look to look."""
    jumps = np.abs(np.diff(recent))
    return np.asarray(MAD_TO_SIGMA / np.sqrt(2) * masked_median(jumps, np.isfinite(jumps)))


def _spread(values: FloatArray, node: IntArray) -> float:
    """Return the robust deviation of ranks' values, (n,); where their nodes, (n,), are few, that within them."""
    centre = np.full(len(values), median_of(values))
    if 1 < np.count_nonzero(np.bincount(node)) <= _FEW_NODES:
        medians, _ = group_medians(values, node, int(node.max()) + 1)
        centre = medians[node]
    return max(MAD_TO_SIGMA * median_of(np.abs(values - centre)), FLOOR)
