"""`hindcast topics`: whom it waits for is seen at once."""

import pytest

from services.cli.conftest import hindcast
from services.kit.errors import UserError


@pytest.mark.parametrize("command", ["create", "units"])
def test_who_is_asked_is_named_before_the_answer(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("HINDCAST_KAFKA_BOOTSTRAP", "127.0.0.1:1")
    monkeypatch.setenv("HINDCAST_KAFKA_BOOTSTRAP_TIMEOUT_S", "0.2")
    result = hindcast("topics", command)
    assert isinstance(result.exception, UserError)
    assert result.stderr.startswith("asking 127.0.0.1:1 ...")
    assert result.stdout == ""
