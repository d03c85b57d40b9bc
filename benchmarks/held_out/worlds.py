"""Figures over worlds: the worst tenth beside the mean, and whether the budget of false alarms is kept."""

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from scipy.stats import chi2

from benchmarks.held_out.run import Result
from detectors.registry import BUDGET_DEFAULT
from services.score.sheet import Row, Sheet, number
from services.score.suite import Scorecard
from services.synth.cluster.worlds import draw
from services.synth.cluster.worlds import words as words_of_world

WORST_PRECISION, WORST_RECALL = 0.90, 0.85
"""What is asked of the worst tenth of worlds."""
_KEPT = 2.0
"""A budget is kept when the measured rate is at most so many times it."""
_SHOWN = 12


def world_sheets(results: Sequence[Result]) -> list[Sheet]:
    """Return the worlds from worst to best, their mean and their worst tenth; nothing where there are no worlds."""
    of_world: dict[int, list[Result]] = defaultdict(list)
    for result in results:
        if result.case.world is not None:
            of_world[result.case.world].append(result)
    if not of_world:
        return []
    totals = {world: Scorecard([one.scored for one in some]).by_fault["all"] for world, some in of_world.items()}
    precision = {world: counts.precision for world, counts in totals.items() if math.isfinite(counts.precision)}
    recall = {world: counts.recall for world, counts in totals.items() if math.isfinite(counts.recall)}
    order = sorted(totals, key=lambda world: (precision.get(world, 1.0) + recall.get(world, 1.0), world))
    rows = [
        Row(
            [
                str(world),
                str(len(of_world[world])),
                str(totals[world].labels),
                number(precision.get(world)),
                number(recall.get(world)),
                str(totals[world].false_alarms),
                words_of_world(draw(world)),
            ],
            "short" if precision.get(world, 1.0) < WORST_PRECISION or recall.get(world, 1.0) < WORST_RECALL else "",
        )
        for world in order[:_SHOWN]
    ]
    worst = _lowest_tenth(list(precision.values())), _lowest_tenth(list(recall.values()))
    short = worst[0] < WORST_PRECISION or worst[1] < WORST_RECALL
    rows.append(Row(["worst tenth", "", "", number(worst[0]), number(worst[1]), "", ""], "short" if short else "total"))
    means = [number(float(np.mean(list(values.values()))) if values else None) for values in (precision, recall)]
    rows.append(Row(["mean", str(len(results)), "", *means, "", ""], "total"))
    notes = [
        f"{len(of_world)} worlds, the worst {min(_SHOWN, len(order))} of them first.",
        (
            "The worst tenth: the mean over the tenth of worlds with the lowest value, of each figure for itself; "
            f"asked: {WORST_PRECISION:g} and {WORST_RECALL:g}."
        ),
    ]
    titles = ["world", "rec.", "labels", "precision", "recall", "false", "what is gathered there"]
    return [Sheet("Worlds", titles, rows, notes, frozenset({0, 6}))]


def _lowest_tenth(values: list[float]) -> float:
    return float(np.mean(sorted(values)[: max(1, math.ceil(len(values) / 10))])) if values else math.nan


def budget_sheets(results: Sequence[Result]) -> list[Sheet]:
    """Return the measured rate of false alarms beside each budget, with its exact 95 % bounds (Garwood 1936)."""
    by_budget: dict[float, list[Result]] = defaultdict(list)
    for result in results:
        by_budget[BUDGET_DEFAULT if result.case.budget is None else result.case.budget].append(result)
    rows = []
    for budget, some in sorted(by_budget.items()):
        days = sum(one.scored.node_days for one in some)
        alarms = sum(outcome.kind == "false" for one in some for outcome in one.scored.outcomes)
        low = float(chi2.ppf(0.025, 2 * alarms) / 2) if alarms else 0.0
        high = float(chi2.ppf(0.975, 2 * (alarms + 1)) / 2)
        worlds = len({one.case.world for one in some})
        figures = [number(100 * value / days if days else None) for value in (alarms, low, high)]
        kept = bool(days) and 100 * alarms / days <= _KEPT * budget
        cells = [f"{budget:g}", str(worlds), f"{days:.1f}", str(alarms), *figures, "yes" if kept else "no"]
        rows.append(Row(cells, "" if kept else "short"))
    titles = ["budget", "worlds", "node-days", "false", "per 100 node-days", "lower 95 %", "upper 95 %", "kept"]
    notes = [f"Budgets are false alarms per 100 node-days; kept: measured at most {_KEPT:g} times that."]
    return [Sheet("The budget of false alarms", titles, rows, notes)]
