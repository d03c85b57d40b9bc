"""Settings of the gateway: HINDCAST_GATEWAY_* in the environment."""

from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from services.kit.listening import Listening, Port
from services.kit.wire import Origin

LIVE = "live"
MIB = 1024 * 1024


class GatewaySettings(Listening):
    """Where the gateway listens, whose telemetry it takes, and how much of it at a time."""

    model_config = SettingsConfigDict(env_prefix="HINDCAST_GATEWAY_", extra="forbid")

    cluster: Annotated[str, Field(min_length=1, pattern=r"^[^/]+$")]
    """The cluster that everything sent here is of. A series whose label `cluster` names another is passed over."""
    port: Port = 8481
    topology: Path | None = None
    """A topology.json of the cluster: what should be there, so that what never reports is missed too."""
    target: str = "none"
    """The sink that is to write what comes in. No sink is called `none`: the telemetry is in a Prometheus already, and
    a sink that wrote it into the one that sends it would make a circle."""
    series: Annotated[int, Field(ge=10_000)] = 1_000_000
    """Series remembered, and texts in their labels: 800 GPUs with 60 series each are 50,000. Beyond it those that were
    silent longest are evicted; one that comes back is learnt again, and loses nothing."""
    body_bytes: Annotated[int, Field(ge=1024)] = 4 * MIB
    """The longest request body, as sent. Prometheus' are of some 100 kB."""
    decoded_bytes: Annotated[int, Field(ge=1024)] = 16 * MIB
    """The longest request body once it is unpacked; looked at before it is."""
    in_flight_bytes: Annotated[int, Field(ge=MIB)] = 64 * MIB
    """Bodies that are being worked on at a time; more are answered 503, and senders try again."""
    ack_timeout_s: Annotated[float, Field(gt=0)] = 10.0
    """How long a sender waits for Kafka before it is answered 503 and tries again."""

    def origin(self) -> Origin:
        """Return whose the records are."""
        return Origin(self.cluster, LIVE, target=self.target, parts=True)
