"""kubectl's configuration: the server of a context, and how it lets us in; read each time, as tokens are renewed."""

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from services.kit.errors import UsageError
from services.recording.importers.parts.objects import WrongObjectError, part, parts
from services.recording.importers.parts.series.query_api import Access

if TYPE_CHECKING:
    import httpx

KUBECONFIG = "kubeconfig"
_LISTS = ("clusters", "users", "contexts")
_REFUSED = {
    "clusters": ("insecure-skip-tls-verify", "tls-server-name", "proxy-url"),
    "users": ("exec", "auth-provider", "username", "as", "as-uid", "as-groups", "as-user-extra"),
}
"""What is not followed: to pass it over would be to get in as somebody else, or somewhere else."""
_PROXY = "run `kubectl proxy`, which logs in as kubectl does, and give its address: --kubernetes http://127.0.0.1:8001"


def kubeconfig_of(given: str) -> "Kubeconfig | None":
    """Return the context that `kubeconfig` or `kubeconfig:CONTEXT` means; None where something else is given."""
    name, colon, context = given.partition(":")
    return Kubeconfig(context if colon else None) if name == KUBECONFIG else None


@dataclass(frozen=True)
class _Entry:
    """A cluster, user or context, and the folder that paths in it start from."""

    kind: str
    name: str
    fields: Mapping[str, Any]
    file: Path

    def word(self, key: str) -> str:
        """Return a text, empty where there is none; WrongObjectError where it is something else."""
        value = self.fields.get(key)
        if value is not None and not isinstance(value, str):
            raise WrongObjectError(f"{key} is no text")
        return value or ""

    def content(self, key: str) -> bytes:
        """Return what `KEY-data` holds in base64, or else the file named by `KEY`; empty where there is neither."""
        data, path = self.word(f"{key}-data"), self.word(key)
        try:
            return base64.b64decode(data, validate=True) if data or not path else (self.file.parent / path).read_bytes()
        except (binascii.Error, ValueError):
            raise WrongObjectError(f"{key}-data is no base64") from None
        except OSError as error:
            raise WrongObjectError(f"{key}: {error}") from None


class Kubeconfig:
    """A context of $KUBECONFIG, or of ~/.kube/config; the current one where none is named."""

    def __init__(self, context: str | None) -> None:
        self._context = context

    def client(self) -> "httpx.Client":
        """Return an HTTP client; UserError (exit code 2) where the files have no such context, or it cannot be used."""
        import httpx

        files = [Path(name) for name in os.environ.get("KUBECONFIG", "").split(os.pathsep) if name]
        files = files or [Path.home() / ".kube" / "config"]
        try:
            cluster, user = self._chosen(files)
            verify, token = _trust(cluster, user), _token(user)
            headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
            access = Access(cluster.word("server"), option="the kubeconfig's server", token_variable="")
            return httpx.Client(base_url=access.address, headers=headers, verify=verify, timeout=access.timeout_s)
        except WrongObjectError as error:
            shown = ", ".join(map(str, files))
            remedy = f"choose another context: --kubernetes {KUBECONFIG}:CONTEXT, or {_PROXY}"
            raise UsageError(f"{shown}: {error}", remedy=remedy) from None

    def _chosen(self, files: list[Path]) -> tuple[_Entry, _Entry]:
        known: dict[tuple[str, str], _Entry] = {}
        current = self._context
        for file in files:
            document = _document(file)
            current = current or document.get("current-context")
            for kind in _LISTS:
                for one in parts(document, kind):
                    entry = _Entry(kind, str(one.get("name")), part(one, kind.removesuffix("s")), file)
                    known.setdefault((kind, entry.name), entry)  # as kubectl has it: the first file counts
        context = _named(known, "contexts", str(current or ""))
        cluster, user = (_named(known, f"{kind}s", context.word(kind)) for kind in ("cluster", "user"))
        for entry in (cluster, user):
            for key in _REFUSED[entry.kind]:
                if entry.fields.get(key):
                    raise WrongObjectError(f"{entry.kind[:-1]} {entry.name!r} has {key}, which is not supported")
        return cluster, user


def _document(file: Path) -> Mapping[str, Any]:
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise WrongObjectError(f"{file} cannot be read: {' '.join(str(error).split())[:300]}") from None
    if not isinstance(document, dict):
        raise WrongObjectError(f"{file} is no kubeconfig")
    return document


def _named(known: Mapping[tuple[str, str], _Entry], kind: str, name: str) -> _Entry:
    entry = known.get((kind, name))
    if entry is None:
        there = ", ".join(sorted(other for list_, other in known if list_ == kind)[:8]) or "none"
        raise WrongObjectError(f"no {kind[:-1]} {name!r}: there are {there}")
    return entry


def _token(user: _Entry) -> str:
    path = user.word("tokenFile")
    try:
        return (user.file.parent / path).read_text(encoding="utf-8").strip() if path else user.word("token")
    except (OSError, ValueError) as error:
        raise WrongObjectError(f"tokenFile: {error}") from None


def _trust(cluster: _Entry, user: _Entry) -> ssl.SSLContext:
    """Return whom to believe, and the certificate to show."""
    authority = cluster.content("certificate-authority")
    certificate, key = user.content("client-certificate"), user.content("client-key")
    try:
        trust = ssl.create_default_context(cadata=authority.decode("ascii") if authority else None)
        if certificate:
            with tempfile.TemporaryDirectory(prefix="hindcast-kubeconfig-") as folder:  # ssl takes no bytes
                pair = Path(folder) / "pair.pem"
                pair.touch(mode=0o600)
                pair.write_bytes(certificate + b"\n" + key)
                trust.load_cert_chain(pair)
    except (ssl.SSLError, ValueError) as error:
        raise WrongObjectError(f"its certificates or key cannot be read: {error}") from None
    return trust
