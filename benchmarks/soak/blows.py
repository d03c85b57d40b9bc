"""What befalls whom and when: drawn by seed, and made fewer where fewer do the same harm."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.soak.network import CUTS, Cut, whole

Kind = Literal["kill", "freeze", "restart", "elect", "upgrade", "crash-up", "ahead", "behind"] | Cut
STRIKES: tuple[Kind, ...] = ("kill", "freeze")
UPGRADES: tuple[Kind, ...] = ("upgrade", "crash-up")
LEADING: tuple[Kind, ...] = ("restart", "elect")
"""Of brokers: one hands over what it leads, and ends; or all do, and none ends."""
LEADERS = "leaders"
"""The victim of elections, which is no process."""
CLOCK = "'s clock"
"""What follows a process' name where its clock is the victim."""
STEPS: tuple[Kind, ...] = ("ahead", "behind")
KINDS: tuple[Kind, ...] = (*STRIKES, *LEADING, *STEPS, *UPGRADES, *CUTS)
LASTS_S: dict[Kind, tuple[float, float]] = {
    "kill": (0.0, 8.0),
    "freeze": (0.0, 20.0),
    "restart": (0.0, 8.0),
    "elect": (0.0, 10.0),
    "ahead": (1.0, 40.0),
    "behind": (1.0, 40.0),
    "upgrade": (0.0, 8.0),
    "crash-up": (0.0, 8.0),
    "refuse": (5.0, 40.0),
    "drop": (5.0, 40.0),
    "mute": (5.0, 40.0),
    "half-open": (0.0, 0.0),
    "slow": (5.0, 40.0),
}
"""From and to how long each lasts."""
_REST_S = 3.0
"""Between two blows at one process, from the end of the first to the second; and between two cuts."""


@dataclass(frozen=True, order=True)
class Blow:
    """`at_s` seconds after a round's start `victim`, a process, gets SIGKILL or SIGSTOP, or, a link, is cut; it is back
    (SIGCONT, healed) `lasts_s` later. After an upgrade, by SIGTERM, or by SIGKILL (crash-up), it is another release. A
    restart is by SIGTERM; as long as an election lasts, each partition has another leader every two seconds. A clock is
    stepped a minute ahead or behind, and back.
    """

    at_s: float
    victim: str
    kind: Kind
    lasts_s: float

    def __str__(self) -> str:
        return f"{self.at_s:.1f} s: {self.kind} {self.victim} for {self.lasts_s:.1f} s"


def drawn(
    seed: str,
    victims: Sequence[str],
    *,
    links: Sequence[str] = (),
    brokers: Sequence[str] = (),
    upgraded: str = "",
    upgrades: float = 0.0,
    count: int,
    span_s: float,
) -> tuple[Blow, ...]:
    """Return `count` blows of the first `span_s` seconds, the same for the same seed; of these about a share of
    `upgrades` are upgrades of the process `upgraded`, and those of `victims` that are `brokers` may be restarted.

    Where there are `brokers`, their leaders are a victim, too. Links that lead the same way are as likely as one. Blows
    at different processes may coincide; of the links one is cut at a time. ValueError if there is no room for so many.
    """
    rng = random.Random(seed)  # noqa: S311 - a reproducible schedule, no secret
    found: list[Blow] = []
    ways = list(dict.fromkeys(map(whole, links)))
    struck = [*victims, *([LEADERS] if brokers else []), *ways]
    for _ in range(100 * count):
        newer = rng.random() < upgrades
        victim = upgraded if newer else rng.choice(struck)
        if victim in ways:
            victim = rng.choice([link for link in links if whole(link) == victim])
        kind = rng.choice(UPGRADES if newer else _befalls(victim, links, brokers))
        blow = Blow(round(rng.uniform(0, span_s), 1), victim, kind, round(rng.uniform(*LASTS_S[kind]), 1))
        if not any(_meet(blow, other) for other in found):
            found.append(blow)
        if len(found) == count:
            return tuple(sorted(found))
    raise ValueError(f"no room for {count} blows at {len(victims) + len(links)} victims within {span_s:g} s")


def _befalls(victim: str, links: Sequence[str], brokers: Sequence[str]) -> Sequence[Kind]:
    if victim in links:
        return CUTS
    if victim.endswith(CLOCK):
        return STEPS
    if victim == LEADERS:
        return ("elect",)
    return (*STRIKES, "restart") if victim in brokers else STRIKES


def _meet(one: Blow, other: Blow) -> bool:
    first, second = sorted((one, other))
    near = second.at_s < first.at_s + first.lasts_s + _REST_S
    return near and (one.victim == other.victim or {one.kind, other.kind} <= set(CUTS))


def shrunk(blows: Sequence[Blow], fails: Callable[[tuple[Blow, ...]], bool]) -> tuple[Blow, ...]:
    """Return a part of `blows` that still fails, and of which no single blow can be left out (delta debugging)."""
    kept, pieces = tuple(blows), 2
    while len(kept) > 1:
        size = -(-len(kept) // pieces)
        fewer = (kept[:at] + kept[at + size :] for at in range(0, len(kept), size))
        smaller = next((some for some in fewer if fails(some)), None)
        if smaller is not None:
            kept, pieces = smaller, max(pieces - 1, 2)
        elif size == 1:
            break
        else:
            pieces = min(2 * pieces, len(kept))
    return kept
