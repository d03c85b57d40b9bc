from pathlib import Path

import pytest

from services.cli.conftest import hindcast
from services.kit.errors import UserError


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HINDCAST_STACK_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("HINDCAST_STACK_CACHE_DIR", str(tmp_path / "cache"))


def test_doctor_exits_1_and_says_how_to_get_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    result = hindcast("doctor")
    assert result.exit_code == 1
    for remedy in ("apt-get install openjdk-17", "apt-get install maven", "/usr/local/go/bin", "apt-get install make"):
        assert remedy in result.output
    assert "make demo runs on the embedded engine" in result.output


@pytest.mark.parametrize("command", ["status", "addresses"])
def test_without_a_stack_the_command_says_how_to_start_one(tmp_path: Path, command: str) -> None:
    result = hindcast("stack", command)
    assert isinstance(result.exception, UserError)
    assert str(tmp_path / "state") in result.exception.message
    assert "hindcast stack up" in result.exception.remedy


def test_ending_a_stack_that_does_not_run_is_no_error() -> None:
    result = hindcast("stack", "down")
    assert result.exit_code == 0
    assert "no stack runs" in result.output
