"""Which series each stream's columns are, both ways: series.yaml, read once.

The sink names series by it; the importers of scrapes and of Prometheus itself read it backwards.
"""

import re
from functools import cache
from importlib import resources
from typing import Literal

from pydantic import BaseModel, ConfigDict

from detectors import yaml_text

Labels = dict[str, str]


class Column(BaseModel):
    """One column's metric: its value is ``scale * column + offset``.

    With `code` the value itself (a whole number) is that label's value: every code is a series of its own.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    metric: str
    scale: float = 1.0
    offset: float = 0.0
    code: str | None = None
    text: str | None = None


class Pattern(Column):
    """The same for every column that `match` matches in full; named groups become labels."""

    match: str


class Stream(BaseModel):
    """One stream of series.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    job: str
    instance: str
    entity: tuple[str, ...]
    target: str | None = None
    expected: Literal["nodes", "switches"] | None = None
    having: str | None = None
    labels: dict[str, str]
    columns: dict[str, Column]
    patterns: tuple[Pattern, ...] = ()
    by_unit: dict[str, dict[str, str]] = {}
    otherwise: str

    def column(self, name: str) -> tuple[Column, Labels]:
        """Return the metric of column `name`, and the labels that its name itself gives."""
        if name in self.columns:
            return self.columns[name], {}
        for pattern in self.patterns:
            found = re.fullmatch(pattern.match, name)
            if found:
                return pattern, found.groupdict()
        snake = re.sub(r"[^a-z0-9_]", "_", name.removeprefix("SAI_PORT_STAT_").lower())
        plain = re.sub(r"[^a-zA-Z0-9_:]", "_", name)
        return Column(metric=self.otherwise.format(column=plain, snake=snake)), {}


class FindingSeries(BaseModel):
    """The series that a finding leaves: labels are its entity's, and fault, severity and detector."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    job: str
    instance: str
    active: str
    started: str


class Table(BaseModel):
    """All of series.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    streams: dict[str, Stream]
    findings: FindingSeries
    xid_messages: dict[int, str]


@cache
def table() -> Table:
    """Return the table that ships with hindcast."""
    text = (resources.files("services.kit") / "series.yaml").read_text()
    return Table.model_validate(yaml_text.load(text))
