"""docs/reference/metrics.md: what /metrics of every service has."""

import importlib
import pkgutil
from collections import defaultdict

from prometheus_client.metrics import MetricWrapperBase

import services
from services.cli.reference.tables import code, page, table

_ABOUT = """\
Every service answers `/metrics` in Prometheus' text format, with Python's own metrics of the process beside these.
The alerts on them are in [alert-rules/pipeline.yaml](../../alert-rules/pipeline.yaml), the dashboard is `pipeline`.
Telemetry that the sink writes has the exporters' names: [series](series.md)."""


def found() -> dict[str, list[MetricWrapperBase]]:
    """Return the metrics by the package of services/ that has them."""
    by_service: dict[str, list[MetricWrapperBase]] = defaultdict(list)
    seen: set[int] = set()
    for module in pkgutil.walk_packages(services.__path__, "services."):
        last = module.name.rpartition(".")[2]
        if last.startswith("test_") or last in {"conftest", "__main__"} or module.ispkg:
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, MetricWrapperBase) and id(value) not in seen:
                seen.add(id(value))
                by_service[module.name.split(".")[1]].append(value)
    return dict(by_service)


def metrics() -> str:
    """Return the page."""
    parts = []
    for service, those in sorted(found().items()):
        rows = []
        for metric in those:
            family = next(iter(metric.describe()))
            ending = "_total" if family.type == "counter" else ""
            labels = ", ".join(code(name) for name in metric._labelnames)  # noqa: SLF001 - no public way to them
            rows.append((code(family.name + ending), family.type, labels, family.documentation))
        title = {"kit": "every service with Kafka", "notify": "notify and the webhook receiver"}.get(service, service)
        parts.append(f"## {title}\n\n" + table(("metric", "type", "labels", "what it counts"), sorted(rows)))
    return page("Metrics", _ABOUT, *parts)
