"""Server-sent events of runs and replays: what was said, in order, and how far it is.

However many browsers follow a run, the store is asked for it once every quarter of a second; what is new is read by
each of them, from where it was.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client import Gauge

from services.api.runs import Runs
from services.api.steering_models import Replay
from services.kit.problems import RefusedError
from services.replay.status import ReplayStatus

if TYPE_CHECKING:
    from services.api.run_models import Run

VIEWERS = Gauge("hindcast_api_viewers", "Browsers that follow a run or a replay.")
_EVERY_S = 0.25
_BREATH_S = 15.0
"""So often something is sent, that proxies keep the line and a browser that is gone is noticed."""
_BREATH = ": still there\n\n"


@dataclass
class _Watch:
    """A run that browsers follow, as it was when the store was asked last: `told` is None where it was deleted."""

    viewers: int = 0
    told: "Run | None" = None
    progress: str = ""
    latest: int = 0
    """The number of its last event."""
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self.told is None or self.told.state not in ("queued", "running")


class _Quiet:
    """Tells when it is time for a sign of life."""

    def __init__(self) -> None:
        self._quiet_s = 0.0

    async def pause(self, *, said: bool) -> bool:
        """Wait until it is time to look again; return whether nothing was said for so long that something must be."""
        self._quiet_s = 0.0 if said or self._quiet_s >= _BREATH_S else self._quiet_s + _EVERY_S
        await asyncio.sleep(_EVERY_S)
        return self._quiet_s >= _BREATH_S


class Streams:
    """Follows runs and replays for browsers, at most so many at a time."""

    def __init__(self, runs: Runs, most: int) -> None:
        self._runs = runs
        self._most = most
        self._viewers = 0
        self._watches: dict[str, _Watch] = {}
        self.statuses: Callable[[], Mapping[str, ReplayStatus]] = dict
        """Where the replays are, as the one who follows them knows it."""
        self._told_last: dict[str, tuple[ReplayStatus, Replay, str]] = {}
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
        async with self._watched(run) as watch:
            sent, quiet = "", _Quiet()
            while not self.closing:
                # First how far it is, then what happened: at the end nothing that happened before it is missed.
                progress, over, latest, said = watch.progress, watch.over, watch.latest, False
                while after < latest:
                    after, text = await asyncio.to_thread(self._events, run, after, "")
                    said = True
                    yield text
                if over:
                    if watch.told is not None:
                        yield _said("over", progress)
                    return
                if progress != sent:
                    sent, said = progress, True
                    yield _said("progress", progress)
                if await quiet.pause(said=said):
                    yield _BREATH

    async def follow_replay(
        self, name: str, told_of: Callable[[ReplayStatus], Replay], run: str, after: int
    ) -> AsyncIterator[str]:
        """Yield where a replay is and what is said in it, over all its seeks; of `run` what comes after a number."""
        known, quiet = False, _Quiet()
        while not self.closing:
            status = self.statuses().get(name)
            if status is not None:
                known = True
                told, text = await self._told(told_of, status)
                yield text
                async for text in self._generation(name, told_of, told, after if told.run == run else 0):
                    yield text
                run, after = told.run, 0
            elif known:
                yield _said("replay", "null")
                return
            elif await quiet.pause(said=False):
                yield _BREATH

    async def _generation(
        self, name: str, told_of: Callable[[ReplayStatus], Replay], told: Replay, after: int
    ) -> AsyncIterator[str]:
        """Yield what is said of one generation, until there is another."""
        async with self._watched(told.run) as watch:
            sent, heard, quiet = self.statuses().get(name), "", _Quiet()
            while not self.closing:
                said = False
                while after < watch.latest:
                    after, text = await asyncio.to_thread(self._events, told.run, after, f"{told.run}-")
                    said = True
                    yield text
                status = self.statuses().get(name)
                if status is None:
                    return
                if status != sent:
                    now, text = await self._told(told_of, status)
                    if now.run != told.run:
                        return
                    sent, said = status, True
                    yield text
                if watch.told is not None and watch.progress != heard:
                    heard, said = watch.progress, True
                    yield _said("progress", heard)
                if await quiet.pause(said=said):
                    yield _BREATH

    async def _told(self, told_of: Callable[[ReplayStatus], Replay], status: ReplayStatus) -> tuple[Replay, str]:
        """Return a replay as the API tells it, and as an event; made once for all that follow it."""
        known = self._told_last.get(status.name)
        if known is None or known[0] is not status:
            told = await asyncio.to_thread(told_of, status)
            known = self._told_last[status.name] = (status, told, _said("replay", told.model_dump_json(by_alias=True)))
        return known[1], known[2]

    def _events(self, run: str, after: int, prefix: str) -> tuple[int, str]:
        """Return the next events as text, and the number of the last; one that is not there was deleted meanwhile."""
        events = self._runs.events(run, after)
        texts = [f"id: {prefix}{one['id']}\n{_said(one['kind'], one['body'])}" for one in events]
        return (events[-1]["id"] if events else 1 << 62), "".join(texts)

    @asynccontextmanager
    async def _watched(self, run: str) -> AsyncIterator[_Watch]:
        watch = self._watches.setdefault(run, _Watch())
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

    async def _watch(self, run: str, watch: _Watch) -> None:
        """Ask the store again and again, for all that follow a run."""
        while True:
            told, latest = await asyncio.to_thread(self._now, run)
            if told is None or told != watch.told:
                watch.progress = "" if told is None else told.model_dump_json()
            watch.told, watch.latest = told, latest
            watch.asked.set()
            await asyncio.sleep(_EVERY_S)

    def _now(self, run: str) -> "tuple[Run | None, int]":
        try:
            told = self._runs.one(run)
        except RefusedError:
            return None, 0
        return told, self._runs.last_event(run)


def _said(kind: str, body: str) -> str:
    return f"event: {kind}\ndata: {body}\n\n"
