"""A table panel's rows, as its transformations make them: answers merged by labels, columns hidden and renamed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from services.dashboards.live import Answer
from services.dashboards.model import QueryPanel
from services.dashboards.units import shown


@dataclass(frozen=True)
class Cell:
    """A cell's text, and the colour behind it if it has one."""

    text: str
    colour: str | None = None


@dataclass(frozen=True)
class Tabulated:
    """A table: titles, and rows of as many cells."""

    titles: list[str]
    rows: list[list[Cell]]


def tabulated(panel: QueryPanel, answers: Sequence[Answer]) -> Tabulated:
    """Return the table of `panel`; its first value column, highest first, orders it."""
    options = next(step.options for step in panel.transformations if step.id == "organize")
    hidden, renamed = options["excludeByName"], options["renameByName"]
    merged: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    values = ["Value"] if len(answers) == 1 else [f"Value #{answer.target.ref_id}" for answer in answers]
    for name, answer in zip(values, answers, strict=True):
        for series in answer.series:
            labels = tuple(sorted((k, v) for k, v in series.labels.items() if not hidden.get(k)))
            merged.setdefault(labels, {})[name] = float(series.values[-1])
    labels_seen = sorted({name for labels in merged for name, _ in labels})
    order = sorted(merged.items(), key=lambda entry: -entry[1].get(values[0], float("-inf")))
    titles = [*labels_seen, *(renamed.get(name, name) for name in values)]
    properties = {
        override.matcher.options: {one.id: one.value for one in override.properties}
        for override in panel.field_config.overrides
        if override.matcher.id == "byName"
    }
    rows = [
        [
            *(Cell(dict(labels).get(name, "")) for name in labels_seen),
            *(_cell(found.get(name), properties.get(renamed.get(name, name), {})) for name in values),
        ]
        for labels, found in order
    ]
    return Tabulated(titles, rows)


def _cell(value: float | None, properties: dict[str, Any]) -> Cell:
    if value is None:
        return Cell("")
    for mapping in properties.get("mappings", ()):
        named = mapping["options"].get(f"{value:g}")
        if named:
            return Cell(named["text"], named["color"])
    colour = None
    for step in properties.get("thresholds", {}).get("steps", ()):
        if "value" not in step or value >= step["value"]:
            colour = step["color"]
    return Cell(shown(value, properties.get("unit", "none"), properties.get("decimals")), colour)
