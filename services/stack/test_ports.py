import socket
from pathlib import Path

import pytest

from services.kit.errors import UserError
from services.stack.ports import LOOPBACK, PortBook


def test_a_port_in_use_names_the_setting_and_the_remedy(book: PortBook) -> None:
    with socket.create_server((LOOPBACK, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError) as caught:
            book.take(port, setting="HINDCAST_STACK_PROMETHEUS_PORT")
    assert caught.value.exit_code == 2
    assert f"HINDCAST_STACK_PROMETHEUS_PORT={port}" in caught.value.message
    assert "0 for any free one" in caught.value.remedy


def test_a_held_port_refuses_connections_and_cannot_be_taken(book: PortBook) -> None:
    port = book.take()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((LOOPBACK, port), timeout=300)
    with PortBook() as other, pytest.raises(UserError, match=str(port)):
        other.take(port, setting="x")


def test_a_released_port_can_be_listened_on_and_held_again(book: PortBook) -> None:
    port = book.take()
    book.release(port)
    socket.create_server((LOOPBACK, port)).close()
    book.hold(port)
    with PortBook() as other, pytest.raises(UserError):
        other.take(port, setting="x")


def test_a_port_let_go_of_for_its_process_is_picked_by_no_other_book_until_this_one_is_closed(
    book: PortBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = book.take()
    book.release(port)
    with PortBook() as other:
        monkeypatch.setattr(other._random, "randint", lambda *_: port)
        assert other.take() != port
        book.close()
        assert other.take() == port


def test_holding_a_port_that_is_listened_on_does_no_harm(book: PortBook) -> None:
    with socket.create_server((LOOPBACK, 0)) as other:
        book.hold(other.getsockname()[1])


def test_free_ports_differ_and_lie_below_those_of_outgoing_connections(book: PortBook) -> None:
    ports = [book.take() for _ in range(50)]
    assert len(set(ports)) == 50
    lowest_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    if lowest_outgoing > 20_000:
        assert max(ports) < lowest_outgoing
