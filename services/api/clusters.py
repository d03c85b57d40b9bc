"""Live clusters as runs: what `hindcast live` finds, shown by the API and the console as any run is."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from services.api.app import build, check
from services.api.generations import Generation
from services.api.notes import Notes
from services.api.settings import ApiSettings, SourceSettings
from services.api.store import Store, now_ms
from services.kit.errors import UserError
from services.kit.serving import Server
from services.live.follower import News
from services.live.start import Run

_GRACE_S = 3


class LiveRun:
    """Writes what a live run finds to the store, as the run of the replay ``live``: the same one after a restart."""

    def __init__(self, store: Store, run: Run) -> None:
        unit = run.origin.unit
        name = Generation(unit, 0, 0).run
        self._run = run
        row = (name, _recording(run), run.feed.server, now_ms(), now_ms(), unit)
        with store.writing() as db:
            db.execute(
                "INSERT INTO runs (id, recording, path, detectors, state, created_ms, began_ms, unit, generation)"
                " VALUES (?, ?, ?, '{}', 'running', ?, ?, ?, 0)"
                " ON CONFLICT (id) DO UPDATE SET state = 'running', over_ms = NULL, error = NULL",
                row,
            )
        self._notes = Notes(store, name, start_ms=run.feed.at, end_ms=run.feed.at)
        self._notes.restore()

    def news(self, news: News) -> None:
        """Write what a step brought."""
        for finding in news.step.findings:
            shadow = finding.detector in self._run.feed.engine.shadow
            self._notes.hear(json.loads(finding.to_json()), is_incident=False, shadow=shadow)
        for incident in news.step.incidents:
            self._notes.hear(json.loads(incident.to_json()), is_incident=True, shadow=False)
        self._notes.event_ms = news.step.at
        self._notes.write()

    def following(self) -> None:
        """Write that the server answers."""
        self._notes.write()

    def away(self, error: UserError) -> None:
        """Write that the server does not answer: what is known may be old."""
        self._notes.write(error=error.message)

    def end(self) -> None:
        """Write that nobody watches any more."""
        self._notes.write("cancelled")


def _recording(run: Run) -> str:
    return f"live-{run.origin.cluster}"


@contextmanager
def shown(settings: ApiSettings, run: Run) -> Iterator[tuple[LiveRun, str]]:
    """Serve the API and the console with a live run in it; give what takes its news, and the address.

    Where its server asks for no credentials, stretches of time can be captured from it.

    UserError (exit code 2) where the data or the port are another's.
    """
    check(settings)
    live = LiveRun(Store(settings.data_dir / "api.sqlite"), run)
    if run.feed.is_open:
        sources = {_recording(run): SourceSettings(url=run.feed.server)} | settings.sources
        settings = settings.model_copy(update={"sources": sources})
    app, stop = build(settings), threading.Event()
    with settings.listen() as listening:
        server = Server(app, settings, stop, grace_s=_GRACE_S, closing=app.state.streams.close)
        thread = threading.Thread(target=server.run, args=([listening],), name="api")
        thread.start()
        try:
            yield live, settings.address(listening)
        finally:
            live.end()
            stop.set()
            thread.join()
