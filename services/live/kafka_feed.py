"""A server's series into Kafka, as the live cluster's that services.detect and the others there look at."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from detectors.contract import LogRecord
from detectors.core.survivors import Survivors
from detectors.engine.heard import without
from detectors.engine.state import StateError
from detectors.fleet.fleet import JobEvent
from services.gateway.announced import announce
from services.gateway.outlet import AwayError, KafkaOutlet, Parcel, parcels_of, parcels_of_lines, watermark_of
from services.kit import topics
from services.kit.durable import Keeper
from services.kit.errors import ServerError
from services.kit.kafka import KafkaSettings, producer
from services.kit.replays import ReplayState
from services.kit.times import format_time
from services.kit.units import partition_of
from services.kit.wire import Origin, encode_rows
from services.live.start import Asked, Surveyed, saved_in, say_unused, survey
from services.live.state import Saved, StateFile
from services.live.stretches import ALL, Stretch, Stretches, document_of
from services.notify.payload import LIVE
from services.recording.embedded import Step
from services.recording.importers.parts.series.query_api import QueryApi
from services.recording.model import Topology

_ACK_S = 10.0
_AT_ONCE = 8
"""Messages, of a megabyte at most each, that are acknowledged before more are sent."""
_TARGET = "none"
"""The sink that writes it: the telemetry is in a Prometheus already."""
_STATE = "live-kafka.state"
_MACHINES = {"switch": "switch"}
"""The column that names the machine, where it is not `node`."""


class Target(NamedTuple):
    """Where a feed's records go, and what is announced of it there."""

    kafka: KafkaSettings
    outlet: KafkaOutlet
    state: ReplayState
    keep: Callable[[Saved], object] | None
    topic_ids: dict[str, str]


class KafkaFeed(Stretches):
    """Sends each row once: `at` (epoch ms) moves on when Kafka has acknowledged all up to there."""

    def __init__(self, found: Surveyed, asked: Asked, target: Target) -> None:
        super().__init__(found.reader, asked.site, found.since, found.lateness)
        self._target, self._forget_ms = target, asked.site.forget_ms
        given = asked.site.topology
        self._expected = {node.name for node in given.nodes} | {switch.name for switch in given.switches}
        self._announced: dict[str, Any] | None = None
        self._heard: dict[str, int] = {}
        """When machines were heard last, by the end of the stretch (epoch ms)."""
        self._unsent: list[list[Parcel]] = []
        self._upto = self.at
        """All up to there is sent or `_unsent`."""

    def restore(self, document: dict[str, Any]) -> None:
        """Go on where a position was kept."""
        self.take_saved(document["feed"])
        self._upto, self._heard = self.at, document["heard"]

    def step(self, now: int) -> Step | None:
        """Go on by one stretch; None where nothing is due at `now`.

        UserError where the server or Kafka does not answer: what is not acknowledged is sent again by the next call.
        """
        if self._upto == self.at:
            stretch = self.read(now)
            if stretch is None:
                return None
            rows = {stream: _between(batch, stretch.after, stretch.upto) for stream, batch in stretch.rows.items()}
            stretch = stretch._replace(rows=rows)
            self._hear(stretch)
            self._unsent = list(_deliveries(stretch))
            self._upto = stretch.upto
        self._announce()
        try:
            while self._unsent:
                self._target.outlet.deliver(self._unsent[0])
                del self._unsent[0]
        except AwayError as error:
            raise ServerError(str(error), remedy="see to Kafka: the feed goes on by itself") from error
        self.at = self._upto
        self._save()
        return Step(self.at, [], [])

    def _hear(self, stretch: Stretch) -> None:
        """Take note of who reports; forget who did not for long and is not expected."""
        for stream, batch in stretch.rows.items():
            names = pc.unique(batch.column(_MACHINES.get(stream, "node"))).to_pylist()
            self._heard |= dict.fromkeys((name for name in names if name), stretch.upto)
        since = stretch.upto - self._forget_ms
        gone = {name for name, at in self._heard.items() if at < since} - self._expected
        if gone:
            self._forget(gone)
            self._heard = {name: at for name, at in self._heard.items() if name not in gone}
            left = without(document_of(self.topology), Survivors({}, {"machine": frozenset(gone)}))
            self.topology = Topology.model_validate(left)

    def _announce(self) -> None:
        """Let detect and the others know the machines before anything of them comes."""
        known = document_of(self.topology)
        if known != self._announced:
            announce(self._target.kafka, self._target.state.unit, known, self._target.state)
            self._announced = known

    def _save(self) -> None:
        if self._target.keep is None:
            return
        document = {
            "server": self.server,
            "topics": self._target.topic_ids,
            "announced": self._target.state.model_dump(mode="json"),
            "feed": self.snapshot(),
            "heard": self._heard,
        }
        self._target.keep(Saved(document, b""))


class Sending(NamedTuple):
    """A feed that can begin; `until`: the end of its lookback (epoch ms)."""

    feed: KafkaFeed
    outlet: KafkaOutlet
    cluster: str
    until: int
    goes_on: bool


def prepare(
    api: QueryApi, asked: Asked, kafka: KafkaSettings, *, wall_ms: Callable[[], int], ack_s: float = _ACK_S
) -> Sending:
    """Return a feed of a server's series to Kafka, which is away where it has not acknowledged after `ack_s`.

    UserError as `services.live.start.prepare`, and (exit code 3) where Kafka does not answer or has not the topics.
    """
    file = StateFile(asked.state, _STATE) if asked.state is not None else None
    saved = saved_in(file, api.access.url)
    topic_ids = topics.ids(kafka, (*topics.declared().streams(), topics.UNITS))
    found = survey(api, asked, wall_ms(), saved.document["feed"]["at"] if saved is not None else None)
    origin = Origin(found.cluster, LIVE, target=_TARGET)
    state = _state(origin, found, asked)
    if saved is not None:
        kept = ReplayState.model_validate(saved.document["announced"])
        if saved.document["topics"] != topic_ids:
            say_unused(StateError("it is of other topics, or of topics that were since made anew"))
            saved = None
        elif kept.unit != state.unit:
            say_unused(StateError(f"it is of {kept.unit}, not of {state.unit}"))
            saved = None
        else:
            state = kept.model_copy(update={"expected": state.expected})
    outlet = KafkaOutlet(
        lambda: producer(kafka, max_block_ms=round(ack_s * 1000)),
        origin,
        partition_of(kafka, origin.unit),
        timeout_s=ack_s,
    )
    feed = KafkaFeed(found, asked, Target(kafka, outlet, state, _keeping(file), topic_ids))
    if saved is not None:
        feed.restore(saved.document)
    return Sending(feed, outlet, found.cluster, found.from_ms, saved is not None)


def _keeping(file: StateFile | None) -> Callable[[Saved], object] | None:
    if file is None:
        return None
    keeper = Keeper(file.folder)
    return lambda saved: keeper.kept(partial(file.save, saved))


def _state(origin: Origin, found: Surveyed, asked: Asked) -> ReplayState:
    """Return what detect is to know: its streams have watermarks, and until when it is lookback."""
    return ReplayState(
        cluster=origin.cluster,
        replay=origin.replay,
        generation=origin.generation,
        shift_ms=origin.shift_ms,
        target=origin.target,
        recording=LIVE,
        from_ms=found.from_ms,
        to_ms=found.from_ms,
        warm_from_ms=found.since,
        speed=1,
        state="running",
        streams=ALL,
        expected=document_of(asked.site.topology),
    )


def _deliveries(stretch: Stretch) -> Iterator[list[Parcel]]:
    """Yield what is to be acknowledged one after the other; the watermarks last, when all is there."""
    parcels: list[Parcel] = []
    for stream, batch in stretch.rows.items():
        parcels += parcels_of(stream, batch)
    parcels += parcels_of_lines("jobs", [_job_line(event) for event in stretch.jobs])
    parcels += parcels_of_lines("logs", [_log_line(record) for record in stretch.logs])
    for start in range(0, len(parcels), _AT_ONCE):
        yield parcels[start : start + _AT_ONCE]
    yield [watermark_of(stream, stretch.upto) for stream in ALL]


def _between(batch: pa.RecordBatch, after: int, upto: int) -> pa.RecordBatch:
    """Return the rows with ``after < time <= upto`` of a batch in order of time."""
    times = np.asarray(batch.column("timestamp").cast(pa.int64()))
    low, high = np.searchsorted(times, (after, upto), side="right")
    return batch.slice(int(low), int(high - low))


def _job_line(event: JobEvent) -> bytes:
    job = event.job
    known = {
        "job_id": job.job_id,
        "nodes": job.nodes,
        "start": format_time(job.start),
        "gpus_per_node": job.gpus_per_node,
        "gpus": job.gpus,
        "maintenance": job.maintenance,
    } | ({"state": event.state} if event.state else {})
    return encode_rows([{"timestamp": format_time(event.at), "event": event.event, "job": known}])


def _log_line(record: LogRecord) -> bytes:
    line = {"source": record.source, "severity": record.severity, "node": record.node, "message": record.message}
    return encode_rows([{"timestamp": format_time(record.at), **line}])
