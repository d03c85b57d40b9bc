"""The soak's brokers: three in place of the stack's one, so that each partition has a leader and two who may be next.

Each is a controller too. Every topic has three copies, and a record is acknowledged when two have it. Beside the
stack's listener each broker has one for every door, a service's way to Kafka, and one for the other brokers to copy
from: these lie behind links, which can be cut.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from kafka import TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from services.kit.errors import UserError
from services.kit.kafka import KafkaSettings, admin
from services.stack.health import KafkaHealth
from services.stack.ports import LOOPBACK
from services.stack.runner import Stack

Doors = Mapping[str, Sequence[tuple[int, int]]]
"""By name of a door, for each broker: the port that it is to listen at, and that of the link before it."""
THREE = ("kafka", "kafka-2", "kafka-3")
AMONG = "brokers"
"""The door that brokers copy from one another through."""
_PREFERRED = 0
"""Of elections: that of each partition's first replica."""
_COPIES = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    # One that cannot follow is left behind within a blow, not after it.
    "replica.lag.time.max.ms": "10000",
}


@dataclass(frozen=True)
class Brokers:
    """All brokers of a stack, as `kafka` reaches them."""

    kafka: KafkaSettings

    def change_leaders(self) -> None:
        """Have the next of its replicas lead each partition: no broker ends, and nothing is copied.

        Where there is no other, or the brokers cannot be asked, all stays as it is.
        """
        with suppress(KafkaError, UserError), admin(self.kafka) as client:
            client.alter_partition_reassignments({at: _turned(part) for at, part in _partitions(client).items()})
            client.elect_leaders(_PREFERRED, raise_errors=False)

    def changes(self) -> int:
        """Return how often a partition has got another leader, over all partitions since they were made."""
        with admin(self.kafka) as client:
            return sum(int(part["leader_epoch"]) for part in _partitions(client).values())


def _partitions(client: KafkaAdminClient) -> dict[TopicPartition, dict[str, Any]]:
    return {
        TopicPartition(topic["name"], part["partition_index"]): part
        for topic in client.describe_topics()
        for part in topic["partitions"]
    }


def _turned(part: dict[str, Any]) -> list[int]:
    """Return a partition's replicas from the one after its leader on, those that cannot lead now last."""
    own: list[int] = part["replica_nodes"]
    at = own.index(part["leader_id"]) + 1 if part["leader_id"] in own else 0
    return sorted([*own[at:], *own[:at]], key=lambda node: node not in part["isr_nodes"])


def furnish(stack: Stack, doors: Doors) -> Brokers:
    """Give a stack that is not started yet as many brokers as each door has ports, 1 or 3, and each broker its doors.

    A broker names to whoever comes through a door the links before that door only: all that a client asks goes there.
    """
    first = stack.process("kafka")
    path = stack.state_dir / "config" / "server.properties"
    common = dict(line.split("=", 1) for line in path.read_text(encoding="utf-8").splitlines())
    ports = stack.service_context().ports
    count = max(len(behind) for behind in doors.values())
    own = [first.spec.ports, *((ports.take(), ports.take()) for _ in range(count - 1))]
    common["controller.quorum.voters"] = ",".join(f"{node}@{LOOPBACK}:{at}" for node, (_, at) in enumerate(own, 1))
    common["inter.broker.listener.name"] = _listener(AMONG) if AMONG in doors else "PLAINTEXT"
    common |= _COPIES if count > 1 else {}
    specs = []
    for number, (name, (port, controller)) in enumerate(zip(THREE, own, strict=False)):
        data = stack.state_dir / "data" / name
        data.mkdir(exist_ok=True)
        listeners = {"PLAINTEXT": (port, port)} | {_listener(door): doors[door][number] for door in doors}
        opened = {word: behind for word, (behind, _) in listeners.items()} | {"CONTROLLER": controller}
        properties = common | {
            "node.id": str(number + 1),
            "log.dirs": str(data),
            "listeners": _places(opened),
            "advertised.listeners": _places({word: link for word, (_, link) in listeners.items()}),
            "listener.security.protocol.map": ",".join(f"{word}:PLAINTEXT" for word in opened),
        }
        written = path.with_name(f"{name}.properties")
        written.write_text("".join(f"{key}={value}\n" for key, value in properties.items()), encoding="utf-8")
        specs.append(
            replace(
                first.spec,
                name=name,
                argv=_instead(first.spec.argv, str(path), str(written)),
                prepare=_instead(first.spec.prepare, str(path), str(written)),
                prepared_by=data / "meta.properties",
                health=KafkaHealth(port),
                ports=tuple(opened.values()),
            )
        )
    first.spec = specs[0]
    for spec in specs[1:]:
        stack.add(spec)
    return Brokers(KafkaSettings(bootstrap=",".join(f"{LOOPBACK}:{port}" for port, _ in own)))


def _listener(door: str) -> str:
    return door.upper()


def _places(listeners: Mapping[str, int]) -> str:
    return ",".join(f"{word}://{LOOPBACK}:{port}" for word, port in listeners.items())


def _instead(words: Sequence[str], old: str, new: str) -> tuple[str, ...]:
    return tuple(new if word == old else word for word in words)
