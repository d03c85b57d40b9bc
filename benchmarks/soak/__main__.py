"""Kill, freeze, upgrade and cut off what runs, at random, and see whether anything is lost or sent twice: `python -m
benchmarks.soak`.

Two replays and a live cluster run through the real servers at once while any process of ours or of the servers gets
SIGKILL or SIGSTOP, detect is ended and started as another release with other settings (benchmarks/soak/releases.py),
one of three brokers hands over what it leads and ends, partitions get other leaders while all live, the clock of one of
ours is stepped by a minute, or the network between one of ours and Kafka (all brokers, or one), Prometheus, Receive or
Alertmanager, or among the brokers, is cut (`--kills N`, in rounds of `--per-round`; `--only` brokers, clocks, cuts or
processes). When a round has settled: every sample is in Prometheus and Thanos once, the findings are those of an
undisturbed run, each alert was sent once and resolved once.
Exit code 1 where something is not so, with the round's seed and the fewest blows that do it again (`--shrink`).
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.soak.blows import KINDS, Blow, drawn, shrunk
from benchmarks.soak.brokers import AMONG, THREE
from benchmarks.soak.network import whole
from benchmarks.soak.stage import SPAN_S, UPGRADED, Stage, staged


def main() -> None:
    """Run the rounds and print what was struck and what was wrong; exit 1 if anything was."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--kills", type=int, default=50, help="how many blows in all (50)")
    asked.add_argument("--per-round", type=int, default=8, help="how many of them in a round of a minute (8)")
    asked.add_argument("--only", choices=("processes", "brokers", "clocks", "cuts"), help="one sort of blows, no other")
    asked.add_argument("--brokers", type=int, choices=(1, 3), default=3, help="how many brokers there are (3)")
    asked.add_argument("--upgrades", type=float, default=0.25, help="share of the blows that are upgrades (0.25)")
    asked.add_argument("--seed", default="1", help="another seed is another schedule (1)")
    asked.add_argument("--first", type=int, default=0, help="the round to begin with: one that failed, again")
    asked.add_argument("--shrink", action="store_true", help="repeat a round that fails with fewer and fewer blows")
    asked.add_argument("--keep", type=Path, metavar="DIR", help="an empty folder for all state and logs, to look at")
    given = asked.parse_args()
    struck: Counter[tuple[str, str]] = Counter()
    broken: Counter[tuple[str, str]] = Counter()
    violations = led = 0
    with (
        tempfile.TemporaryDirectory(prefix="hindcast-soak-") as scratch,
        staged(given.keep or Path(scratch), given.brokers) as stage,
    ):
        first = given.first
        for number in range(first, first + -(-given.kills // given.per_round)):
            left = given.kills - (number - first) * given.per_round
            blows = _blows(stage, given, f"{given.seed}/{number}", min(given.per_round, left))
            name = f"soak-{given.seed}-{number}"
            before = stage.brokers.changes()
            wrong = _play(stage, name, blows)
            changes = stage.brokers.changes() - before
            led += changes
            violations += len(wrong)
            struck.update((blow.victim, blow.kind) for blow in blows)
            print(f"round {number}: {len(blows)} blows, {changes} other leaders, {len(wrong)} violations", flush=True)
            if wrong:
                print("\n".join([*(f"  {blow}" for blow in blows), *(f"  ! {line}" for line in wrong)]), flush=True)
                least = _shrunk(stage, name, blows) if given.shrink else blows
                broken.update((blow.victim, blow.kind) for blow in least)
    _table(struck, broken)
    print(f"{struck.total()} blows, {led} other leaders of partitions, {violations} violations (seed {given.seed})")
    sys.exit(violations > 0)


def _blows(stage: Stage, given: argparse.Namespace, seed: str, count: int) -> tuple[Blow, ...]:
    processes, all_brokers = [*stage.victims, "gateway"], THREE if given.brokers > 1 else ()
    among = [link for link in stage.links if whole(link) == f"{AMONG}>kafka"]
    sorts: dict[str | None, tuple[list[str], list[str], Sequence[str]]] = {
        None: ([*processes, *stage.clocks], stage.links, all_brokers),
        "processes": (processes, [], all_brokers),
        "brokers": ([*all_brokers], among, all_brokers),
        "clocks": (stage.clocks, [], ()),
        "cuts": ([], stage.links, ()),
    }
    victims, links, brokers = sorts[given.only]
    share = given.upgrades if given.only in (None, "processes") else 0.0
    return drawn(
        seed,
        victims,
        links=links,
        brokers=brokers,
        upgraded=UPGRADED,
        upgrades=share,
        count=count,
        span_s=SPAN_S,
    )


def _play(stage: Stage, name: str, blows: Sequence[Blow]) -> list[str]:
    with stage.round(name) as played:
        return played.run(blows)


def _shrunk(stage: Stage, name: str, blows: tuple[Blow, ...]) -> tuple[Blow, ...]:
    tries = iter(range(1, 1_000_000))
    least = shrunk(blows, lambda some: bool(_play(stage, f"{name}-again-{next(tries)}", some)))
    print("\n".join(["  the fewest that do it again:", *(f"    {blow}" for blow in least)]), flush=True)
    return least


def _table(struck: Counter[tuple[str, str]], broken: Counter[tuple[str, str]]) -> None:
    """Print by victim and kind how many blows there were, and how many of them in rounds that failed."""
    print(f"{'blows/in failed rounds':28}" + "".join(f"{kind:>11}" for kind in KINDS))
    for victim in sorted({victim for victim, _ in struck}):
        cells = [f"{struck[victim, kind]}/{broken[victim, kind]}" for kind in KINDS]
        print(f"{victim:28}" + "".join(f"{'' if cell == '0/0' else cell:>11}" for cell in cells))


if __name__ == "__main__":
    main()
