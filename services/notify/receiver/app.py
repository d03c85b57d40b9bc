"""The receiver's HTTP interface."""

from typing import Annotated

from fastapi import Body, FastAPI, HTTPException, Response
from prometheus_client import CONTENT_TYPE_LATEST, Counter, generate_latest
from pydantic import ValidationError

from services.notify.receiver.payload import Notification
from services.notify.receiver.store import Received, Store

NOTIFICATIONS = Counter(
    "hindcast_receiver_notifications_total", "Notifications by what they said, or refused.", ["status"]
)


def app(store: Store) -> FastAPI:
    """Return the application: POST /webhook, GET /received, GET /metrics, GET /healthz."""
    api = FastAPI(title="hindcast webhook receiver", docs_url=None, redoc_url=None)

    @api.post("/webhook")
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
            raise HTTPException(400, {"not a notification of Alertmanager (version 4)": wrong}) from None
        store.add(body)
        NOTIFICATIONS.labels(notification.status).inc()
        return {"alerts": len(notification.alerts)}

    @api.get("/received")
    def received(replay: str | None = None) -> list[Received]:
        """Return what was received, oldest first: [{"received_at": wall time, "body": as it came}]."""
        return store.entries(replay)

    @api.get("/metrics")
    def metrics() -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    @api.get("/healthz")
    def healthz() -> dict[str, bool]:
        return {"ok": True}

    return api
