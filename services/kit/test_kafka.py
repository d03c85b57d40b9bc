"""Clients of a broker that is not there."""

import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

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
