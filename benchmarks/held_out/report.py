"""The figures that the detectors are held to, from the results of many recordings."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.held_out.run import Result
from detectors.registry import discover
from services.recording.model import Label, words_of
from services.score.incidents import incident_sheet
from services.score.matching import Outcome
from services.score.page import behaviour_sheet, fault_sheet, wrong_sheet
from services.score.sheet import Row, Sheet, number
from services.score.suite import Scorecard
from services.score.tally import upper_bound

if TYPE_CHECKING:
    from benchmarks.held_out.case import Class

PRECISION, RECALL, FALSE_PER_100 = 0.97, 0.95, 0.5
"""What is asked over all faults; of a single fault see `services.score.page.FAULT_BARS`."""
_SCRAPES = {"event": 2, "sudden": 6}
_AT_LEAST_S = {"event": 0.0, "sudden": 180.0}
_OFTEN_S = 5.0


def scorecard(results: Iterable[Result]) -> Scorecard:
    """Return the recordings' scores together."""
    return Scorecard([result.scored for result in results])


def fault_sheets(results: Sequence[Result]) -> list[Sheet]:
    """Return the tables of the recordings that have faults."""
    figures = scorecard(results).as_json()
    return [
        _with_bars(fault_sheet(figures), figures),
        behaviour_sheet(figures),
        incident_sheet(figures),
        _classes(results),
        _promises(results),
        wrong_sheet(figures),
    ]


def _with_bars(sheet: Sheet, figures: dict[str, Any]) -> Sheet:
    """Return the table of faults with what is asked, and what falls short of it."""
    total = figures["faults"]["all"]
    short = [row.cells[0] for row in sheet.rows if row.kind == "short"]
    asked = (
        f"Asked: precision {PRECISION:g} (it is {number(total['precision'], '.4f')}), recall {RECALL:g} "
        f"(it is {number(total['recall'], '.4f')}), no fault below 0.90 / 0.85"
    )
    return Sheet(
        sheet.title,
        sheet.columns,
        sheet.rows,
        [*sheet.notes, f"{asked} ({'these are: ' + ', '.join(short) if short else 'none is'})."],
        sheet.words,
    )


def due_s(result: Result, label: Label) -> float:
    """Return within what time an alert is asked for: by how the fault comes and how often it is scraped."""
    kind = result.classes.get(label.id, "gradual")
    if kind == "gradual":
        return label.within_s
    return max(_AT_LEAST_S[kind], _SCRAPES[kind] * _scraped_every(result, label))


def _scraped_every(result: Result, label: Label) -> float:
    """Return how often the stream that shows a fault is sampled: the slowest of those of its entities."""
    every = result.scored.intervals_s
    found = [every.get("dcgm", _OFTEN_S)] if "node" in label.entity and "nic" not in label.entity else []
    for entity in (label.entity, *label.also):
        found += [
            every[stream]
            for key, stream in (("switch", "switch"), ("nic", "nic"), ("mount", "storage"))
            if key in entity and stream in every
        ]
    return max(found, default=_OFTEN_S)


def _hits(results: Iterable[Result]) -> Iterable[tuple[Result, Label, Outcome, float]]:
    for result in results:
        for outcome in result.scored.outcomes:
            if outcome.kind == "hit" and outcome.label is not None and outcome.delay_s is not None:
                yield result, outcome.label, outcome, outcome.delay_s


def _classes(results: Sequence[Result]) -> Sheet:
    """Return the delays of hits by how faults come, fault by fault."""
    delays: dict[tuple[Class, str], list[tuple[float, float]]] = defaultdict(list)
    for result, label, _, delay in _hits(results):
        delays[result.classes.get(label.id, "gradual"), label.fault].append((delay, due_s(result, label)))
        delays[result.classes.get(label.id, "gradual"), "all"].append((delay, due_s(result, label)))
    rows = []
    for (kind, fault), pairs in sorted(delays.items(), key=lambda item: (item[0][0], item[0][1] == "all", item[0][1])):
        took, due = np.array(pairs).T
        in_time = int((took <= due).sum())
        p95, enough = float(np.quantile(took, 0.95)), in_time >= 0.95 * len(took)
        cells = [kind, fault, str(len(took)), number(float(np.quantile(took, 0.5)), ".0f"), number(p95, ".0f")]
        rows.append(
            Row(
                [*cells, number(float(took.max()), ".0f"), f"{in_time}", f"{in_time / len(took):.1%}"],
                "short" if not enough else "total" if fault == "all" else "",
            )
        )
    notes = [
        "event: a reading or a line shows it, asked for within two scrapes of the stream that does.",
        "sudden: asked for within three minutes or six scrapes, whichever is longer, in 95 % of the hits.",
        "gradual: ramps, heat, hangs, flapping; asked for within the label's own time, which a hit is by definition.",
    ]
    titles = ["comes", "fault", "hits", "p50 s", "p95 s", "longest", "in time", "share"]
    return Sheet("Delay by how the fault comes", titles, rows, notes, frozenset({0, 1}))


def _promises(results: Sequence[Result]) -> Sheet:
    """Return each detector's delays beside what it promises."""
    delays: dict[str, dict[bool, list[float]]] = defaultdict(lambda: {True: [], False: []})
    for result, label, outcome, delay in _hits(results):
        if outcome.finding is not None and result.classes.get(label.id) != "gradual":
            often = result.scored.intervals_s.get("dcgm", _OFTEN_S) <= _OFTEN_S
            delays[outcome.finding.detector][often].append(delay)
    rows = []
    for name, kind in discover().items():
        took, elsewhere = delays[name][True], delays[name][False]
        if not took and not elsewhere:
            continue
        promised = kind.spec.latency_s
        kept = sum(delay <= promised for delay in took)
        cells = [name, number(promised, "g"), str(len(took)), str(kept)]
        cells.append(number(float(np.quantile(took, 0.95)) if took else None, ".0f"))
        cells.append(number(max(took, default=None), ".0f"))
        cells += [str(len(elsewhere)), number(float(np.quantile(elsewhere, 0.95)) if elsewhere else None, ".0f")]
        rows.append(Row(cells, "short" if kept < 0.95 * len(took) else ""))
    titles = ["detector", "promised s", "hits", "kept", "p95 s", "longest", "hits, slower scrapes", "p95 s"]
    notes = ["Promises are for readings every 5 s, and for what comes at once: ramps are left out here."]
    return Sheet("Delay against each detector's promise", titles, rows, notes)


def healthy_sheets(results: Sequence[Result]) -> list[Sheet]:
    """Return false alarms on recordings on which nothing is wrong, by cadence and cluster."""
    groups: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        every = result.scored.intervals_s.get("dcgm")
        groups["every", "?" if every is None else f"{every:g} s"].append(result)
        groups["cluster", result.scored.cluster].append(result)
    order = sorted(groups, key=lambda group: (group[0] == "cluster", len(group[1]), group[1]))
    rows = [_healthy_row(f"{name} {value}", groups[name, value]) for name, value in order]
    rows.append(_healthy_row("all", results, "total"))
    days = sum(result.scored.node_days for result in results)
    workloads = len({(result.case.scenario, result.case.profile) for result in results})
    notes = [
        f"{days:.0f} node-days of {workloads} workloads (scenario and cluster) in {len(results)} recordings.",
        f"Asked: at most {FALSE_PER_100:g} per 100 node-days. The upper bound: of a Poisson count, exact, at 95 %.",
        "The cadence is DCGM's; the other streams keep their own.",
    ]
    titles = ["", "recordings", "node-days", "false alarms", "per 100 node-days", "upper 95 %"]
    alarms = [
        Row([_name(result), outcome.fault, words_of(outcome.finding.entity), outcome.finding.summary])
        for result in results
        for outcome in result.scored.outcomes
        if outcome.kind == "false" and outcome.finding is not None
    ]
    return [
        Sheet("Healthy node-days", titles, rows, notes),
        Sheet(
            "False alarms there",
            ["recording", "fault", "entity", "summary"],
            alarms,
            [] if alarms else ["None."],
            frozenset(range(4)),
        ),
    ]


def _healthy_row(name: str, results: Sequence[Result], kind: str = "") -> Row:
    days = sum(result.scored.node_days for result in results)
    alarms = sum(outcome.kind == "false" for result in results for outcome in result.scored.outcomes)
    rate = 100 * alarms / days if days else None
    bound = 100 * upper_bound(alarms) / days if days else None
    cells = [name, str(len(results)), f"{days:.1f}", str(alarms), number(rate), number(bound)]
    return Row(cells, kind if rate is None or rate <= FALSE_PER_100 else "short")


def grid_sheet(results: Sequence[Result]) -> Sheet:
    """Return a row for each cell of the grid."""
    cells: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        cells[result.case.cell].append(result)
    rows = [_grid_row(cell, cells[cell]) for cell in cells]
    rows.append(_grid_row("all", results, "total"))
    notes = [
        "recall: by the labels' own times, which are written for the scenarios' own cadences.",
        "in time: alerts count too that came within two scrapes (events), three minutes or six scrapes (sudden).",
        "false / day: false alarms per node-day of these recordings, which are dense with faults.",
    ]
    titles = ["cell", "rec.", "labels", "faults", "prec", "recall", "in time", "F1", "p95 s", "false", "false / day"]
    return Sheet("Other clusters, cadences, sizes, noise", titles, rows, notes)


def _grid_row(cell: str, results: Sequence[Result], kind: str = "") -> Row:
    card = scorecard(results)
    total = card.by_fault["all"]
    faults = sum(counts.labels > 0 for name, counts in card.by_fault.items() if name != "all")
    saved = sum(len(in_time_after_all(result)) for result in results)
    relaxed = (total.hits + saved) / total.labels if total.labels else None
    short = total.labels and (total.precision < 0.9 or (relaxed or 0) < 0.85)
    return Row(
        [
            cell,
            str(len(results)),
            str(total.labels),
            str(faults),
            number(total.precision),
            number(total.recall),
            number(relaxed),
            number(total.f1),
            number(total.delay_s(0.95), ".0f"),
            str(total.false_alarms),
            number(total.false_alarms / card.node_days if card.node_days else None),
        ],
        "short" if short else kind,
    )


def in_time_after_all(result: Result) -> set[str]:
    """Return the labels (ids) that count as missed, but had an alert in the time that is asked at that cadence."""
    return {
        outcome.label.id
        for outcome in result.scored.outcomes
        if outcome.kind == "late"
        and outcome.label is not None
        and outcome.delay_s is not None
        and outcome.delay_s <= due_s(result, outcome.label)
    }


def _name(result: Result) -> str:
    return f"{result.case.cell}: {result.case.name}" if result.case.cell else result.case.name
