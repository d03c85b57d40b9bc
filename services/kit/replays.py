"""What is being replayed: the `replays` topic, written by replay, read by everybody (`services.kit.replay_directory`).

Two compacted records a replay: its state (key ``cluster/replay``) and, before it, the topology it needs to be
understood with (key ``cluster/replay/topology``). A live feed is a replay named ``live`` with no shift, and has a state
only where it is fed with watermarks.
"""

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from detectors.core.tails import BINS
from services.kit import topics
from services.kit.wire import Origin

if TYPE_CHECKING:  # whose client takes long to load, and most who know of replays have no Kafka
    from kafka import KafkaProducer

Topology = dict[str, Any]
DetectorSettings = dict[str, dict[str, bool | int | float | str | dict[str, dict[str, str]]]]
"""By detector what differs, as in detectors.yaml."""


class TailCounts(BaseModel):
    """One tail of a calibration: how many residuals lie in each bin (`detectors.core.tails.Tail.document`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    bins: list[Annotated[int, Field(ge=0, lt=BINS)]]
    counts: list[Annotated[float, Field(ge=0, allow_inf_nan=False)]]

    @model_validator(mode="after")
    def _as_many(self) -> Self:
        if len(self.bins) != len(self.counts) or len(set(self.bins)) != len(self.bins):
            raise ValueError("bins and counts do not belong together")
        return self


DetectorTails = dict[str, dict[str, TailCounts]]
"""By detector what is usual at a site, by the name of the signal: what `hindcast calibrate` learns."""


def plain(tails: DetectorTails) -> dict[str, Any]:
    """Return a calibration as `detectors.registry.choose` takes it."""
    return {name: {tail: counts.model_dump() for tail, counts in own.items()} for name, own in tails.items()}


REMOVED_MARK = "hindcast-removed"
"""A file of this name in a tenant's folder of Receive: the replay is removed, and the folder is to go."""


class ReplayState(BaseModel):
    """The public state of one replay; times are epoch milliseconds of recording time."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    format: Literal["hindcast.replay/v1"] = "hindcast.replay/v1"
    cluster: str
    replay: str
    generation: int
    shift_ms: int
    target: str
    recording: str
    from_ms: int
    to_ms: int
    warm_from_ms: int
    """Where this generation's data begin: before `from_ms` after a seek, so that detectors are warm."""
    speed: float
    """Times real time; 0 is `max`."""
    state: Literal["running", "paused", "ended", "stopped", "failed", "removed"]
    streams: tuple[str, ...]
    """The streams that are fed: the replay's watermark is the least of theirs."""
    intervals_s: dict[str, float] = {}
    """Sampling interval by stream, where the recording gives one: without it no missed scrape can be recognised."""
    detectors: DetectorSettings = {}
    """Detectors' settings that are this replay's own, over those that detect has for all."""
    expected: Topology | None = None
    """What of the topology is there whether it is heard or not; None: all of it."""
    calibration: DetectorTails = {}
    """What is usual where it was recorded, in place of what detect has for all; empty: as detect has it."""

    @property
    def unit(self) -> str:
        """Return ``cluster/replay``."""
        return f"{self.cluster}/{self.replay}"

    @property
    def origin(self) -> Origin:
        """Return the origin that this generation's records carry."""
        return Origin(self.cluster, self.replay, self.generation, self.shift_ms, self.target)

    @property
    def over(self) -> bool:
        """Return whether no more data will come in this generation."""
        return self.state in ("ended", "stopped", "failed", "removed")


def announce_topology(producer: "KafkaProducer", unit: str, topology: Topology) -> Any:
    """Send a replay's topology and return the producer's future; to be acknowledged before its first state is sent."""
    return producer.send(topics.REPLAYS, key=f"{unit}/topology".encode(), value=json.dumps(topology).encode())


def announce(producer: "KafkaProducer", state: ReplayState) -> Any:
    """Send a replay's state and return the producer's future."""
    return producer.send(topics.REPLAYS, key=state.unit.encode(), value=state.model_dump_json().encode())
