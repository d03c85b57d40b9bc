"""Precision against recall over a sweep, drawn: in characters for a terminal, as SVG for a page."""

import math
from collections.abc import Sequence
from html import escape

from services.score.sheet import Row, Sheet, number
from services.score.sweep import Point, best

_WIDE, _HIGH = 61, 16
_SIZE, _EDGE = 560, 50


def sweep_sheet(setting: str, unit: str, points: Sequence[Point]) -> Sheet:
    """Return the table of a sweep, the default and the best marked."""
    chosen = best(points)
    rows = []
    for point in points:
        counts = point.counts
        marks = [word for word, holds in (("default", point.is_default), ("best", point is chosen)) if holds]
        figures = [number(counts.precision), number(counts.recall), number(counts.f1)]
        delays = [number(counts.delay_s(share), ".0f") for share in (0.5, 0.95)]
        alarms = [str(counts.false_alarms), number(point.per_100_node_days)]
        rows.append(Row([f"{point.value}", *figures, *delays, *alarms, ", ".join(marks)], "total" if marks else ""))
    titles = ["value", "prec", "recall", "F1", "p50 s", "p95 s", "false", "per 100 nd", ""]
    total = points[0].counts.labels if points else 0
    notes = [
        f"Unit: {unit}. {total} labels, {points[0].card.node_days if points else 0:.1f} node-days (nd).",
        "best: highest F1; of equals fewest false alarms, then the quickest, then the default.",
    ]
    return Sheet(f"{setting}, swept", titles, rows, notes, frozenset({0, 8}))


def text_curve(points: Sequence[Point]) -> str:
    """Return the curve in characters: recall to the right, precision upward; D is the default, B the best, * both."""
    drawn = [[" "] * _WIDE for _ in range(_HIGH)]
    low = _floor(points)
    chosen = best(points)
    for point in sorted(points, key=lambda one: (one is chosen, one.is_default)):
        if (place := _place(point)) is None:
            continue
        across, up = ((value - low) / (1 - low) for value in place)
        mark = (
            "*"
            if point is chosen and point.is_default
            else "B"
            if point is chosen
            else "D"
            if point.is_default
            else "o"
        )
        drawn[round((1 - up) * (_HIGH - 1))][round(across * (_WIDE - 1))] = mark
    lines = [f"{1 - (1 - low) * row / (_HIGH - 1):.2f} |" if row % 5 == 0 else "     |" for row in range(_HIGH)]
    lines = [line + "".join(cells).rstrip() for line, cells in zip(lines, drawn, strict=True)]
    ends = f"{low:.2f}".ljust(_WIDE - 4) + "1.00"
    return "\n".join(["precision", *lines, "     +" + "-" * _WIDE, "      " + ends, "recall".rjust(_WIDE + 6)])


def svg_curve(setting: str, points: Sequence[Point]) -> str:
    """Return the curve as SVG: a line through the values in order, each named when pointed at."""
    low, chosen = _floor(points), best(points)
    inner, middle = _SIZE - 2 * _EDGE, _SIZE / 2

    def xy(place: tuple[float, float]) -> tuple[float, float]:
        recall, precision = ((value - low) / (1 - low) for value in place)
        return _EDGE + recall * inner, _SIZE - _EDGE - precision * inner

    placed = [(point, xy(place)) for point in points if (place := _place(point)) is not None]
    parts = []
    for step in range(6):
        value = low + (1 - low) * step / 5
        x, y = xy((value, value))
        parts.append(f'<path d="M{x:.0f} {_EDGE}V{_SIZE - _EDGE}M{_EDGE} {y:.0f}H{_SIZE - _EDGE}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.0f}" y="{_SIZE - _EDGE + 18}" text-anchor="middle">{value:.2f}</text>')
        parts.append(f'<text x="{_EDGE - 6}" y="{y + 4:.0f}" text-anchor="end">{value:.2f}</text>')
    line = " ".join(f"{x:.1f},{y:.1f}" for _, (x, y) in placed)
    parts.append(f'<polyline points="{line}" fill="none" stroke="#47a" stroke-width="2"/>')
    spots: dict[tuple[int, int], list[str]] = {}
    for point, (x, y) in sorted(placed, key=lambda one: (one[0] is chosen, one[0].is_default)):
        marked = " (default)" * point.is_default + " (best)" * (point is chosen)
        colour = "#b30" if point is chosen else "#000" if point.is_default else "#47a"
        text = (
            f"{setting} {point.value}{marked}: precision {point.counts.precision:.3f}, recall {point.counts.recall:.3f}"
        )
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{6 if marked else 4}" fill="{colour}">'
            f"<title>{escape(text)}</title></circle>"
        )
        spots.setdefault((round(x), round(y)), []).append(f"{point.value}{marked}")
    for (across, down), texts in spots.items():
        side = "end" if across > middle else "start"
        for nth, text in enumerate(texts):
            parts.append(f'<text x="{across}" y="{down + 20 + 14 * nth}" text-anchor="{side}">{escape(text)}</text>')
    parts.append(f'<text x="{middle}" y="{_SIZE - 8}" text-anchor="middle">recall</text>')
    parts.append(f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">precision</text>')
    return (
        f'<svg width="{_SIZE}" height="{_SIZE}" viewBox="0 0 {_SIZE} {_SIZE}" font-size="12" role="img" '
        f'aria-label="precision against recall over {escape(setting)}">{"".join(parts)}</svg>'
    )


def _place(point: Point) -> tuple[float, float] | None:
    """Return recall and precision; None where there is no recall to speak of. Without any alert precision is 1."""
    counts = point.counts
    if math.isnan(counts.recall):
        return None
    return counts.recall, 1.0 if math.isnan(counts.precision) else counts.precision


def _floor(points: Sequence[Point]) -> float:
    """Return where both axes begin: a tenth below the least that is drawn."""
    least = min((value for point in points for value in _place(point) or ()), default=0.0)
    return max(0.0, math.floor(least * 10 - 1e-9) / 10) if least < 1 else 0.9
