"""Server-sent events of a run: what was said, in order, and how far it is."""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from prometheus_client import Gauge

from services.api.problems import RefusedError
from services.api.runs import Runs

if TYPE_CHECKING:
    from services.api.models import Run

VIEWERS = Gauge("hindcast_api_viewers", "Browsers that follow a run.")
_EVERY_S = 0.25
_BREATH_S = 15.0
"""So often something is sent, that proxies keep the line and a browser that is gone is noticed."""


class Streams:
    """Follows runs for browsers, at most so many at a time."""

    def __init__(self, runs: Runs, most: int) -> None:
        self._runs = runs
        self._most = most
        self._viewers = 0
        self.closing = False

    def check(self) -> None:
        """Refuse (503) one more viewer where there are too many."""
        if self._viewers >= self._most:
            raise RefusedError(
                503, f"{self._most} browsers follow runs already", remedy="ask again later, or poll the run"
            )

    async def follow(self, run: str, after: int) -> AsyncIterator[str]:
        """Yield a run's events after a number, until it is over."""
        self._viewers += 1
        VIEWERS.set(self._viewers)
        try:
            async for message in self._follow(run, after):
                yield message
        except RefusedError:
            return  # the run was deleted
        finally:
            self._viewers -= 1
            VIEWERS.set(self._viewers)

    async def _follow(self, run: str, after: int) -> AsyncIterator[str]:
        told: Run | None = None
        quiet_s = 0.0
        while not self.closing:
            # First how far it is, then what happened: at the end nothing that happened before it is missed.
            now = await asyncio.to_thread(self._runs.one, run)
            while events := await asyncio.to_thread(self._runs.events, run, after):
                for event in events:
                    yield f"id: {event['id']}\nevent: {event['kind']}\ndata: {event['body']}\n\n"
                after, quiet_s = events[-1]["id"], 0.0
            if now.state not in ("queued", "running"):
                yield f"event: over\ndata: {now.model_dump_json()}\n\n"
                return
            if now != told:
                told, quiet_s = now, 0.0
                yield f"event: progress\ndata: {now.model_dump_json()}\n\n"
            elif quiet_s >= _BREATH_S:
                quiet_s = 0.0
                yield ": still there\n\n"
            await asyncio.sleep(_EVERY_S)
            quiet_s += _EVERY_S
