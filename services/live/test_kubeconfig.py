import base64
import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.kit.errors import UserError
from services.live.api_server import entrance
from services.live.kubernetes import Kubernetes
from tests.answering import Server, answering
from tests.certificates import Pair, authority, signed

LISTED = '{"metadata": {"resourceVersion": "1"}, "items": []}'


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Pair]:
    """An authority, and what it signed, for server and client."""
    folder = tmp_path_factory.mktemp("certificates")
    by = authority(folder)
    return by.certificate, signed(folder, by, "hindcast")


@pytest.fixture
def server(pairs: tuple[Path, Pair]) -> Iterator[Server]:
    """A server that lets nobody in without a certificate of the authority."""
    trust = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(pairs[0]))
    trust.load_cert_chain(pairs[1].certificate, pairs[1].key)
    trust.verify_mode = ssl.CERT_REQUIRED
    with answering(trust) as serving:
        serving.answers = {f"/api/v1/{kind}?limit=500": (200, LISTED) for kind in ("pods", "nodes")}
        yield serving


def configuration(server: str, cluster: dict[str, Any], user: dict[str, Any]) -> dict[str, Any]:
    return {
        "clusters": [{"name": "vela", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "ada", "user": user}],
        "contexts": [{"name": "ada@vela", "context": {"cluster": "vela", "user": "ada"}}],
        "current-context": "ada@vela",
    }


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "config"
    monkeypatch.setenv("KUBECONFIG", str(file))
    return file


def encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


@pytest.mark.parametrize("inline", [True, False])
def test_a_client_certificate_lets_us_in(
    server: Server, pairs: tuple[Path, Pair], written: Path, *, inline: bool
) -> None:
    files = {"certificate-authority": pairs[0], "client-certificate": pairs[1].certificate, "client-key": pairs[1].key}
    if inline:
        fields = {f"{key}-data": encoded(path) for key, path in files.items()}
    else:  # paths start from the configuration's folder
        fields = {key: Path(shutil.copy(path, written.parent / key)).name for key, path in files.items()}
    user = {key: value for key, value in fields.items() if key.startswith("client")}
    cluster = {key: value for key, value in fields.items() if key.startswith("certificate")}
    written.write_text(yaml.safe_dump(configuration(server.url, cluster, user)))
    assert Kubernetes(entrance("kubeconfig", None, None)).ask().nodes == {}
    written.write_text(yaml.safe_dump(configuration(server.url, cluster, {"token": "x"})))
    with pytest.raises(UserError, match="cannot be reached"):
        Kubernetes(entrance("kubeconfig", None, None)).ask()


def test_a_token_is_read_each_time_and_its_file_counts(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = written.with_name("other")
    token = written.with_name("token")
    token.write_text("first\n")
    first = configuration("http://127.0.0.1:1", {}, {"token": "inline", "tokenFile": "token"})
    written.write_text(yaml.safe_dump(first))
    second = configuration("http://127.0.0.1:2", {}, {"token": "inline"})
    second["contexts"].append({"name": "other", "context": {"cluster": "more", "user": "bob"}})
    second["clusters"].append({"name": "more", "cluster": {"server": "http://127.0.0.1:3"}})
    second["users"].append({"name": "bob", "user": {"token": "bobs"}})
    other.write_text(yaml.safe_dump(second))
    monkeypatch.setenv("KUBECONFIG", f"{written}:{other}")
    current = entrance("kubeconfig", None, None)

    def shown(one: Any) -> tuple[str, str]:
        with one.client() as client:
            return str(client.base_url), client.headers["Authorization"]

    assert shown(current) == ("http://127.0.0.1:1", "Bearer first")  # the first file counts where both have a name
    token.write_text("second")
    assert shown(current) == ("http://127.0.0.1:1", "Bearer second")
    assert shown(entrance("kubeconfig:other", None, None)) == ("http://127.0.0.1:3", "Bearer bobs")


GOOD = configuration("https://127.0.0.1:1", {}, {"token": "t"})
NO_PEM = base64.b64encode(b"no certificate").decode()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "config cannot be read: "),
        ("[1, 2]", "is no kubeconfig"),
        ("a: [", "config cannot be read: "),
        (GOOD | {"current-context": "gone"}, "no context 'gone': there are ada@vela"),
        (GOOD | {"current-context": None}, "no context ''"),
        (GOOD | {"users": []}, "no user 'ada': there are none"),
        (GOOD | {"clusters": 3}, "clusters is no list of objects"),
        (configuration("https://h", {}, {"exec": {"command": "aws"}}), "user 'ada' has exec, which is not supported"),
        (configuration("https://h", {}, {"as": "root"}), "user 'ada' has as, which"),
        (configuration("https://h", {"insecure-skip-tls-verify": True}, {}), "has insecure-skip-tls-verify"),
        (configuration("https://h", {"certificate-authority-data": "%"}, {}), "authority-data is no base64"),
        (configuration("https://h", {"certificate-authority-data": NO_PEM}, {}), "certificates or key cannot be read"),
        (configuration("https://h", {}, {"client-certificate-data": NO_PEM}), "certificates or key cannot be read"),
        (configuration("https://h", {}, {"client-certificate": "gone.pem"}), "client-certificate: .*No such file"),
        (configuration("https://h", {}, {"tokenFile": "gone"}), "tokenFile: .*No such file"),
        (configuration("https://h", {}, {"token": 3}), "token is no text"),
        (configuration("vela:6443", {}, {}), "the kubeconfig's server 'vela:6443' is no URL"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_named_with_a_remedy(written: Path, content: Any, words: str) -> None:
    if content is not None:
        written.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    with pytest.raises(UserError, match=words) as refused:
        entrance("kubeconfig", None, None).client()
    assert refused.value.exit_code == 2
    assert refused.value.remedy
