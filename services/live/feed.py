"""A server's series into an engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow.compute as pc

from detectors.coverage import closing
from detectors.engine.engine import Choice, Engine
from detectors.engine.heard import Forgetting
from detectors.incidents.knowledge import IncidentConfig
from services.kit.columns import rows_of
from services.live.lateness import Lateness
from services.live.stretches import ALL, Site, Stretches, document_of
from services.recording.embedded import Step
from services.recording.importers.parts.series.series_reader import SeriesReader
from services.recording.model import Topology
from services.recording.seen import coverage_of, seen_of

if TYPE_CHECKING:
    from detectors.contract import Kind


@dataclass(frozen=True)
class Detection:
    """What runs: detectors, and settings of incidents."""

    choices: Sequence[Choice]
    incidents: IncidentConfig


class Feed(Stretches):
    """Takes an engine from `at` (epoch ms) on."""

    def __init__(self, reader: SeriesReader, site: Site, detection: Detection, at: int, lateness: Lateness) -> None:
        super().__init__(reader, site, at, lateness)
        self._detection = detection
        # Not those that are known beforehand.
        self._forgetting = Forgetting(site.forget_ms, document_of(site.topology))
        self._engines = self.topology
        self.engine = self._engine(self.topology)
        self._listed = site.listed is not None
        self._arrived = {"logs.scheduler"} if self._listed else set[str]()
        """What ladders of evidence can need, of what has come."""

    def restore(self, document: dict[str, Any], state: bytes) -> None:
        """Go on where `snapshot` and the engine's were taken; StateError where other detectors wrote it."""
        self.engine = self._engine(self._saved_topology(document), state)
        self.take_saved(document)
        self._engines = self.topology

    def step(self, now: int) -> Step | None:
        """Go on by one stretch; None where nothing is due at `now`. UserError as of `read`."""
        self._shrink()
        stretch = self.read(now)
        if stretch is None:
            return None
        if self.topology != self._engines:
            self.engine, self._engines = self._engine(self.topology, self.engine.snapshot()), self.topology
        for stream, batch in stretch.rows.items():
            kind = cast("Kind", stream)
            self._arrived.update((stream, *(f"{stream}.{name}" for name in batch.schema.names)))
            if stream == "steps" and pc.max(batch.column("rank")).as_py() >= 0:
                self._arrived.add("steps.ranks")
            if kind in self.engine.fields:
                self.engine.feed(rows_of(kind, batch, self.engine.fields[kind]))
        self._listed |= bool(stretch.jobs)
        self.engine.feed_jobs(stretch.jobs)
        self.engine.feed_logs(stretch.logs)
        for stream in ALL:
            self.engine.mark(stream, stretch.upto)
        self.at = stretch.upto
        return Step(self.at, self.engine.process(), self.engine.incidents())

    def unseen(self) -> list[str]:
        """Return, in a line each, what cannot be judged by what has come so far, or only late, and for lack of what."""
        shares = dict.fromkeys(self._arrived, 1.0)
        seen = seen_of(shares, self.topology, listed=self._listed, every_s={})
        return closing(coverage_of(self._detection.choices, seen))

    def _shrink(self) -> None:
        """Forget the machines that the engine has forgotten."""
        gone = self.engine.forgotten()
        if gone:
            self._forget(gone)
            self.topology = self._engines = Topology.model_validate(self.engine.topology)

    def _engine(self, topology: Topology, state: bytes | None = None) -> Engine:
        """Return an engine that knows these machines; with the state of another it goes on where that was."""
        known, (choices, incidents) = document_of(topology), (self._detection.choices, self._detection.incidents)
        if state is None:
            return Engine(known, choices, ALL, incidents=incidents, forgetting=self._forgetting)
        return Engine.restore(known, choices, ALL, state, incidents=incidents, forgetting=self._forgetting)
