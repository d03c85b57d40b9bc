"""What the API says and takes of replays by way of Kafka."""

from pydantic import ConfigDict, Field

from services.api.models import Asked, DetectorSettings, Name
from services.replay.spec import Shift, Speed
from services.replay.status import ReplayStatus


class ReplayStart(Asked):
    """Start a replay of a recording of the library. Times: RFC 3339, or +HH:MM:SS from the recording's start."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)
    recording: Name
    speed: Speed = 1.0
    shift: Shift = "now"
    name: str | None = Field(default=None, pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
    target: str | None = Field(default=None, max_length=100)
    from_: str | None = Field(default=None, alias="from", max_length=40)
    to: str | None = Field(default=None, max_length=40)
    detectors: DetectorSettings = Field(default={}, description="Over the detect service's own configuration.")


class Replay(ReplayStatus):
    """A replay by way of Kafka: where it is, and under which run what is found in it can be looked at and followed."""

    recording: str = Field(description="The recording's name.")
    run: str = Field(description="The run that is its present generation; a seek begins another.")


class SeekTo(Asked):
    """Where a replay goes on: RFC 3339, or +HH:MM:SS from the recording's start."""

    to: str = Field(max_length=40)


class SpeedTo(Asked):
    """How fast it goes on."""

    speed: Speed
