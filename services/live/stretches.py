"""A server's series, stretch by stretch: caught up first, then followed poll by poll; and what they say of machines."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from detectors.contract import LogRecord
from detectors.engine.heard import FORGET_MS
from detectors.fleet.fleet import JobEvent
from services.kit.errors import UserError
from services.live.jobs import Listed, LiveJobs
from services.live.lateness import Ints, Lateness
from services.live.maintenance import Maintenance, Nodes
from services.recording.importers.contract import Report
from services.recording.importers.parts.series.pivot import Wide
from services.recording.importers.parts.series.query_api import TooMuchError
from services.recording.importers.parts.series.series_reader import Pace, SeriesReader
from services.recording.merge_documents import united_topology
from services.recording.model import Topology
from services.recording.schema import STREAMS

_LONGEST_MS = 3_600_000
_AGAIN_MS = 30_000
"""What a poll reads once more at least, to see what came late."""
_MEET_MS = 300_000
"""How often hosts' names are asked for."""
ALL = ("jobs", "logs", *STREAMS)
"""The streams of a live cluster."""


@dataclass(frozen=True)
class Site:
    """What is known of a cluster beside its series: machines, who lists jobs and nodes."""

    topology: Topology = field(default_factory=Topology)
    listed: Listed | None = None
    nodes: Nodes = dict
    forget_ms: int = FORGET_MS
    """How long after they were heard last machines are forgotten that `topology` does not name."""


class Stretch(NamedTuple):
    """What there is with ``after < time <= upto`` (epoch ms), and in the rows what is around that, too."""

    after: int
    upto: int
    rows: dict[str, pa.RecordBatch]
    jobs: list[JobEvent]
    logs: list[LogRecord]


class Stretches:
    """Reads event time from `at` (epoch ms) to as near the present as samples can be relied on.

    What could not be read is read later: event time stands still meanwhile, so that a server that is away is no gap.
    """

    def __init__(self, reader: SeriesReader, site: Site, at: int, lateness: Lateness) -> None:
        self.at = at
        self.lateness = lateness
        self.jobs = LiveJobs(reader.jobs, site.listed)
        self.maintenance = Maintenance(site.nodes)
        self._reader, self._given = reader, site.topology
        self._pace = Pace(reader.api.access.url, _LONGEST_MS)
        self._first = at
        self._met = at
        self.topology = self._with_series(Topology())
        """The machines known by now."""
        self._size = reader.census.size

    @property
    def server(self) -> str:
        """Whose series they are."""
        return self._reader.api.access.url

    @property
    def is_open(self) -> bool:
        """Whether the server asks for no credentials."""
        return self._reader.api.access.is_open

    def snapshot(self) -> dict[str, Any]:
        """Return what is needed to go on, as JSON can say it."""
        return {
            "at": self.at,
            "topology": document_of(self.topology),
            "jobs": self.jobs.snapshot(),
            "closed": self.maintenance.closed,
            "down": self.maintenance.down,
        }

    def take_saved(self, document: dict[str, Any]) -> None:
        """Go on where `snapshot` was taken."""
        self.topology = self._saved_topology(document)
        self.jobs.restore(document["jobs"])
        # Neither is in a state that an older version kept.
        self.maintenance.closed, self.maintenance.down = document.get("closed", {}), document.get("down", {})
        self.at = self._first = self._met = document["at"]

    def read(self, now: int) -> Stretch | None:
        """Return the next stretch, or what a poll brings where the present is near; None where nothing is due at `now`.

        It is read once `at` is set to its `upto`. UserError where the server does not answer: nothing has changed then,
        and the same is asked for again.
        """
        target = now - self.lateness.delay_ms
        if target <= self.at:
            return None
        behind = target - self.at > self._pace.length_ms
        upto = min(self.at + self._pace.length_ms, target)
        again = 0 if behind else max(_AGAIN_MS, self.lateness.delay_ms)
        after, until = max(self.at - again, self._first), upto if behind else now
        try:
            rows, times = self._read(after, until)
        except TooMuchError as error:
            self._pace.shorten(error)
            return None
        except UserError:
            self._pace.halve()
            raise
        self._pace.adapt(len(times), until - after)
        if not behind:
            self.lateness.polled(after, until, times)
        if self._reader.census.size != self._size:
            self._size = self._reader.census.size
            self.topology = self._with_series(self.topology)
        jobs = self.jobs.events(until, self.topology)
        return Stretch(self.at, upto, rows, jobs, self.maintenance.lines(self.at, now))

    def _read(self, after: int, until: int) -> tuple[dict[str, pa.RecordBatch], Ints]:
        """Return by stream the rows with ``after < time <= until``, and the times of all samples."""
        if until - self._met >= _MEET_MS:
            self._reader.meet_hosts(max(after, until - _MEET_MS), until)
            self._met = until
        batches: dict[str, pa.RecordBatch] = {}
        times = [np.empty(0, np.int64)]
        for stream, metrics in self._reader.metrics(after + 1, until).items():
            wide = Wide(stream)
            times.append(self._reader.take(wide, metrics, after, until))
            batch = self._reader.rows(wide)
            if batch is not None and batch.num_rows:
                batches[stream] = batch
        return batches, np.concatenate(times)

    def _forget(self, gone: set[str]) -> None:
        """Forget machines and mounts; until now alerts could say where they were."""
        self._reader.forget(gone)
        self._size = self._reader.census.size

    def _saved_topology(self, document: dict[str, Any]) -> Topology:
        return self._with_series(Topology.model_validate(document["topology"]))

    def _with_series(self, topology: Topology) -> Topology:
        known = ("given", self._given), ("known", topology), ("series", self._reader.topology())
        return united_topology(known, Report())


def document_of(topology: Topology) -> dict[str, Any]:
    """Return a topology as JSON can say it."""
    return topology.model_dump(mode="json", exclude_unset=True)
