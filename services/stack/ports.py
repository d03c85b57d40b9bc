"""TCP ports of the loopback interface, kept for a process while it does not run."""

import random
import socket
from pathlib import Path
from typing import Self

from services.kit.errors import UsageError

LOOPBACK = "127.0.0.1"
_LOWEST = 10_240


class PortBook:
    """Hands out ports and keeps each one bound, not listening, until its process is started.

    A bound port that does not listen refuses connections, as a stopped server does, and no one else can take it
    meanwhile. Ports are taken from below the range that the kernel uses for outgoing connections: a client that
    retries a stopped server on a port of that range may be given the very same port and connect to itself.

    A free port stays reserved until the book is closed, so that no other book, of this process or another, picks it
    while it is let go of for the process that is to bind it.
    """

    def __init__(self) -> None:
        self._held: dict[int, socket.socket] = {}
        self._reserved: dict[int, socket.socket] = {}
        self._random = random.Random()  # noqa: S311 - picks a free port; nothing secret hangs on it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take(self, wanted: int = 0, *, setting: str = "") -> int:
        """Return `wanted`, or a free port where it is 0, and hold it.

        Raises UserError (exit code 2) naming `setting` where the wanted port is in use.
        """
        if wanted:
            try:
                self._held[wanted] = _bind_again(wanted)
            except OSError as error:
                raise UsageError(
                    f"port {wanted} of {LOOPBACK} cannot be used ({setting}={wanted}): {error.strerror}",
                    remedy=f"end what listens there (ss -ltnp 'sport = :{wanted}'), or set {setting} to another port, "
                    "or to 0 for any free one",
                ) from error
            return wanted
        held = self._free()
        port: int = held.getsockname()[1]
        self._held[port] = held
        return port

    def release(self, port: int) -> None:
        """Let go of `port`, so that its process can bind it."""
        held = self._held.pop(port, None)
        if held is not None:
            held.close()

    def hold(self, port: int) -> None:
        """Keep `port` again after its process has ended. Harmless where someone else was faster: the start will say."""
        if port in self._held:
            return
        try:
            self._held[port] = _bind_again(port)
        except OSError:
            return

    def close(self) -> None:
        """Let go of all ports."""
        for sockets in (self._held, self._reserved):
            for held in sockets.values():
                held.close()
            sockets.clear()

    def _free(self) -> socket.socket:
        highest = _first_ephemeral_port() - 1
        for _attempt in range(64 if highest > _LOWEST else 0):
            port = self._random.randint(_LOWEST, highest)
            try:
                reserved = _reserve(port)
            except OSError:
                continue
            try:
                held = _bind(port)
            except OSError:
                reserved.close()
                continue
            self._reserved[port] = reserved
            return held
        return _bind(0)


def _reserve(port: int) -> socket.socket:
    """Return what keeps other books from picking `port`. Raises OSError where one of them has picked it.

    A name in Linux' abstract socket namespace: like ports it belongs to the network namespace, and the kernel takes it
    back however its owner ends.
    """
    reserved = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        reserved.bind(f"\0hindcast-port-{port}")
    except OSError:
        reserved.close()
        raise
    return reserved


def _bind(port: int) -> socket.socket:
    """Return a socket bound to `port`, which nobody else can bind."""
    return _bound(port, reuse=False)


def _bind_again(port: int) -> socket.socket:
    """Return a socket bound to `port` though connections of its former owner may still be in TIME_WAIT.

    Only where they are: of two sockets with SO_REUSEADDR, of which none listens, Linux lets both have the port.
    """
    try:
        return _bound(port, reuse=False)
    except OSError:
        return _bound(port, reuse=True)


def _bound(port: int, *, reuse: bool) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
    try:
        bound.bind((LOOPBACK, port))
    except OSError:
        bound.close()
        raise
    return bound


def _first_ephemeral_port() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768  # Linux' default
