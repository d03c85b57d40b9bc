"""Receivers of notifications for the tests: a plain webhook, one in Slack's shape, one in PagerDuty's.

They answer as the real ones do, refuse what these refuse, and can be down, hang or answer 500 for a while.
"""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, HttpUrl, ValidationError, model_validator

from services.notify.receiver.payload import Notification
from services.stack.runner import Stack
from services.stack.settings import load_settings
from tests.answering import Answer, Request, serving

Trouble = Literal["answers 500", "answers 400", "hangs", "hangs up"]


class _Shape(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SlackField(_Shape):
    """A field of an attachment."""

    title: str
    value: str
    short: bool = False


class SlackAttachment(_Shape):
    """An attachment of a message, as Slack's reference of secondary attachments has it."""

    fallback: str
    text: Annotated[str, Field(max_length=8000)] = ""
    title: str = ""
    title_link: HttpUrl | None = None
    pretext: str = ""
    color: Annotated[str, Field(pattern=r"^(good|warning|danger|#[0-9a-fA-F]{6})$")] | None = None
    fields: list[SlackField] = []
    footer: str = ""
    callback_id: str = ""
    mrkdwn_in: list[Literal["fallback", "pretext", "text", "fields"]] = []


class SlackMessage(_Shape):
    """What an incoming webhook of Slack takes."""

    text: str = ""
    channel: str | None = None
    username: str | None = None
    icon_emoji: str | None = None
    icon_url: HttpUrl | None = None
    link_names: bool = False
    attachments: Annotated[list[SlackAttachment], Field(max_length=100)] = []

    @model_validator(mode="after")
    def _says_something(self) -> "SlackMessage":
        if not self.text and not any(one.text or one.fallback for one in self.attachments):
            raise ValueError("no_text")
        return self


class PagerDutyPayload(_Shape):
    """What the event is about."""

    summary: Annotated[str, Field(min_length=1, max_length=1024)]
    source: Annotated[str, Field(min_length=1)]
    severity: Literal["critical", "error", "warning", "info"]
    timestamp: str | None = None
    component: str | None = None
    group: str | None = None
    class_: str | None = Field(default=None, alias="class")
    custom_details: dict[str, Any] = {}


class PagerDutyLink(_Shape):
    """A link of an event."""

    href: HttpUrl
    text: str = ""


class PagerDutyEvent(_Shape):
    """What `POST /v2/enqueue` of PagerDuty's Events API takes."""

    routing_key: Annotated[str, Field(pattern=r"^[0-9a-zA-Z]{32}$")]
    event_action: Literal["trigger", "acknowledge", "resolve"]
    dedup_key: Annotated[str, Field(min_length=1, max_length=255)]
    payload: PagerDutyPayload | None = None
    client: str | None = None
    client_url: str | None = None
    links: list[PagerDutyLink] = []
    images: list[dict[str, str]] = []

    @model_validator(mode="after")
    def _a_trigger_says_what(self) -> "PagerDutyEvent":
        if self.event_action == "trigger" and self.payload is None:
            raise ValueError("payload is required")
        return self


@dataclass(frozen=True)
class Kind:
    """One kind of receiver: what it takes, and how it says yes and no."""

    path: str
    shape: type[BaseModel]
    yes: tuple[int, str, str]
    no: tuple[int, str, str]


WEBHOOK = Kind("/hook", Notification, (200, "application/json", "{}"), (400, "text/plain", "not a notification"))
SLACK = Kind("/services/T0/B0/x", SlackMessage, (200, "text/html", "ok"), (400, "text/html", "invalid_payload"))
PAGERDUTY = Kind(
    "/v2/enqueue",
    PagerDutyEvent,
    (202, "application/json", '{"status": "success", "message": "Event processed"}'),
    (400, "application/json", '{"status": "invalid event", "message": "Event object is invalid"}'),
)


@dataclass
class Receiver:
    """A receiver on loopback. `taken` is what it accepted, `refused` what was wrong with the rest."""

    kind: Kind
    url: str = ""
    taken: list[dict[str, Any]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    attempts: int = 0
    trouble: Trouble | None = None
    _released: threading.Event = field(default_factory=threading.Event)

    def answer(self, request: Request) -> Answer | None:
        """Return the answer to a request; None to hang up without one."""
        trouble = self.trouble
        self.attempts += 1
        if trouble in ("answers 500", "answers 400"):
            return _answer(int(trouble[-3:]), "text/plain", "no")
        if trouble == "hangs":
            self._released.wait(120)
        if trouble is not None:
            return None
        try:
            self.kind.shape.model_validate_json(request.body)
        except ValidationError as error:
            self.refused.append(f"{request.target}: {error}")
            return _answer(*self.kind.no)
        if request.target != self.kind.path:
            self.refused.append(request.target)
            return Answer(404)
        self.taken.append(json.loads(request.body))
        return _answer(*self.kind.yes)

    def mend(self) -> None:
        """End its trouble; what hangs is never answered."""
        self.trouble = None
        self._released.set()


@contextmanager
def notified(folder: Path, receiver: Receiver, *, only: Sequence[str]) -> Iterator[Stack]:
    """Run servers, of them an Alertmanager that sends everything to a receiver's webhook."""
    config = {
        "route": {"receiver": "all", "group_by": ["fault", "node"], "group_wait": "0s", "group_interval": "1s"},
        "receivers": [{"name": "all", "webhook_configs": [{"url": receiver.url}]}],
    }
    (folder / "alertmanager.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    settings = load_settings(alertmanager_config=folder / "alertmanager.yaml")
    with Stack.start(folder / "state", settings, only=only) as stack:
        yield stack


def _answer(status: int, content_type: str, text: str) -> Answer:
    return Answer(status, text.encode(), {"Content-Type": content_type})


@contextmanager
def serve(kind: Kind) -> Iterator[Receiver]:
    """Run a receiver until the block ends."""
    receiver = Receiver(kind)
    with serving(receiver.answer) as url:
        receiver.url = f"{url}{kind.path}"
        yield receiver
        receiver.mend()
