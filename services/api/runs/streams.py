"""Server-sent events of runs: what was found, in order, and how far it is.

However many browsers follow a run, the store is asked for it once every quarter of a second; what is new is read by
each of them, from where it was.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client import Gauge

from services.api.http.events import KEEPALIVE, event_text
from services.api.runs.runs import Runs
from services.kit.problems import RefusedError

if TYPE_CHECKING:
    from services.api.runs.models import Run

VIEWERS = Gauge("hindcast_api_viewers", "Browsers that follow a run or a replay.")
_EVERY_S = 0.25
_KEEPALIVE_S = 15.0
"""So often something is sent, so that proxies keep the line open and a browser that is gone is noticed."""


@dataclass
class Watch:
    """A run that browsers follow, as the store had it last: `run` is None where it was deleted."""

    viewers: int = 0
    run: "Run | None" = None
    progress: str = ""
    latest: int = 0
    """The number of its last event."""
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self.run is None or self.run.state not in ("queued", "running")


class Pauses:
    """The pauses between looks, and when a keep-alive is due."""

    def __init__(self) -> None:
        self._quiet_s = 0.0

    async def pause(self, *, sent: bool) -> bool:
        """Wait until it is time to look again; return whether nothing was sent for so long that a keep-alive is due."""
        self._quiet_s = 0.0 if sent or self._quiet_s >= _KEEPALIVE_S else self._quiet_s + _EVERY_S
        await asyncio.sleep(_EVERY_S)
        return self._quiet_s >= _KEEPALIVE_S


class Streams:
    """Follows runs for browsers; these, and those that follow replays, are at most so many at a time."""

    def __init__(self, runs: Runs, most: int) -> None:
        self._runs = runs
        self._most = most
        self._viewers = 0
        self._watches: dict[str, Watch] = {}
        self.closing = False

    def close(self) -> None:
        """End what is followed."""
        self.closing = True

    async def seat(self) -> AsyncIterator[None]:
        """Keep a place for one more viewer until it is yielded back; RefusedError (503) where there is none."""
        if self._viewers >= self._most:
            raise RefusedError(
                503, f"{self._most} browsers follow runs already", remedy="ask again later, or poll the run"
            )
        self._viewers += 1
        VIEWERS.set(self._viewers)
        try:
            yield
        finally:
            self._viewers -= 1
            VIEWERS.set(self._viewers)

    async def follow(self, run: str, after: int) -> AsyncIterator[str]:
        """Yield a run's events after a number, until it is over."""
        async with self.watched(run) as watch:
            shown, pauses = "", Pauses()
            while not self.closing:
                # First how far it is, then what happened: at the end nothing that happened before it is missed.
                progress, over, latest, sent = watch.progress, watch.over, watch.latest, False
                while after < latest:
                    after, text = await asyncio.to_thread(self.events, run, after, "")
                    sent = True
                    yield text
                if over:
                    if watch.run is not None:
                        yield event_text("over", progress)
                    return
                if progress != shown:
                    shown, sent = progress, True
                    yield event_text("progress", progress)
                if await pauses.pause(sent=sent):
                    yield KEEPALIVE

    def events(self, run: str, after: int, prefix: str) -> tuple[int, str]:
        """Return the next events as text, and the number of the last; one that is not there was deleted meanwhile."""
        events = self._runs.events(run, after)
        texts = [f"id: {prefix}{one['id']}\n{event_text(one['kind'], one['body'])}" for one in events]
        return (events[-1]["id"] if events else 1 << 62), "".join(texts)

    @asynccontextmanager
    async def watched(self, run: str) -> AsyncIterator[Watch]:
        """Give a run as it is, asked for anew as long as anybody follows it."""
        watch = self._watches.setdefault(run, Watch())
        watch.viewers += 1
        if watch.task is None:
            watch.task = asyncio.create_task(self._watch(run, watch))
        try:
            await watch.asked.wait()
            yield watch
        finally:
            watch.viewers -= 1
            if not watch.viewers:
                watch.task.cancel()
                self._watches.pop(run, None)

    async def _watch(self, run: str, watch: Watch) -> None:
        """Ask the store again and again, for all that follow a run."""
        while True:
            now, latest = await asyncio.to_thread(self._now, run)
            if now is None or now != watch.run:
                watch.progress = "" if now is None else now.model_dump_json()
            watch.run, watch.latest = now, latest
            watch.asked.set()
            await asyncio.sleep(_EVERY_S)

    def _now(self, run: str) -> "tuple[Run | None, int]":
        try:
            now = self._runs.one(run)
        except RefusedError:
            return None, 0
        return now, self._runs.last_event(run)
