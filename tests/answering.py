"""HTTP servers of a test's own: for what is asked of a server, where a real one is tested elsewhere."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import ssl
    from email.message import Message

Answers = dict[str, tuple[int, str]]


class Request(NamedTuple):
    """What is asked."""

    method: str
    target: str
    headers: "Message"
    body: bytes


class Answer(NamedTuple):
    """What is answered, with its length."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = MappingProxyType({})


class Served:
    """Answers by a function, and hangs up where that returns None, until it is closed; over TLS with `trust`."""

    def __init__(self, answer: Callable[[Request], Answer | None], trust: "ssl.SSLContext | None" = None) -> None:
        closed = self._closed = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # an answer is one packet: the second of two would wait for the receipt of the first

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                found = None if closed.is_set() else answer(Request(self.command, self.path, self.headers, body))
                if found is None:
                    self.close_connection = True
                    return
                with suppress(ConnectionError):  # who asked may have gone
                    self.send_response(found.status)
                    for name, value in ({"Content-Length": str(len(found.body))} | dict(found.headers)).items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(found.body)

            def do_POST(self) -> None:
                self.do_GET()

            def do_PATCH(self) -> None:
                self.do_GET()

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http{'s' if trust else ''}://127.0.0.1:{self._http.server_port}"
        if trust is not None:
            self._http.socket = trust.wrap_socket(self._http.socket, server_side=True)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@contextmanager
def serving(answer: Callable[[Request], Answer | None]) -> Iterator[str]:
    """Run one while the block lasts; give its URL."""
    served = Served(answer)
    try:
        yield served.url
    finally:
        served.close()


class Server(Served):
    """Has one answer for each target, and none for any other."""

    def __init__(self, trust: "ssl.SSLContext | None") -> None:
        self.answers: Answers = {}
        self.asked: list[tuple[str, Message]] = []
        self.patched: list[tuple[str, str]] = []
        super().__init__(self._answer, trust)

    def _answer(self, request: Request) -> Answer:
        if request.method == "PATCH":
            self.patched.append((request.target, request.body.decode()))
        self.asked.append((request.target, request.headers))
        status, body = self.answers.get(request.target, (404, "404 page not found"))
        return Answer(status, body.encode())


@contextmanager
def answering(trust: "ssl.SSLContext | None" = None) -> Iterator[Server]:
    """Run one while the block lasts, over TLS where `trust` is given."""
    server = Server(trust)
    try:
        yield server
    finally:
        server.close()
