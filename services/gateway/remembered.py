"""The series that are remembered, in columns by number: those that were silent longest make room for new ones."""

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from services.gateway.numbers import Bools, Ints
from services.gateway.remote_write import Protocol

TAKEN, PASSED, BAD = 0, 1, 2
_PLACE = np.dtype([("kind", "i1"), ("column", "i4"), ("entity", "i4"), ("scale", "f8"), ("offset", "f8")])


class Remembered:
    """What is known of each series; numbers of those that were removed are given anew."""

    def __init__(self) -> None:
        self._numbers: dict[Protocol, dict[bytes, int]] = {"v1": {}, "v2": {}}
        self._keys: list[bytes] = []
        self.why: list[str] = []
        """Why a series is passed over or bad."""
        self.places = np.zeros(1024, _PLACE)
        """Where a series belongs: a column and an entity, -1 where nowhere; a reading is (value - offset) / scale."""
        self._named = np.zeros(1024, np.int64)
        """The last request with the series, counted from 1; 0: no series has the number."""
        self._hosts = np.zeros(1024, np.int64)
        self._free: list[int] = []
        self._requests = 0

    def __len__(self) -> int:
        """Return how many series are remembered."""
        return sum(map(len, self._numbers.values()))

    def find(self, protocol: Protocol, keys: Sequence[bytes]) -> Ints:
        """Return the numbers of the series of the next request, -1 where one is not known."""
        self._requests += 1
        known = self._numbers[protocol]
        found = np.fromiter((known.get(key, -1) for key in keys), np.int64, len(keys))
        self._named[found[found >= 0]] = self._requests
        return found

    def add(
        self,
        protocol: Protocol,
        key: bytes,
        kind: int,
        why: str = "",
        place: tuple[int, int, float, float] = (-1, -1, 1.0, 0.0),
        host: str = "",
    ) -> int:
        """Return the number of a series of the request that was looked for last, which is added if it is new."""
        known = self._numbers[protocol]
        if key in known:
            return known[key]
        number = known[key] = self._free.pop() if self._free else len(self._keys)
        if number == len(self._keys):
            self._keys.append(key)
            self.why.append(why)
            if number == len(self.places):
                self.places, self._named, self._hosts = (
                    np.concatenate([column, np.zeros_like(column)])
                    for column in (self.places, self._named, self._hosts)
                )
        self._keys[number], self.why[number], self.places[number] = key, why, (kind, *place)
        self._named[number], self._hosts[number] = self._requests, hash(host)
        return number

    def remove(self, numbers: Ints) -> None:
        """Forget series: each is learnt again when it comes."""
        for number in numbers.tolist():
            for known in self._numbers.values():
                if known.get(self._keys[number]) == number:
                    del known[self._keys[number]]
            self._keys[number], self.why[number] = b"", ""
        self._named[numbers] = 0
        self._free += numbers.tolist()

    def silent_longest(self, count: int) -> Ints:
        """Return the numbers of the `count` series whose last request is longest ago."""
        there = np.flatnonzero(self._named)
        if count >= len(there):
            return there
        return there[np.argpartition(self._named[there], count)[:count]]

    def of_hosts(self, hosts: Iterable[str]) -> Ints:
        """Return the numbers of all series of hosts, and seldom one of another host."""
        return np.flatnonzero(np.isin(self._hosts, [hash(host) for host in hosts]) & (self._named > 0))

    def hosts_of(self, hosts: Iterable[str]) -> list[str]:
        """Return those hosts of which there is a series."""
        there = set(np.unique(self._hosts[self._named > 0]).tolist())
        return [host for host in hosts if hash(host) in there]

    def uses(self, part: Literal["column", "entity"], count: int) -> Bools:
        """Return whether there is a series of each of `count` columns or entities."""
        there = np.zeros(count, np.bool_)
        mine = self.places[part][self._named > 0]
        there[mine[mine >= 0]] = True
        return there

    def keys(self, protocol: Protocol) -> Iterable[bytes]:
        """Return the keys of a protocol's series."""
        return self._numbers[protocol].keys()
