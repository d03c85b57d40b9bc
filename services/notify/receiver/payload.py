"""What Alertmanager posts to a webhook, version 4 (its docs: configuration, webhook_config)."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Status = Literal["firing", "resolved"]


class WebhookAlert(BaseModel):
    """One alert of a notification."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    status: Status
    labels: dict[str, str] = Field(min_length=1)
    annotations: dict[str, str]
    startsAt: datetime  # noqa: N815 - the name on the wire
    endsAt: datetime  # noqa: N815 - the name on the wire
    fingerprint: str


class Notification(BaseModel):
    """One notification: a group of alerts."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    version: Literal["4"]
    groupKey: str  # noqa: N815 - the name on the wire
    status: Status
    receiver: str
    groupLabels: dict[str, str]  # noqa: N815 - the name on the wire
    commonLabels: dict[str, str]  # noqa: N815 - the name on the wire
    commonAnnotations: dict[str, str]  # noqa: N815 - the name on the wire
    externalURL: str  # noqa: N815 - the name on the wire
    alerts: list[WebhookAlert] = Field(min_length=1)
