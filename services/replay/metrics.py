"""What /metrics says of each replay; read when asked for, so that a replay that is stuck shows it."""

from prometheus_client import Gauge

from services.replay.replay import Replay

LAG = Gauge(
    "hindcast_replay_lag_seconds",
    "Wall seconds for which the oldest row not yet in Kafka has been due.",
    ["replay"],
)
POSITION = Gauge(
    "hindcast_replay_position_seconds",
    "Event time up to which Kafka has acknowledged everything.",
    ["replay"],
)
IN_FLIGHT = Gauge("hindcast_replay_in_flight_bytes", "Bytes sent and not yet acknowledged.", ["replay"])


def watch(replay: Replay) -> None:
    """Show a replay's figures; one of the same name is replaced."""
    name = replay.entry.spec.name
    LAG.labels(name).set_function(replay.lag_s)
    POSITION.labels(name).set_function(lambda: replay.safe().position_ms / 1000)
    IN_FLIGHT.labels(name).set_function(replay.in_flight_bytes)


def unwatch(name: str) -> None:
    """Show them no longer."""
    for gauge in (LAG, POSITION, IN_FLIGHT):
        gauge.remove(name)
