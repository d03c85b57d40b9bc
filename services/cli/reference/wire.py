"""docs/reference/topics.md and series.md: what Kafka carries, and which series each stream becomes."""

from services.cli.reference.tables import code, page, table

_TOPICS = """\
`hindcast topics create` makes them, as `services/kit/topics.yaml` declares them. A record's key is its unit,
`cluster/replay`. All of a unit lies in the same partition number of each topic, so that one instance of detect reads
it. The partition is assigned before the first record is sent, where the fewest units are, and recorded in the topic
`units`: `hindcast topics units` shows it.
Telemetry is Arrow IPC, a record batch a message; what is not telemetry is JSON ([a replay's
schema](../schema/replays.schema.json))."""
_SERIES = """\
The sink names series as the usual exporters do, from `services/kit/series.yaml`; the gateway, `hindcast live` and
the importers of scrapes read the same file backwards. Every series also has the labels `cluster`, `replay` (`live`
of a running cluster), `job` and `instance`."""
_CARRIES = {
    "findings": "findings, one record for each time one opens or is over",
    "incidents": "incidents, one record for each revision",
    "units": "the partition of every cluster and replay",
    "replays": "the state and the topology of every replay",
    "dead-letter": "records that could not be used, with the reason",
}


def topics() -> str:
    """Return the page of the topics."""
    from services.kit.topics import declared

    plan = declared()
    rows = []
    for name, topic in plan.topics.items():
        partitions = code("HINDCAST_KAFKA_UNIT_PARTITIONS") if topic.kind == "unit" else "1"
        kept = "for good" if topic.forever else f"{topic.retention_hours} hours"
        kept = "the last record of each key" if topic.compact else kept
        rows.append((code(name), _CARRIES.get(name, f"the stream {topic.stream}"), partitions, kept))
    return page("Kafka topics", _TOPICS, table(("topic", "carries", "partitions", "kept"), rows))


def series() -> str:
    """Return the page of the series."""
    from services.kit import series as known

    parts = []
    for name, stream in known.table().streams.items():
        labels = ", ".join(code(label) for label in stream.labels)
        head = f"## {name}\n\nScrape job `{stream.job}`, instance `{stream.instance}`; labels {labels}.\n\n"
        rows = [
            (code(column), code(made.metric), _change(made.scale, made.offset))
            for column, made in stream.columns.items()
        ]
        rows += [
            (f"`{made.match}` (a pattern)", code(made.metric), _change(made.scale, made.offset))
            for made in stream.patterns
        ]
        for unit, made_of in stream.by_unit.items():
            rows += [(f"sensors in `{unit}`: {column}", code(metric), "") for column, metric in made_of.items()]
        rows.append(("any other", code(stream.otherwise), ""))
        parts.append(head + table(("column", "metric", "value"), rows))
    found = known.table().findings
    left = [
        (code(found.active), "1 when a finding fires, 0 when it is over: read it by `last_over_time`"),
        (code(found.started), "when the fault began, in seconds since 1970"),
    ]
    head = "## findings\n\nThe labels are the entity's, `fault`, `severity` and `detector`.\n\n"
    return page("Series", _SERIES, *parts, head + table(("metric", "value"), left))


def _change(scale: float, offset: float) -> str:
    times = f"times {scale:g}" if scale != 1 else ""
    return times + (f" plus {offset:g}" if offset else "")
