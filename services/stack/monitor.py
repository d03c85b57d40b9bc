"""The Prometheus that watches hindcast itself: scrapes its services and servers, evaluates alert-rules/pipeline.yaml.

A process of its own: series at wall time in the Prometheus that takes telemetry would put every replay on its path of
late samples. Its sidecar uploads nothing; Query asks it, so all dashboards have one data source.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from services.stack.health import Health
from services.stack.spec import ProcessSpec

NAME = "prometheus-monitor"
# How long it keeps what it saw: long enough to look back at an incident's week.
RETENTION = "15d"
# This distinguishes its series from those of the Prometheus that takes telemetry, which has the same label.
LABELS = {"prometheus": "hindcast-monitor"}
# Beside its configuration: hindcast's services may come and go while it runs.
TARGETS_FILE = "monitor-targets.json"
# A replay at speed 60 lasts a minute, and some fifteen small pages cost little.
_SCRAPE_INTERVAL = "5s"


def process(binary: Path, config: Path, data: Path, *, port: int, address: str, health: Health) -> ProcessSpec:
    """Describe its process, listening at `address`, whose port is `port`."""
    argv = (
        str(binary),
        f"--config.file={config}",
        f"--storage.tsdb.path={data}",
        f"--storage.tsdb.retention.time={RETENTION}",
        f"--web.listen-address={address}",
    )
    return ProcessSpec(NAME, argv, health, ports=(port,))


def config(
    *,
    alertmanager: str,
    servers: Mapping[str, str],
    services: Mapping[str, str] | Path,
    rule_files: Sequence[Path | str],
    credentials: Path | None = None,
) -> str:
    """Return its prometheus.yml. `servers` and `services` are host:port by name; a Path is a file as of `targets`.

    `credentials`: the file with the token that the services ask for, where they do.
    """
    shown: dict[str, object] = {"authorization": {"credentials_file": str(credentials)}} if credentials else {}
    found: dict[str, object] = (
        {"file_sd_configs": [{"files": [str(services)]}]}
        if isinstance(services, Path)
        else {"static_configs": _groups(services)}
    )
    text: str = yaml.safe_dump(
        {
            "global": {
                "scrape_interval": _SCRAPE_INTERVAL,
                "evaluation_interval": "15s",
                "external_labels": LABELS,
            },
            "rule_files": [str(path) for path in rule_files],
            "scrape_configs": [
                # A dead letter says itself which service could not read it.
                {"job_name": "hindcast", "honor_labels": True, **shown, **found},
                {"job_name": "hindcast-servers", "static_configs": _groups(servers)},
            ],
            "alerting": {
                "alert_relabel_configs": [{"action": "labeldrop", "regex": "|".join(LABELS)}],
                "alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}],
            },
        },
        sort_keys=False,
    )
    return text


def targets(services: Mapping[str, str]) -> str:
    """Return the file of services to scrape: URLs by name."""
    return json.dumps(_groups({name: url.partition("//")[2] for name, url in services.items()}), indent=1)


def _groups(addresses: Mapping[str, str]) -> list[dict[str, object]]:
    return [{"targets": [address], "labels": {"service": name}} for name, address in addresses.items()]
