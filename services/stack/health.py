"""When a process counts as healthy: it does what it is for, not merely runs."""

import http.client
import json
import socket
import struct
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

# Loopback answers in milliseconds; a server that is still starting may take its time, and is asked again.
_TIMEOUT_S = 2.0


class Health(Protocol):
    """Something that can be asked whether a process is healthy; its text says what is asked."""

    def check(self) -> bool:
        """Return whether the process is healthy now. Never raises for a process that is not."""

    def __str__(self) -> str: ...


@dataclass(frozen=True)
class HttpHealth:
    """Healthy when `url` answers 200."""

    url: str

    def check(self) -> bool:
        """Return whether the URL answers 200 now."""
        status, _body = http_get(self.url)
        return status == 200

    def __str__(self) -> str:
        return f"GET {self.url} to answer 200"


@dataclass(frozen=True)
class QueryHealth:
    """Healthy when Thanos Query is ready and has found `stores` of its stores: it looks for them every few seconds."""

    url: str
    stores: int

    def check(self) -> bool:
        """Return whether Query answers from all its stores now."""
        if http_get(f"{self.url}/-/ready")[0] != 200:
            return False
        status, body = http_get(f"{self.url}/api/v1/stores")
        if status != 200:
            return False
        found = [store for group in json.loads(body)["data"].values() for store in group or ()]
        return sum(not store.get("lastError") for store in found) >= self.stores

    def __str__(self) -> str:
        return f"{self.url} to see its {self.stores} stores"


# Kafka's Metadata request, version 4, of no topic: length, api key 3, version 4, correlation id 1, client id "hc", an
# empty list of topics, no creation of topics.
_METADATA_REQUEST = struct.pack(">ihhih2sib", 17, 3, 4, 1, 2, b"hc", 0, 0)


@dataclass(frozen=True)
class KafkaHealth:
    """Healthy when the broker is registered and answers for the cluster: its port opens a little earlier.

    Asked by one hand-made request: a client that fails to connect is a matter of seconds, and of threads and sockets.
    """

    port: int

    def check(self) -> bool:
        """Return whether the cluster has a broker now."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=_TIMEOUT_S) as connection:
                connection.sendall(_METADATA_REQUEST)
                # Length, correlation id, throttle time, number of brokers.
                answer = connection.recv(16, socket.MSG_WAITALL)
        except OSError:
            return False
        return len(answer) == 16 and struct.unpack(">iiii", answer)[3] > 0

    def __str__(self) -> str:
        return f"the broker at 127.0.0.1:{self.port} to register"


def http_get(url: str) -> tuple[int, bytes]:
    """Return status and body of `url`; status 0 where there is no answer.

    Plain http.client: a proxy set in the environment must not be asked for a server on loopback.
    """
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}")
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()
