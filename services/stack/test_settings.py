from pathlib import Path

import pytest

from services.kit.errors import UserError
from services.stack.settings import default_cache_dir, default_state_dir, load_settings


def test_every_wrong_setting_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HINDCAST_STACK_PROMETHEUS_PORT", "70000")
    monkeypatch.setenv("HINDCAST_STACK_KAFKA_HEAP", "lots")
    monkeypatch.setenv("HINDCAST_STACK_OUT_OF_ORDER_WINDOW", "twelve hours")
    with pytest.raises(UserError) as caught:
        load_settings()
    assert caught.value.exit_code == 2
    for name in ("PROMETHEUS_PORT", "KAFKA_HEAP", "OUT_OF_ORDER_WINDOW"):
        assert f"HINDCAST_STACK_{name}" in caught.value.message


def test_a_misspelt_setting_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HINDCAST_STACK_PROMETHUES_PORT", "9090")
    with pytest.raises(UserError, match="HINDCAST_STACK_PROMETHUES_PORT") as caught:
        load_settings()
    assert caught.value.exit_code == 2
    assert "HINDCAST_STACK_PROMETHEUS_PORT" in caught.value.remedy


def test_the_choice_of_native_or_containers_is_no_setting_of_the_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HINDCAST_STACK", "native")
    load_settings()


def test_folders_follow_xdg_and_ignore_relative_values(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", "relative/is/to/be/ignored")
    assert default_cache_dir() == tmp_path / "hindcast" / "servers"
    assert default_state_dir() == Path.home() / ".local/state/hindcast/stack"
