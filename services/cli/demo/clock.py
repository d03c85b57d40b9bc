"""Event time against wall time of one replay, by its watermarks in Kafka."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.cli.pipeline import Pipeline
from services.kit import wire


@dataclass(frozen=True)
class EventClock:
    """When, by the broker's clock, the replay had passed which event time; both (n,) epoch ms, ascending."""

    wall_ms: NDArray[np.int64]
    event_ms: NDArray[np.int64]

    def wall_at(self, event_ms: int) -> int:
        """Return the wall time at which everything up to `event_ms` had been sent."""
        index = int(np.searchsorted(self.event_ms, event_ms, side="left"))
        return int(self.wall_ms[min(index, len(self.wall_ms) - 1)])

    def event_at(self, wall_ms: int) -> int:
        """Return how far event time had come at `wall_ms`."""
        index = int(np.searchsorted(self.wall_ms, wall_ms, side="right")) - 1
        return int(self.event_ms[max(index, 0)])


def read_clock(pipeline: Pipeline, unit: str) -> EventClock:
    """Read the watermarks of `unit` from the logs topic, which has the same ones as the others and little else."""
    watermarks = []
    for record in pipeline.records("logs"):
        if record.key == unit.encode() and dict(record.headers).get("content-type") == wire.WATERMARK:
            watermark = wire.payload_of(record)
            if isinstance(watermark, wire.Watermark):
                watermarks.append((record.timestamp, watermark.at_ms))
    columns = np.array(sorted(watermarks), dtype=np.int64).reshape(-1, 2)
    return EventClock(columns[:, 0], np.maximum.accumulate(columns[:, 1]))
