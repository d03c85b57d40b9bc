"""Clients of a broker that is not there."""

import socket
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kafka.errors import UnknownBrokerIdError

from services.kit import kafka
from services.kit.errors import UserError
from services.kit.kafka import KafkaSettings, admin, consumer, producer

_MAKERS: dict[str, Callable[[KafkaSettings], Any]] = {
    "admin": admin,
    "consumer": lambda settings: consumer(settings, group=None),
    "producer": producer,
}


@pytest.mark.parametrize("kind", _MAKERS)
def test_a_client_that_reaches_no_broker_is_an_error_and_leaves_no_thread(kind: str) -> None:
    """A service that tries again every second would gather thousands."""
    before = set(threading.enumerate())
    with socket.socket() as nobody_listens:
        nobody_listens.bind(("127.0.0.1", 0))
        port = nobody_listens.getsockname()[1]
        settings = KafkaSettings(bootstrap=f"127.0.0.1:{port}", bootstrap_timeout_s=0.3)
        with pytest.raises(UserError, match="no Kafka broker answers"):
            _MAKERS[kind](settings)
    assert not [one.name for one in threading.enumerate() if one not in before and "kafka" in one.name]


def test_where_a_partition_ends_is_asked_again_while_its_leader_is_not_among_the_known_brokers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka, "_OFFSETS_TRY_MS", 1.0)
    asked: list[str | float] = []

    def ask(_partitions: Any, timeout_ms: float) -> dict[Any, int]:
        asked.append(timeout_ms)
        if len(asked) == 1:
            raise UnknownBrokerIdError(1)
        return {}

    brokers = SimpleNamespace(request_update=lambda: asked.append("who leads"))
    client = SimpleNamespace(config={"request_timeout_ms": 100.0}, _cluster=brokers)
    assert kafka._Consumer._of_leaders(cast(Any, client), ask, [], None) == {}
    assert asked == [1.0, "who leads", 2.0]
