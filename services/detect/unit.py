"""One unit, a (cluster, replay): its engine, how far into Kafka it has come, and what it has to say."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from detectors.engine.engine import Choice, Engine
from detectors.engine.heard import Forgetting
from detectors.incidents.knowledge import IncidentConfig
from services.detect.idle import ArrivalWatermarks
from services.detect.intake import feed
from services.detect.store import Stored
from services.detect.warmup import Line, Warmup, finding_line, incident_line
from services.kit.kafka import Record
from services.kit.replays import ReplayState, Topology
from services.kit.wire import Origin, Watermark, WireError, payload_of


@dataclass(frozen=True, slots=True)
class Plan:
    """What a unit is made from: what runs, and what is known of the feed."""

    choices: Sequence[Choice]
    topology: Topology | None
    announced: ReplayState | None
    """None for a feed that nobody announced: a live one that sends no watermarks."""
    streams: tuple[str, ...]
    """All streams there are, for a feed that does not say which it has."""
    idle_timeout_s: float
    lateness_ms: int
    incidents: IncidentConfig
    forgetting: Forgetting


class Unit:
    """Takes the records of one generation of a unit; a newer generation needs a new Unit."""

    def __init__(self, origin: Origin, partition: int, plan: Plan, stored: Stored | None = None) -> None:
        self.origin = origin
        self.partition = partition
        self.offsets: dict[str, int] = dict(stored.offsets) if stored is not None else {}
        """The next offset to take, by topic."""
        self.changed = False
        self.topology = plan.topology
        announced = plan.announced
        self.announced = announced is not None
        self._arrivals: ArrivalWatermarks | None = None
        if announced is None:
            self._arrivals = ArrivalWatermarks(idle_timeout_s=plan.idle_timeout_s, lateness_ms=plan.lateness_ms)
        from_ms = announced.from_ms if announced is not None else None
        streams = announced.streams if announced is not None else plan.streams
        if stored is not None and stored.generation == origin.generation:
            self.engine = Engine.restore(
                plan.topology,
                plan.choices,
                streams,
                stored.engine,
                incidents=plan.incidents,
                forgetting=plan.forgetting,
            )
            self._warmup = Warmup.restore(from_ms, stored.warm)
        else:
            self.engine = Engine(
                plan.topology, plan.choices, streams, incidents=plan.incidents, forgetting=plan.forgetting
            )
            self._warmup = Warmup(from_ms)

    def take(self, stream: str, record: Record, *, monotonic_s: float, wall_ms: int) -> None:
        """Take a record; one that was taken before the snapshot is passed over. Raises WireError if it is no good."""
        if record.partition != self.partition:
            raise WireError(f"the records of {self.origin.unit} are in partition {self.partition}, as `units` has it")
        if record.offset < self.offsets.get(record.topic, 0):
            return
        self.offsets[record.topic] = record.offset + 1
        self.changed = True
        if stream not in self.engine.streams:
            return
        payload = payload_of(record)
        if isinstance(payload, Watermark):
            self._arrivals = None
            self.engine.mark(stream, payload.at_ms, end=payload.end)
            return
        latest_ms = feed(self.engine, stream, payload)
        if self._arrivals is not None:
            self._arrivals.arrived(stream, latest_ms, monotonic_s=monotonic_s, wall_ms=wall_ms)

    def process(self, *, monotonic_s: float, held: Collection[str]) -> list[Line]:
        """Go as far as the watermark allows; return the findings and incidents to be sent, in order of event time.

        `held` are the streams that are held back: that nothing comes of them is no silence.
        """
        if self._arrivals is not None:
            marks = self._arrivals.watermarks(self.engine.streams, monotonic_s=monotonic_s, held=held)
            for stream, at_ms in marks.items():
                self.engine.mark(stream, at_ms)
        before = self.engine.event_time
        findings = self.engine.process()
        self.changed |= self.engine.event_time != before
        lines = [
            finding_line(one, incident=self.engine.incident_of(one), shadow=one.detector in self.engine.shadow)
            for one in findings
        ]
        lines += [incident_line(incident) for incident in self.engine.incidents()]
        lines.sort(key=lambda line: line.at_ms)  # stable: a finding before the incident that it changes
        return self._warmup.release(lines, self.engine.event_time)

    def stored(self) -> Stored:
        """Return the snapshot of this moment."""
        return Stored(
            self.origin.unit,
            self.origin.generation,
            dict(self.offsets),
            self._warmup.snapshot(),
            self.announced,
            self.engine.snapshot(),
        )
