"""Healthy node-days: every workload of the library with nothing broken, on its own and on other clusters."""

import itertools
from collections.abc import Sequence

from benchmarks.held_out.case import Case, outline
from benchmarks.held_out.plan import Plan, nodes_of, summed
from services.synth.library import LIBRARY, scenario_paths

CADENCES_S: tuple[float | None, ...] = (None, 15.0, 30.0, 60.0)
"""Of DCGM; None is the scenario's own (5, 10, 15 or 20 s)."""
_MIXES = ("vela-healthy", "blue-vela-healthy-day")
_MARGIN = 1.03
"""So much more is planned, as nodes report from their first scrape to their last and not all of the time."""


def healthy_plan(node_days: float, first_seed: int, scale: float, worlds: Sequence[int] = ()) -> Plan:
    """Return recordings of about so many node-days, workload by workload, each at the next of the cadences.

    With `worlds` each is made in the next of them instead, at the cadences of that.

    The workloads: what runs in each scenario without what breaks there, all that merely looks wrong kept; and the two
    healthy mixes of jobs on every cluster that the library knows.
    """
    own: list[tuple[str, str | None]] = [(name, None) for name in scenario_paths() if name not in _MIXES]
    clusters = sorted(path.stem for path in (LIBRARY / "profiles").glob("*.yaml"))
    moved: list[tuple[str, str | None]] = [(name, cluster) for cluster in clusters for name in _MIXES]
    workloads = _alternating(moved, own)
    cases: list[Case] = []
    days = 0.0
    for turn in itertools.count():
        before = len(cases)
        for place, (name, cluster) in enumerate(workloads):
            if days >= node_days * _MARGIN:
                return summed(cases)
            cadence = CADENCES_S[(place + turn) % len(CADENCES_S)]
            size = scale if cluster is not None else round(max(scale, min(1.0, 4 / nodes_of(name))), 4)
            world = worlds[len(cases) % len(worlds)] if worlds else None
            every = cadence if world is None else None
            case = Case("healthy", name, first_seed + turn, size, cluster, every, healthy=True, world=world)
            if (known := outline(case)) is not None:
                cases.append(case)
                days += known.nodes * known.hours / 24
        if len(cases) == before:
            return summed(cases)
    raise AssertionError


def _alternating(
    one: list[tuple[str, str | None]], other: list[tuple[str, str | None]]
) -> list[tuple[str, str | None]]:
    pairs = itertools.zip_longest(one, other)
    return [item for pair in pairs for item in pair if item is not None]
