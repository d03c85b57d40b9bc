"""HTTP servers of a test's own: for what is asked of a server, where a real one is tested elsewhere."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl
    from email.message import Message

Answers = dict[str, tuple[int, str]]


class Served:
    """Answers by a handler until it is closed, over TLS where `trust` is given."""

    def __init__(self, handler: type[BaseHTTPRequestHandler], trust: "ssl.SSLContext | None" = None) -> None:
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http{'s' if trust else ''}://127.0.0.1:{self._http.server_port}"
        if trust is not None:
            self._http.socket = trust.wrap_socket(self._http.socket, server_side=True)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


class Server(Served):
    """Has one answer for each target, and none for any other."""

    def __init__(self, trust: "ssl.SSLContext | None") -> None:
        self.answers: Answers = {}
        self.asked: list[tuple[str, Message]] = []
        self.patched: list[tuple[str, str]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # an answer is one packet: the second of two would wait for the receipt of the first

            def do_GET(self) -> None:
                server.asked.append((self.path, self.headers))
                status, body = server.answers.get(self.path, (404, "404 page not found"))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            def do_PATCH(self) -> None:
                server.patched.append((self.path, self.rfile.read(int(self.headers["Content-Length"])).decode()))
                self.do_GET()

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(Handler, trust)


@contextmanager
def answering(trust: "ssl.SSLContext | None" = None) -> Iterator[Server]:
    """Run one while the block lasts, over TLS where `trust` is given."""
    server = Server(trust)
    try:
        yield server
    finally:
        server.close()
