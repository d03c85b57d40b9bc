"""Who is slow by the times of a job's ranks: a GPU, or a node, and what their readings say of it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from detectors.contract import FloatArray, IntArray
from detectors.core.evidence import odds_in_words, threshold
from detectors.core.statistics import median_of
from detectors.fleet.fleet import Job
from detectors.fleet.gpus import GpuLayout
from detectors.straggler.config import StragglerConfig
from detectors.straggler.known_causes import CLOCK, KnownCauses
from detectors.straggler.rank_places import Places
from detectors.straggler.ranks import NODE_SHARE, Ranks
from detectors.straggler.readings import LATE
from detectors.straggler.suspects import MOST_NODES, Suspect
from detectors.straggler.watch import Watch
from detectors.straggler.windows import SIGNALS

_MORE_WORK: Final = 1 / 3
"""Of what a rank computes longer: where a GPU is slow none of it is more work, where its work is uneven, all is; at a
half, the noise of single windows would decide."""
_ALIKE: Final = 1.25
"""Hosts that fail by themselves at one time don't make their ranks wait for data equally long."""
_ODD_TOO: Final = 5.0
"""Wealth (natural logarithm) from which on another rank is late, too, by no chance: where experts are in favour by
turns, some rank of most nodes is late in any look."""


@dataclass(frozen=True)
class Late:
    """Looks at the ranks of one job after another, and at what is read of their GPUs."""

    _config: StragglerConfig
    _layout: GpuLayout
    _causes: KnownCauses
    _watch: Watch

    def suspects(self, job: Job, ranks: Ranks, places: Places) -> list[Suspect]:
        """Return who is slow in its job: a node where most of its ranks are about as far behind.

        Not who has more work than the others, that explains what it computes longer.
        """
        layout, found = self._layout, []
        reporting = np.flatnonzero(ranks.seen > 0)
        nodes = max(len(layout.names), len(places.names))
        look_s = ranks.every_s
        enough = threshold(self._config.false_alarms_per_100_node_days, len(reporting), nodes, look_s)
        odd = reporting[(ranks.odd[reporting] & np.uint64(1) > 0) & (ranks.wealth(reporting) >= _ODD_TOO)]
        by_clock = self._slow_clocks(odd, places, len(ranks))
        slow = reporting[ranks.over(reporting, np.fmax(enough - by_clock[reporting], _ODD_TOO), look_s)]
        slow = slow[(ranks.costs[slow] >= self._config.job_share) & np.isfinite(ranks.computes_s[slow])]
        if not len(slow):
            return []
        all_of = layout.of_job(job)
        for node in np.unique(places.node[slow]).tolist():
            mates, name = reporting[places.node[reporting] == node], places.names[node]
            here = slow[places.node[slow] == node]
            worst = int(here[np.argmax(ranks.behind[here])])
            along = mates[ranks.behind[mates] >= ranks.behind[worst] / 2]
            members = layout.members(name)
            wealth = float(ranks.wealth(np.array([worst]))[0]) + float(by_clock[worst])
            alone = len(mates) == 1 and np.count_nonzero(np.isin(members, all_of)) > 1
            whole = alone or (len(along) > 1 and len(along) >= NODE_SHARE * len(mates))
            if not whole and ranks.alone[worst] < self._config.job_share:
                continue
            culprits = mates if whole else np.array([worst])
            gpus = members if whole else members[layout.gpu[members] == places.gpu[worst]]
            number = int(places.gpu[worst])
            stands_out = self._watch.stands_out(members) if whole else None
            if stands_out is not None:
                number = int(layout.gpu[stands_out])
            entity = {"node": name} if whole and stands_out is None else {"node": name, "gpu": number}
            clock, others = self._causes.now[CLOCK], np.setdiff1d(reporting, culprits)
            own, peers = np.full((2, SIGNALS), np.nan)
            own[0], peers[0] = median_of(clock[gpus]), median_of(clock[np.setdiff1d(all_of, gpus)])
            lag = float(np.median(ranks.lag[here] if whole else ranks.lag[worst]))
            began = max(int(np.median(ranks.since[here])), job.start)
            if by_clock[worst] and not whole:  # uneven work makes a rank late before, too
                began = max(began, int(self._watch.gpus.since[gpus].max()))
            # The one rank that a node reports is as late as any of its GPUs.
            given = gpus if alone or not whole else np.empty(0, np.int64)
            # One of a node's ranks may have been slow for long, for another reason than all of them are now.
            slow_since = int(np.median([ranks.slow_since(rank) for rank in (along if whole else [worst])]))
            more = self._watch.works_more(name, given, max(began, slow_since), began)
            light = not whole and lag < self._config.effect_share
            # A chip that is slow by a clock that it does not show is as busy as one that was given more.
            # One look is ten seconds, its work is read over a minute: a rank that is late by turns was less so in it.
            lasting = lag if whole else min(lag, float(ranks.behind[worst]))
            given_more = more >= _MORE_WORK * ranks.longer(worst, lasting) and not ranks.came_to_be_slow(worst)
            unsure = light or not ranks.stands_apart(worst, lag, places)
            if given_more or ranks.took_over(worst, lasting) or (unsure and np.isnan(more)):
                continue
            if not (whole or by_clock[worst]) and ranks.began_together(worst, odd[places.node[odd] != node]):
                continue
            found.append(
                Suspect(
                    job=job,
                    entity=entity,
                    gpus=gpus,
                    how=LATE,
                    lag=lag,
                    since=began,
                    looks=ranks.bits(worst)[1],
                    odd=ranks.bits(worst)[0].bit_count(),
                    crowd=len(np.unique(places.node[odd[ranks.behind[odd] >= ranks.behind[worst] / 2]])),
                    sure=True,
                    clock=float(own[0] / peers[0]),
                    own=own,
                    peers=peers,
                    by_chance=odds_in_words(wealth, len(reporting), look_s),
                    ranks=tuple(culprits.tolist()),
                    seconds={
                        "compute_s": median_of((ranks.computes_s - ranks.data_s)[culprits]),
                        "compute_s_peers": median_of((ranks.computes_s - ranks.data_s)[others]),
                        "compute_s_own_level": median_of(ranks.usual_s[culprits]),
                        "data_wait_s": median_of(ranks.data_s[culprits]),
                        "data_wait_s_peers": median_of(ranks.data_s[others]),
                        "comm_wait_s": median_of(ranks.waits_s[culprits]),
                        "comm_wait_s_peers": median_of(ranks.waits_s[others]),
                        "step_time_s": ranks.step_s,
                        "peers": len(others),
                    },
                )
            )
        return found

    def _slow_clocks(self, odd: IntArray, places: Places, ranks: int) -> FloatArray:
        """Return by rank, (ranks,), what its GPU's own readings add to the evidence of those that are `odd`.

        A clock that came to be slow and steps that came to be late are read apart: chance must make both.
        """
        adds = np.zeros(ranks)
        for rank in odd.tolist():
            members = self._layout.members(places.names[places.node[rank]])
            its = self._watch.slow_clocks(members[self._layout.gpu[members] == places.gpu[rank]])
            adds[rank] = its.max(initial=0.0)
        return adds


def wait_for_storage(jobs: Iterable[tuple[Ranks, Places]], share: float) -> bool:
    """Return whether ranks of several nodes, of whatever jobs, wait longer for data than the others of theirs, by a
    share of the step; or have come to, of two jobs, or alike on two nodes: what these have in common is their storage.
    """
    nodes: set[str] = set()
    came_to = 0
    for ranks, places in jobs:
        starved, came = ranks.starved(share)
        nodes |= {places.names[node] for node in places.node[starved].tolist()}
        waits = np.sort(list({int(places.node[rank]): float(ranks.data_s[rank]) for rank in came.tolist()}.values()))
        came_to += 2 if (waits[1:] <= _ALIKE * waits[:-1]).any() else min(len(waits), 1)
    return len(nodes) > MOST_NODES or came_to > 1
