"""How long a mount's requests usually take, at each load: what to expect of it now.

The load is the throughput of all clients, in powers of two. Latency rises with load and never falls: what is expected
is the highest level known at this load or below. At a load that was never seen nothing is expected.
"""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

_IDLE = 1e4
"""Bytes a second of all clients; less is nothing."""
_GAIN, _WARY = 0.02, 0.2
"""A look moves a level by its part of all looks so far, at last by this: half an hour at a look every 30 s. A part of
that where the mount is not quite as it should be, or a slow ramp would be taken for the habit."""
_KNOWN = 3
"""Looks at a load after which it counts as known."""
_NO_LOAD = "?"


@dataclass(slots=True)
class Habit:
    """One direction of one mount: the level of log(latency) by load, and how far a look usually lies from it."""

    levels: dict[str, float] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    spread: float = 0.1
    looks: int = 0

    def expected(self, load: float) -> float:
        """Return the latency to expect, ms; NaN where the load was never seen."""
        known = {step: level for step, level in self.levels.items() if self.seen[step] >= _KNOWN}
        if not known:
            return math.nan
        step = _step(load)
        if step == _NO_LOAD or _NO_LOAD in known:
            level = known.get(step)
            return math.exp(level) if level is not None else math.nan
        number = int(step)
        below = [level for other, level in known.items() if int(other) <= number]
        if max(int(other) for other in known) < number:
            return math.nan
        # Less load than was ever seen can't take longer than the least that was.
        return math.exp(max(below)) if below else math.exp(known[min(known, key=int)])

    def looks_at(self, load: float) -> int:
        """Return how often a load like this was looked at."""
        return self.seen.get(_step(load), 0)

    @property
    def lowest(self) -> float:
        """Return the lowest latency that is known at any load, ms; NaN if none is."""
        known = [level for step, level in self.levels.items() if self.seen[step] >= _KNOWN]
        return math.exp(min(known)) if known else math.nan

    @property
    def highest(self) -> float:
        """Return the highest latency that is known at any load, ms; NaN if none is."""
        known = [level for step, level in self.levels.items() if self.seen[step] >= _KNOWN]
        return math.exp(max(known)) if known else math.nan

    def learn(self, load: float, latency: float, *, slowly: bool) -> None:
        """Take a look at the mount; `slowly` where it is not quite as it should be."""
        if not latency > 0:
            return
        step, value = _step(load), math.log(latency)
        self.looks += 1
        level = self.levels.get(step)
        if level is None:
            self.levels[step], self.seen[step] = value, 1
            return
        self.seen[step] = min(self.seen[step] + 1, 1_000_000)
        gain = max(1 / self.seen[step], _GAIN) * (_WARY if slowly else 1.0)
        off = value - level
        self.levels[step] = level + gain * off
        if not slowly:
            self.spread += 0.05 * (min(abs(off), 0.5) - self.spread)


@dataclass(slots=True)
class Usual:
    """One direction of one mount: its habit by its own load, and by that of both directions together.

    A checkpoint makes reads slow too, and much reading is not what much writing is: both loads must be known.
    """

    own: Habit = field(default_factory=Habit)
    whole: Habit = field(default_factory=Habit)

    def expected(self, own: float, whole: float) -> float:
        """Return the latency to expect, ms; NaN where one of the loads was never seen."""
        one, other = self.own.expected(own), self.whole.expected(whole)
        return math.nan if math.isnan(one) or math.isnan(other) else max(one, other)

    def looks_at(self, own: float, whole: float) -> int:
        """Return how often such loads were looked at: of the two, the one that was seen less."""
        return min(self.own.looks_at(own), self.whole.looks_at(whole))

    @property
    def spread(self) -> float:
        """Return how far a look usually lies from the habit: mean absolute difference of logarithms."""
        return max(self.own.spread, 0.02)

    @property
    def looks(self) -> int:
        """Return at how many looks it was learnt."""
        return self.own.looks

    def learn(self, own: float, whole: float, latency: float, *, slowly: bool) -> None:
        """Take a look at the mount."""
        self.own.learn(own, latency, slowly=slowly)
        self.whole.learn(whole, latency, slowly=slowly)

    def snapshot(self) -> list[dict[str, Any]]:
        """Return the state as JSON can say it."""
        return [asdict(self.own), asdict(self.whole)]

    @classmethod
    def of(cls, state: list[dict[str, Any]]) -> "Usual":
        """Return what `snapshot` returned."""
        return cls(Habit(**state[0]), Habit(**state[1]))


def _step(load: float) -> str:
    """Return the load's power of two, as JSON keys are; its own where the load is not known."""
    if math.isnan(load):
        return _NO_LOAD
    return str(int(math.log2(max(load, _IDLE))))
