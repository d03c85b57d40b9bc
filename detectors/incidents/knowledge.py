"""causes.yaml as data: what can cause what over which relation, and the settings, each with unit and source.

A detector's folder may have a causes.yaml of its own, with the rows of its faults; they come after those here.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

import detectors
from detectors import yaml_text
from detectors.contract import Default, Fault

Over = Literal["gpu", "node", "cable", "switch", "fabric", "rail", "rack", "mount", "job"]


class Row(BaseModel):
    """One line of the table; see the head of causes.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    cause: tuple[Fault, ...] = ()
    effect: tuple[Fault, ...] = ()
    same: tuple[Fault, ...] = ()
    over: Over
    lag_s: float = Field(gt=0)
    before_s: float | None = Field(default=None, ge=0)
    after_s: float | None = Field(default=None, ge=0)
    weight: float = Field(gt=0, lt=1)
    because: str
    named: str | None = None
    """What nodes or ports that fail together have in common, in words."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if bool(self.same) == bool(self.cause and self.effect):
            raise ValueError("a row has either `same`, or `cause` and `effect`")
        return self


class Sign(BaseModel):
    """What a finding's evidence shows of the chain; `says` is a format for the values of `evidence`.

    With `falls` there are two values, before and now, and only a fall is worth a word.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    fault: tuple[Fault, ...]
    evidence: tuple[str, ...]
    before: bool = False
    falls: bool = False
    says: str
    because: str

    def words(self, values: Sequence[float | int | str]) -> str:
        """Return what it says of some values; nothing where they are not of the kind it is written for."""
        numbers = [value for value in values if not isinstance(value, str)]
        if self.falls and len(numbers) == 2 and numbers[0] <= numbers[1]:
            return ""
        try:
            return self.says.format(*(value.strip() if isinstance(value, str) else value for value in values))
        except ValueError:
            return ""


class IncidentConfig(BaseModel):
    """The settings; their units and sources are in causes.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    hold_s: float = Field(gt=0)


class Knowledge(BaseModel):
    """All of causes.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    version: int
    settings: Mapping[str, Default]
    signs: tuple[Sign, ...]
    rows: tuple[Row, ...]

    @model_validator(mode="after")
    def _complete(self) -> Self:
        self.configure({})
        return self

    def rows_to(self) -> dict[Fault, list[int]]:
        """Return the numbers of the rows that can explain each fault."""
        return self._numbers(lambda row: (*row.effect, *row.same))

    def rows_from(self) -> dict[Fault, list[int]]:
        """Return the numbers of the rows in which each fault explains another."""
        return self._numbers(lambda row: (*row.cause, *row.same))

    def _numbers(self, faults: Callable[[Row], Sequence[Fault]]) -> dict[Fault, list[int]]:
        found: dict[Fault, list[int]] = {}
        for number, row in enumerate(self.rows):
            for fault in faults(row):
                found.setdefault(fault, []).append(number)
        return found

    def row_like(self, number: int, over: str, cause: Fault, effect: Fault) -> int | None:
        """Return the number of a row by which `cause` explains `effect`: `number` where that is one, else the first."""
        fitting = [
            n
            for n, row in enumerate(self.rows)
            if row.over == over and cause in (*row.cause, *row.same) and effect in (*row.effect, *row.same)
        ]
        return number if number in fitting else next(iter(fitting), None)

    def memory_ms(self, config: IncidentConfig) -> dict[Fault, int]:
        """Return for how long after its end a finding of each fault can still be linked, in milliseconds."""
        found: dict[Fault, int] = {}
        for row in self.rows:
            kept_s = max(row.after_s or config.hold_s, row.before_s or 0.0, config.hold_s)
            for fault in (*row.cause, *row.effect, *row.same):
                found[fault] = max(int(1000 * kept_s), found.get(fault, 0))
        return found

    def configure(self, given: Mapping[str, Any]) -> IncidentConfig:
        """Return the defaults with `given` on top; raise pydantic's ValidationError."""
        defaults = {name: default.value for name, default in self.settings.items()}
        return IncidentConfig.model_validate(defaults | dict(given))


_ROWS = TypeAdapter(list[Row])


def _load() -> Knowledge:
    text = (resources.files(__package__ or "") / "causes.yaml").read_text(encoding="utf-8")
    table = Knowledge.model_validate(yaml_text.load(text))
    return table.model_copy(update={"rows": (*table.rows, *_rows_of_detectors())})


def _rows_of_detectors() -> list[Row]:
    """Return the rows that detectors' folders add, by name; ValueError naming the file where they are wrong."""
    rows: list[Row] = []
    for folder in sorted(resources.files(detectors).iterdir(), key=lambda one: one.name):
        file = folder / "causes.yaml"
        if folder.name == "incidents" or not file.is_file():
            continue
        try:
            own: Any = yaml_text.load(file.read_text(encoding="utf-8"))
            rows += _ROWS.validate_python(own)
        except (ValidationError, yaml.YAMLError) as error:
            raise ValueError(f"detectors/{folder.name}/causes.yaml: {error}") from error
    return rows


TABLE = _load()
"""The table that ships with hindcast."""
