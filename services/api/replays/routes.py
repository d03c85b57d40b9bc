"""Replays by way of Kafka: started, steered, followed."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Header
from fastapi import Path as InPath
from starlette.responses import StreamingResponse

from services.api.http.events import EVENT_STREAM, events_of
from services.api.replays.models import Replay, ReplayStart, SeekTo, SpeedTo
from services.api.replays.replays import Replays
from services.api.replays.streams import ReplayStreams
from services.api.runs.streams import Streams

ReplayName = Annotated[str, InPath(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]


def add(api: APIRouter, replays: Replays, streams: Streams, replay_streams: ReplayStreams) -> None:
    """Add the routes."""
    _steering(api, replays)

    @api.get("/replays", operation_id="list_replays")
    def listing() -> list[Replay]:
        """Return all replays."""
        return replays.all()

    @api.post("/replays", status_code=201, operation_id="start_replay")
    def start(asked: ReplayStart) -> Replay:
        """Start a replay of a recording into Kafka."""
        return replays.start(asked)

    @api.get("/replays/{name}", operation_id="show_replay")
    def one(name: ReplayName) -> Replay:
        """Return where a replay is."""
        return replays.one(name)

    @api.delete("/replays/{name}", status_code=204, operation_id="delete_replay")
    def delete(name: ReplayName) -> None:
        """Stop a replay and forget it."""
        replays.remove(name)

    @api.get(
        "/replays/{name}/events", operation_id="follow_replay", dependencies=[Depends(streams.seat)], **EVENT_STREAM
    )
    def events(
        name: ReplayName,
        last_event_id: Annotated[str | None, Header(max_length=40)] = None,
    ) -> StreamingResponse:
        """Follow a replay over all its seeks by server-sent events, see RunEvent."""
        replays.one(name)
        run, _dash, number = (last_event_id or "").partition("-")
        after = int(number) if number.isdecimal() and len(number) < 10 else 0
        return events_of(replay_streams.follow(name, run, after))


def _steering(api: APIRouter, replays: Replays) -> None:
    @api.post("/replays/{name}/seek", operation_id="seek_replay")
    def seek(name: ReplayName, asked: SeekTo) -> Replay:
        """Go on at another time."""
        return replays.steer(name, "seek", asked.model_dump())

    @api.post("/replays/{name}/speed", operation_id="set_replay_speed")
    def speed(name: ReplayName, asked: SpeedTo) -> Replay:
        """Go on at another speed."""
        return replays.steer(name, "speed", asked.model_dump())

    @api.post("/replays/{name}/{order}", operation_id="steer_replay")
    def steer(name: ReplayName, order: Literal["pause", "resume", "stop"]) -> Replay:
        """Pause a replay, let it go on, or end it where it is."""
        return replays.steer(name, order)
