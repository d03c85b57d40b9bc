"""Settings of notify: HINDCAST_NOTIFY_* in the environment."""

from typing import Annotated, Self

from pydantic import Field, HttpUrl, model_validator
from pydantic_settings import SettingsConfigDict

from services.kit.secret import Secret, ServerUrl
from services.kit.tls import Connecting
from services.notify.alert_lifecycle import ENDS_AFTER_RESENDS, Policy

Seconds = Annotated[float, Field(gt=0)]


class NotifySettings(Connecting):
    """Where alerts go, and how often they are sent."""

    model_config = SettingsConfigDict(env_prefix="HINDCAST_NOTIFY_", extra="forbid")

    alertmanager_url: ServerUrl = HttpUrl("http://127.0.0.1:9093")
    """Where Alertmanager is reached."""
    username: str | None = None
    """With `password`: basic auth."""
    password: Secret = None
    """Of `username`."""
    bearer_token: Secret = None
    """Sent instead of a user and password."""
    timeout_s: Seconds = 10.0
    """How long one request to Alertmanager may take."""
    resend_interval_s: Seconds = 30.0
    """A firing alert is sent again this often, and ends by itself four such intervals after the last time."""
    resolve_hold_s: Seconds = 6.0
    """From the acceptance of a replay's alert to its resolve. Not less than Alertmanager's group_wait + group_interval
    (0 s and 5 s in alert-rules/alertmanager.yaml): of a shorter alert only the resolve would be delivered."""
    live_resolve_hold_s: Seconds = 70.0
    """The same of a live alert: its tickets have a group_interval of a minute."""
    resolve_resend_s: Seconds = 300.0
    """For how long a resolve is sent again, against an Alertmanager that lost it."""
    backoff_max_s: Seconds = 10.0
    """Longest pause between two attempts while Alertmanager cannot be reached."""
    runbook_base_url: HttpUrl | None = None
    """Where the folder detectors/ of this repository is published; runbook_url is left out without it."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password go together")
        if self.bearer_token is not None and self.username is not None:
            raise ValueError("choose either a bearer token or username and password")
        if max(self.resolve_hold_s, self.live_resolve_hold_s) >= ENDS_AFTER_RESENDS * self.resend_interval_s:
            raise ValueError(
                f"resolve_hold_s and live_resolve_hold_s must be less than {ENDS_AFTER_RESENDS} times "
                "resend_interval_s: held back any longer, an alert ends by itself"
            )
        return self

    def policy(self) -> Policy:
        """Return when alerts are sent again."""
        return Policy(self.resend_interval_s, self.resolve_hold_s, self.live_resolve_hold_s, self.resolve_resend_s)
