"""Where a service that answers HTTP listens, and whom it answers: this machine only, or whoever has a token."""

import ipaddress
import socket
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from services.kit.access import tokens_in
from services.kit.errors import UsageError
from services.kit.settings import Settings
from services.kit.tls import ServerTls

Port = Annotated[int, Field(ge=0, le=65535, description="The port it listens on; 0: any free one.")]
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Listening(Settings):
    """Settings of a service that answers HTTP; each gives its own port, 0 is any free one."""

    host: str = "127.0.0.1"
    """The address it listens on. Beyond loopback a file of tokens is needed."""
    port: Port
    tokens_file: Annotated[Path | None, Field(validate_default=True)] = None
    """Who may ask (`hindcast token` makes it); without one it answers this machine only, and everybody there."""
    host_names: tuple[str, ...] = ()
    """Names under which browsers reach it, beside those of loopback and `host`."""

    tls_certificate_file: Path | None = None
    """With `tls_key_file`, PEM: it is reached over TLS. They are read again when they are renewed."""
    tls_key_file: Path | None = None
    """The private key of `tls_certificate_file`, PEM."""
    tls_client_ca_file: Annotated[Path | None, Field(validate_default=True)] = None
    """Only who has a certificate of this authority can connect."""

    audit_file: Path | None = None
    """Who changed what and when, and who was refused: a line of JSON each. It may be rotated at any time."""
    access_log: bool = False
    """Each answer is logged: method, path, status, seconds, who asked and from where."""

    @field_validator("tokens_file")
    @classmethod
    def _callers_are_known(cls, file: Path | None, info: ValidationInfo) -> Path | None:
        host = info.data.get("host", "")
        if file is not None:
            tokens_in(file)
        elif not is_loopback(host):
            raise ValueError(
                f"{host or 'the host'} can be reached from elsewhere, and nobody is asked for a token: name a file of "
                "tokens (hindcast token makes one), or listen on 127.0.0.1"
            )
        return file

    @field_validator("tls_client_ca_file")
    @classmethod
    def _certificates_can_be_used(cls, client_ca: Path | None, info: ValidationInfo) -> Path | None:
        _tls(info.data.get("tls_certificate_file"), info.data.get("tls_key_file"), client_ca)
        return client_ca

    def tls(self) -> ServerTls | None:
        """Return what it shows over TLS, None where it is reached without. Raises ValueError as ServerTls does."""
        return _tls(self.tls_certificate_file, self.tls_key_file, self.tls_client_ca_file)

    def address(self, listening: socket.socket) -> str:
        """Return the URL at which its listening socket is reached."""
        host, port = listening.getsockname()[:2]
        scheme = "http" if self.tls_certificate_file is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def listen(self) -> socket.socket:
        """Return a listening socket; raise UserError (exit code 2) where the port cannot be had."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            listening = socket.create_server((self.host, self.port), family=family, backlog=256)
        except OSError as error:
            raise UsageError(
                f"cannot listen on {self.host}:{self.port}: {error.strerror}",
                remedy=f"end what uses that port, or set {self.model_config['env_prefix']}PORT to another"
                " (0: any free one)",
            ) from error
        # Those it accepts have it too. asyncio sets it for sockets with a protocol number only, which this has not:
        # every answer on a connection that is kept would wait 40 ms for an acknowledgement.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _tls(certificate: Path | None, key: Path | None, client_ca: Path | None) -> ServerTls | None:
    if certificate is not None and key is not None:
        return ServerTls(certificate, key, client_ca)
    if certificate is not None or key is not None or client_ca is not None:
        raise ValueError("TLS needs TLS_CERTIFICATE_FILE and TLS_KEY_FILE")
    return None
