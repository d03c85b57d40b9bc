import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from services.kit.errors import UserError
from services.notify.receiver.app import app
from services.notify.receiver.payload import Notification
from services.notify.receiver.settings import ReceiverSettings
from services.notify.receiver.store import Store
from services.notify.sample import post_sample, sample
from tests import web


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path)
    yield store
    store.close()


@pytest.fixture
def url(store: Store) -> Iterator[str]:
    with web.served(app(store, ReceiverSettings())) as url:
        yield url


def body(replay: str) -> dict[str, object]:
    made = sample(datetime(2026, 1, 1, tzinfo=UTC))
    made["alerts"] = [{**alert, "labels": {"replay": replay}} for alert in made["alerts"]]  # type: ignore[attr-defined] # a list
    return made


def test_the_sample_is_what_the_receiver_takes() -> None:
    assert Notification.model_validate(sample(datetime.now(UTC))).alerts[0].labels["test"] == "true"


def test_notifications_are_counted(url: str) -> None:
    def count() -> float:
        text = web.get(f"{url}/metrics").text
        found = [
            line
            for line in text.splitlines()
            if line.startswith('hindcast_receiver_notifications_total{status="firing"}')
        ]
        return float(found[0].split()[1]) if found else 0.0

    before = count()
    web.post(f"{url}/webhook", json=body("a")).raise_for_status()
    assert count() == before + 1


def test_what_is_received_is_given_back_as_it_came_by_replay(url: str) -> None:
    for replay in ("a", "b"):
        web.post(f"{url}/webhook", json=body(replay)).raise_for_status()
    assert [entry["body"] for entry in web.get(f"{url}/received").json()] == [body("a"), body("b")]
    assert [e["body"] for e in web.get(f"{url}/received", params={"replay": "b"}).json()] == [body("b")]


@pytest.mark.parametrize(
    ("broken", "words"),
    [({"version": "3"}, "version"), ({"alerts": []}, "alerts"), ({"status": "perhaps"}, "status")],
)
def test_what_is_no_notification_is_refused_with_a_reason(url: str, broken: dict[str, object], words: str) -> None:
    answer = web.post(f"{url}/webhook", json=body("a") | broken)
    assert answer.status_code == 400
    assert words in answer.text
    assert web.get(f"{url}/received").json() == []


def test_a_restart_keeps_everything_but_half_a_line(tmp_path: Path) -> None:
    first = Store(tmp_path)
    first.add(body("a"))
    first.close()
    with (tmp_path / "received.jsonl").open("a") as file:
        file.write('{"received_at": "2026')
    second = Store(tmp_path)
    second.add(body("b"))
    assert [entry["body"] for entry in second.entries(None)] == [body("a"), body("b")]
    second.close()
    lines = (tmp_path / "received.jsonl").read_text().splitlines()
    assert [json.loads(line)["body"] for line in lines] == [body("a"), body("b")]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write") as refused:
        Store(tmp_path / "file")
    assert refused.value.exit_code == 2


def test_a_sample_that_is_posted_arrives_and_the_answer_is_printed(url: str) -> None:
    assert "answered 200 OK" in post_sample(f"{url}/webhook")
    assert len(web.get(f"{url}/received").json()) == 1


@pytest.mark.parametrize(
    ("path", "words", "exit_code"),
    [
        ("{url}/nowhere", "answered 404", 1),
        ("http://127.0.0.1:1/webhook", "no answer from", 3),
        ("webhook", "is not a URL", 2),
    ],
)
def test_a_sample_that_cannot_be_posted_says_what_is_wrong(url: str, path: str, words: str, exit_code: int) -> None:
    with pytest.raises(UserError) as failed:
        post_sample(path.format(url=url))
    assert words in failed.value.message
    assert failed.value.exit_code == exit_code


def test_a_notification_of_thousands_of_alerts_is_taken_and_one_of_any_size_is_not(url: str) -> None:
    one = body("a")
    many = one | {"alerts": one["alerts"] * 5000}  # type: ignore[operator] # a list
    assert web.post(f"{url}/webhook", json=many).status_code == 200
    assert web.post(f"{url}/webhook", content=bytes(65 << 20)).status_code == 413
