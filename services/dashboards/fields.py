"""How the values of a panel are shown: units, colours, thresholds, mappings, lines, links; and what all parts share."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Part(BaseModel):
    """A part of a dashboard document: unknown names are refused; in Python in snake case."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


class Step(Part):
    """A colour from a value upwards; the first of a list has none."""

    color: str
    value: float | None = None


class Thresholds(Part):
    """Where colours change."""

    mode: Literal["absolute", "percentage"] = "absolute"
    steps: tuple[Step, ...]


class Color(Part):
    """How a field is coloured."""

    mode: Literal["thresholds", "fixed", "palette-classic", "continuous-viridis"]
    fixed_color: str | None = None
    series_by: Literal["last", "min", "max"] | None = None


class MappingResult(Part):
    """What a value is shown as."""

    text: str
    color: str
    index: int


class ValueMapping(Part):
    """Texts for values."""

    type: Literal["value"] = "value"
    options: dict[str, MappingResult]


class Link(Part):
    """A link of a value: to another dashboard."""

    title: str
    url: str
    target_blank: bool = False


class LineMode(Part):
    """How thresholds are drawn behind lines."""

    mode: Literal["off", "line", "dashed", "area"]


class Stacking(Part):
    """Whether lines are stacked."""

    mode: Literal["none", "normal"]
    group: str = "A"


class CellOptions(Part):
    """How a cell of a table is drawn."""

    type: Literal["auto", "color-text", "color-background"]


class Custom(Part):
    """What only some kinds of panel have."""

    draw_style: Literal["line", "bars", "points"] | None = None
    line_interpolation: Literal["linear", "stepAfter"] | None = None
    line_width: int | None = None
    fill_opacity: int | None = None
    show_points: Literal["auto", "never", "always"] | None = None
    span_nulls: bool | None = None
    stacking: Stacking | None = None
    thresholds_style: LineMode | None = None
    cell_options: CellOptions | None = None
    filterable: bool | None = None


class Defaults(Part):
    """How all fields of a panel are shown."""

    unit: str
    color: Color
    thresholds: Thresholds
    custom: Custom = Custom()
    decimals: int | None = None
    min: float | None = None
    max: float | None = None
    mappings: tuple[ValueMapping, ...] = ()
    links: tuple[Link, ...] = ()


class Matcher(Part):
    """Which fields an override is for."""

    id: Literal["byName", "byFrameRefID"]
    options: str


class Property(Part):
    """One property that an override sets."""

    id: str
    value: Any


class Override(Part):
    """What is different for some fields."""

    matcher: Matcher
    properties: tuple[Property, ...]


class FieldConfig(Part):
    """How the fields of a panel are shown."""

    defaults: Defaults
    overrides: tuple[Override, ...] = ()
