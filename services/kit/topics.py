"""The topics, as declared in topics.yaml, and the explicit step that creates them."""

from functools import cache
from importlib import resources
from typing import Literal

import yaml
from kafka.admin import NewTopic
from pydantic import BaseModel, ConfigDict

from services.kit.errors import UserError
from services.kit.kafka import KafkaSettings, admin

FINDINGS = "findings"
INCIDENTS = "incidents"
REPLAYS = "replays"
DEAD_LETTER = "dead-letter"


class Topic(BaseModel):
    """One declared topic; `stream` is the recording stream it carries, if it carries one."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: Literal["unit", "single"]
    stream: str | None = None
    retention_hours: int | None = None
    compact: bool = False


class Topics(BaseModel):
    """All of topics.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    unit_partitions: int
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
    return Topics.model_validate(yaml.safe_load(text))


def create(settings: KafkaSettings) -> list[str]:
    """Create what is missing of the declared topics and return the created names.

    Raises UserError if a topic exists with another partition count: units would then be torn apart.
    """
    plan = declared()
    with admin(settings) as client:
        existing = {t["name"]: len(t["partitions"]) for t in client.describe_topics(list(client.list_topics()))}
        for name, topic in plan.topics.items():
            want = plan.unit_partitions if topic.kind == "unit" else 1
            if existing.get(name, want) != want:
                raise UserError(
                    f"topic {name} has {existing[name]} partitions, hindcast declares {want}",
                    remedy="all unit topics need the same count: delete the topic, or use a broker of its own",
                    exit_code=2,
                )
        missing = {name: topic for name, topic in plan.topics.items() if name not in existing}
        if missing:
            client.create_topics([new_topic(name, topic, plan) for name, topic in missing.items()])
    return list(missing)


def new_topic(name: str, topic: Topic, plan: Topics) -> NewTopic:
    """Return a declared topic with its partitions and Kafka's settings; replicated as the broker does by default."""
    config = dict(plan.defaults)
    if topic.compact:
        config["cleanup.policy"] = "compact"
    if topic.retention_hours is not None:
        config["retention.ms"] = str(topic.retention_hours * 3_600_000)
    partitions = plan.unit_partitions if topic.kind == "unit" else 1
    return NewTopic(name, partitions, replication_factor=-1, topic_configs=config)
