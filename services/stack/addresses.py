"""Where the servers of a stack are reached: the same words for the native stack and for containers."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields

from pydantic import TypeAdapter


@dataclass(frozen=True)
class Addresses:
    """Addresses of the servers of one stack; URLs without a trailing slash."""

    # Bootstrap server, host:port.
    kafka: str
    prometheus: str
    alertmanager: str
    # Thanos Query: Prometheus' query API over Prometheus, Receive and the object store, and the web UI.
    thanos_query: str
    # Thanos Receive: where remote-write goes, and its own metrics and health.
    receive_write: str
    receive: str
    sidecar: str
    store: str
    compact: str
    # Thanos Store's StoreAPI, host:port: to ask the object store alone.
    store_grpc: str
    # The Prometheus that watches hindcast itself.
    monitor: str
    # Folder of the object store.
    bucket: str
    # The second Prometheus of a pair and its sidecar, where there is a pair.
    prometheus_1: str = ""
    sidecar_1: str = ""
    # Name to URL of hindcast's own services that answer HTTP.
    services: dict[str, str] = field(default_factory=dict)

    @property
    def prometheus_write(self) -> str:
        """Remote-write endpoint of Prometheus."""
        return f"{self.prometheus}/api/v1/write"

    @property
    def prometheus_1_write(self) -> str:
        """Remote-write endpoint of the second Prometheus, where there is a pair."""
        return f"{self.prometheus_1}/api/v1/write" if self.prometheus_1 else ""

    @property
    def thanos_write(self) -> str:
        """Remote-write endpoint of Thanos Receive; the tenant goes in the header THANOS-TENANT."""
        return f"{self.receive_write}/api/v1/receive"

    def as_dict(self) -> dict[str, object]:
        """Return all addresses, as JSON takes them."""
        return {**asdict(self), "prometheus_write": self.prometheus_write, "thanos_write": self.thanos_write}

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> "Addresses":
        """Return what `as_dict` was made from. Raises pydantic.ValidationError where an address is missing."""
        return TypeAdapter(Addresses).validate_python({f.name: values[f.name] for f in fields(cls) if f.name in values})
