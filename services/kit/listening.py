"""Where a service that answers HTTP listens: on loopback, unless somebody says otherwise."""

import ipaddress
import socket
from typing import Annotated

from pydantic import Field

from services.kit.errors import UserError
from services.kit.settings import Settings

Port = Annotated[int, Field(ge=0, le=65535)]


class Listening(Settings):
    """Settings of a service that answers HTTP; each gives its own port, 0 is any free one."""

    host: str = "127.0.0.1"
    port: Port

    @property
    def loopback(self) -> bool:
        """Return whether only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def listen(self) -> socket.socket:
        """Return a listening socket; raise UserError (exit code 2) where the port cannot be had."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            return socket.create_server((self.host, self.port), family=family, backlog=256)
        except OSError as error:
            raise UserError(
                f"cannot listen on {self.host}:{self.port}: {error.strerror}",
                remedy=f"end what uses that port, or set {self.model_config['env_prefix']}PORT to another"
                " (0: any free one)",
                exit_code=2,
            ) from error


def address_of(listening: socket.socket) -> str:
    """Return the URL at which a listening socket is reached."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
