"""TLS by settings: the certificates of our services, read again when renewed, and what our clients believe and show."""

import functools
import logging
import ssl
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ValidationInfo, field_validator

from services.kit.settings import Settings

_log = logging.getLogger(__name__)


class ServerTls:
    """What a server shows. Files that change are read again; those that do not go together change nothing."""

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None) -> None:
        """Read the files, PEM. Raises ValueError that names them."""
        self._files = (certificate, key, *((client_ca,) if client_ca else ()))
        self._parts = (certificate, key, client_ca)
        self.context = _server_context(*self._parts)
        self._stamps = self._now()

    def renew(self) -> None:
        """Read the files again where they have changed: whoever connects from now on sees the new certificate."""
        stamps = self._now()
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            _server_context(*self._parts)  # first elsewhere: half a change would leave a certificate without its key
            self.context.load_cert_chain(*self._parts[:2])
            if self._parts[2] is not None:
                self.context.load_verify_locations(self._parts[2])
            _log.info("certificate read again file=%s", self._parts[0])
        except ValueError as error:
            _log.error("certificate not read again, that of before holds reason=%s", error)

    def _now(self) -> tuple[int, ...]:
        return tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in self._files)


def _server_context(certificate: Path, key: Path, client_ca: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # ssl.SSLError too
        raise ValueError(f"{certificate}, {key}{f', {client_ca}' if client_ca else ''}: {_words(error)}") from None
    return context


def _words(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


def client_context(ca: Path | None, certificate: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    """Return a client's context. Raises ValueError that names the file that cannot be used."""
    if (ca, certificate, key) == (None, None, None):
        return _system_context()
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise ValueError(f"{ca}: {_words(error)}") from None
    if certificate is not None or key is not None:
        if certificate is None:
            raise ValueError(
                f"{key}: a key goes with a certificate (CERTIFICATE_FILE, --certificate-file), and none is given"
            )
        try:
            context.load_cert_chain(certificate, key)
        except OSError as error:
            raise ValueError(f"{certificate}, {key}: {_words(error)}") from None
    return context


@functools.cache
def _system_context() -> ssl.SSLContext:
    """Return what believes the system's authorities: to read them takes longer than a request does."""
    return ssl.create_default_context()


def _believed(file: Path | None) -> Path | None:
    client_context(file)
    return file


Authorities = Annotated[Path | None, AfterValidator(_believed)]


class Connecting(Settings):
    """Settings of a client that may have to show a certificate, or to know another authority than the system's."""

    ca_file: Authorities = None
    """The authorities that are believed, PEM; the system's if not given."""
    certificate_file: Path | None = None
    """With `key_file`: the certificate that it shows, PEM."""
    key_file: Path | None = None
    """The private key of `certificate_file`, PEM."""

    @field_validator("key_file")
    @classmethod
    def _key_fits(cls, key: Path | None, info: ValidationInfo) -> Path | None:
        client_context(None, info.data.get("certificate_file"), key)
        return key

    def tls(self) -> ssl.SSLContext:
        """Return what connections over TLS are made with."""
        return client_context(self.ca_file, self.certificate_file, self.key_file)
