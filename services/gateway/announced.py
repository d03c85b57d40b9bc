"""Announces a live cluster to the other services, by its topology and state in Kafka, before its first record."""

from contextlib import closing

from kafka.errors import KafkaError

from services.kit import replays, topics
from services.kit.errors import ServerError, UserError
from services.kit.kafka import KafkaSettings, producer
from services.kit.replay_directory import ReplayDirectory
from services.kit.replays import ReplayState

_WAIT_S = 30.0


def announce(
    kafka: KafkaSettings, unit: str, topology: replays.Topology | None, state: ReplayState | None = None
) -> None:
    """Say what a cluster is made of, and how it is fed by who sends watermarks. UserError (exit code 3) if it fails."""
    with closing(producer(kafka)) as client:
        try:
            if topology is not None:
                replays.announce_topology(client, unit, topology).get(timeout=_WAIT_S)
            if state is not None:
                replays.announce(client, state).get(timeout=_WAIT_S)
        except KafkaError as error:
            raise _refusal(error) from error


def withdraw(kafka: KafkaSettings, unit: str) -> None:
    """Take back that the cluster is fed with watermarks, where that was announced: nobody is to wait for them."""
    with closing(ReplayDirectory(kafka)) as directory:
        if unit not in directory.states:
            return
    with closing(producer(kafka)) as client:
        try:
            client.send(topics.REPLAYS, key=unit.encode(), value=None).get(timeout=_WAIT_S)
        except KafkaError as error:
            raise _refusal(error) from error


def _refusal(error: KafkaError) -> UserError:
    return ServerError(
        f"what the cluster is could not be handed to Kafka ({type(error).__name__})",
        remedy="create the topics: hindcast topics create",
    )
