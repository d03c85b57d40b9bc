"""Draws a dashboard from live answers with matplotlib: no Grafana, but enough to see what it would show."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import dates
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter
from PIL import Image

from services.dashboards.fields import Thresholds
from services.dashboards.live import POINTS, Answer, Series, Values, legend
from services.dashboards.model import (
    BarGauge,
    Dashboard,
    QueryPanel,
    Row,
    Stat,
    StateTimeline,
    StatusHistory,
    TablePanel,
    Timeseries,
)
from services.dashboards.tabulate import tabulated
from services.dashboards.units import shown

COLUMN_IN, ROW_IN = 0.72, 0.34
"""Inches a column and a row of the grid."""
_GREY, _FAINT = "#666666", "#dddddd"
_MOST_NAMES = 8


@dataclass(frozen=True)
class Mark:
    """What an annotation marks: from `start` to `end` in epoch seconds, the same where it is a moment."""

    start: float
    end: float
    color: str
    text: str


def draw(
    dashboard: Dashboard,
    answers: Sequence[Answer],
    marks: Sequence[Mark],
    values: Values,
    span: tuple[float, float],
    path: Path,
    *,
    dpi: int = 80,
) -> None:
    """Write the picture of `dashboard` to `path`; `span` is the time range in epoch seconds."""
    places = [panel.grid_pos for panel in dashboard.panels]
    rows = max(place.y + place.h for place in places) + 3
    figure = Figure(figsize=(24 * COLUMN_IN, rows * ROW_IN), dpi=dpi, facecolor="white")
    chosen = "  ".join(
        f"{name}: {'All' if value == '.*' else value}" for name, value in values.items() if len(value) < 60
    )
    began, ended = (datetime.fromtimestamp(at, tz=UTC).strftime("%Y-%m-%d %H:%M:%S") for at in span)
    figure.text(0.008, 1 - 0.9 * ROW_IN / figure.get_figheight(), dashboard.title, size=17, weight="bold", va="center")
    figure.text(
        0.008,
        1 - 2.1 * ROW_IN / figure.get_figheight(),
        f"{chosen}      {began} to {ended} UTC",
        size=9,
        color=_GREY,
        va="center",
    )
    for panel in dashboard.panels:
        top = 1 - (panel.grid_pos.y + 3) / rows
        if isinstance(panel, Row):
            figure.text(0.008, top - 0.6 / rows, panel.title, size=12, weight="bold", color="#333333", va="center")
            continue
        place = panel.grid_pos
        head, foot = 1.1 / rows, 1.1 / rows
        left = place.x / 24 + 0.008
        figure.text(left, top - 0.55 / rows, panel.title, size=9.5, weight="bold", va="center")
        inset = 0.036 if isinstance(panel, Timeseries) else 0.0 if isinstance(panel, (Stat, TablePanel)) else 0.075
        foot = {Stat: 0.25 / rows, TablePanel: 0.25 / rows, Timeseries: 2.3 / rows}.get(type(panel), foot)
        axes = figure.add_axes(
            (left + inset, top - place.h / rows + foot, place.w / 24 - 0.018 - inset, place.h / rows - head - foot)
        )
        mine = [answer for answer in answers if answer.panel.id == panel.id]
        if not any(answer.series for answer in mine):
            axes.set_axis_off()
            axes.text(0.5, 0.5, "no data", ha="center", va="center", color=_GREY, size=10)
            continue
        _DRAW[type(panel)](axes, panel, mine, span)
        if isinstance(panel, Timeseries):
            _mark(axes, marks)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = io.BytesIO()
    figure.savefig(drawn)
    # A palette: a third of the size, and no colour here is a gradient.
    few = Image.open(drawn).convert("RGB").quantize(224, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


def _lines(axes: Axes, panel: QueryPanel, answers: Sequence[Answer], span: tuple[float, float]) -> None:
    defaults = panel.field_config.defaults
    fixed = {
        override.matcher.options: override.properties[0].value["fixedColor"]
        for override in panel.field_config.overrides
    }
    found = [(answer, series) for answer in answers for series in answer.series]
    stacked = defaults.custom.stacking is not None and defaults.custom.stacking.mode == "normal"
    colours = _by_value([series for _, series in found])
    base = np.zeros(0)
    names = []
    for number, (answer, series) in enumerate(found):
        colour = fixed.get(answer.target.ref_id) or colours[number]
        times, values = _with_gaps(series, (span[1] - span[0]) / (panel.max_data_points or POINTS))
        when = _when(times)
        name = legend(answer.target, series.labels) or panel.title
        names.append(name)
        if stacked:
            base = base if len(base) == len(values) else np.zeros(len(values))  # of one window and step: mostly alike
            upper = base + np.nan_to_num(values)
            if defaults.custom.draw_style == "bars":
                width = 0.9 * (span[1] - span[0]) / (panel.max_data_points or POINTS) / 86_400
                axes.bar(when, values, width=width, bottom=base, color=colour, label=name)
            else:
                axes.fill_between(when, base, upper, color=colour, alpha=0.35, linewidth=0)
                axes.plot(when, upper, color=colour, linewidth=1, label=name)
            base = upper
        else:
            axes.plot(when, values, color=colour, linewidth=1.1, label=name, marker="." if len(when) == 1 else None)
    if defaults.custom.thresholds_style is not None and defaults.custom.thresholds_style.mode != "off":
        low, high = axes.get_ylim()
        for step in defaults.thresholds.steps[1:]:
            if step.value is not None and low <= step.value <= high:
                axes.axhline(step.value, color=step.color, linewidth=0.8, linestyle="--")
    axes.set_xlim(*_when(np.array(span)))
    low, high = axes.get_ylim()
    # A soft end: what lies beyond is shown all the same.
    least = min((float(np.nanmin(_finite(series.values), initial=np.inf)) for _, series in found), default=0.0)
    if defaults.min is not None and least >= defaults.min:
        most = max(float(np.nanmax(_finite(series.values), initial=-np.inf)) for _, series in found)
        high = high if most > defaults.min else defaults.min + 1
        low = defaults.min - 0.02 * (high - defaults.min)  # a line at the least value is seen beside the axis
    axes.set_ylim(low, high)
    _clock(axes, span)
    axes.yaxis.set_major_formatter(
        FuncFormatter(
            lambda value, _: (
                shown(value, defaults.unit)[-8:] if defaults.unit == "dateTimeAsIso" else shown(value, defaults.unit)
            )
        )
    )
    axes.tick_params(labelsize=7, colors=_GREY, length=2)
    axes.grid(visible=True, color=_FAINT, linewidth=0.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    more = len(labels) - _MOST_NAMES
    if more > 0:
        labels = [*labels[: _MOST_NAMES - 1], f"{labels[_MOST_NAMES - 1]} and {more} more"]
    axes.legend(
        handles[:_MOST_NAMES], labels[:_MOST_NAMES], loc="upper left", bbox_to_anchor=(-0.02, -0.09), fontsize=6.5,
        ncols=4, frameon=False, borderpad=0, labelspacing=0.2, handlelength=1.2, columnspacing=0.8,
    )  # fmt: skip


def _number(axes: Axes, panel: QueryPanel, answers: Sequence[Answer], _span: tuple[float, float]) -> None:
    defaults = panel.field_config.defaults
    series = answers[0].series[0]
    values = _finite(series.values)
    seen = values[np.isfinite(values)]
    value = float(seen[-1]) if len(seen) else float("nan")
    colour = _colour(defaults.thresholds, value)
    axes.set_axis_off()
    axes.add_patch(Rectangle((0, 0), 1, 1, transform=axes.transAxes, color=colour, linewidth=0))
    if len(seen) > 1 and float(np.ptp(seen)) > 0:
        curve = (values - seen.min()) / np.ptp(seen) * 0.4
        axes.fill_between(np.linspace(0, 1, len(values)), 0, curve, color="white", alpha=0.25, transform=axes.transAxes)
    dark = sum(part * weight for part, weight in zip(to_rgb(colour), (0.3, 0.59, 0.11), strict=True)) < 0.55
    axes.text(
        0.5, 0.5, shown(value, defaults.unit, defaults.decimals), ha="center", va="center", size=17, weight="bold",
        color="white" if dark else "black", transform=axes.transAxes,
    )  # fmt: skip


def _bars(axes: Axes, panel: QueryPanel, answers: Sequence[Answer], _span: tuple[float, float]) -> None:
    defaults = panel.field_config.defaults
    found = [
        (legend(answer.target, series.labels), float(series.values[-1]))
        for answer in answers
        for series in answer.series
    ]
    names = [name[-22:] or panel.title for name, _ in found]
    values = [value for _, value in found]
    places = np.arange(len(found))[::-1]
    top = defaults.max if defaults.max is not None else max([*values, 1e-9]) * 1.15
    axes.barh(places, [top] * len(found), color="#f2f2f2", height=0.75)
    axes.barh(places, values, color=[_colour(defaults.thresholds, value) for value in values], height=0.75)
    for place, value in zip(places, values, strict=True):
        axes.text(top * 0.99, place, shown(value, defaults.unit, defaults.decimals), ha="right", va="center", size=8)
    axes.set_yticks(places, names, size=7)
    axes.set_ylim(min(-0.5, len(found) - 4.5), len(found) - 0.5)
    axes.set_xticks([])
    axes.set_xlim(0, top)
    _bare(axes)


def _table(axes: Axes, panel: QueryPanel, answers: Sequence[Answer], _span: tuple[float, float]) -> None:
    axes.set_axis_off()
    made = tabulated(panel, answers)
    most = max(3, int(panel.grid_pos.h / 0.62) - 3)
    body = made.rows[:most]
    drawn: Any = axes.table(
        cellText=[[cell.text for cell in row] for row in body],
        colLabels=made.titles,
        cellColours=[[cell.colour or "white" for cell in row] for row in body],
        colColours=["#eeeeee"] * len(made.titles),
        cellLoc="left",
        loc="upper left",
    )
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(7.5)
    drawn.auto_set_column_width(list(range(len(made.titles))))
    for cell in drawn.get_celld().values():
        cell.set_edgecolor(_FAINT)
    if len(made.rows) > most:
        axes.text(0, 0.0, f"and {len(made.rows) - most} more rows", size=7, color=_GREY, transform=axes.transAxes)


def _cells(axes: Axes, panel: QueryPanel, answers: Sequence[Answer], span: tuple[float, float]) -> None:
    defaults = panel.field_config.defaults
    found = sorted(
        ((legend(answer.target, series.labels), series) for answer in answers for series in answer.series),
        key=lambda entry: entry[0],
    )
    for place, (_, series) in enumerate(reversed(found)):
        width = float(np.diff(series.times).min()) if len(series.times) > 1 else 60.0
        for at, value in zip(series.times, series.values, strict=True):
            start, end = _when(np.array([at - width / 2, at + width / 2]))
            axes.add_patch(
                Rectangle((start, place), end - start, 0.9, color=_colour(defaults.thresholds, value), linewidth=0)
            )
    _by_row(axes, [name for name, _ in found], span)


def _states(axes: Axes, panel: QueryPanel, answers: Sequence[Answer], span: tuple[float, float]) -> None:
    options = panel.field_config.defaults.mappings[0].options
    found = sorted(
        (
            (legend(answer.target, series.labels) or panel.title, series)
            for answer in answers
            for series in answer.series
        ),
        key=lambda entry: entry[0],
    )
    for place, (_, series) in enumerate(reversed(found)):
        changes = np.flatnonzero(np.diff(series.values, prepend=np.nan) != 0)
        ends = [*changes[1:], len(series.values) - 1]
        for begin, end in zip(changes, ends, strict=True):
            state = options.get(f"{series.values[begin]:g}")
            start, stop = _when(series.times[[begin, end]])
            axes.add_patch(
                Rectangle(
                    (start, place), max(stop - start, 1e-5), 0.9, color=state.color if state else _GREY, linewidth=0
                )
            )
    _by_row(axes, [name for name, _ in found], span)
    axes.legend(
        handles=[Rectangle((0, 0), 1, 1, color=state.color, label=state.text) for state in options.values()],
        loc="upper right", fontsize=6, framealpha=0.7,
    )  # fmt: skip


def _by_row(axes: Axes, names: Sequence[str], span: tuple[float, float]) -> None:
    axes.set_xlim(*_when(np.array(span)))
    axes.set_ylim(0, len(names))
    every = max(1, len(names) // 25)
    axes.set_yticks(np.arange(len(names))[::every] + 0.45, [name[-26:] for name in reversed(names)][::every], size=7)
    _clock(axes, span)
    axes.tick_params(labelsize=7, colors=_GREY, length=2)
    _bare(axes)


def _with_gaps(series: Series, step_s: float) -> tuple[Any, Any]:
    """Return times and values with a NaN wherever points are missing: no line leads over it."""
    values = _finite(series.values)
    gaps = np.flatnonzero(np.diff(series.times) > 1.5 * max(1.0, step_s) + 1) + 1
    return np.insert(series.times, gaps, series.times[gaps - 1] + step_s / 2), np.insert(values, gaps, np.nan)


def _clock(axes: Axes, span: tuple[float, float]) -> None:
    long, short = span[1] - span[0] > 2 * 86_400, span[1] - span[0] < 900
    text = "%m-%d" if long else "%H:%M:%S" if short else "%H:%M"
    axes.xaxis.set_major_locator(dates.AutoDateLocator(minticks=3, maxticks=7))  # type: ignore[no-untyped-call] # matplotlib types it not
    axes.xaxis.set_major_formatter(dates.DateFormatter(text))  # type: ignore[no-untyped-call] # matplotlib types it not


def _bare(axes: Axes) -> None:
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)


def _mark(axes: Axes, marks: Sequence[Mark]) -> None:
    for mark in marks:
        start, end = _when(np.array([mark.start, mark.end]))
        if end > start:
            axes.axvspan(start, end, color=mark.color, alpha=0.08, linewidth=0)
        else:
            axes.axvline(start, color=mark.color, linewidth=1, linestyle=":")


def _when(times: Any) -> Any:
    return np.asarray(times, np.float64) / 86_400.0


def _finite(values: Any) -> Any:
    return np.where(np.isfinite(values), values, np.nan)


def _colour(thresholds: Thresholds, value: float) -> str:
    colour = thresholds.steps[0].color
    for step in thresholds.steps[1:]:
        if step.value is not None and value >= step.value:
            colour = step.color
    return colour


def _by_value(found: Sequence[Series]) -> list[str]:
    """Return a colour a series, by where its last value lies among all."""
    last = np.array([series.values[-1] if len(series.values) else 0.0 for series in found])
    last = np.nan_to_num(last)
    spread = float(np.ptp(last)) if len(last) else 0.0
    even = np.linspace(0.1, 0.8, max(1, len(found)))
    places = 0.05 + 0.8 * (last - last.min()) / spread if spread else even
    colours = mpl.colormaps["viridis"](places)
    return ["#" + "".join(f"{round(255 * part):02x}" for part in colour[:3]) for colour in colours]


_DRAW: dict[type[Any], Callable[[Axes, QueryPanel, Sequence[Answer], tuple[float, float]], None]] = {
    Timeseries: _lines,
    Stat: _number,
    BarGauge: _bars,
    TablePanel: _table,
    StatusHistory: _cells,
    StateTimeline: _states,
}
