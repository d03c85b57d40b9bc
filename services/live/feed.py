"""A server's series into an engine: caught up stretch by stretch, then followed poll by poll."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from detectors.engine import Choice, Engine
from detectors.heard import FORGET_MS, Forgetting
from detectors.incidents.knowledge import IncidentConfig
from services.kit.columns import rows_of
from services.kit.errors import UserError
from services.live.jobs import Listed, LiveJobs
from services.live.lateness import Ints, Lateness
from services.live.maintenance import Maintenance, Nodes
from services.recording.embedded import Step
from services.recording.importers.contract import Report
from services.recording.importers.parts.pivot import Wide
from services.recording.importers.parts.query_api import TooMuchError
from services.recording.importers.parts.series_reader import Pace, SeriesReader
from services.recording.merge_documents import united_topology
from services.recording.model import Topology
from services.recording.schema import STREAMS

if TYPE_CHECKING:
    from detectors.contract import Kind

_LONGEST_MS = 3_600_000
_AGAIN_MS = 30_000
"""What a poll reads once more at least, to see what came late."""
_MEET_MS = 300_000
"""How often hosts' names are asked for."""
_ALL = ("jobs", "logs", *STREAMS)


@dataclass(frozen=True)
class Detection:
    """What runs: detectors, settings of incidents, what is known of machines before, and who lists jobs and nodes."""

    choices: Sequence[Choice]
    incidents: IncidentConfig
    topology: Topology = field(default_factory=Topology)
    listed: Listed | None = None
    nodes: Nodes = dict
    forget_ms: int = FORGET_MS
    """How long after they were heard last machines are forgotten that `topology` does not name."""

    @property
    def forgetting(self) -> Forgetting:
        """Which machines the engine forgets: not those that are known beforehand."""
        return Forgetting(self.forget_ms, self.topology.model_dump(mode="json", exclude_unset=True))


class Feed:
    """Takes event time from `at` (epoch ms) to as near the present as samples can be relied on.

    What could not be read is read later: event time stands still meanwhile, so that a server that is away is no gap.
    """

    def __init__(self, reader: SeriesReader, detection: Detection, at: int, lateness: Lateness) -> None:
        self.at = at
        self.lateness = lateness
        self.jobs = LiveJobs(reader.jobs, detection.listed)
        self.maintenance = Maintenance(detection.nodes)
        self._reader, self._detection = reader, detection
        self._pace = Pace(reader.api.access.url, _LONGEST_MS)
        self._first = at
        self._met = at
        self.topology = Topology()
        """The machines known by now."""
        self.topology, self._size = self._united(), reader.census.size
        self.engine = self._engine()

    @property
    def server(self) -> str:
        """Whose series they are."""
        return self._reader.api.access.url

    @property
    def is_open(self) -> bool:
        """Whether the server asks for no credentials."""
        return self._reader.api.access.is_open

    def snapshot(self) -> dict[str, Any]:
        """Return what is needed beside the engine's own snapshot, as JSON can say it."""
        return {
            "at": self.at,
            "topology": self._described(),
            "jobs": self.jobs.snapshot(),
            "closed": self.maintenance.closed,
            "down": self.maintenance.down,
        }

    def restore(self, document: dict[str, Any], state: bytes) -> None:
        """Go on where `snapshot` and the engine's were taken; StateError where other detectors wrote it."""
        self.topology = Topology.model_validate(document["topology"])
        self.topology = self._united()
        self.engine = self._engine(state)
        self.jobs.restore(document["jobs"])
        # Neither is in a state that an older version kept.
        self.maintenance.closed, self.maintenance.down = document.get("closed", {}), document.get("down", {})
        self.at = self._first = self._met = document["at"]

    def step(self, now: int) -> Step | None:
        """Go on by one stretch, or by one poll where the present is near; None where nothing is due at `now`.

        UserError where the server does not answer: nothing has changed then, and the same is asked for again.
        """
        target = now - self.lateness.delay_ms
        if target <= self.at:
            return None
        self._shrink()
        behind = target - self.at > self._pace.length_ms
        upto = min(self.at + self._pace.length_ms, target)
        again = 0 if behind else max(_AGAIN_MS, self.lateness.delay_ms)
        after, until = max(self.at - again, self._first), upto if behind else now
        try:
            batches, times = self._read(after, until)
        except TooMuchError as error:
            self._pace.shorten(error)
            return Step(self.at, [], [])
        except UserError:
            self._pace.halve()
            raise
        self._pace.adapt(len(times), until - after)
        if not behind:
            self.lateness.polled(after, until, times)
        self._grow()
        for stream, batch in batches.items():
            kind = cast("Kind", stream)
            if kind in self.engine.fields:
                self.engine.feed(rows_of(kind, batch, self.engine.fields[kind]))
        self.engine.feed_jobs(self.jobs.events(until, self.topology))
        self.engine.feed_logs(self.maintenance.lines(self.at, now))
        for stream in _ALL:
            self.engine.mark(stream, upto)
        self.at = upto
        return Step(upto, self.engine.process(), self.engine.incidents())

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

    def _grow(self) -> None:
        """Let the engine know machines that were not there before."""
        size = self._reader.census.size
        if size == self._size:
            return
        self._size, known = size, self.topology
        self.topology = self._united()
        if self.topology != known:
            self.engine = self._engine(self.engine.snapshot())

    def _shrink(self) -> None:
        """Forget the machines that the engine has forgotten; until now alerts could say where they were."""
        gone = self.engine.forgotten()
        if gone:
            self._reader.forget(gone)
            self._size = self._reader.census.size
            self.topology = Topology.model_validate(self.engine.topology)

    def _united(self) -> Topology:
        known = ("given", self._detection.topology), ("known", self.topology), ("series", self._reader.topology())
        return united_topology(known, Report())

    def _engine(self, state: bytes | None = None) -> Engine:
        """Return an engine that knows the machines of now; with the state of another it goes on where that was."""
        topology, (choices, incidents) = self._described(), (self._detection.choices, self._detection.incidents)
        forgetting = self._detection.forgetting
        if state is None:
            return Engine(topology, choices, _ALL, incidents=incidents, forgetting=forgetting)
        return Engine.restore(topology, choices, _ALL, state, incidents=incidents, forgetting=forgetting)

    def _described(self) -> dict[str, Any]:
        return self.topology.model_dump(mode="json", exclude_unset=True)
