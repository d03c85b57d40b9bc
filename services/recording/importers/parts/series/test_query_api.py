from pathlib import Path

import pytest

from services.kit.errors import UserError
from services.kit.tls import ServerTls
from services.recording.importers.parts.series.query_api import Access, QueryApi
from tests.answering import answering
from tests.certificates import authority, signed

ASKED = ("cluster", "up", 0, 1000)


def test_a_server_that_asks_for_a_certificate_is_shown_one(tmp_path: Path) -> None:
    ours = authority(tmp_path)
    server, client = (signed(tmp_path, ours, name) for name in ("server", "client"))
    both = tmp_path / "both.pem"
    both.write_text(client.key.read_text() + client.certificate.read_text())
    trust = ServerTls(server.certificate, server.key, ours.certificate).context
    with answering(trust) as there:
        for certificate, key in ((client.certificate, client.key), (both, None)):
            access = Access(there.url, ca_file=ours.certificate, certificate_file=certificate, key_file=key)
            assert not access.is_open
            with QueryApi(access) as api, pytest.raises(UserError, match=r"no Prometheus query API there \(404\)"):
                api.label_values(*ASKED)
        bare = Access(there.url, ca_file=ours.certificate, retries=0)
        with QueryApi(bare) as api, pytest.raises(UserError, match="cannot be reached"):
            api.label_values(*ASKED)


def test_certificates_that_cannot_be_shown_are_named(tmp_path: Path) -> None:
    ours, other = authority(tmp_path), authority(tmp_path, "other")
    for certificate, key, words in (
        (ours.certificate, other.key, "authority.pem"),
        (None, ours.key, "a key goes with a certificate"),
        (tmp_path / "none", ours.key, "none"),
    ):
        with pytest.raises(UserError, match=words) as raised:
            Access("https://127.0.0.1:1", certificate_file=certificate, key_file=key).client()
        assert raised.value.exit_code == 2


def test_a_token_that_was_renewed_is_shown_once_the_old_one_is_refused(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    with answering() as there, QueryApi(Access(there.url, bearer_file=token, retries=0)) as api:
        with pytest.raises(UserError):
            api.label_values(*ASKED)
        target = there.asked[0][0]
        token.write_text("new")
        there.answers[target] = 401, "run out"
        with pytest.raises(UserError, match="does not let us in"):
            api.label_values(*ASKED)
        there.answers[target] = 200, '{"status": "success", "data": ["vela"]}'
        assert api.label_values(*ASKED) == ["vela"]
        assert [headers["Authorization"] for _, headers in there.asked] == ["Bearer old", "Bearer old", "Bearer new"]
