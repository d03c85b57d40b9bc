"""What the control API answers about a replay."""

from typing import Literal

from pydantic import BaseModel, Field

from services.kit.replays import DetectorSettings
from services.kit.times import format_time
from services.replay.journal import State
from services.replay.pacer import MAX
from services.replay.replay import Replay
from services.replay.spec import Shift


class ReplayStatus(BaseModel):
    """One replay as it is now. Times are RFC 3339 of recording time, unless stated otherwise."""

    model_config = {"populate_by_name": True}

    name: str
    cluster: str
    recording: str
    target: str
    state: State
    generation: int
    speed: float | Literal["max"]
    shift: Shift
    shift_ms: int
    from_: str = Field(alias="from", description="Where this generation is paced from.")
    warm_from: str = Field(description="Where its data begin.")
    to: str
    event_time: str = Field(description="Where the schedule is; without one (speed max), where the data are.")
    lands_at: str = Field(description="That event time on the wall clock, by the shift.")
    position: str = Field(description="Up to where Kafka has acknowledged every row.")
    progress: float = Field(ge=0, le=1, description="The part of the generation that Kafka has acknowledged.")
    lag_s: float = Field(description="Wall seconds for which the oldest row not yet in Kafka has been due.")
    max_lag_s: float = Field(description="The greatest lag since this process took the replay up.")
    in_flight_bytes: int
    rows: dict[str, int] = Field(description="Rows acknowledged, by stream, in this generation.")
    samples: dict[str, int] = Field(description="Readings acknowledged, by stream, in this generation.")
    detectors: DetectorSettings = Field(description="What is the replay's own of the detectors' settings.")
    left_out: str = Field(description="What of the recording is left out or put in order, in words; empty: nothing.")
    error: str | None


def status_of(replay: Replay) -> ReplayStatus:
    """Return a replay's status."""
    entry, safe = replay.entry, replay.safe()
    spec = entry.spec
    event_ms = replay.event_ms()
    length = max(1, spec.to_ms - entry.warm_from_ms + 1)
    return ReplayStatus(
        name=spec.name,
        cluster=spec.cluster,
        recording=spec.recording,
        target=spec.target,
        state=entry.state,
        generation=entry.generation,
        speed="max" if entry.speed == MAX else entry.speed,
        shift=spec.shift,
        shift_ms=spec.shift_ms,
        from_=format_time(entry.from_ms),
        warm_from=format_time(entry.warm_from_ms),
        to=format_time(spec.to_ms),
        event_time=format_time(event_ms),
        lands_at=format_time(event_ms + spec.shift_ms),
        position=format_time(safe.position_ms),
        progress=min(1.0, max(0.0, (safe.position_ms - entry.warm_from_ms + 1) / length)),
        lag_s=replay.lag_s(),
        max_lag_s=replay.max_lag_s,
        in_flight_bytes=replay.in_flight_bytes(),
        rows=dict(safe.rows),
        samples=dict(safe.samples),
        detectors=spec.detectors,
        left_out=spec.left_out,
        error=entry.error,
    )
