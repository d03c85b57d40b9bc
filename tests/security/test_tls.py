"""Our services over TLS: who connects, what is renewed, which files are refused; and their clients."""

import logging
import os
import shutil
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from services.kit import serving
from services.kit.errors import UserError
from services.kit.service import StatusServer, StatusSettings
from services.kit.settings import load
from services.kit.tls import client_context
from services.kit.wait import until
from services.notify.alertmanager import Alertmanager
from services.notify.settings import NotifySettings
from services.sink.connection import Connection
from services.sink.settings import SinkSettings
from tests.certificates import Pair, authority, signed


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    folder = tmp_path_factory.mktemp("certificates")
    ours, theirs = authority(folder), authority(folder, "another")
    return {
        "authority": ours,
        "another": theirs,
        "server": signed(folder, ours, "server"),
        "renewed": signed(folder, ours, "renewed"),
        "client": signed(folder, ours, "client"),
        "stranger": signed(folder, theirs, "stranger"),
    }


@contextmanager
def status(pair: Pair, client_ca: Path | None = None) -> Iterator[str]:
    files = {"tls_certificate_file": pair.certificate, "tls_key_file": pair.key, "tls_client_ca_file": client_ca}
    server = StatusServer(load(StatusSettings, **files))
    try:
        yield f"https://127.0.0.1:{server.port}"
    finally:
        server.close()


def test_who_believes_its_authority_connects_and_nobody_without_tls(made: dict[str, Pair]) -> None:
    with status(made["server"]) as url:
        believed = client_context(made["authority"].certificate)
        assert httpx.get(f"{url}/metrics", verify=believed).status_code == 200
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(f"{url}/metrics", verify=client_context(made["another"].certificate))
        with pytest.raises(httpx.TransportError):
            httpx.get(url.replace("https", "http"))


def test_where_clients_need_a_certificate_those_without_one_get_nothing(made: dict[str, Pair]) -> None:
    ours = made["authority"].certificate
    with status(made["server"], ours) as url:
        shown = client_context(ours, made["client"].certificate, made["client"].key)
        assert httpx.get(f"{url}/metrics", verify=shown).status_code == 200
        stranger = client_context(ours, made["stranger"].certificate, made["stranger"].key)
        for context in (client_context(ours), stranger):
            with pytest.raises(httpx.TransportError):
                httpx.get(f"{url}/metrics", verify=context)


def test_a_renewed_certificate_is_shown_without_a_restart_and_half_of_one_is_not(
    made: dict[str, Pair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving, "_RENEW_TICKS", 1)
    live = Pair(tmp_path / "live.pem", tmp_path / "live.key")
    for source, target in ((made["server"].certificate, live.certificate), (made["server"].key, live.key)):
        shutil.copy(source, target)
    with status(live) as url, caplog.at_level(logging.INFO):
        before = shown_at(url)
        shutil.copy(made["renewed"].certificate, live.certificate)
        os.utime(live.certificate, ns=(0, 1))
        until(lambda: "not read again" in caplog.text, what="the half to be refused")
        assert shown_at(url) == before
        shutil.copy(made["renewed"].key, live.key)
        os.utime(live.key, ns=(0, 1))
        until(lambda: shown_at(url) != before, what="the renewed certificate")


def shown_at(url: str) -> bytes | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    address = url.removeprefix("https://").split(":")
    with (
        socket.create_connection((address[0], int(address[1])), timeout=300) as plain,
        context.wrap_socket(plain) as connection,
    ):
        return connection.getpeercert(binary_form=True)


def test_files_that_cannot_be_used_are_named(made: dict[str, Pair], tmp_path: Path) -> None:
    server, renewed = made["server"], made["renewed"]
    nothing = tmp_path / "nothing.pem"
    for given, words in (
        ({"tls_certificate_file": server.certificate}, "TLS_KEY_FILE"),
        ({"tls_client_ca_file": server.certificate}, "TLS_CERTIFICATE_FILE"),
        ({"tls_certificate_file": server.certificate, "tls_key_file": nothing}, str(nothing)),
        ({"tls_certificate_file": server.certificate, "tls_key_file": renewed.key}, "(?i)mismatch"),
    ):
        with pytest.raises(UserError, match=words) as refused:
            load(StatusSettings, **given)
        assert refused.value.exit_code == 2
    for client, words in (
        ({"ca_file": nothing}, f"HINDCAST_SINK_CA_FILE: .*{nothing}"),
        ({"key_file": server.key}, "HINDCAST_SINK_KEY_FILE: .*CERTIFICATE_FILE"),
        ({"certificate_file": server.certificate, "key_file": renewed.key}, "HINDCAST_SINK_KEY_FILE"),
    ):
        with pytest.raises(UserError, match=words):
            load(SinkSettings, **client)


def test_the_clients_show_their_certificate_and_believe_their_authority(made: dict[str, Pair]) -> None:
    ours = made["authority"].certificate
    with status(made["server"], ours) as url:
        files = {"ca_file": ours, "certificate_file": made["client"].certificate, "key_file": made["client"].key}
        connection = Connection(load(SinkSettings, url=f"{url}/metrics", **files))
        assert connection.post(b"", "").status == 405  # it was let in: /metrics takes no POST
        connection.close()
        notify = Alertmanager(load(NotifySettings, alertmanager_url=url, **files))
        assert notify.post([]).words.startswith("404")
        notify.close()
        stranger = Connection(load(SinkSettings, url=f"{url}/metrics", ca_file=ours))
        assert stranger.post(b"", "").status == 0
        stranger.close()
