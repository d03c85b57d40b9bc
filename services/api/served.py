"""The API and the console of a live cluster, while `hindcast live` watches it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from services.api.app import build, check
from services.api.live.live_run import LiveRun
from services.api.settings import ApiSettings
from services.api.store import Store
from services.kit.serving import Server
from services.live.start import Run

_GRACE_S = 3


@contextmanager
def shown(settings: ApiSettings, run: Run) -> Iterator[tuple[LiveRun, str]]:
    """Serve the API and the console with a live run in it; give what takes its news, and the address.

    Where its server asks for no credentials, stretches of time can be captured from it.

    UserError (exit code 2) where the data or the port are another's.
    """
    check(settings)
    live = LiveRun(Store(settings.data_dir / "api.sqlite"), run)
    if run.feed.is_open:
        sources = {live.recording: run.feed.server} | settings.sources
        settings = settings.model_copy(update={"sources": sources})
    app, stop = build(settings, live=live), threading.Event()
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
