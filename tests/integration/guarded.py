"""A Prometheus over TLS that asks for a client's certificate and a password, beside those of the stack."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml

from services.kit.tls import client_context
from services.stack.health import HttpHealth
from services.stack.runner import Stack
from services.stack.spec import ProcessSpec
from tests.certificates import Pair, authority, signed

USER, PASSWORD = "reader", "test"
# Of the password, as Prometheus' documentation has it.
_USERS = {USER: "$2b$12$hNf2lSsxfm0.i4a.1kVpSOVyBCfIB51VRjgBUyv6kdnyTlgWj81Ay"}
_NAME = "prometheus-guarded"


@dataclass(frozen=True)
class Guarded:
    """Where it is, whom to believe, and what to show."""

    url: str
    ca: Path
    client: Pair

    def asker(self) -> httpx.Client:
        """Return a client that shows the certificate and the password."""
        verify = client_context(self.ca, self.client.certificate, self.client.key)
        return httpx.Client(base_url=self.url, verify=verify, auth=(USER, PASSWORD), timeout=300)


@dataclass(frozen=True)
class _LetsIn(HttpHealth):
    """Healthy when who has certificate and password is answered."""

    client: httpx.Client

    def check(self) -> bool:
        try:
            return self.client.get(self.url).is_success
        except httpx.TransportError:
            return False


@contextmanager
def guarded_prometheus(stack: Stack, folder: Path, *flags: str) -> Iterator[Guarded]:
    """Run one that takes remote-write, with `flags` beside; its files are in `folder`."""
    server = next(process.spec for process in stack.processes if process.name == "prometheus")
    if not Path(server.argv[0]).is_file():
        pytest.skip("the servers run in containers: there is no Prometheus to start with a configuration of its own")
    ours = authority(folder)
    shown, client = (signed(folder, ours, name) for name in ("server", "client"))
    config, web = folder / "prometheus.yml", folder / "web.yml"
    config.write_text("global: {}\n")
    tls = {
        "cert_file": str(shown.certificate),
        "key_file": str(shown.key),
        "client_ca_file": str(ours.certificate),
        "client_auth_type": "RequireAndVerifyClientCert",
    }
    web.write_text(yaml.safe_dump({"basic_auth_users": _USERS, "tls_server_config": tls}))
    port = stack.service_context().ports.take()
    given = (
        f"--config.file={config}",
        f"--web.config.file={web}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--web.enable-remote-write-receiver",
        *flags,
    )
    guarded = Guarded(f"https://127.0.0.1:{port}", ours.certificate, client)
    with guarded.asker() as asker:
        health = _LetsIn(f"{guarded.url}/-/ready", asker)
        stack.add_process(ProcessSpec(_NAME, (server.argv[0], *given), health, ports=(port,)))
        yield guarded
        stack.remove(_NAME)
