"""Grafana's classic dashboard document, as far as hindcast uses it: unknown names are refused, in both directions.

Names and values as Grafana 12 and 13 write them (schema version 41); in Python in snake case.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from services.dashboards.fields import FieldConfig, Part


class DataSource(Part):
    """The data source, by the uid that provisioning gives it."""

    type: Literal["prometheus"] = "prometheus"
    uid: str = "thanos"


class GridPos(Part):
    """A place on the grid of 24 columns."""

    h: int = Field(ge=1)
    w: int = Field(ge=1, le=24)
    x: int = Field(ge=0, le=23)
    y: int = Field(ge=0)


class Target(Part):
    """One query of a panel: an instant one gives a row a series, a range one a line."""

    ref_id: str
    expr: str
    legend_format: str = "__auto"
    instant: bool = False
    range: bool = True
    format: Literal["time_series", "table"] = "time_series"
    editor_mode: Literal["code"] = "code"
    datasource: DataSource = DataSource()


class Legend(Part):
    """A panel's legend."""

    show_legend: bool = True
    display_mode: Literal["list", "table"] = "list"
    placement: Literal["bottom", "right"] = "bottom"
    calcs: tuple[str, ...] = ()


class Tooltip(Part):
    """A panel's tooltip."""

    mode: Literal["single", "multi"] = "multi"
    sort: Literal["none", "desc"] = "desc"


class Reduce(Part):
    """How a series becomes one value."""

    calcs: tuple[str, ...] = ("lastNotNull",)
    fields: str = ""
    values: bool = False


class TimeseriesOptions(Part):
    """Options of lines over time."""

    legend: Legend = Legend()
    tooltip: Tooltip = Tooltip()


class StatOptions(Part):
    """Options of one large number."""

    reduce_options: Reduce = Reduce()
    color_mode: Literal["value", "background", "none"] = "background"
    graph_mode: Literal["area", "none"] = "none"
    justify_mode: Literal["auto", "center"] = "auto"
    orientation: Literal["auto", "horizontal", "vertical"] = "auto"
    text_mode: Literal["auto", "value", "value_and_name"] = "auto"


class BarGaugeOptions(Part):
    """Options of bars, one a series."""

    reduce_options: Reduce = Reduce()
    display_mode: Literal["basic", "gradient"] = "basic"
    orientation: Literal["horizontal", "vertical"] = "horizontal"
    show_unfilled: bool = True
    value_mode: Literal["color", "text"] = "color"


class SortBy(Part):
    """The column by which a table is sorted."""

    display_name: str
    desc: bool = True


class TableOptions(Part):
    """Options of a table."""

    show_header: bool = True
    cell_height: Literal["sm", "md"] = "sm"
    sort_by: tuple[SortBy, ...] = ()


class GridOptions(Part):
    """Options of rows over time: a row a series, a cell a moment."""

    show_value: Literal["auto", "never"] = "never"
    row_height: float = 0.9
    legend: Legend = Legend(show_legend=False)
    tooltip: Tooltip = Tooltip(mode="single", sort="none")
    col_width: float | None = None
    merge_values: bool | None = None
    align_value: Literal["left", "center"] | None = None


class Transformation(Part):
    """A step between the answers and a table."""

    id: Literal["merge", "organize"]
    options: dict[str, Any] = Field(default_factory=dict)


class _Panel(Part):
    id: int
    title: str
    description: str = Field(min_length=10)
    grid_pos: GridPos


class _QueryPanel(_Panel):
    targets: tuple[Target, ...] = Field(min_length=1)
    field_config: FieldConfig
    datasource: DataSource = DataSource()
    max_data_points: int | None = None
    transformations: tuple[Transformation, ...] = ()


class Timeseries(_QueryPanel):
    """Lines over time."""

    type: Literal["timeseries"] = "timeseries"
    options: TimeseriesOptions = TimeseriesOptions()


class Stat(_QueryPanel):
    """One large number, or a few."""

    type: Literal["stat"] = "stat"
    options: StatOptions = StatOptions()


class BarGauge(_QueryPanel):
    """Bars, one a series."""

    type: Literal["bargauge"] = "bargauge"
    options: BarGaugeOptions = BarGaugeOptions()


class TablePanel(_QueryPanel):
    """Rows, one a series."""

    type: Literal["table"] = "table"
    options: TableOptions = TableOptions()


class StatusHistory(_QueryPanel):
    """A cell a series and moment, coloured by its value."""

    type: Literal["status-history"] = "status-history"
    options: GridOptions = GridOptions(col_width=1.0)


class StateTimeline(_QueryPanel):
    """A bar a series and state."""

    type: Literal["state-timeline"] = "state-timeline"
    options: GridOptions = GridOptions(merge_values=True, align_value="left")


class Row(Part):
    """A heading."""

    type: Literal["row"] = "row"
    id: int
    title: str
    grid_pos: GridPos
    collapsed: bool = False
    panels: tuple[()] = ()


QueryPanel = Timeseries | Stat | BarGauge | TablePanel | StatusHistory | StateTimeline
Panel = Annotated[QueryPanel | Row, Field(discriminator="type")]


class DashboardLink(Part):
    """A link above the panels: `link` to one dashboard, `dashboards` to all of a tag."""

    title: str
    type: Literal["link", "dashboards"]
    url: str = ""
    tags: tuple[str, ...] = ()
    icon: Literal["external link", "dashboard"] = "dashboard"
    tooltip: str = ""
    as_dropdown: bool = False
    include_vars: bool = True
    keep_time: bool = True
    target_blank: bool = False


class Annotation(Part):
    """Marks over all panels, from a query; with `use_value_for_time` the value (ms) is when."""

    name: str
    expr: str
    title_format: str
    text_format: str
    icon_color: str
    enable: bool = True
    hide: bool = False
    step: str = "30s"
    tag_keys: str = ""
    use_value_for_time: bool | None = None
    datasource: DataSource = DataSource()


class Annotations(Part):
    """All of a dashboard's annotations."""

    list: tuple[Annotation, ...]


class VariableQuery(Part):
    """A variable's query: `qry_type` 1 for label_values, 3 for query_result."""

    qry_type: Literal[1, 3]
    query: str
    ref_id: Literal["PrometheusVariableQueryEditor-VariableQuery"] = "PrometheusVariableQueryEditor-VariableQuery"


class Current(Part):
    """What is chosen when the dashboard is opened without a choice."""

    selected: bool = False
    text: str | tuple[str, ...]
    value: str | tuple[str, ...]


class Variable(Part):
    """A choice above the panels, filled by a query whenever the time range changes."""

    name: str
    label: str
    description: str
    definition: str
    query: VariableQuery
    regex: str = ""
    type: Literal["query"] = "query"
    datasource: DataSource = DataSource()
    include_all: bool = True
    all_value: str | None = None
    multi: bool = False
    # refresh 2: when the time range changes; sort 1: alphabetical, 0: as the query has it; hide 2: not shown.
    refresh: Literal[2] = 2
    sort: Literal[0, 1] = 1
    hide: Literal[0, 2] = 0
    current: Current | None = None
    options: tuple[()] = ()
    skip_url_sync: bool = False

    @property
    def literal(self) -> bool:
        """Return whether a value goes into queries as it is: where there may be several, each is escaped."""
        return not self.include_all and not self.multi


class Templating(Part):
    """All of a dashboard's variables, those first that others depend on."""

    list: tuple[Variable, ...]


class TimeRange(Part):
    """What is shown when the dashboard is opened."""

    from_: str = Field(default="now-1h", alias="from")
    to: str = "now"


class Timepicker(Part):
    """Nothing of it is set."""


class Dashboard(Part):
    """One dashboard."""

    uid: str = Field(pattern=r"^hindcast-[a-z-]+$", max_length=40)
    title: str
    description: str
    tags: tuple[str, ...]
    panels: tuple[Panel, ...]
    templating: Templating
    annotations: Annotations
    links: tuple[DashboardLink, ...]
    time: TimeRange = TimeRange()
    refresh: str = "30s"
    timezone: Literal["browser", "utc"] = "browser"
    editable: bool = True
    # Shared crosshair: one moment in all panels.
    graph_tooltip: Literal[1] = 1
    live_now: bool = False
    preload: bool = False
    schema_version: Literal[41] = 41
    timepicker: Timepicker = Timepicker()
    version: Literal[1] = 1
    id: None = None

    def queries(self) -> list[tuple[QueryPanel, Target]]:
        """Return every query with its panel."""
        return [(panel, target) for panel in self.panels if not isinstance(panel, Row) for target in panel.targets]

    def to_json(self) -> str:
        """Return the document as it is committed."""
        return self.model_dump_json(by_alias=True, exclude_none=True, indent=1) + "\n"
