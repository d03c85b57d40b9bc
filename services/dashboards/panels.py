"""Panels of each kind with hindcast's manners; places and numbers are given when the dashboard is put together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from services.dashboards import colours
from services.dashboards.fields import (
    CellOptions,
    Color,
    Custom,
    Defaults,
    FieldConfig,
    LineMode,
    Link,
    MappingResult,
    Matcher,
    Override,
    Property,
    Stacking,
    Thresholds,
    ValueMapping,
)
from services.dashboards.model import (
    BarGauge,
    BarGaugeOptions,
    GridPos,
    Legend,
    Reduce,
    SortBy,
    Stat,
    StateTimeline,
    StatOptions,
    StatusHistory,
    TableOptions,
    TablePanel,
    Target,
    Timeseries,
    TimeseriesOptions,
    Transformation,
)

_HERE = "${__url_time_range}&${cluster:queryparam}&${replay:queryparam}"


@dataclass(frozen=True)
class Query:
    """A query, what its lines are called, and their colour where they are to have one of their own."""

    expr: str
    legend: str = "__auto"
    colour: str | None = None


def to(board: str, title: str, **variables: str) -> Link:
    """Return a link of a value to another dashboard: time range, cluster and replay go along."""
    chosen = "".join(f"&var-{name}={value}" for name, value in variables.items())
    return Link(title=title, url=f"/d/hindcast-{board}?{_HERE}{chosen}")


TO_NODE = to("node", "Node and GPU: ${__field.labels.node}", node="${__field.labels.node}")


def lines(
    title: str,
    description: str,
    *queries: Query,
    unit: str = "none",
    width: int = 8,
    height: int = 8,
    thresholds: Thresholds | None = None,
    low: float | None = 0,
    high: float | None = None,
    stacked: bool = False,
    bars: bool = False,
    link: Link | None = None,
    points: int | None = None,
) -> Timeseries:
    """Return lines over time; `thresholds` are drawn as dashed lines.

    Lines without a colour of their own are coloured by value.
    """
    fixed = any(query.colour for query in queries)
    return Timeseries(
        **_frame(title, description, width, height),
        targets=_targets(queries),
        max_data_points=points,
        field_config=FieldConfig(
            defaults=Defaults(
                unit=unit,
                color=Color(mode="fixed", fixed_color=colours.BLUE) if fixed else colours.BY_VALUE,
                thresholds=thresholds or colours.no_judgement(),
                min=low,
                max=high,
                links=(link,) if link else (),
                custom=Custom(
                    draw_style="bars" if bars else "line",
                    line_interpolation="linear",
                    line_width=1,
                    fill_opacity=60 if bars else 30 if stacked else 0,
                    show_points="never",
                    span_nulls=False,
                    stacking=Stacking(mode="normal" if stacked else "none"),
                    thresholds_style=LineMode(mode="dashed" if thresholds else "off"),
                ),
            ),
            overrides=_coloured(queries),
        ),
        options=TimeseriesOptions(legend=Legend(display_mode="list", placement="bottom")),
    )


def number(
    title: str,
    description: str,
    *queries: Query,
    unit: str = "none",
    thresholds: Thresholds | None = None,
    width: int = 4,
    decimals: int | None = None,
    link: Link | None = None,
    over_time: bool = False,
) -> Stat:
    """Return a large number: the value at the end of the time range; with `over_time` and its course."""
    return Stat(
        **_frame(title, description, width, 4),
        targets=_targets(queries, instant=not over_time),
        field_config=_fields(unit, thresholds, colours.BY_THRESHOLD, decimals=decimals, link=link),
        options=StatOptions(
            graph_mode="area" if over_time else "none", text_mode="value_and_name" if len(queries) > 1 else "auto"
        ),
    )


def bars(
    title: str,
    description: str,
    query: Query,
    *,
    unit: str = "none",
    thresholds: Thresholds | None = None,
    width: int = 8,
    height: int = 8,
    high: float | None = None,
    decimals: int | None = None,
    link: Link | None = None,
) -> BarGauge:
    """Return bars, one a series, by their value at the end of the time range."""
    return BarGauge(
        **_frame(title, description, width, height),
        targets=_targets([query], instant=True),
        field_config=_fields(unit, thresholds, colours.BY_THRESHOLD, decimals=decimals, low=0, high=high, link=link),
        options=BarGaugeOptions(reduce_options=Reduce()),
    )


@dataclass(frozen=True)
class Column:
    """A column of a table, and the query that fills it."""

    title: str
    expr: str
    unit: str = "none"
    thresholds: Thresholds | None = None
    texts: ValueMapping | None = None
    decimals: int | None = None


def table(
    title: str,
    description: str,
    *columns: Column,
    hidden: Sequence[str] = (),
    width: int = 24,
    height: int = 9,
    links: dict[str, Link] | None = None,
) -> TablePanel:
    """Return a table: a row a set of labels, its labels and one column a query; sorted by the first query's."""
    letters = [chr(ord("A") + index) for index in range(len(columns))]
    # A lone query's column has no letter.
    names = [f"Value #{letter}" for letter in letters] if len(columns) > 1 else ["Value"]
    overrides = [
        Override(matcher=Matcher(id="byName", options=column.title), properties=_of_column(column))
        for column in columns
    ]
    overrides += [
        Override(
            matcher=Matcher(id="byName", options=name),
            properties=(Property(id="links", value=[link.model_dump(by_alias=True)]),),
        )
        for name, link in (links or {}).items()
    ]
    titles = {name: column.title for name, column in zip(names, columns, strict=True)}
    return TablePanel(
        **_frame(title, description, width, height),
        targets=_targets([Query(column.expr) for column in columns], instant=True, table=True),
        transformations=(
            Transformation(id="merge"),
            Transformation(
                id="organize",
                options={"excludeByName": dict.fromkeys(("Time", *hidden), True), "renameByName": titles},
            ),
        ),
        field_config=FieldConfig(
            defaults=Defaults(
                unit="none",
                color=colours.BY_THRESHOLD,
                thresholds=colours.no_judgement(),
                custom=Custom(cell_options=CellOptions(type="auto"), filterable=True),
            ),
            overrides=tuple(overrides),
        ),
        options=TableOptions(sort_by=(SortBy(display_name=columns[0].title),)),
    )


def grid(
    title: str,
    description: str,
    query: Query,
    *,
    unit: str,
    thresholds: Thresholds,
    width: int = 24,
    height: int = 10,
    low: float | None = None,
    high: float | None = None,
    link: Link | None = None,
) -> StatusHistory:
    """Return a heat map of series by time, coloured by thresholds."""
    return StatusHistory(
        **_frame(title, description, width, height),
        targets=_targets([query]),
        max_data_points=80,
        field_config=_fields(unit, thresholds, colours.BY_THRESHOLD, low=low, high=high, link=link),
    )


def states(
    title: str,
    description: str,
    query: Query,
    *,
    texts: ValueMapping,
    width: int = 24,
    height: int = 6,
    link: Link | None = None,
) -> StateTimeline:
    """Return a bar a series that changes with its state."""
    fields = _fields("none", None, colours.BY_THRESHOLD, link=link)
    return StateTimeline(
        **_frame(title, description, width, height),
        targets=_targets([query]),
        field_config=fields.model_copy(update={"defaults": fields.defaults.model_copy(update={"mappings": (texts,)})}),
    )


def texts(**named: tuple[str, str]) -> ValueMapping:
    """Return texts and colours by value: ``texts(_0=("closed", GREY))``."""
    return ValueMapping(
        options={
            key.removeprefix("_"): MappingResult(text=text, color=colour, index=index)
            for index, (key, (text, colour)) in enumerate(named.items())
        }
    )


def _frame(title: str, description: str, width: int, height: int) -> dict[str, Any]:
    """Return what every panel has; its number and place follow when the dashboard is put together."""
    place = GridPos(h=height, w=width, x=0, y=0)
    return {"id": 0, "title": title, "description": description, "grid_pos": place}


def _targets(queries: Sequence[Query], *, instant: bool = False, table: bool = False) -> tuple[Target, ...]:
    return tuple(
        Target(
            ref_id=chr(ord("A") + index),
            expr=query.expr,
            legend_format=query.legend,
            instant=instant,
            range=not instant,
            format="table" if table else "time_series",
        )
        for index, query in enumerate(queries)
    )


def _fields(
    unit: str,
    thresholds: Thresholds | None,
    color: Color,
    *,
    decimals: int | None = None,
    low: float | None = None,
    high: float | None = None,
    link: Link | None = None,
) -> FieldConfig:
    return FieldConfig(
        defaults=Defaults(
            unit=unit,
            color=color,
            thresholds=thresholds or colours.no_judgement(),
            decimals=decimals,
            min=low,
            max=high,
            links=(link,) if link else (),
        )
    )


def _coloured(queries: Sequence[Query]) -> tuple[Override, ...]:
    return tuple(
        Override(
            matcher=Matcher(id="byFrameRefID", options=chr(ord("A") + index)),
            properties=(Property(id="color", value={"mode": "fixed", "fixedColor": query.colour}),),
        )
        for index, query in enumerate(queries)
        if query.colour
    )


def _of_column(column: Column) -> tuple[Property, ...]:
    found = [Property(id="unit", value=column.unit)]
    if column.decimals is not None:
        found.append(Property(id="decimals", value=column.decimals))
    if column.texts is not None:
        found.append(Property(id="mappings", value=[column.texts.model_dump(by_alias=True)]))
    if column.thresholds is not None:
        found.append(Property(id="thresholds", value=column.thresholds.model_dump(by_alias=True, exclude_none=True)))
    if column.thresholds is not None or column.texts is not None:
        found.append(Property(id="custom.cellOptions", value={"type": "color-background"}))
    return tuple(found)
