"""The running pipeline, as demo, benchmarks and integration tests see it: over HTTP and Kafka, like any user."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from ssl import SSLContext
from typing import Any

import httpx
from kafka import TopicPartition
from kafka.errors import RetriableError

from services.kit import topics
from services.kit.errors import ServerError, UsageError
from services.kit.kafka import KafkaSettings, admin, consumer, reached
from services.kit.wait import PATIENCE_S, until

DETECT_GROUP = "hindcast-detect"
NOTIFY_GROUP = "hindcast-notify"


def sink_group(target: str) -> str:
    """Return the consumer group of the sink of `target`."""
    return f"hindcast-sink-{target}"


@cache
def _trust() -> SSLContext:
    """Return what each request is to trust: reading the machine's certificates takes longer than the request."""
    return httpx.create_ssl_context()


@dataclass(frozen=True)
class Pipeline:
    """A broker, and hindcast's services by name and URL."""

    kafka: KafkaSettings
    services: Mapping[str, str]

    def start_replay(self, recording: str, **request: object) -> dict[str, Any]:
        """Start a replay and return its status; UserError with the service's own words if it refuses."""
        answer = self._call("POST", "/api/v1/replays", json={"recording": recording, **request})
        return dict(answer)

    def status(self, name: str) -> dict[str, Any]:
        """Return the status of the replay `name`."""
        return dict(self._call("GET", f"/api/v1/replays/{name}"))

    def command(self, name: str, verb: str, **body: object) -> dict[str, Any]:
        """Pause, resume, seek, speed or stop the replay `name`."""
        return dict(self._call("POST", f"/api/v1/replays/{name}/{verb}", json=body or None))

    def wait_over(self, name: str, *, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        """Wait until the replay has sent all it has to send, and return its status."""

        def over() -> dict[str, Any] | None:
            status = self.status(name)
            if status["state"] == "failed":
                raise ServerError(f"replay {name} failed: {status.get('error')}")
            return status if status["state"] in ("ended", "stopped") else None

        return until(over, timeout_s=timeout_s, what=f"replay {name} to end", interval_s=0.1)

    def lag(self, group: str) -> int:
        """Return how many records of the topics that `group` reads it has not committed yet."""
        with closing(consumer(self.kafka, group=None)) as reader, admin(self.kafka) as client:
            committed = client.list_group_offsets([group]).get(group, {})
            names = _topics_of(group)
            parts = [TopicPartition(name, p) for name in names for p in reader.partitions_for_topic(name) or ()]
            ends = reader.end_offsets(parts)
            begins = reader.beginning_offsets(parts)
        done = {part: entry.offset for part, entry in committed.items()}
        return sum(ends[part] - max(done.get(part, 0), begins[part]) for part in parts)

    def wait_caught_up(self, *groups: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait until each of `groups` has committed all there is."""
        what = f"{', '.join(groups)} to catch up"
        until(lambda: self.caught_up(*groups), timeout_s=timeout_s, what=what, interval_s=0.2)

    def caught_up(self, *groups: str) -> bool:
        """Return whether each of `groups` has committed all there is; no, where Kafka cannot say it now.

        So it is while a partition gets another leader, or a group another coordinator.
        """
        try:
            return not any(self.lag(group) for group in groups)
        except RetriableError:
            return False

    def findings(self, unit: str, generation: int = 0) -> list[str]:
        """Return the findings of a unit's generation as they stand in Kafka: JSON lines, each once, sorted."""
        prefix = f"{unit}/{generation}/".encode()
        return sorted(
            {record.value.decode() for record in self.records(topics.FINDINGS) if record.key.startswith(prefix)}
        )

    def records(self, topic: str) -> list[Any]:
        """Return every record of `topic`, as it is now."""
        with closing(consumer(self.kafka, group=None)) as reader:
            parts = [TopicPartition(topic, p) for p in reader.partitions_for_topic(topic) or ()]
            reader.assign(parts)
            reader.seek_to_beginning(*parts)
            ends = reader.end_offsets(parts)
            found: list[Any] = []
            while any(reached(reader, part) < ends[part] for part in parts):
                for records in reader.poll(timeout_ms=200).values():
                    found.extend(records)
            return found

    def webhooks(self, replay: str) -> list[dict[str, Any]]:
        """Return what the webhook receiver got for `replay`: wall time of receipt and the body."""
        url = f"{self.services['receiver']}/received"
        answer = httpx.get(url, params={"replay": replay}, timeout=60, verify=_trust())
        answer.raise_for_status()
        return list(answer.json())

    def _call(self, method: str, path: str, json: object = None) -> Any:
        url = self.services["replay"]
        try:
            answer = httpx.request(method, f"{url}{path}", json=json, timeout=60, verify=_trust())
        except httpx.TransportError as error:
            raise ServerError(
                f"the replay service does not answer at {url} ({type(error).__name__})",
                remedy="start it (hindcast stack up), or set HINDCAST_REPLAY_URL",
            ) from error
        if answer.is_error:
            problem = answer.json()
            raise UsageError(str(problem.get("detail", problem)), remedy=str(problem.get("remedy", "")))
        return answer.json()


def _topics_of(group: str) -> list[str]:
    if group == NOTIFY_GROUP:
        return [topics.FINDINGS]
    streams = topics.declared().streams()
    if group == DETECT_GROUP:
        return list(streams)
    samples = [name for name, stream in streams.items() if stream not in ("jobs", "logs")]  # those carry no samples
    return [*samples, topics.FINDINGS]
