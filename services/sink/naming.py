"""Which series a column of an entity becomes: series.yaml, filled in from the rows and the topology."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from services.kit.replays import Topology
from services.kit.series import Column, Labels, Stream, table

Key = tuple[str, ...]
"""What a row is about: the texts of the stream's entity columns, "" for null."""


class _Member:
    """A topology object in a template: ``{gpu}`` is its name, ``{gpu.uuid}`` its field, "" where there is none."""

    def __init__(self, name: str, fields: Mapping[str, Any]) -> None:
        self._name = name
        self._fields = fields

    def __getattr__(self, name: str) -> str:
        return str(self._fields.get(name, ""))

    def __format__(self, spec: str) -> str:
        return format(self._name, spec)


@dataclass(frozen=True)
class Naming:
    """Names the series of one stream of one unit."""

    stream: Stream
    cluster: str
    replay: str
    topology: Topology = field(default_factory=dict)
    _entity: dict[Key, Labels] = field(default_factory=dict, repr=False)
    _columns: dict[str, tuple[Column, Labels]] = field(default_factory=dict, repr=False)

    @cached_property
    def _nodes(self) -> dict[str, Mapping[str, Any]]:
        return {node["name"]: node for node in self.topology.get("nodes", ())}

    @cached_property
    def expected(self) -> Sequence[str]:
        """Return the targets that the topology says are there; empty without a topology."""
        if self.stream.expected is None:
            return ()
        members = self.topology.get(self.stream.expected, ())
        return [m["name"] for m in members if self.stream.having is None or m.get(self.stream.having)]

    def column(self, name: str) -> tuple[Column, Labels]:
        """Return what the table says of column `name`."""
        found = self._columns.get(name)
        if found is None:
            found = self._columns[name] = self.stream.column(name)
        return found

    def target(self, key: Key) -> str:
        """Return the name of the target that reports this entity."""
        return key[self.stream.entity.index(self.stream.target)] if self.stream.target else ""

    def of_entity(self, key: Key) -> Labels:
        """Return the labels that all series of an entity share; those that would be empty are left out."""
        found = self._entity.get(key)
        if found is None:
            found = self._entity[key] = self._of_entity(key)
        return found

    def _of_entity(self, key: Key) -> Labels:
        values = dict(zip(self.stream.entity, key, strict=True))
        node = self._nodes.get(values.get("node", ""), {})
        members = {name: _Member(value, self._fields(name, value, node)) for name, value in values.items()}
        named = {name: template.format(**members) for name, template in self.stream.labels.items()}
        named["instance"] = self.stream.instance.format(**members)
        return {name: value for name, value in named.items() if value} | self._common

    def of_target(self, target: str) -> Labels:
        """Return the labels of a target's `up`."""
        named = dict.fromkeys(self.stream.entity, "") | {str(self.stream.target): target}
        return {"__name__": "up", "instance": self.stream.instance.format(**named)} | self._common

    def of_series(self, key: Key, column: str) -> Labels:
        """Return all labels of one column's series of an entity."""
        rule, more = self.column(column)
        metric = rule.metric
        if self.stream.by_unit:
            unit = key[self.stream.entity.index("unit")]
            metric = self.stream.by_unit.get(unit, {}).get(column, metric)
        return {"__name__": metric, **self.of_entity(key), **more}

    def of_code(self, key: Key, column: str, code: int) -> Labels:
        """Return all labels of the series that stands for one code of a `code` column."""
        rule, _ = self.column(column)
        labels = self.of_series(key, column) | {str(rule.code): str(code)}
        if rule.text and code in table().xid_messages:
            labels[rule.text] = table().xid_messages[code]
        return labels

    @property
    def _common(self) -> Labels:
        return {"job": self.stream.job, "cluster": self.cluster, "replay": self.replay}

    def _fields(self, name: str, value: str, node: Mapping[str, Any]) -> Mapping[str, Any]:
        if name == "node":
            return node
        parts = node.get(f"{name}s", ())
        return next((part for part in parts if str(part.get(name)) == value), {})
