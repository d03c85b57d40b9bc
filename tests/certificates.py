"""Certificates for tests, made by openssl: an authority, and what it signs."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-sha256", "-days", "2")


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, PEM."""

    certificate: Path
    key: Path


def authority(folder: Path, name: str = "authority") -> Pair:
    """Make an authority."""
    made = Pair(folder / f"{name}.pem", folder / f"{name}.key")
    _openssl("req", "-x509", *_KEY, "-subj", f"/CN={name}", "-keyout", made.key, "-out", made.certificate)
    return made


def signed(folder: Path, by: Pair, name: str) -> Pair:
    """Make a certificate of 127.0.0.1 and localhost, for servers and clients, signed by an authority."""
    made = Pair(folder / f"{name}.pem", folder / f"{name}.key")
    names = ("-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-addext", "basicConstraints=CA:FALSE")
    files = ("-CA", by.certificate, "-CAkey", by.key, "-keyout", made.key, "-out", made.certificate)
    _openssl("req", "-x509", *_KEY, "-subj", f"/CN={name}", *names, *files)
    return made


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)
