import subprocess
import sys

import pytest
from pydantic import ValidationError

from services.kit.errors import UserError
from services.kit.kafka import KafkaSettings
from services.kit.service import StatusServer, StatusSettings
from services.kit.settings import load
from services.kit.topics import declared
from services.kit.wait import until


def test_all_errors_are_listed_and_no_secret_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HINDCAST_KAFKA_SECURITY_PROTOCOL", "TELEGRAPH")
    monkeypatch.setenv("HINDCAST_KAFKA_BOOTSTRAP_TIMEOUT_S", "hunter2")
    with pytest.raises(UserError) as caught:
        load(KafkaSettings)
    assert caught.value.exit_code == 2
    assert "HINDCAST_KAFKA_SECURITY_PROTOCOL" in str(caught.value)
    assert "HINDCAST_KAFKA_BOOTSTRAP_TIMEOUT_S" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_copy_takes_what_the_environment_would_and_nothing_else() -> None:
    settings = KafkaSettings(bootstrap="127.0.0.1:9")
    assert settings.model_copy(update={"bootstrap_timeout_s": "2"}).bootstrap_timeout_s == 2.0
    with pytest.raises(ValidationError, match="PLAINTEXT"):
        settings.model_copy(update={"security_protocol": "TELEGRAPH"})
    with pytest.raises(KeyError, match="bootstrp"):
        settings.model_copy(update={"bootstrp": "127.0.0.1:9"})


def test_a_misspelt_setting_is_warned_of_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in (
        "HINDCAST_KAFKA_BOOTSTRP",
        "HINDCAST_KAFKA_SASL_PASWORD_FILE",
        "HINDCAST_KAFKA_VERSION",
        "KAFKA_BOOTSTRP",
    ):
        monkeypatch.setenv(name, "hunter2")
    monkeypatch.setenv("HINDCAST_KAFKA_BOOTSTRAP", "127.0.0.1:9092")
    load(KafkaSettings)
    assert sorted(caplog.messages) == [
        "HINDCAST_KAFKA_BOOTSTRP is no setting; did you mean HINDCAST_KAFKA_BOOTSTRAP?",
        "HINDCAST_KAFKA_SASL_PASWORD_FILE is no setting; did you mean HINDCAST_KAFKA_SASL_PASSWORD_FILE?",
    ]


def test_secrets_do_not_show_in_a_dump(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HINDCAST_KAFKA_SASL_PASSWORD", "hunter2")
    settings = load(KafkaSettings)
    assert "hunter2" not in repr(settings)
    assert "hunter2" in settings.client_config().values()


def test_an_unreachable_broker_is_named_with_what_to_do_and_no_traceback() -> None:
    program = (
        "from services.kit.kafka import KafkaSettings, admin; from services.kit.service import run;"
        "run('probe', lambda: admin(KafkaSettings(bootstrap='127.0.0.1:9', bootstrap_timeout_s=0.5)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "127.0.0.1:9 " in done.stderr
    assert "HINDCAST_KAFKA_BOOTSTRAP" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_named_with_what_to_do() -> None:
    first = StatusServer(StatusSettings())
    try:
        with pytest.raises(UserError, match=f"{first.port}.*\n.*HINDCAST_STATUS_PORT") as caught:
            StatusServer(StatusSettings(port=first.port))
        assert caught.value.exit_code == 2
    finally:
        first.close()


def test_unit_topics_are_declared_for_every_stream() -> None:
    topics = declared()
    assert set(topics.streams().values()) == {
        "dcgm", "nic", "switch", "bmc", "storage", "steps", "jobs", "logs",
    }  # fmt: skip
    assert topics.of_stream("steps") == "jobs.steps"
    assert {"findings", "dead-letter", "replays"} <= set(topics.topics)


def test_waiting_says_what_did_not_come() -> None:
    with pytest.raises(UserError, match="the moon") as caught:
        until(lambda: False, timeout_s=0.01, what="the moon")
    assert caught.value.exit_code == 3
