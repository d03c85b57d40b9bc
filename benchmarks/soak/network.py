"""A network that can be cut: a TCP proxy between each client and its server, in a thread of the benchmark's own.

=============  =====================================================================================================
refuse         connections are reset, and new ones refused
drop           nothing arrives in either direction, and nobody notices: what was under way arrives when it is over
mute           the server hears, but its answers are lost; connections that lost one are reset when it is over
half-open      connections of before are dead for good, and neither side notices; new ones are as ever
slow           everything arrives, each way half a second later
=============  =====================================================================================================
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal, Self

from services.stack.ports import LOOPBACK, PortBook

Cut = Literal["refuse", "drop", "mute", "half-open", "slow"]
CUTS: tuple[Cut, ...] = ("refuse", "drop", "mute", "half-open", "slow")
SLOW_S = 0.5
_CHUNK = 64 * 1024
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closed at once, by RST


def whole(link: str) -> str:
    """Return the name of all the links that lead where this one does: of `a>b/1` it is `a>b`."""
    return link.partition("/")[0]


class _Connection:
    """A client's connection and the one to its server that stands for it."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.dead = False
        """Nothing passes any more, and neither side notices."""
        self.torn = False
        """An answer is lost."""
        self.tasks: list[asyncio.Task[None]] = []

    def end(self, *, reset: bool = False) -> None:
        for task in self.tasks:
            task.cancel()
        for one in (self.client, self.server):
            if reset:
                with suppress(OSError):
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            _close(one)


class Link:
    """What lies between one client and one server. Its methods are called in the network's thread."""

    def __init__(self, name: str, port: int, target: int) -> None:
        self.name, self.port, self.target = name, port, target
        self.slow_s = SLOW_S
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._connections: set[_Connection] = set()
        self._cut: Cut | None = None
        self._passing = asyncio.Event()
        self._passing.set()

    async def listen(self) -> None:
        """Take connections."""
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, self.port))
        listener.listen(128)
        listener.setblocking(False)
        self._listener = listener
        self._accepting = asyncio.create_task(self._accept(listener))

    async def strike(self, cut: Cut) -> None:
        """Begin a cut."""
        self._cut = cut
        if cut == "refuse":
            self._deaf()
            self._reset(self._connections)
        elif cut == "drop":
            self._passing.clear()
        elif cut == "half-open":
            for connection in self._connections:
                connection.dead = True

    async def heal(self) -> None:
        """End the cut."""
        cut, self._cut = self._cut, None
        self._passing.set()
        if cut == "refuse":
            await self.listen()
        self._reset({one for one in self._connections if one.torn})

    async def close(self) -> None:
        """End all connections."""
        self._deaf()
        self._reset(self._connections)

    def _deaf(self) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
        if self._listener is not None:
            _close(self._listener)

    def _reset(self, some: set[_Connection]) -> None:
        for connection in list(some):
            connection.end(reset=True)
            self._connections.discard(connection)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            client, _ = await loop.sock_accept(listener)
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            asyncio.create_task(self._connect(client))  # noqa: RUF006 - it ends by itself

    async def _connect(self, client: socket.socket) -> None:
        await self._passing.wait()
        server = socket.socket()
        server.setblocking(False)
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(client, server)
        try:
            await asyncio.get_running_loop().sock_connect(server, (LOOPBACK, self.target))
        except OSError:  # the server is away: so is what stands for it
            connection.end(reset=True)
            return
        if self._cut == "refuse":  # it was cut off while this one was being made
            connection.end(reset=True)
            return
        self._connections.add(connection)
        connection.tasks = [
            asyncio.create_task(self._carry(connection, client, server, answers=False)),
            asyncio.create_task(self._carry(connection, server, client, answers=True)),
        ]

    async def _carry(
        self, connection: _Connection, source: socket.socket, sink: socket.socket, *, answers: bool
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            while data := await loop.sock_recv(source, _CHUNK):
                if self._cut == "slow":
                    await asyncio.sleep(self.slow_s)
                await self._passing.wait()
                if connection.dead:
                    continue
                if self._cut == "mute" and answers:
                    connection.torn = True
                if connection.torn and answers:
                    continue
                await loop.sock_sendall(sink, data)
            await self._passing.wait()
        except OSError:
            pass
        if connection.dead:  # the other side does not hear of this end
            _close(source)
            return
        connection.end()
        self._connections.discard(connection)


def _close(one: socket.socket) -> None:
    """Close a socket that tasks may wait for: the next one with its number is not theirs."""
    if one.fileno() >= 0:
        asyncio.get_running_loop().remove_reader(one)
        asyncio.get_running_loop().remove_writer(one)
        one.close()


class Network:
    """Links by name, carried by a thread of their own until the block is left."""

    def __init__(self) -> None:
        self.links: dict[str, Link] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.links):
            self.remove(name)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def link(self, name: str, target: int, ports: PortBook, *, port: int = 0) -> int:
        """Begin to carry what is sent to the port that is returned to the port `target`."""
        port = port or ports.take()
        ports.release(port)
        self.links[name] = Link(name, port, target)
        self._call(self.links[name].listen())
        return port

    def remove(self, name: str) -> None:
        """Carry nothing of a link any more."""
        self._call(self.links.pop(name).close())

    @contextmanager
    def cut(self, name: str, cut: Cut) -> Iterator[None]:
        """Have a link cut while the block runs; `a>b` is all of `a>b/1` and so on, too."""
        struck = [link for own, link in self.links.items() if name in (own, whole(own))]
        for link in struck:
            self._call(link.strike(cut))
        try:
            yield
        finally:
            for link in struck:
                self._call(link.heal())

    def _call(self, what: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(10)
