"""`hindcast token`: what it makes lets in, and nothing else does."""

from pathlib import Path

import yaml

from services.cli.conftest import hindcast
from services.kit.access import Gate


def made(*arguments: str) -> str:
    done = hindcast("token", *arguments)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_token_that_is_made_lets_in(tmp_path: Path) -> None:
    printed = made("a page: 'quoted'", "--role", "operator").splitlines()
    file = tmp_path / "tokens.yaml"
    file.write_text(printed[-1], encoding="utf-8")
    who = Gate(file).who({"authorization": f"Bearer {printed[1].strip()}"})
    assert who is not None
    assert (who.name, who.role) == ("a page: 'quoted'", "operator")


def test_a_second_token_of_a_name_is_spoken_of(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.yaml"
    first, second = (made("bob", "--tokens-file", str(tokens)) for _ in range(2))
    assert f"{tokens}: bob (viewer) added" in first
    assert "already" not in first
    assert "has a token of bob already" in second


def test_made_into_files_it_is_printed_nowhere_and_made_once(tmp_path: Path) -> None:
    tokens, secret = tmp_path / "tokens.yaml", tmp_path / "secret"
    files = ("--tokens-file", str(tokens), "--secret-file", str(secret))
    assert made("monitor", *files) == ""
    assert secret.stat().st_mode & 0o777 == 0o600
    was = (tokens.read_text(), secret.read_text())
    made("monitor", *files)
    assert (tokens.read_text(), secret.read_text()) == was
    tokens.unlink()  # with the tokens file lost, the same token is let in again
    made("monitor", *files)
    made("alertmanager", "--role", "sender", "--tokens-file", str(tokens), "--secret-file", str(tmp_path / "another"))
    assert [one["role"] for one in yaml.safe_load(tokens.read_text())] == ["viewer", "sender"]
    assert was[1].strip() not in tokens.read_text()
    known = Gate(tokens).who({"authorization": f"Bearer {was[1].strip()}"})
    assert known is not None
    assert known.name == "monitor"
