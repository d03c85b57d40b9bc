"""The receiver's HTTP interface."""

from typing import Annotated

from fastapi import Body, FastAPI
from prometheus_client import Counter
from pydantic import ValidationError

from services.kit.application import WITH_TOKEN, add_health, add_metrics, application
from services.kit.middleware import MIB, Middleware
from services.kit.problems import RefusedError
from services.notify.receiver.payload import Notification
from services.notify.receiver.settings import ReceiverSettings
from services.notify.receiver.store import Received, Store

NOTIFICATIONS = Counter(
    "hindcast_receiver_notifications_total", "Notifications by status (firing, resolved), or refused.", ["status"]
)


def app(store: Store, settings: ReceiverSettings) -> FastAPI:
    """Return the application: POST /webhook, GET /received, GET /metrics, GET /healthz."""
    api = application("hindcast webhook receiver")
    add_health(api)
    add_metrics(api)
    # A notification of thousands of alerts, as after an outage, is some megabytes.
    api.add_middleware(Middleware, settings=settings, senders=frozenset({"/webhook"}), largest_body=64 * MIB)

    @api.post("/webhook", dependencies=WITH_TOKEN)
    def webhook(body: Annotated[Received, Body()]) -> dict[str, int]:
        """Take one notification of Alertmanager; 400 says what is wrong with it, and Alertmanager logs that."""
        try:
            notification = Notification.model_validate(body)
        except ValidationError as error:
            wrong = [
                f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}"
                for item in error.errors(include_input=False, include_url=False)
            ]
            NOTIFICATIONS.labels("refused").inc()
            raise RefusedError(
                400,
                f"not a notification of Alertmanager (version 4): {'; '.join(wrong)}",
                remedy="send what Alertmanager's webhook_config sends",
            ) from None
        store.add(body)
        NOTIFICATIONS.labels(notification.status).inc()
        return {"alerts": len(notification.alerts)}

    @api.get("/received", dependencies=WITH_TOKEN)
    def received(replay: str | None = None) -> list[Received]:
        """Return what was received, oldest first: [{"received_at": wall time, "body": as it came}]."""
        return store.entries(replay)

    return api
