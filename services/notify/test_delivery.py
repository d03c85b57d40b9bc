"""Delivery and the HTTP client against a server whose answers are chosen: what each answer leads to."""

import base64
import itertools
import json
from collections.abc import Iterator
from email.message import Message
from typing import Any

import pytest

from services.kit.errors import UserError
from services.kit.findings import finding_record_of
from services.kit.settings import load
from services.notify.alert_lifecycle import Policy
from services.notify.alert_store import AlertStore
from services.notify.alertmanager import Alertmanager
from services.notify.conftest import Make
from services.notify.delivery import Delivery
from services.notify.ledger import Ledger, Offsets
from services.notify.settings import NotifySettings
from tests.answering import Answer, Request, Served


class Scripted(Served):
    """Answers as configured: by node, by list, or 200."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.bad_nodes: set[str] = set()
        self.posts: list[list[dict[str, Any]]] = []
        self.headers: list[Message] = []
        super().__init__(self._answer)

    def _answer(self, request: Request) -> Answer:
        if request.method == "GET":
            self.headers.append(request.headers)
            return Answer(200, b'{"uptime": "2026-01-01T00:00:00Z"}')
        alerts = json.loads(request.body)
        self.posts.append(alerts)
        bad = self.bad_nodes & {alert["labels"]["node"] for alert in alerts}
        status = self.statuses.pop(0) if self.statuses else 400 if bad else 200
        return Answer(status, f"words on {status}".encode())


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    server = Scripted()
    yield server
    server.close()


class Desk:
    """An alert store with a delivery to a server, and a clock that is moved by hand."""

    def __init__(self, url: str, make: Make) -> None:
        self.make = make
        self.now = 1000.0
        self.offset = 0
        self.ledger = Ledger({})
        self.alerts = AlertStore(Policy(), self.ledger)
        self.server = Alertmanager(load(NotifySettings, alertmanager_url=url))
        self.refused: list[tuple[str, str]] = []
        self.delivery = Delivery(
            self.alerts,
            self.server,
            refused=lambda one, reason: self.refused.append((str(one.finding.entity["node"]), reason)),
            monotonic=lambda: self.now,
            wall_ms=lambda: 1_800_000_000_000,
            longest_pause_s=10,
        )

    def fire(self, node: str) -> None:
        self.alerts.take(finding_record_of(self.make(self.offset, node=node)), now=self.now, wall_ms=1_800_000_000_000)
        self.offset += 1


@pytest.fixture
def desk(scripted: Scripted, make: Make) -> Iterator[Desk]:
    desk = Desk(scripted.url, make)
    yield desk
    desk.server.close()


@pytest.mark.parametrize("status", [503, 429, 401])
def test_an_answer_that_may_change_is_waited_for_with_growing_pauses(
    desk: Desk, scripted: Scripted, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    scripted.statuses = [status] * 4
    desk.fire("a")
    attempts = []
    for tick in range(240):
        before = len(scripted.posts)
        desk.delivery.deliver()
        if len(scripted.posts) > before:
            attempts.append(tick)
        desk.now += 0.05
    assert len(attempts) == 6  # four failures, the success, and the confirmation six seconds later
    pauses = [later - earlier for earlier, later in itertools.pairwise(attempts)]
    assert pauses[0] >= 4  # 0.25 s less a quarter of jitter, at 0.05 s a tick
    assert pauses == sorted(pauses)
    assert not desk.refused
    assert [record.message.partition(",")[0] for record in caplog.records if record.levelname == "WARNING"] == [
        "alertmanager cannot be used",
        "alertmanager answers again",
    ]


def test_only_the_alert_that_is_refused_is_given_up_and_with_the_servers_words(desk: Desk, scripted: Scripted) -> None:
    scripted.bad_nodes = {"bad"}
    for node in ("a", "bad", "b"):
        desk.fire(node)
    desk.delivery.deliver()
    assert desk.refused == [("bad", "Alertmanager refused it: 400 words on 400")]
    assert [[alert["labels"]["node"] for alert in post] for post in scripted.posts] == [
        ["a", "bad", "b"], ["a"], ["bad"], ["b"],
    ]  # fmt: skip
    desk.now += 6
    desk.delivery.deliver()
    assert desk.ledger.to_commit() == {0: Offsets(3, 3)}


def test_what_is_away_in_the_middle_of_sorting_out_is_tried_again_and_only_that(desk: Desk, scripted: Scripted) -> None:
    scripted.statuses = [400, 200, 503]
    for node in ("a", "b"):
        desk.fire(node)
    desk.delivery.deliver()
    desk.now += 1
    desk.delivery.deliver()
    assert [[alert["labels"]["node"] for alert in post] for post in scripted.posts] == [["a", "b"], ["a"], ["b"], ["b"]]


def test_nothing_is_lost_while_nothing_listens(make: Make, scripted: Scripted) -> None:
    desk = Desk(scripted.url, make)
    scripted.close()
    desk.fire("a")
    desk.delivery.deliver()
    assert desk.ledger.to_commit() == {}
    assert desk.alerts.counts()["firing"] == 1
    assert len(desk.alerts.due(now=desk.now, wall_ms=0)) == 1
    desk.server.close()


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"username": "u", "password": "p"}, "Basic " + base64.b64encode(b"u:p").decode()),
        ({"bearer_token": "t"}, "Bearer t"),
        ({}, None),
    ],
)
def test_credentials_are_sent(scripted: Scripted, given: dict[str, str], sent: str | None) -> None:
    server = Alertmanager(load(NotifySettings, alertmanager_url=scripted.url, **given))
    assert server.started() == "2026-01-01T00:00:00Z"
    server.close()
    assert scripted.headers[0].get("Authorization") == sent


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"username": "u"}, "username and password go together"),
        ({"username": "u", "password": "p", "bearer_token": "t"}, "either a bearer token or"),
        ({"resolve_hold_s": 120, "resend_interval_s": 30}, "resolve_hold_s must be less than 4 times"),
        ({"alertmanager_url": "no url"}, "ALERTMANAGER_URL"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words) as refused:
        load(NotifySettings, **given)
    assert refused.value.exit_code == 2


def test_secrets_are_not_shown() -> None:
    given = {"username": "u", "password": "hush"}
    assert "hush" not in repr(load(NotifySettings, **given))
