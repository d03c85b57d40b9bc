"""Who is known by what, which files of tokens are refused, and that a file is read again when it changes."""

import base64
import logging
from pathlib import Path

import pytest
import yaml

from services.kit.access import Gate, Token, new_token
from services.kit.errors import UserError
from services.kit.service import StatusSettings
from services.kit.settings import load


def written(path: Path, *tokens: Token) -> Path:
    path.write_text(yaml.safe_dump([token.model_dump(mode="json") for token in tokens]), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "text", ["", "[]", "nonsense", "[{name: a, role: king, sha256: '00'}]", "a: [", "- {name: a, role: viewer}"]
)
def test_a_wrong_file_of_tokens_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    file = tmp_path / "tokens.yaml"
    file.write_text(text, encoding="utf-8")
    monkeypatch.setenv("HINDCAST_STATUS_TOKENS_FILE", str(file))
    with pytest.raises(UserError, match=r"tokens\.yaml.*hindcast token does") as refused:
        load(StatusSettings)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "a.host", ""])  # noqa: S104 - what is refused
def test_nobody_is_let_in_unasked_from_elsewhere(host: str) -> None:
    with pytest.raises(UserError, match="can be reached from elsewhere") as refused:
        load(StatusSettings, host=host)
    assert refused.value.exit_code == 2
    assert load(StatusSettings, host="::1").tokens_file is None


def test_all_that_is_wrong_is_listed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HINDCAST_STATUS_PORT", "many")
    with pytest.raises(UserError, match=r"(?s)2 wrong.*HINDCAST_STATUS_PORT.*HINDCAST_STATUS_TOKENS_FILE"):
        load(StatusSettings, host="10.0.0.1")


def test_a_token_is_known_by_bearer_and_as_the_password_of_basic(tmp_path: Path) -> None:
    secret, token = new_token("grafana", "viewer")
    gate = Gate(written(tmp_path / "tokens.yaml", token))
    pair = base64.b64encode(f"anybody:{secret}".encode()).decode()
    for shown in (f"Bearer {secret}", f"bearer  {secret} ", f"Basic {pair}"):
        who = gate.who({"authorization": shown})
        assert who is not None
        assert (who.name, who.role) == ("grafana", "viewer")
    for shown in ("", "Bearer", "Bearer ", f"Bearer {secret}x", f"Basic {secret}", "Basic ÿ", secret, "Bearer é"):
        assert gate.who({"authorization": shown}) is None, shown


def test_a_proxy_speaks_for_whom_it_names_and_nobody_else_does(tmp_path: Path) -> None:
    secret, proxy = new_token("sso", "proxy")
    other_secret, viewer = new_token("curious", "viewer")
    gate = Gate(written(tmp_path / "tokens.yaml", proxy.model_copy(update={"operators": ("on-call",)}), viewer))
    asked = {"authorization": f"Bearer {secret}"}
    assert gate.who(asked) is None  # it has no name for whoever asks
    assert gate.who(asked | {"x-forwarded-user": " "}) is None
    for groups, role in (("", "viewer"), ("staff, on-call", "operator"), ("on-call2", "viewer")):
        who = gate.who(asked | {"x-forwarded-user": "ada", "x-forwarded-groups": groups})
        assert who is not None
        assert (who.name, who.role) == ("ada", role)
    forged = {"x-forwarded-user": "ada", "x-forwarded-groups": "on-call"}
    assert gate.who(forged) is None
    who = gate.who(forged | {"authorization": f"Bearer {other_secret}"})
    assert who is not None
    assert (who.name, who.role) == ("curious", "viewer")


def test_a_file_that_changes_is_read_again_and_a_damaged_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (old, first), (new, second) = new_token("old", "viewer"), new_token("new", "operator")
    file = written(tmp_path / "tokens.yaml", first)
    gate = Gate(file)
    written(file, second).touch()
    assert gate.who({"authorization": f"Bearer {old}"}) is None
    assert gate.who({"authorization": f"Bearer {new}"}) is not None
    with caplog.at_level(logging.ERROR):
        for damage in (lambda: file.write_text("nonsense", encoding="utf-8"), file.unlink):
            damage()
            assert gate.who({"authorization": f"Bearer {new}"}) is not None
    assert caplog.text.count("those of before hold") == 2
