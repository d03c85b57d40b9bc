"""Configuration files of the servers, as text."""

from collections.abc import Sequence
from pathlib import Path

import yaml

# Beside Alertmanager's configuration, which names it as `url_file`: it is read at every delivery, so the receiver may
# be known later than Alertmanager is started.
WEBHOOK_URL_FILE = "webhook-url"
# What the sidecar uploads blocks under: it refuses to without external labels.
PROMETHEUS_LABELS = {"prometheus": "hindcast"}
# Distinguishes those of a pair; Query and Compact take series that differ in nothing else for one.
REPLICA_LABEL = "replica"

KAFKA_LOGGING = """\
rootLogger.level=INFO
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d{ISO8601} %p %c{1} %m%n
"""


def kafka(*, port: int, controller_port: int, data: Path) -> str:
    """Return server.properties of one node that is broker and controller."""
    return "".join(
        f"{key}={value}\n"
        for key, value in {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": data,
            # Topics are created by an explicit step, from one declaration; a misspelt one must be an error.
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": 0,
            # One node cannot keep three replicas, and needs no fifty partitions of offsets.
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 8,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 8,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "share.coordinator.state.topic.num.partitions": 8,
            # For topics that declare no retention of their own.
            "log.retention.hours": 24,
            "log.retention.check.interval.ms": 60_000,
            "log.segment.bytes": 256 * 1024 * 1024,
            # A message is an Arrow stream of many nodes and ticks; topics declare their own limit below this.
            "message.max.bytes": 16 * 1024 * 1024,
        }.items()
    )


def prometheus(
    *, alertmanager: str, out_of_order_window: str, rule_files: Sequence[Path | str] = (), replica: int = 0
) -> str:
    """Return prometheus.yml: no scraping at all, so that an empty head accepts telemetry of any age."""
    return _yaml(
        {
            "global": {
                "evaluation_interval": "15s",
                "external_labels": {**PROMETHEUS_LABELS, REPLICA_LABEL: str(replica)},
            },
            "storage": {"tsdb": {"out_of_order_time_window": out_of_order_window}},
            "rule_files": [str(path) for path in rule_files],
            "alerting": {
                # Both of a pair send the same alert, and it is one.
                "alert_relabel_configs": [{"action": "labeldrop", "regex": "prometheus|replica"}],
                "alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}],
            },
        }
    )


def object_store(bucket: Path | str) -> str:
    """Return Thanos' configuration of an object store in a folder."""
    return _yaml({"type": "FILESYSTEM", "config": {"directory": str(bucket)}})


def compact_selector() -> str:
    """Return the relabelling that has Compact see the blocks of Prometheus and leave Receive's tenants alone.

    Its retention counts from now: a recording of last year, kept at its own time in a tenant, would be deleted at once.
    And a tenant goes as a whole, with its replay, which must not race with a compaction.
    """
    return _yaml([{"action": "keep", "source_labels": ["prometheus"], "regex": PROMETHEUS_LABELS["prometheus"]}])


def _yaml(document: object) -> str:
    text: str = yaml.safe_dump(document, sort_keys=False)
    return text
