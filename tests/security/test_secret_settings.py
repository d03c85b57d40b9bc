"""Secrets from files, and addresses that have none in them."""

import os
from pathlib import Path

import pytest

from services.api.settings import ApiSettings
from services.kit.errors import UserError
from services.kit.kafka import KafkaSettings
from services.kit.secret import secrets_among
from services.kit.settings import Settings, load
from services.notify.settings import NotifySettings
from services.replay.settings import ControlSettings
from services.sink.settings import SinkSettings
from services.stack.settings import StackSettings, load_settings

PLANTED = "planted-of-this-test"
WITH_SECRETS = (ApiSettings, ControlSettings, KafkaSettings, NotifySettings, SinkSettings, StackSettings)
SECRETS = [
    (kind, name, f"{kind.model_config['env_prefix']}{name}".upper())
    for kind in WITH_SECRETS
    for name in secrets_among(kind.model_fields)
]
# Settings without which a secret is refused.
COMPANIONS = {
    "HINDCAST_SINK_PASSWORD": ("HINDCAST_SINK_USERNAME", "u"),
    "HINDCAST_NOTIFY_PASSWORD": ("HINDCAST_NOTIFY_USERNAME", "u"),
}


def all_settings() -> set[type[Settings]]:
    def below(kind: type[Settings]) -> set[type[Settings]]:
        return {one for sub in kind.__subclasses__() for one in (sub, *below(sub))}

    return {kind for kind in below(Settings) if kind.__module__.startswith("services.")}


def test_whatever_sounds_like_a_secret_is_one() -> None:
    for kind in all_settings():
        secrets = set(secrets_among(kind.model_fields))
        named = {name for name in kind.model_fields if name.endswith(("password", "token", "bearer", "secret"))}
        assert named <= secrets, kind
        assert not secrets or kind in WITH_SECRETS


@pytest.mark.parametrize(("kind", "name", "setting"), SECRETS, ids=str)
def test_every_secret_is_read_from_a_file_again_when_it_changes_and_shown_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Settings], name: str, setting: str
) -> None:
    file = tmp_path / "secret"
    planted = f"http://{PLANTED}" if "WEBHOOK" in setting else PLANTED
    file.write_text(f"{planted}\n")
    monkeypatch.setenv(f"{setting}_FILE", str(file))
    if setting in COMPANIONS:
        monkeypatch.setenv(*COMPANIONS[setting])
    settings = load_settings() if kind is StackSettings else load(kind)
    assert getattr(settings, name).get_secret_value() == planted
    assert PLANTED not in repr(settings) + str(settings) + settings.model_dump_json()
    file.write_text("another\n")
    os.utime(file, ns=(0, 1))
    assert getattr(settings, name).get_secret_value() == "another"
    file.unlink()
    assert getattr(settings, name).get_secret_value() == "another"

    for content in (None, "", "\n", "two\nlines"):
        if content is not None:
            file.write_text(content)
        with pytest.raises(UserError, match=rf"{setting}: .*{file}") as refused:
            load(kind)
        assert refused.value.exit_code == 2
    file.write_text(planted)
    monkeypatch.setenv(setting, PLANTED)
    with pytest.raises(UserError, match=f"{setting}: .*choose one") as refused:
        load(kind)
    assert PLANTED not in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        (SinkSettings, "HINDCAST_SINK_URL"),
        (NotifySettings, "HINDCAST_NOTIFY_ALERTMANAGER_URL"),
        (ApiSettings, "HINDCAST_API_REPLAY_URL"),
        (ApiSettings, "HINDCAST_API_ALERTMANAGER_URL"),
        (ApiSettings, "HINDCAST_API_SOURCES"),
        (ControlSettings, "HINDCAST_REPLAY_URL"),
    ],
)
def test_an_address_with_a_password_is_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, kind: type[Settings], setting: str
) -> None:
    address = f"http://user:{PLANTED}@127.0.0.1:9/"
    monkeypatch.setenv(setting, f'{{"here": "{address}"}}' if "SOURCES" in setting else address)
    with pytest.raises(UserError, match=rf"{setting}\S*: .*password in it") as refused:
        load(kind)
    assert PLANTED not in str(refused.value)


def test_a_webhook_that_is_no_address_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HINDCAST_STACK_WEBHOOK_URL", PLANTED)
    with pytest.raises(UserError, match=r"HINDCAST_STACK_WEBHOOK_URL: .*no http address") as refused:
        load_settings()
    assert PLANTED not in str(refused.value)
