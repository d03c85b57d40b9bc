"""What of a cluster's telemetry is gathered in a world: which fields and streams, whose logs, by which clock."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from services.recording.model import Event
from services.synth.cluster.worlds import Conditions, fields_of

_KEYS = {"timestamp", "node", "gpu"}
_LITTLE_S = 0.3  # standard deviation of a clock that is kept


class Arrival:
    """What arrives of a recording of some nodes; in no world all of it, as it is."""

    def __init__(self, conditions: Conditions, nodes: list[str]) -> None:
        self._conditions, self._fields = conditions, fields_of(conditions)
        chance = conditions.generator("clocks")
        most, skewed = conditions.number("logs.skew_s"), chance.random(len(nodes))
        off = np.where(
            skewed < conditions.number("logs.skewed_share"),
            chance.uniform(-most, most, len(nodes)),
            _LITTLE_S * np.clip(chance.standard_normal(len(nodes)), -3, 3),
        )
        self._skew: dict[str, float] = (
            dict(zip(nodes, off.tolist(), strict=True)) if conditions.seed is not None else {}
        )

    def has(self, *evidence: str) -> bool:
        """Return whether any of these is gathered: a DCGM field, ``logs.`` and a source, a stream, ``jobs``."""
        return any(self._has(one) for one in evidence)

    def _has(self, evidence: str) -> bool:
        if evidence.startswith("DCGM_"):
            return self._fields is None or evidence in self._fields
        if evidence == "steps":
            return self._conditions.values["steps"] != "absent"
        return self._conditions.yes(evidence) if evidence in self._conditions.values else True

    @property
    def whole(self) -> bool:
        """Whether all DCGM fields are gathered."""
        return self._fields is None

    @property
    def names_jobs(self) -> bool:
        """Whether anything says which job is on which nodes: the list of jobs, or the steps of ranks."""
        return self._conditions.yes("jobs") or self._conditions.values["steps"] == "ranks"

    def skew_s(self, node: str) -> float:
        """Return by how much a node's log lines are late (or early, below 0)."""
        return self._skew.get(node, 0.0)

    def rows(self, stream: str, batch: pa.RecordBatch | None) -> pa.RecordBatch | None:
        """Return what arrives of a stream's rows."""
        if batch is None or self._conditions.seed is None:
            return batch
        if stream == "dcgm" and self._fields is not None:
            return batch.select([name for name in batch.schema.names if name in _KEYS or name in self._fields])
        if stream == "steps":
            whose = self._conditions.values["steps"]
            if whose == "absent":
                return None
            if whose == "job":
                return batch.filter(pc.less(batch.column("rank"), pa.scalar(0, pa.int32())))
        return None if stream == "bmc" and not self._conditions.yes("bmc") else batch

    def events(self, events: Iterable[Event]) -> Iterator[Event]:
        """Yield the log lines of the sources that are gathered, by the clock of who wrote them."""
        for event in events:
            if self._conditions.seed is None:
                yield event
            elif self._has(f"logs.{event.source}"):
                late = round(1000 * self._skew.get(event.node or "", 0.0))
                yield event.model_copy(update={"timestamp": event.timestamp + late})

    def document(self) -> dict[str, Any]:
        """Return what the manifest says of it; nothing in no world."""
        return {} if self._conditions.seed is None else {"world": self._conditions.document()}
