"""Grafana's classic dashboard document, as far as hindcast uses it: unknown names are refused, in both directions.

Names and values as Grafana 12 and 13 write them (schema version 41); in Python in snake case.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


class DataSource(_Model):
    """The data source, by the uid that provisioning gives it."""

    type: Literal["prometheus"] = "prometheus"
    uid: str = "thanos"


class GridPos(_Model):
    """A place on the grid of 24 columns."""

    h: int = Field(ge=1)
    w: int = Field(ge=1, le=24)
    x: int = Field(ge=0, le=23)
    y: int = Field(ge=0)


class Target(_Model):
    """One query of a panel: an instant one gives a row a series, a range one a line."""

    ref_id: str
    expr: str
    legend_format: str = "__auto"
    instant: bool = False
    range: bool = True
    format: Literal["time_series", "table"] = "time_series"
    editor_mode: Literal["code"] = "code"
    datasource: DataSource = DataSource()


class Step(_Model):
    """A colour from a value upwards; the first of a list has none."""

    color: str
    value: float | None = None


class Thresholds(_Model):
    """Where colours change."""

    mode: Literal["absolute", "percentage"] = "absolute"
    steps: tuple[Step, ...]


class Color(_Model):
    """How a field is coloured."""

    mode: Literal["thresholds", "fixed", "palette-classic", "continuous-viridis"]
    fixed_color: str | None = None
    series_by: Literal["last", "min", "max"] | None = None


class MappingResult(_Model):
    """What a value is shown as."""

    text: str
    color: str
    index: int


class ValueMapping(_Model):
    """Texts for values."""

    type: Literal["value"] = "value"
    options: dict[str, MappingResult]


class Link(_Model):
    """A link of a value: to another dashboard."""

    title: str
    url: str
    target_blank: bool = False


class LineMode(_Model):
    """How thresholds are drawn behind lines."""

    mode: Literal["off", "line", "dashed", "area"]


class Stacking(_Model):
    """Whether lines are stacked."""

    mode: Literal["none", "normal"]
    group: str = "A"


class CellOptions(_Model):
    """How a cell of a table is drawn."""

    type: Literal["auto", "color-text", "color-background"]


class Custom(_Model):
    """What only some kinds of panel have."""

    draw_style: Literal["line", "bars", "points"] | None = None
    line_interpolation: Literal["linear", "stepAfter"] | None = None
    line_width: int | None = None
    fill_opacity: int | None = None
    show_points: Literal["auto", "never", "always"] | None = None
    span_nulls: bool | None = None
    stacking: Stacking | None = None
    thresholds_style: LineMode | None = None
    axis_label: str | None = None
    axis_soft_min: float | None = None
    cell_options: CellOptions | None = None
    filterable: bool | None = None


class Defaults(_Model):
    """How all fields of a panel are shown."""

    unit: str
    color: Color
    thresholds: Thresholds
    custom: Custom = Custom()
    decimals: int | None = None
    min: float | None = None
    max: float | None = None
    no_value: str | None = None
    mappings: tuple[ValueMapping, ...] = ()
    links: tuple[Link, ...] = ()


class Matcher(_Model):
    """Which fields an override is for."""

    id: Literal["byName", "byFrameRefID"]
    options: str


class Property(_Model):
    """One property that an override sets."""

    id: str
    value: Any


class Override(_Model):
    """What is different for some fields."""

    matcher: Matcher
    properties: tuple[Property, ...]


class FieldConfig(_Model):
    """How the fields of a panel are shown."""

    defaults: Defaults
    overrides: tuple[Override, ...] = ()


class Legend(_Model):
    """A panel's legend."""

    show_legend: bool = True
    display_mode: Literal["list", "table"] = "list"
    placement: Literal["bottom", "right"] = "bottom"
    calcs: tuple[str, ...] = ()


class Tooltip(_Model):
    """A panel's tooltip."""

    mode: Literal["single", "multi"] = "multi"
    sort: Literal["none", "desc"] = "desc"


class Reduce(_Model):
    """How a series becomes one value."""

    calcs: tuple[str, ...] = ("lastNotNull",)
    fields: str = ""
    values: bool = False


class TimeseriesOptions(_Model):
    """Options of lines over time."""

    legend: Legend = Legend()
    tooltip: Tooltip = Tooltip()


class StatOptions(_Model):
    """Options of one large number."""

    reduce_options: Reduce = Reduce()
    color_mode: Literal["value", "background", "none"] = "background"
    graph_mode: Literal["area", "none"] = "none"
    justify_mode: Literal["auto", "center"] = "auto"
    orientation: Literal["auto", "horizontal", "vertical"] = "auto"
    text_mode: Literal["auto", "value", "value_and_name"] = "auto"


class BarGaugeOptions(_Model):
    """Options of bars, one a series."""

    reduce_options: Reduce = Reduce()
    display_mode: Literal["basic", "gradient"] = "basic"
    orientation: Literal["horizontal", "vertical"] = "horizontal"
    show_unfilled: bool = True
    value_mode: Literal["color", "text"] = "color"


class SortBy(_Model):
    """The column by which a table is sorted."""

    display_name: str
    desc: bool = True


class TableOptions(_Model):
    """Options of a table."""

    show_header: bool = True
    cell_height: Literal["sm", "md"] = "sm"
    sort_by: tuple[SortBy, ...] = ()


class GridOptions(_Model):
    """Options of rows over time: a row a series, a cell a moment."""

    show_value: Literal["auto", "never"] = "never"
    row_height: float = 0.9
    legend: Legend = Legend(show_legend=False)
    tooltip: Tooltip = Tooltip(mode="single", sort="none")
    col_width: float | None = None
    merge_values: bool | None = None
    align_value: Literal["left", "center"] | None = None


class Transformation(_Model):
    """A step between the answers and a table."""

    id: Literal["merge", "organize"]
    options: dict[str, Any] = {}


class _Panel(_Model):
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


class Row(_Model):
    """A heading."""

    type: Literal["row"] = "row"
    id: int
    title: str
    grid_pos: GridPos
    collapsed: bool = False
    panels: tuple[()] = ()


QueryPanel = Timeseries | Stat | BarGauge | TablePanel | StatusHistory | StateTimeline
Panel = Annotated[QueryPanel | Row, Field(discriminator="type")]


class DashboardLink(_Model):
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


class Annotation(_Model):
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


class Annotations(_Model):
    """All of a dashboard's annotations."""

    list: tuple[Annotation, ...]


class VariableQuery(_Model):
    """A variable's query: `qry_type` 1 for label_values, 3 for query_result."""

    qry_type: Literal[1, 3]
    query: str
    ref_id: Literal["PrometheusVariableQueryEditor-VariableQuery"] = "PrometheusVariableQueryEditor-VariableQuery"


class Current(_Model):
    """What is chosen when the dashboard is opened without a choice."""

    selected: bool = False
    text: str | tuple[str, ...]
    value: str | tuple[str, ...]


class Variable(_Model):
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
    # 2: when the time range changes; 1: in alphabetical order; hide 2: not shown.
    refresh: Literal[2] = 2
    sort: Literal[1] = 1
    hide: Literal[0, 2] = 0
    current: Current | None = None
    options: tuple[()] = ()
    skip_url_sync: bool = False


class Templating(_Model):
    """All of a dashboard's variables, those first that others depend on."""

    list: tuple[Variable, ...]


class TimeRange(_Model):
    """What is shown when the dashboard is opened."""

    from_: str = Field(default="now-1h", alias="from")
    to: str = "now"


class Timepicker(_Model):
    """Nothing of it is set."""


class Dashboard(_Model):
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
