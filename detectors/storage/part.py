"""A part of a mount's clients that its servers answer slowly, and the others not: one server, or one pool, behind it.

Each client's latency is compared with that of the mount's median client, and that with its own habit, as long as it has
the same job and moves no more than twice what it did. Of each mount the rise that as many clients exceed as make a part
is one figure a window; how it usually lies here is learnt (`detectors.core.tails`), and evidence adds up over windows.
"""

import zlib
from dataclasses import dataclass
from typing import Final

import numpy as np

from detectors.contract import BoolArray, FloatArray, Instant, IntArray
from detectors.core.columns import REUSED, Columns, column
from detectors.core.evidence import Evidence
from detectors.core.kept import Kept
from detectors.core.residuals import Habit
from detectors.core.statistics import known_or
from detectors.core.tails import Tails
from detectors.fleet.fleet import Fleet
from detectors.storage.clients import READ, WRITE, Clients, Looks

WINDOW_S: Final = 30.0
"""Two readings of the usual 15 s."""
_FEWEST, _SHARE = 3, 0.1
"""One client that is slow, or two, are slow by their own links; of many, a tenth is what one server of ten serves."""
_OTHERS: Final = 2
"""At least twice as many more clients must be known, or nothing shows which of them are the others."""
_KNOWN_S: Final = 300.0
"""Five minutes; before that nothing is usual."""
_MEMORY_S: Final = 3600.0
_MORE: Final = np.log(2.0)
_DEVIATIONS: Final = 4.0
"""Mean absolute deviations: three standard deviations of a normal distribution."""
_LITTLE: Final = 1e6
"""Bytes a second; below them twice as much is nothing."""
_BUSIER: Final = 1.25
"""A quarter more than clients did is more work; what they move varies by less from window to window."""
_WORDS: Final = ("reads of some clients", "writes of some clients")


class _OfClients(Columns):
    """By client: the number of its node's `job`; by direction the habits of its latency and of what it moves (ln), and
    for how many windows it has moved `more` than twice that.
    """

    axis = "storage"
    job: IntArray = column(-1)
    more: IntArray = column(0, 2)
    BESIDE = ("apart", "moved")

    def __init__(self) -> None:
        super().__init__()
        self.apart = [Habit(_MEMORY_S), Habit(_MEMORY_S)]
        self.moved = [Habit(_MEMORY_S), Habit(_MEMORY_S)]


class _OfMounts(Columns):
    """By mount and direction, 2 mount + way: for how many windows a part of the clients has been `slow`."""

    axis = REUSED
    slow: IntArray = column(0)
    BESIDE = ("evidence",)

    def __init__(self) -> None:
        super().__init__()
        self.evidence = Evidence()


@dataclass(frozen=True)
class Part:
    """Some `clients` (indices) of the mount at a `place` among those looked at, slow in a direction, `since` when (ms).

    Their latency is `rise` times what it is beside the others; `wealth` is the evidence against chance.
    """

    place: int
    way: int
    clients: IntArray
    rise: float
    since: Instant
    wealth: float


class Parts(Kept):
    """Looks for parts of mounts, window after window."""

    KEPT = ("clients", "mounts")

    def __init__(self, fleet: Fleet, tails: Tails, latency_rise: float, windows: int) -> None:
        """Begin with nothing; a rise by `latency_rise` (a share) for so many windows is slow."""
        self._fleet, self._tails, self._least, self._windows = fleet, tails, np.log1p(latency_rise), windows
        self.clients, self.mounts = _OfClients(), _OfMounts()

    def look(self, now: Instant, looks: Looks, clients: Clients, calm: BoolArray, needed: float) -> list[Part]:
        """Take a look at the mounts of `looks`; nothing is learnt of those that are not `calm` (k,).

        Returns the parts that are slow, with `needed` evidence.
        """
        mount, own = clients.mount(), self.clients
        own.grow(len(mount))
        self._note_jobs(clients)
        place = np.full(int(mount.max(initial=-1)) + 1, -1)
        place[looks.mounts] = np.arange(len(looks.mounts))
        at = np.where(looks.fresh, place[mount], -1)
        middle = np.append(looks.latency, np.full((2, 1), np.nan), axis=1)[:, at]  # the last is of no mount
        apart = np.log(clients.latency) - np.log(middle)
        moved = np.log(clients.rate[:2] + _LITTLE)
        rises, more = np.full(apart.shape, np.nan), np.zeros(apart.shape, bool)
        for way in (READ, WRITE):
            known = own.apart[way].learnt_s >= _KNOWN_S
            more[way] = (at >= 0) & (moved[way] > own.moved[way].level + _MORE)
            np.subtract(apart[way], own.apart[way].level, out=rises[way], where=known & ~more[way])
        found = self._judge(now, looks, at, rises, calm, needed)
        own.more[:] = np.where(at >= 0, (own.more + 1) * more, own.more)
        those = np.flatnonzero((at >= 0) & np.append(calm, False)[at])
        for way in (READ, WRITE):
            busier = own.more[way] >= self._windows  # what it does at one load says nothing of another
            for habit in (own.apart[way], own.moved[way]):
                habit.forget(np.flatnonzero(busier))
            usual = those[~(rises[way, those] > self._least / 2) & (~more[way] | busier)[those]]
            own.apart[way].learn(usual, apart[way, usual], WINDOW_S)
            own.moved[way].learn(usual, moved[way, usual], WINDOW_S)
        return found

    def _judge(
        self, now: Instant, looks: Looks, at: IntArray, rises: FloatArray, calm: BoolArray, needed: float
    ) -> list[Part]:
        found: list[Part] = []
        for place, mount in enumerate(looks.mounts.tolist()):
            here = np.flatnonzero(at == place)
            for way in (READ, WRITE):
                known = here[np.isfinite(rises[way, here])]
                count = max(_FEWEST, int(np.ceil(_SHARE * len(known))))
                if len(known) < (1 + _OTHERS) * count:
                    continue
                rise = float(np.partition(rises[way, known], -count)[-count])
                tail, entity = self._tails[_WORDS[way]], np.array([2 * mount + way])
                odds = tail.odds(np.array([rise]))
                high, mounts = rise >= self._least, self.mounts
                mounts.evidence.look(entity, odds if high else np.fmax(odds, 0.9), now, most=needed + 2)
                slow = int(np.clip(mounts.slow[entity[0]] + (1 if high else -1), 0, self._windows))
                mounts.slow[entity] = slow
                if calm[place] and not rise > self._least / 2:
                    tail.learn(np.array([rise]))
                wealth = float(mounts.evidence.wealth[entity[0]])
                if high and slow >= self._windows and wealth >= needed:
                    slow_ones = known[rises[way, known] >= self._least]
                    since = int(mounts.evidence.since[entity[0]]) - int(1000 * WINDOW_S)
                    middle = float(np.exp(np.median(rises[way, slow_ones])))
                    found.append(Part(place, way, slow_ones, middle, since, wealth))
        return found

    def fall(self, looks: Looks, clients: Clients, mount: int, slow: BoolArray) -> float:
        """Return what the clients of a mount move in the directions that are `slow`, (2,), of what they did with the
        same job, if those that moved most of it have come down to half, and by far more than they vary; NaN if not.
        """
        self.clients.grow(len(clients.mount()))
        self._note_jobs(clients)
        here = np.flatnonzero((clients.mount() == mount) & looks.fresh)
        before, now, of_fallen = 0.0, 0.0, 0.0
        for way in np.flatnonzero(slow).tolist():
            usual = self.clients.moved[way]
            those = here[(usual.learnt_s[here] >= _KNOWN_S) & np.isfinite(clients.rate[way, here])]
            rate, did = clients.rate[way, those], np.maximum(np.exp(usual.level[those]) - _LITTLE, 0.0)
            least = usual.level[those] - _MORE - _DEVIATIONS * usual.spread[those]
            before, now = before + did.sum(), now + rate.sum()
            of_fallen += did[np.log(rate + _LITTLE) < least].sum()
        return now / before if of_fallen > before / 2 and now < before else np.nan

    def more(self, clients: Clients, mount: int, nodes: tuple[str, ...]) -> bool:
        """Return whether the clients of a mount on some nodes move more, in all, than they did with the same job."""
        here = clients.on(nodes)
        here = here[clients.mount()[here] == mount]
        here = here[here < self.clients.count]
        now = did = 0.0
        for way in (READ, WRITE):
            usual, rate = self.clients.moved[way], clients.rate[way, here]
            known = (usual.learnt_s[here] >= _KNOWN_S) & np.isfinite(rate)
            now += float(rate[known].sum())
            did += float(np.maximum(np.exp(usual.level[here[known]]) - _LITTLE, 0.0).sum())
        return now > _BUSIER * did + _LITTLE

    def _note_jobs(self, clients: Clients) -> None:
        """Forget what is usual of clients whose nodes have another job: it reads otherwise."""
        job = np.full(self.clients.count, -1)
        for one in self._fleet.jobs.values():
            job[clients.on(one.nodes)] = zlib.crc32(f"{one.job_id}@{one.start}".encode())
        other = np.flatnonzero(job != self.clients.job)
        for habit in (*self.clients.apart, *self.clients.moved):
            habit.forget(other)
        self.clients.job = job

    def still(self, mount: int) -> bool:
        """Return whether a part of a mount's clients was slow at the last look."""
        return bool((self.mounts.slow[2 * mount : 2 * mount + 2] >= self._windows - 1).any())


def extra_s(clients: Clients, part: Part) -> float:
    """Return for how much longer (s of every second) requests of the clients in a part are under way, in the mean."""
    way, those = part.way, part.clients
    under_way = known_or(clients.rate[2 + way, those] * clients.latency[way, those] / 1000, 0.0)
    return float(under_way.mean() * (1 - 1 / part.rise))
