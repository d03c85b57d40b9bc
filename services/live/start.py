"""Puts a live run together: the server looked at, its machines counted, the state of an earlier run taken up."""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from detectors.engine.state import StateError
from services.detect.warmup import Line, Warmup, lines_of
from services.kit.errors import UsageError
from services.kit.wire import Origin
from services.live.alerts import Alerts
from services.live.feed import Detection, Feed
from services.live.lateness import Lateness
from services.live.state import Saved, StateFile
from services.live.stretches import Site
from services.notify.payload import LIVE
from services.notify.settings import NotifySettings
from services.recording.importers.contract import Report
from services.recording.importers.parts.series.held import nothing_captured
from services.recording.importers.parts.series.known_series import KNOWN_METRICS
from services.recording.importers.parts.series.query_api import QueryApi
from services.recording.importers.parts.series.series_reader import SeriesReader

_log = logging.getLogger(__name__)
_NOT_REPLAYED = f'replay=~"{LIVE}|"'
"""What a replay has written there is no telemetry of the cluster."""
_KNOWN = f'{{__name__=~"{KNOWN_METRICS}"}}'
_UNNAMED = "default"


@dataclass(frozen=True)
class Asked:
    """What a live run is to do. `cluster`: its name, and where series have that label, which of them."""

    cluster: str | None = None
    lookback_ms: int = 86_400_000
    lateness_ms: int | None = None
    state: Path | None = None
    alertmanager: NotifySettings | None = None
    site: Site = field(default_factory=Site)


class Run(NamedTuple):
    """A live run that can begin."""

    origin: Origin
    feed: Feed
    warmup: Warmup
    alerts: Alerts | None
    state: StateFile | None
    open_lines: Sequence[Line]
    """Findings that an earlier run left open; it is gone on with where there is `goes_on`."""
    goes_on: bool


def prepare(
    api: QueryApi,
    asked: Asked,
    detection: Detection,
    *,
    wall_ms: Callable[[], int],
    monotonic: Callable[[], float],
) -> Run:
    """Return a run on a server's series.

    UserError: the server cannot be reached (exit code 3), does not let us in (2), holds series of several clusters of
    which none is named, or nothing that has a place here; the folder of the state cannot be used, or has that of
    another server.
    """
    file = StateFile(asked.state) if asked.state is not None else None
    saved = saved_in(file, api.access.url)
    found = survey(api, asked, wall_ms(), saved.document["feed"]["at"] if saved is not None else None)
    origin = Origin(found.cluster, LIVE)
    feed = Feed(found.reader, asked.site, detection, found.since, found.lateness)
    warmup = Warmup(found.from_ms)
    alerts = None
    if asked.alertmanager is not None:
        alerts = Alerts(asked.alertmanager, origin, kept=file is not None, monotonic=monotonic, wall_ms=wall_ms)
    if saved is not None:
        try:
            feed.restore(saved.document["feed"], saved.engine)
        except StateError as error:
            say_unused(error)
        else:
            document = saved.document
            warmup, open_lines = Warmup.restore(document["from"], document["warm"]), lines_of(document["open"])
            if alerts is not None and document["alerts"] is not None:
                alerts.restore(document["alerts"], feed.topology)
            elif alerts is not None:
                # Until now nobody was alerted: of what is open Alertmanager has not heard.
                for line in open_lines:
                    if not warmup.holds(line):
                        alerts.take(line, feed.topology)
            return Run(origin, feed, warmup, alerts, file, open_lines, True)
    return Run(origin, feed, warmup, alerts, file, [], False)


class Surveyed(NamedTuple):
    """A server that was looked at: its series, whose they are, and from when (epoch ms) they are read."""

    reader: SeriesReader
    cluster: str
    since: int
    from_ms: int
    """As far as samples can be relied on now: until there it is lookback."""
    lateness: Lateness


def survey(api: QueryApi, asked: Asked, now: int, at: int | None) -> Surveyed:
    """Look at the machines that the server's series name; `at`: where an earlier run ended. UserError as `prepare`."""
    lateness, since = Lateness(asked.lateness_ms), now - asked.lookback_ms
    began = since if at is None else min(since, at)
    reader = SeriesReader(api, [("", _NOT_REPLAYED)], Report())
    cluster = _cluster(reader, asked.cluster, began, now)
    reader.survey(began, now)
    if not any(reader.census.size):
        raise nothing_captured(api, (began, now), "--cluster" if asked.cluster else "")
    return Surveyed(reader, cluster, since, now - lateness.delay_ms, lateness)


def say_unused(error: StateError) -> None:
    """Say that what was kept is not gone on with."""
    _log.warning("the state is not used, the lookback is read again: %s", error)


def saved_in(file: StateFile | None, url: str) -> Saved | None:
    """Return what a run on the server at `url` has kept, where it can be gone on with. UserError as `prepare`."""
    if file is None:
        return None
    try:
        saved = file.load()
    except StateError as error:
        say_unused(error)
        return None
    if saved is not None and saved.document["server"] != url:
        raise UsageError(
            f"--state has what was learnt from {saved.document['server']}, not from {url}",
            remedy="name another folder for this server",
        )
    return saved


def _cluster(reader: SeriesReader, asked: str | None, start: int, end: int) -> str:
    """Return what the cluster is called; series with another label `cluster` are left out. UserError as `prepare`."""
    known = reader.api.label_values("cluster", _KNOWN, start, end)
    if asked is None:
        return next(iter(reader.clusters(start, end)), _UNNAMED)
    if known and asked not in known:
        raise UsageError(
            f"no series has cluster={asked!r}: there are {', '.join(sorted(known)[:8])}",
            remedy="correct --cluster, or leave it out",
        )
    if known:
        reader.selectors = [("", f"{_NOT_REPLAYED},cluster={json.dumps(asked, ensure_ascii=False)}")]
    return asked
