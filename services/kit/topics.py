"""The topics, as declared in topics.yaml, and the explicit step that creates them."""

from collections.abc import Collection
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict

from detectors import yaml_text
from services.kit.errors import ServerError, UsageError

if TYPE_CHECKING:  # whose client takes long to load, and most who know the topics' names have no Kafka
    from kafka.admin import NewTopic

    from services.kit.kafka import KafkaSettings

FINDINGS = "findings"
INCIDENTS = "incidents"
REPLAYS = "replays"
UNITS = "units"
DEAD_LETTER = "dead-letter"


class Topic(BaseModel):
    """One declared topic; `stream` is the recording stream it carries, if it carries one."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: Literal["unit", "single"]
    stream: str | None = None
    retention_hours: int | None = None
    compact: bool = False
    forever: bool = False


class Topics(BaseModel):
    """All of topics.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    defaults: dict[str, str]
    topics: dict[str, Topic]

    def of_stream(self, stream: str) -> str:
        """Return the topic that carries `stream` (dcgm, nic, switch, bmc, storage, steps, jobs, logs)."""
        return next(name for name, topic in self.topics.items() if topic.stream == stream)

    def streams(self) -> dict[str, str]:
        """Return stream by topic, for every topic that carries a stream."""
        return {name: topic.stream for name, topic in self.topics.items() if topic.stream is not None}


@cache
def declared() -> Topics:
    """Return the declaration that ships with hindcast."""
    text = (resources.files("services.kit") / "topics.yaml").read_text()
    return Topics.model_validate(yaml_text.load(text))


def create(settings: "KafkaSettings") -> list[str]:
    """Create what is missing of the declared topics and return the created names: every partition has its leader.

    Raises UserError if a topic exists with another partition count: units would then be torn apart.
    """
    from services.kit.kafka import admin

    plan = declared()
    with admin(settings) as client:
        existing = {t["name"]: len(t["partitions"]) for t in client.describe_topics(list(client.list_topics()))}
        for name, topic in plan.topics.items():
            want = _partitions(topic, settings.unit_partitions)
            if existing.get(name, want) != want:
                raise UsageError(
                    f"topic {name} has {existing[name]} partitions, and is to have {want}",
                    remedy="all topics of units need the same count: set HINDCAST_KAFKA_UNIT_PARTITIONS to that with "
                    "which they were made, delete the topic, or use a broker of its own",
                )
        missing = {name: topic for name, topic in plan.topics.items() if name not in existing}
        if missing:
            client.create_topics(
                [new_topic(name, topic, plan, settings.unit_partitions) for name, topic in missing.items()],
                wait_for_metadata=True,
            )
    return list(missing)


def ids(settings: "KafkaSettings", names: Collection[str]) -> dict[str, str]:
    """Return what identifies topics, by name: one that is made anew has another. UserError (exit code 3): one lacks."""
    from services.kit.kafka import admin

    with admin(settings) as client:
        found = {topic["name"]: topic for topic in client.describe_topics(sorted(names))}
    missing = [name for name in sorted(names) if name not in found or not found[name].get("partitions")]
    if missing:
        raise ServerError(f"topic(s) {', '.join(missing)} do not exist", remedy="create them: hindcast topics create")
    return {name: str(topic.get("topic_id")) for name, topic in found.items()}


def _partitions(topic: Topic, of_units: int) -> int:
    return of_units if topic.kind == "unit" else 1


def new_topic(name: str, topic: Topic, plan: Topics, unit_partitions: int) -> "NewTopic":
    """Return a declared topic with its partitions and Kafka's settings; replicated as the broker does by default."""
    from kafka.admin import NewTopic

    config = dict(plan.defaults)
    if topic.compact:
        config["cleanup.policy"] = "compact"
    if topic.retention_hours is not None:
        config["retention.ms"] = str(topic.retention_hours * 3_600_000)
    if topic.forever:
        config["retention.ms"] = "-1"
    return NewTopic(name, _partitions(topic, unit_partitions), replication_factor=-1, topic_configs=config)
