"""The scorecard as tables, and as one HTML page that needs nothing but itself."""

from collections.abc import Mapping
from typing import Any

from services.recording.model import words_of
from services.score.incidents import incident_sheet
from services.score.sheet import Row, Sheet, number, page_of
from services.score.suite import Scorecard

_COLUMNS = {
    "labels": "labels", "hits": "hits", "misses": "miss", "late": "late", "false_alarms": "false", "repeats": "again",
    "precision": "prec", "recall": "recall", "f1": "F1", "delay_p50_s": "p50 s", "delay_p95_s": "p95 s",
}  # fmt: skip
_WIDE_ONLY = ("hits", "repeats")
_LEGEND = (
    "miss: a label without an alert in time; late: an alert after that; false: an alert that no label explains; "
    "again: a further alert on what was hit; p50 and p95: of the delay from the label's onset to the alert, in seconds."
)
FAULT_BARS = (0.90, 0.85)
"""Least precision and recall of a fault."""


def page(card: Scorecard, seeds: str = "") -> str:
    """Return the page: figures by fault, the controls, how findings behave, what was missed, and false alarms."""
    figures = card.as_json()
    behaviour = [behaviour_sheet(figures), incident_sheet(figures)]
    parts = [fault_sheet(figures), *behaviour, recordings_sheet(figures), wrong_sheet(figures)]
    return page_of("What the detectors caught", seeds, parts)


def fault_sheet(figures: Mapping[str, Any], *, narrow: bool = False) -> Sheet:
    """Return precision, recall and delay by fault, over all, and of the controls; narrow: within 80 columns."""
    keys = [key for key in _COLUMNS if not (narrow and key in _WIDE_ONLY)]
    rows = []
    for name, row in figures["faults"].items():
        short = any(
            row[key] is not None and row[key] < bar
            for key, bar in zip(("precision", "recall"), FAULT_BARS, strict=True)
        )
        kind = "total" if name == "all" else "short" if short else ""
        rows.append(Row([name, *_cells(row, keys)], kind))
    for name, row in figures["controls"].items():
        rows.append(Row([f"({name})", *_cells(row, keys)], "aside"))
    rate, bound = (number(figures[f"false_alarms_per_100_node_days{end}"]) for end in ("", "_upper_95"))
    notes = [
        f"False alarms per 100 node-days: {rate} (upper 95 % bound {bound}) in {figures['node_days']:g} node-days.",
    ]
    if figures["controls"]:
        notes.append(
            "In brackets, controls: (constant) alerts of everything everywhere at the start, (random) of anything at "
            "any time, as often as the detectors did."
        )
    legend = _LEGEND.replace("again: a further alert on what was hit; ", "") if narrow else _LEGEND
    return Sheet("Faults", ["fault", *(_COLUMNS[key] for key in keys)], rows, [*notes, legend])


def _cells(row: Mapping[str, Any], keys: list[str]) -> list[str]:
    return [number(row[key], ".0f" if key.endswith("_s") or isinstance(row[key], int) else ".3g") for key in keys]


def behaviour_sheet(figures: Mapping[str, Any]) -> Sheet:
    """Return how findings behave around the labels: who is named first, how often, and when it is over."""
    good = figures["manners"]
    rows = [
        ("first finding in the affected job names a culprit", good["culprit_first"], good["jobs_hit"]),
        ("fires once per entity and event", good["once"], good["hits"]),
        ("resolved within five minutes of the label's end", good["resolved_in_time"], good["resolvable"]),
    ]
    cells = [
        [name, str(part), str(whole), number(part / whole if whole else None, ".1%")] for name, part, whole in rows
    ]
    return Sheet("How findings behave", ["", "so", "of", "share"], [Row(row) for row in cells])


def recordings_sheet(figures: Mapping[str, Any]) -> Sheet:
    """Return what came of each recording."""
    rows = [
        Row(
            [
                one["name"],
                "" if one["seed"] is None else str(one["seed"]),
                one["cluster"],
                f"{one['node_days']:.2f}",
                str(one["outcomes"].get("hit", 0)),
                str(len(one["missed"])),
                str(len(one["false"])),
            ]
        )
        for one in figures["recordings"]
    ]
    titles = ["recording", "seed", "cluster", "node-days", "hits", "miss", "false"]
    return Sheet("Recordings", titles, rows, words=frozenset({0, 2}))


def wrong_sheet(figures: Mapping[str, Any]) -> Sheet:
    """Return every miss and every false alarm."""
    rows = (
        [
            Row(["missed", one["name"], label["fault"], words_of(label["entity"]), ""])
            for one in figures["recordings"]
            for label in one["missed"]
        ]
        + [
            Row(["false alarm", one["name"], alarm["fault"], words_of(alarm["entity"]), alarm["summary"]])
            for one in figures["recordings"]
            for alarm in one["false"]
        ]
        + [
            Row(["fired, not labelled", one["name"], finding["fault"], words_of(finding["entity"]), finding["summary"]])
            for one in figures["recordings"]
            for finding in one["fired"]
        ]
    )
    titles = ["", "recording", "fault", "entity", "the alert's summary"]
    notes = [] if rows else ["Nothing."]
    return Sheet("Missed, and false alarms", titles, rows, notes, words=frozenset(range(5)))
