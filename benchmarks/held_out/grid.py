"""Clusters, cadences, fleet sizes and noise other than those that the detectors were developed on."""

from collections.abc import Callable, Sequence

from benchmarks.held_out.case import Case
from benchmarks.held_out.plan import Plan, choose, nodes_of, summed
from services.recording.faults import FAULTS
from services.synth.cluster.profile import load_profile
from services.synth.library import LIBRARY

CADENCES_S = (5.0, 15.0, 30.0, 60.0)
SIZES = (2, 8, 32, 128, 512)
NOISES = (0.5, 2.0, 4.0)
_NODES = 16


def grid_plan(
    labels: int, first_seed: int, faults: Sequence[str] = tuple(FAULTS), cells: Sequence[str] | None = None
) -> Plan:
    """Return the recordings of all cells: in each, as far as its scenarios can be made so, `labels` of every fault.

    `cells`: only those whose name begins so. The largest fleet has one label of every fault.
    """
    known: list[tuple[str, Callable[[str], Case | None]]] = []
    for path in sorted((LIBRARY / "profiles").glob("*.yaml")):
        nodes = load_profile(path).nodes
        known.append((f"cluster {path.stem}", _on(path.stem, round(min(1.0, _NODES / nodes), 4), first_seed)))
    known += [(f"every {every:g} s", _every(every, first_seed)) for every in CADENCES_S]
    known += [(f"{size} nodes", _sized(size, first_seed)) for size in SIZES]
    known += [(f"noise x {noise:g}", _noisy(noise, first_seed)) for noise in NOISES]
    found: list[Case] = []
    for cell, case_of in known:
        if cells is None or cell.startswith(tuple(cells)):
            wanted = 1 if cell == f"{SIZES[-1]} nodes" else labels  # half of the grid's CPU otherwise
            found += choose(wanted, first_seed, _named(cell, case_of), faults, variety=1).cases
    return summed(found)


def _named(cell: str, case_of: Callable[[str], Case | None]) -> Callable[[str], Case | None]:
    def named(scenario: str) -> Case | None:
        case = case_of(scenario)
        return None if case is None else Case(**case.as_json() | {"cell": cell})

    return named


def _on(cluster: str, scale: float, seed: int) -> Callable[[str], Case | None]:
    return lambda scenario: Case("grid", scenario, seed, scale, profile=cluster)


def _every(interval_s: float, seed: int) -> Callable[[str], Case | None]:
    return lambda scenario: Case("grid", scenario, seed, _small(scenario), interval_s=interval_s)


def _sized(nodes: int, seed: int) -> Callable[[str], Case | None]:
    return lambda scenario: Case("grid", scenario, seed, nodes / nodes_of(scenario))


def _noisy(noise: float, seed: int) -> Callable[[str], Case | None]:
    return lambda scenario: Case("grid", scenario, seed, _small(scenario), noise=noise)


def _small(scenario: str) -> float:
    return round(min(1.0, _NODES / nodes_of(scenario)), 4)
