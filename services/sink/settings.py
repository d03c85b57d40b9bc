"""Settings of a sink: HINDCAST_SINK_* in the environment. One process feeds one target."""

from typing import Literal, Self

from pydantic import Field, HttpUrl, model_validator
from pydantic_settings import SettingsConfigDict

from services.kit.secret import Secret, ServerUrl
from services.kit.tls import Connecting


class SinkSettings(Connecting):
    """The target, how it is reached, and how much is on its way at once."""

    model_config = SettingsConfigDict(env_prefix="HINDCAST_SINK_", extra="forbid")

    target: str = "prometheus"
    """Only records whose header `target` says this are taken."""
    replica: str = Field(default="", pattern=r"^[\w-]*$")
    """Which of several servers for the same records this one is, as the second of a pair. Each has a sink and a
    consumer group of its own: one that is away keeps nothing from the others, and later gets all that it missed."""
    instance: str | None = None
    """A name that stays the same over restarts: Kafka then gives this sink its partitions back at once, and a crash
    costs no session timeout. Each sink of a group needs its own."""
    url: ServerUrl = HttpUrl("http://127.0.0.1:9090/api/v1/write")
    """Where samples are sent: a remote-write address."""
    protocol: Literal["v2", "v1"] = "v2"
    """v2 for Prometheus; v1 for Thanos Receive, whose 0.42 answers 200 to a v2 request and stores nothing of it."""
    username: str | None = None
    """With `password`: basic authentication."""
    password: Secret = None
    """Of `username`."""
    bearer: Secret = None
    """A token, sent instead of a user and password."""
    tenant_header: str | None = None
    """Header that names the tenant: THANOS-TENANT, or X-Scope-OrgID of Mimir; none for a target without tenants."""
    tenant: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_!.*'()-]{1,150}$")
    """The tenant of all that is sent, such as Mimir's of a team; if not given, each replay is one by its name."""
    timeout_s: float = Field(default=30.0, gt=0)
    """How long one request may take."""
    retry_first_s: float = Field(default=0.1, gt=0)
    """The pause before the first request that is sent again."""
    retry_most_s: float = Field(default=15.0, gt=0)
    """Backoff doubles, with jitter, from the first to the most; a Retry-After above it is honoured."""
    samples_per_series: int = Field(default=64, ge=1, le=500)
    """Most timestamps of one series in one request; 1 sends tick by tick."""
    lanes: int = Field(default=2, ge=1, le=16)
    """Requests on their way at once; a series always takes the same lane, so its samples stay in order."""
    batch_samples: int = Field(default=600_000, ge=1)
    """What is gathered from Kafka at most before it is encoded: bounds memory. The larger it is, the more timestamps of
    a series share a request, and the less each costs the target."""
    topology_wait_s: float = Field(default=2.0, ge=0)
    """How long a replay that nobody has announced yet is waited for before its rows are named without a topology."""

    @model_validator(mode="after")
    def _one_way_in(self) -> Self:
        if self.bearer and (self.username or self.password):
            raise ValueError("set either BEARER, or USERNAME and PASSWORD")
        if self.tenant and not self.tenant_header:
            raise ValueError("TENANT needs TENANT_HEADER")
        if bool(self.username) != bool(self.password):
            raise ValueError("USERNAME and PASSWORD go together")
        return self

    @property
    def server(self) -> str:
        """Return the name of the one server that is written to, as metrics, logs and the consumer group have it."""
        return f"{self.target}-{self.replica}" if self.replica else self.target

    @property
    def group(self) -> str:
        """Return the consumer group: one per server."""
        return f"hindcast-sink-{self.server}"
