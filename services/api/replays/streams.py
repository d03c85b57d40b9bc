"""Server-sent events of replays, over all their seeks: where each is, and the events of its present run."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

from services.api.http.events import KEEPALIVE, event_text
from services.api.replays.models import Replay
from services.api.runs.streams import Pauses, Streams
from services.replay.status import ReplayStatus


class ReplayStreams:
    """Follows replays for browsers.

    `statuses`: where the replays are, as the follower knows it; `replay_of`: a replay as the API shows it.
    """

    def __init__(
        self,
        streams: Streams,
        statuses: Callable[[], Mapping[str, ReplayStatus]],
        replay_of: Callable[[ReplayStatus], Replay],
    ) -> None:
        self._streams, self._statuses, self._replay_of = streams, statuses, replay_of
        self._shown: dict[str, tuple[ReplayStatus, Replay, str]] = {}

    async def follow(self, name: str, run: str, after: int) -> AsyncIterator[str]:
        """Yield where a replay is and what is found in it; of `run` the events after a number."""
        known, pauses = False, Pauses()
        while not self._streams.closing:
            status = self._statuses().get(name)
            if status is not None:
                known = True
                replay, text = await self._show(status)
                yield text
                async for text in self._generation(name, replay, after if replay.run == run else 0):
                    yield text
                run, after = replay.run, 0
            elif known:
                yield event_text("replay", "null")
                return
            elif await pauses.pause(sent=False):
                yield KEEPALIVE

    async def _generation(self, name: str, replay: Replay, after: int) -> AsyncIterator[str]:
        """Yield what is found in one generation, until there is another."""
        async with self._streams.watched(replay.run) as watch:
            shown, progress, pauses = self._statuses().get(name), "", Pauses()
            while not self._streams.closing:
                sent = False
                while after < watch.latest:
                    after, text = await asyncio.to_thread(self._streams.events, replay.run, after, f"{replay.run}-")
                    sent = True
                    yield text
                status = self._statuses().get(name)
                if status is None:
                    return
                if status != shown:
                    now, text = await self._show(status)
                    if now.run != replay.run:
                        return
                    shown, sent = status, True
                    yield text
                if watch.run is not None and watch.progress != progress:
                    progress, sent = watch.progress, True
                    yield event_text("progress", progress)
                if await pauses.pause(sent=sent):
                    yield KEEPALIVE

    async def _show(self, status: ReplayStatus) -> tuple[Replay, str]:
        """Return a replay as the API shows it, and as an event; made once for all that follow it."""
        known = self._shown.get(status.name)
        if known is None or known[0] is not status:
            replay = await asyncio.to_thread(self._replay_of, status)
            text = event_text("replay", replay.model_dump_json(by_alias=True))
            known = self._shown[status.name] = (status, replay, text)
        return known[1], known[2]
