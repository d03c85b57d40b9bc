import pytest
from pydantic import ValidationError

from services.stack.addresses import Addresses

ADDRESSES = Addresses(
    kafka="127.0.0.1:1",
    prometheus="http://127.0.0.1:2",
    alertmanager="http://127.0.0.1:3",
    thanos_query="http://127.0.0.1:4",
    receive_write="http://127.0.0.1:5",
    receive="http://127.0.0.1:6",
    sidecar="http://127.0.0.1:7",
    store="http://127.0.0.1:8",
    compact="http://127.0.0.1:9",
    store_grpc="127.0.0.1:10",
    monitor="http://127.0.0.1:12",
    bucket="/bucket",
    services={"replay": "http://127.0.0.1:11"},
)


def test_what_is_written_down_is_read_again() -> None:
    assert Addresses.from_dict(ADDRESSES.as_dict()) == ADDRESSES
    assert ADDRESSES.as_dict()["thanos_write"] == "http://127.0.0.1:5/api/v1/receive"


def test_a_missing_address_is_refused() -> None:
    written = ADDRESSES.as_dict()
    del written["kafka"]
    with pytest.raises(ValidationError, match="kafka"):
        Addresses.from_dict(written)
