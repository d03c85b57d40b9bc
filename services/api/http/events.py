"""Server-sent events as answers."""

from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import StreamingResponse

EVENT_STREAM: dict[str, Any] = {
    "response_class": StreamingResponse,
    "responses": {200: {"description": "Server-sent events.", "content": {"text/event-stream": {}}}},
}
"""What a route that answers with them declares."""
KEEPALIVE = ": still there\n\n"
"""A comment, which clients pass over."""


def events_of(texts: AsyncIterator[str]) -> StreamingResponse:
    """Return server-sent events as an answer."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(texts, media_type="text/event-stream", headers=headers)


def event_text(kind: str, body: str) -> str:
    """Return an event, without an id, as it is sent; `body` is one line."""
    return f"event: {kind}\ndata: {body}\n\n"
