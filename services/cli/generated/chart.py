"""What of the Helm chart (deploy/chart) is generated: Kafka's topics, and Alertmanager's routes and receivers."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from services.kit import topics
from services.kit.kafka import KafkaSettings

_MATCHER = re.compile(r'(?P<name>\w+)(?P<how>=~|!~|!=|=)"(?P<value>[^"]*)"')
_RENAMED = {
    "group_by": "groupBy",
    "group_wait": "groupWait",
    "group_interval": "groupInterval",
    "repeat_interval": "repeatInterval",
    "source_matchers": "sourceMatch",
    "target_matchers": "targetMatch",
    "webhook_configs": "webhookConfigs",
    "send_resolved": "sendResolved",
}
_MATCHERS = frozenset({"matchers", "source_matchers", "target_matchers"})


def documents(alertmanager: Path) -> dict[str, str]:
    """Return the generated files of the chart by name; `alertmanager`: the configuration that the stack runs with."""
    found = yaml.safe_load(alertmanager.read_text(encoding="utf-8"))
    config = {
        "route": _custom(found["route"]),
        "inhibitRules": _custom(found["inhibit_rules"]),
        "receivers": _custom(found["receivers"]),
    }
    plan = topics.declared()
    made = [
        topics.new_topic(name, topic, plan, KafkaSettings.model_fields["unit_partitions"].default)
        for name, topic in plan.topics.items()
    ]
    of_kafka = [{"name": one.name, "partitions": one.num_partitions, "config": one.topic_configs} for one in made]
    return {"topics.yaml": _text(of_kafka), "alertmanager-config.yaml": _text(config)}


def _custom(part: Any) -> Any:
    """Return a part of Alertmanager's configuration as an AlertmanagerConfig has it.

    What Alertmanager reads from a file there comes from a secret here, which the chart names.
    """
    if isinstance(part, list):
        return [_custom(one) for one in part]
    if not isinstance(part, Mapping):
        return part
    return {
        _RENAMED.get(name, name): [_matcher(one) for one in value] if name in _MATCHERS else _custom(value)
        for name, value in part.items()
        if name != "url_file"
    }


def _matcher(text: str) -> dict[str, str]:
    found = _MATCHER.fullmatch(text)
    if found is None:
        msg = f"{text!r} is no matcher that an AlertmanagerConfig can have"
        raise ValueError(msg)
    return {"name": found["name"], "matchType": found["how"], "value": found["value"]}


def _text(document: Any) -> str:
    return "# Made by `make generate`.\n" + yaml.dump(document, Dumper=_Plain, sort_keys=False, width=120)


class _Plain(yaml.SafeDumper):
    """Writes what is there twice twice."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - as PyYAML has it
        return True
