"""A recording as the remote-write requests that a live cluster's Prometheus would send: the sink's own encoding."""

import json
import random
from collections.abc import Iterator

import numpy as np
from kafka import TopicPartition

from services.kit.wire import Origin
from services.recording.reader import Recording, to_json_line
from services.replay.lines import job_lines
from services.sink.encode import Samples, by_page, request
from services.sink.pages import Catalogue, Protocol
from services.sink.units import Stream

SHARDS = 3


HEADERS_V2 = {
    "Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "2.0.0",
}


def requests_of(
    recording: Recording, protocol: Protocol, *, cluster: str = "", shift_ms: int = 0, each_ms: int = 15_000
) -> Iterator[tuple[int, bytes]]:
    """Yield (recording time up to which it is in, request): what is read at once goes by several shards, in parts."""
    origin = Origin(cluster or recording.manifest.cluster.name, "live", shift_ms=shift_ms)
    topology = recording.topology.model_dump(mode="json", exclude_unset=True)
    catalogue = Catalogue(protocol)
    streams = {name: Stream(name, origin, topology, catalogue, TopicPartition(name, 0)) for name in recording.streams()}
    for stream in streams.values():
        stream.begin(origin, None, 0)
    order = random.Random(1)  # noqa: S311 - a reproducible shuffle, no secret
    start, end = recording.manifest.start, recording.manifest.end
    for begin in range(start, end + 1, each_ms):
        until = min(begin + each_ms, end + 1)
        bodies = []
        for name, stream in streams.items():
            for batch in recording.batches(name, begin, until):
                for block in stream.take(stream.reader.decoded(batch), []).in_order():
                    for number, part in by_page(block):
                        for shard in range(SHARDS):
                            mine = np.flatnonzero(part.series % SHARDS == shard)
                            if len(mine):
                                some = Samples(part.series[mine], part.times[mine], part.values[mine])
                                bodies.append(request(catalogue.pages[number], [some]))
        order.shuffle(bodies)
        yield from ((until - 1, body) for body in bodies)


def lines_of(recording: Recording, *, shift_ms: int = 0) -> tuple[bytes, bytes]:
    """Return the jobs and the log lines of a recording, as they would be posted."""
    start, end = recording.manifest.start, recording.manifest.end
    moved = [job.model_copy(update=_moved(job, shift_ms)) for job in recording.jobs()]
    jobs = b"\n".join(line for _, line in job_lines(moved, start + shift_ms, end + shift_ms))
    events = [
        event.model_copy(update={"timestamp": event.timestamp + shift_ms}) for event in recording.events(start, end + 1)
    ]
    return jobs, json.dumps([json.loads(to_json_line(event)) for event in events]).encode()


def _moved(job: object, shift_ms: int) -> dict[str, int]:
    times = {name: getattr(job, name) for name in ("submit", "start", "end")}
    return {name: at + shift_ms for name, at in times.items() if at is not None}
