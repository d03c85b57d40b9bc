"""Repeat offenders: which machines were the root of incidents again and again, over the last weeks."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from detectors.contract import Entity, Instant

_SPAN_MS: Final = 28 * 86_400_000
"""Meta finds lemon nodes by 28 days of signals (Revisiting Reliability, HPCA 2025)."""
_MOST_KEPT = 64
"""Incidents kept of one thing: nobody needs to count further."""
_MOST_THINGS = 50_000

Thing = tuple[tuple[str, str | int], ...]
"""Keys and values of an entity."""


def things_of(entity: Entity) -> Iterator[Thing]:
    """Yield what can be replaced of an entity, the narrowest first: a GPU or NIC, its node; a port, its switch."""
    for keys in (("node", "gpu"), ("node", "nic"), ("node",), ("switch", "port"), ("switch",), ("mount",)):
        if all(key in entity for key in keys):
            yield tuple((key, entity[key]) for key in keys)


class Offenders:
    """When each thing was the root of an incident."""

    def __init__(self) -> None:
        self._times: dict[Thing, list[Instant]] = {}

    def count(self, entity: Entity, at: Instant) -> None:
        """Count an incident whose root was `entity`."""
        for thing in things_of(entity):
            times = self._times.pop(thing, [])
            self._times[thing] = [*times, at][-_MOST_KEPT:]  # put at the end: the first is the one longest quiet
            if len(self._times) > _MOST_THINGS:
                del self._times[next(iter(self._times))]

    def record(self, entity: Entity, now: Instant, *, but: Instant | None) -> Iterator[tuple[Thing, int, float]]:
        """Yield, of each thing with a record: how many incidents, and a score in which older ones weigh less.

        An incident of this moment weighs 1, one at the end of the span 0. The one that was counted at `but` is the
        one that is asked for, and no record of it.
        """
        for thing in things_of(entity):
            times = list(self._times.get(thing, ()))
            if but in times:
                times.remove(but)
            ages = [now - at for at in times if 0 <= now - at < _SPAN_MS]
            if ages:
                yield thing, len(ages), sum(1 - age / _SPAN_MS for age in ages)

    def forget(self, now: Instant) -> None:
        """Forget what is older than the span."""
        for thing, times in list(self._times.items()):
            kept = [at for at in times if now - at < _SPAN_MS]
            if kept:
                self._times[thing] = kept
            else:
                del self._times[thing]

    def snapshot(self) -> list[Any]:
        """Return the state as JSON can say it."""
        return [[thing, times] for thing, times in self._times.items()]

    def load(self, state: Iterable[Any]) -> None:
        """Take what `snapshot` returned."""
        self._times = {tuple((key, value) for key, value in thing): list(times) for thing, times in state}
