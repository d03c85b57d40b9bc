"""The engine of one unit, a (cluster, replay): telemetry in any order in, findings in order of event time out.

Everything waits until the watermark, the least of the streams' marks, has passed it. Then it is handed to the
detectors in order of event time, in stretches that end at the grid, at the watermark, at a reading that a detector
calls urgent, and right before a job starts or ends. Within a stretch logs come first, then telemetry in the order of
`contract.KINDS`. When all streams have ended the detectors decide once more, at the end itself: what came after the
last point of the grid counts, too.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple
from typing import Any, Self

from detectors.contract import KINDS, Detector, Finding, Instant, LogRecord
from detectors.core.survivors import Survivors, go_on
from detectors.core.tails import Tails
from detectors.engine import upgrade
from detectors.engine.alarms import Alarms, canonical
from detectors.engine.buffer import RowBuffer
from detectors.engine.heard import AFTER_A_WEEK, Forgetting, Heard, without
from detectors.engine.inputs import fields_read, log_order, streams_read
from detectors.engine.pulse import Pulse
from detectors.engine.rows import Rows
from detectors.engine.state import StateError, below, pack, unpack
from detectors.engine.watermarks import BEGINNING, Watermarks
from detectors.fleet.fleet import Fleet, JobEvent, by_time, job_event
from detectors.fleet.jobs import JobFinder
from detectors.incidents.correlator import Correlator
from detectors.incidents.knowledge import IncidentConfig
from detectors.incidents.report import Incident

Choice = upgrade.Choice
GRID_MS = 5000
"""How often `advance` is called: the usual interval of DCGM telemetry."""
FORMAT = 5
_READ = frozenset({4, FORMAT})
"""Formats of snapshots that can be gone on with: what the older one lacks begins afresh."""
_LINE_BYTES = 600  # of memory that a log line, or a job's start or end, takes, about
_HELD_OVER_MS = 3_600_000
"""For so long a detector that began afresh may look for what the one before it had open: twelve times the longest
latency that any of them promises, so that what takes it time to judge, such as a mean of half an hour, is had."""


class Engine:
    """Runs detectors over the telemetry of one unit.

    `streams` are those that are fed and marked; of these only the ones that count for some detector hold back the
    watermark (`self.streams`), and only what some detector reads need be fed (`self.fields`). With `every` all of them
    count and are fed, so that jobs are found, and the grid rests, as they would beside any other detectors: what one
    detector finds is then the same whichever others run with it, and what incidents cost jobs is not known. Of a stream
    that is `spare` to all but the detectors that read it only the times of its rows count where none does.
    """

    def __init__(
        self,
        topology: Mapping[str, Any] | None,
        choices: Sequence[Choice],
        streams: Iterable[str],
        *,
        grid_ms: int = GRID_MS,
        incidents: IncidentConfig | None = None,
        every: bool = False,
        spare: Collection[str] = (),
        forgetting: Forgetting = AFTER_A_WEEK,
    ) -> None:
        self._choices, self._every = tuple(choices), every
        self._grid, self._forgetting = grid_ms, forgetting
        self.topology = topology
        """What is known of the machines, without those that were inferred and are gone."""
        self._forgotten: set[str] = set()
        fed = set(streams)
        self.fields = fields_read(choices, fed - set(spare) if every else ())
        self.streams = fed if every else streams_read(choices) & fed
        self._pulse = Pulse()
        self._fleet = Fleet(topology)
        self._heard = Heard(self._fleet, forgetting, grid_ms)
        self._detectors: list[Detector] = [kind(config, self._fleet) for kind, config in self._choices]
        self._buffers = {kind: RowBuffer(kind, self.fields[kind]) for kind in KINDS if kind in self.fields}
        self._urgent_bits = [
            (number, kind, name, bits)
            for number, (detector, _) in enumerate(self._choices)
            for kind, fields in detector.spec.urgent.items()
            for name, bits in fields.items()
        ]
        self._logs: list[LogRecord] = []
        self._jobs: list[JobEvent] = []
        self._watermarks = Watermarks()
        self._urged: tuple[int, ...] = ()
        """Detectors, by number, that decided at `event_time` because a reading was urgent."""
        self._concluded = False
        self._alarms, self._finder = Alarms(), JobFinder(self._fleet)
        self._incidents = incidents
        self._correlator = Correlator(topology, self._fleet, incidents)
        self._revisions: list[Incident] = []
        self._incident_of: dict[tuple[str, str], str | None] = {}
        self.shadow = frozenset(kind.spec.name for kind, config in choices if config.shadow)
        """The detectors whose findings alert nobody and belong to no incident."""
        self.event_time: Instant = BEGINNING
        """Everything up to here was handed over."""
        self.late_rows = 0
        """Rows and log lines that came when event time had passed them, and were dropped."""

    def feed(self, rows: Rows) -> None:
        """Take rows of one kind, in any order; those that event time has passed are dropped and counted."""
        self._finder.take_rows(rows, self.event_time)
        buffer = self._buffers.get(rows.kind)
        if buffer is not None:
            self.late_rows += buffer.add(rows, self.event_time)
        elif rows.kind in self.streams:
            self._pulse.coming(rows.times, self.event_time)

    def feed_logs(self, records: Iterable[LogRecord]) -> None:
        """Take log lines, in any order."""
        for record in records:
            if record.at > self.event_time:
                self._logs.append(record)
            else:
                self.late_rows += 1

    def feed_jobs(self, events: Iterable[JobEvent]) -> None:
        """Take starts and ends of jobs, in any order; one that comes late takes effect at once."""
        self._jobs.extend(events)

    def mark(self, stream: str, at: Instant, *, end: bool = False) -> None:
        """Note that all of `stream` up to `at` was fed; with `end`, that no more will follow."""
        self._watermarks.move(stream, at, end=end)

    def pending(self, stream: str) -> int:
        """Return how many rows, lines or events of a stream wait for the watermark."""
        waiting = {str(kind): len(buffer) for kind, buffer in self._buffers.items()}
        return {"logs": len(self._logs), "jobs": len(self._jobs), **waiting}.get(stream, 0)

    @property
    def watermark(self) -> Instant:
        """The time up to which every stream was fed."""
        return self._watermarks.least(self.streams)

    @property
    def awaited(self) -> set[str]:
        """The streams that the others wait for."""
        return self._watermarks.awaited(self.streams)

    @property
    def waiting_bytes(self) -> int:
        """About what all that waits for the watermark takes in memory."""
        rows = sum(buffer.waiting_bytes for buffer in self._buffers.values())
        return rows + _LINE_BYTES * (len(self._logs) + len(self._jobs))

    @property
    def ended(self) -> bool:
        """Whether every stream has come to its end and all of it was handed over."""
        return self.streams <= self._watermarks.ended and self.event_time >= self.watermark

    def finish(self, at: Instant) -> list[Finding]:
        """End every stream at `at` and return the last findings."""
        for stream in self.streams:
            self.mark(stream, at, end=True)
        return self.process()

    def process(self) -> list[Finding]:
        """Hand over all up to the watermark; return the findings, by (detected_at, detector, entity, state)."""
        upto = self.watermark
        if upto <= self.event_time:
            return self._conclude()
        self._logs.sort(key=log_order)
        self._jobs.sort(key=by_time)
        news: list[Finding] = []
        self._incident_of.clear()
        while self.event_time < upto:
            while self._jobs and self._jobs[0].at <= self.event_time + 1:
                for event in [*self._finder.scheduler_speaks(), self._jobs.pop(0)]:
                    self._happen(event)
            stop, urged = self._urgent(self._next_stop(upto))
            found = self._stretch(stop)
            self.event_time = stop
            on_grid = stop % self._grid == 0 and not self._pulse.rests(stop)
            for event in self._finder.advance(stop) if on_grid else ():
                self._happen(event)
            self._urged = tuple(range(len(self._detectors))) if on_grid else urged
            for number in self._urged:
                found += self._detectors[number].advance(stop)
            found += self._alarms.due(stop) if on_grid else ()
            admitted = self._alarms.admit(found) if found else []
            self._heard.take_findings(admitted)
            survivors = self._heard.look(stop) if on_grid else None
            if survivors is not None:
                admitted += self._alarms.admit(self._alarms.on_gone(survivors, stop, self._heard.words))
            news += self._correlate(admitted, stop)
            if survivors is not None:
                self._go_on_with(survivors)
        return sorted(news, key=canonical) + self._conclude()

    def _go_on_with(self, survivors: Survivors) -> None:
        """Forget who is gone: all state but theirs is put into a snapshot, and gone on with from there."""
        for event in self._finder.without(survivors.names("machine"), self.event_time):
            self._happen(event)
        for part in (*self._detectors, self._finder, self._heard):
            go_on(part, survivors)
        for kind in self._buffers.keys() & survivors.kept.keys():
            self._buffers[kind] = self._buffers[kind].keeping(survivors.kept[kind])
        self._fleet.go_on_with(survivors.kept)
        self._forgotten |= survivors.names("machine") | survivors.names("mount")
        self.topology = without(self.topology, survivors)
        self._load(self.snapshot())

    def _happen(self, event: JobEvent) -> None:
        self._fleet.happen(event)
        if not event.job.maintenance:
            self._correlator.happen(event)

    def _correlate(self, news: list[Finding], stop: Instant) -> list[Finding]:
        self._revisions += self._correlator.take(
            (f for f in news if f.detector not in self.shadow and f.severity != "info"), stop
        )
        for finding in news:
            self._incident_of[finding.id, finding.state] = self._correlator.of_finding(finding.id)
        return news

    def forgotten(self) -> set[str]:
        """Return the machines and mounts, by name, that were forgotten since this was last asked."""
        names, self._forgotten = self._forgotten, set()
        return names

    def incidents(self) -> list[Incident]:
        """Return the revisions of incidents made since this was last asked, in order of event time."""
        revisions, self._revisions = self._revisions, []
        return revisions

    def calibration(self) -> dict[str, dict[str, Any]]:
        """Return what is usual here, by detector that learns it: what `choose` takes as a calibration."""
        learning = (detector for detector in self._detectors if detector.spec.budget_share)
        tails = {detector.spec.name: getattr(detector, "tails", None) for detector in learning}
        return {name: known.document() for name, known in tails.items() if isinstance(known, Tails)}

    def incident_of(self, finding: Finding) -> str | None:
        """Return the incident that a finding of the last `process` belonged to when it was made; None in shadow."""
        return self._incident_of.get((finding.id, finding.state))

    def _conclude(self) -> list[Finding]:
        """At the end of all streams: let those decide that have not yet, as the end lies between points of the grid."""
        if self._concluded or not self.ended:
            return []
        self._concluded = True
        found: list[Finding] = []
        if not self._pulse.rests(self.event_time):
            for number in sorted(set(range(len(self._detectors))) - set(self._urged)):
                found += self._detectors[number].advance(self.event_time)
        news = self._correlate(self._alarms.admit(found), self.event_time) if found else []
        self._revisions += self._correlator.end(self.event_time)
        return news

    def _next_stop(self, upto: Instant) -> Instant:
        stops = [upto]
        if self._jobs:
            stops.append(self._jobs[0].at - 1)
        after = self.event_time
        grid = (after // self._grid + 1) * self._grid
        if not self._pulse.rests(after):
            stops.append(grid)
        elif (first := self._first()) is not None:
            stops.append(grid if first == after + 1 else first - 1)
        return min(stops)

    def _urgent(self, stop: Instant) -> tuple[Instant, tuple[int, ...]]:
        """Return the first time up to `stop` that some detectors want to decide at, and which; else `stop` and none."""
        wanted: dict[int, Instant] = {}
        for number, kind, name, bits in self._urgent_bits:
            first = self._buffers[kind].first_with(name, bits, stop)
            if first is not None:
                wanted[number] = min(first, wanted.get(number, first))
        stop = min(wanted.values(), default=stop)
        return stop, tuple(number for number, first in wanted.items() if first == stop)

    def _first(self) -> Instant | None:
        times = [at for at in (self._pulse.first(), *(one.first() for one in self._buffers.values())) if at is not None]
        if self._logs:
            times.append(self._logs[0].at)
        return min(times, default=None)

    def _stretch(self, stop: Instant) -> list[Finding]:
        found: list[Finding] = []
        self._pulse.go_on(stop)
        count = next((n for n, record in enumerate(self._logs) if record.at > stop), len(self._logs))
        if count:
            lines = list(dict.fromkeys(self._logs[:count]))
            del self._logs[:count]
            self._pulse.heard(lines[-1].at)
            self._heard.take_lines(lines)
            self._finder.take_lines(lines)
            for detector in self._detectors:
                if "logs" in detector.spec.reads:
                    found += detector.logs(lines)
        for kind, buffer in self._buffers.items():
            batch = buffer.hand_out(stop, self._fleet)
            if batch is None:
                continue
            latest = buffer.latest if buffer.latest is not None else stop
            self._pulse.heard(latest)
            self._heard.take(batch)
            if kind == "steps":
                self._fleet.stepped(batch.entities, latest)
            if not self._every:
                self._correlator.observe(batch)
            self._finder.observe(batch)
            for detector in self._detectors:
                if kind in detector.spec.reads:
                    found += detector.observe(batch)
        return found

    def snapshot(self) -> bytes:
        """Return all that is needed to go on from here, once `incidents` has been asked."""
        arrays: dict[str, Any] = {}
        names: dict[str, Any] = {}
        states = [*(detector.snapshot() for detector in self._detectors), self._correlator.snapshot()]
        for kind, buffer in self._buffers.items():
            names[kind], rows = buffer.snapshot()
            arrays |= {f"{kind}/{name}": array for name, array in rows.items()}
        finder, of_nodes = self._finder.snapshot()
        heard, looks = self._heard.saved()
        arrays |= of_nodes | {f"heard/{path}": array for path, array in looks.items()}
        document = {
            "format": FORMAT,
            "detectors": upgrade.fingerprint(self._choices),
            "names": names,
            "fleet": self._fleet.snapshot(),
            "finder": finder,
            "heard": heard,
            "logs": [astuple(record) for record in self._logs],
            "jobs": [asdict(event) for event in self._jobs],
            "marks": self._watermarks.at,
            "ended": sorted(self._watermarks.ended),
            "last": self._pulse.last,
            "urged": self._urged,
            "concluded": self._concluded,
            "alarms": self._alarms.snapshot(),
            "event_time": self.event_time,
            "late_rows": self.late_rows,
            "states": [len(state) for state in states],
        }
        own = pack(document, arrays)
        return b"".join((len(own).to_bytes(8, "little"), own, *states))

    @classmethod
    def restore(
        cls,
        topology: Mapping[str, Any] | None,
        choices: Sequence[Choice],
        streams: Iterable[str],
        state: bytes,
        *,
        grid_ms: int = GRID_MS,
        incidents: IncidentConfig | None = None,
        forgetting: Forgetting = AFTER_A_WEEK,
    ) -> Self:
        """Return an engine that goes on where `snapshot` was taken; exactly, where the same detectors took it.

        Of others `upgrade` says what goes on; what the rest had open is found again within an hour of event
        time, or resolved. Raises StateError if the bytes are damaged, or of a version that cannot be gone on with.
        """
        engine = cls(topology, choices, streams, grid_ms=grid_ms, incidents=incidents, forgetting=forgetting)
        engine._load(state)
        return engine

    def _load(self, state: bytes) -> None:
        length = int.from_bytes(state[:8], "little")
        document, arrays = unpack(state[8 : 8 + length])
        if document["format"] not in _READ:
            raise StateError(f"the state has format {document['format']}, of another version of hindcast")
        for kind in self._buffers.keys() & document["names"].keys():
            self._buffers[kind] = RowBuffer(kind, self.fields[kind])
            self._buffers[kind].restore(document["names"][kind], below(kind, arrays))
        self._fleet = Fleet.restore(self.topology, document["fleet"])
        self._heard = Heard(self._fleet, self._forgetting, self._grid)
        if "heard" in document:
            self._heard.take_saved(document["heard"], below("heard", arrays))
        self._finder = JobFinder(self._fleet)
        self._finder.load(document["finder"], arrays)
        self._logs = [LogRecord(*record) for record in document["logs"]]
        self._jobs = [job_event(event) for event in document["jobs"]]
        self._watermarks = Watermarks(document["marks"], document["ended"])
        self._pulse.last, self._concluded = document["last"], document["concluded"]
        self.event_time, self.late_rows = document["event_time"], document["late_rows"]
        states, sizes = state[8 + length :], document["states"][:-1]
        correlator = states[sum(sizes) :]
        self._correlator = Correlator.restore(self.topology, self._fleet, correlator, self._incidents)
        self._alarms = Alarms.restore(document["alarms"], self._correlator.open_findings())
        if document["detectors"] == upgrade.fingerprint(self._choices):
            self._urged = tuple(document["urged"])
        self._take_over(upgrade.kept(document["detectors"], states, sizes))

    def _take_over(self, known: Mapping[str, upgrade.Kept]) -> None:
        """Let the detectors go on with what a snapshot has of them; hold over what the others had open."""
        made = list(upgrade.detectors(self._choices, self._fleet, known))
        self._detectors = [detector for detector, _ in made]
        runs = {detector.spec.name for detector in self._detectors}
        going_on = {detector.spec.name for detector, goes_on in made if goes_on}
        for finding in self._alarms.open():
            if finding.detector not in going_on:
                until = self.event_time + (_HELD_OVER_MS if finding.detector in runs else 0)
                self._alarms.hold_over(finding, until, upgrade.reason(self._choices, finding))
