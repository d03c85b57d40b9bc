"""alert-rules/detectors: Prometheus' rule files, made from the rules that lie beside the detectors.

What every alert has alike is added here: where it comes from, whose it is, and the links.
"""

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from detectors import yaml_text
from services.kit.errors import UserError

_INCIDENT = "hindcast-incident"
_BEFORE_S, _AFTER_S = 1800, 600
"""What the dashboard's link shows around the evaluation; an alert's onset is at most its `for` earlier."""
_PLACE = "or $labels.node $labels.switch $labels.mount $labels.job_id"


@dataclass(frozen=True)
class Links:
    """Where an alert's links lead: a Grafana's URL, and what stands before the path of a runbook."""

    grafana: str = "http://localhost:3000"
    """Where docker-compose.yml shows Grafana."""
    runbooks: str = ""


def detectors_with_rules() -> list[str]:
    """Return the names of the detectors that have a rules.yaml."""
    folder = resources.files("detectors")
    return sorted(entry.name for entry in folder.iterdir() if (entry / "rules.yaml").is_file())


def generated_rules(links: Links | None = None) -> dict[str, str]:
    """Return the text of every file of alert-rules/detectors, by name. UserError where a rules.yaml is no rule file."""
    return {f"{name}.yaml": _generated(name, links or Links()) for name in detectors_with_rules()}


def rule_files(folder: Path) -> list[Path]:
    """Return the rule files of a checkout's alert-rules folder that evaluate telemetry."""
    return sorted((folder / "detectors").glob("*.yaml"))


def _generated(detector: str, links: Links) -> str:
    source = f"detectors/{detector}/rules.yaml"
    text = (resources.files("detectors") / detector / "rules.yaml").read_text(encoding="utf-8")
    try:
        groups = yaml_text.load(text)["groups"]
        for group in groups:
            group["rules"] = [_completed(rule, detector, links) if "alert" in rule else rule for rule in group["rules"]]
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise UserError(f"{source}: not a rule file: {error}", remedy="`promtool check rules` says where") from error
    return f"# Made from {source} by `hindcast generate`: change it there.\n{dump({'groups': groups})}"


def _completed(rule: dict[str, Any], detector: str, links: Links) -> dict[str, Any]:
    labels = {
        **rule["labels"],
        "source": "rule",
        # Telemetry that comes without a replay label, as from one's own exporters, is live.
        "replay": '{{ or $labels.replay "live" }}',
    }
    annotations = {
        **rule["annotations"],
        "runbook_url": f"{_folder(links.runbooks)}detectors/{detector}/runbook.md#{rule['alert'].lower()}",
        "dashboard_url": _dashboard(links.grafana.rstrip("/"), rule["labels"]["fault"]),
    }
    return {**rule, "labels": labels, "annotations": annotations}


def _folder(url: str) -> str:
    return f"{url.rstrip('/')}/" if url else ""


def _dashboard(grafana: str, fault: str) -> str:
    """Return the template of a link to the incident's page, with the variables of services.dashboards.board."""
    scope = "".join(f"&var-{name}={{{{ $labels.{name} | urlQueryEscape }}}}" for name in ("cluster", "replay"))
    incident = f"&var-incident={fault}%20of%20{{{{ {_PLACE} | urlQueryEscape }}}}"
    # A job's or a switch's alert has no node: then the page chooses.
    node = "{{ with $labels.node }}&var-node={{ . | urlQueryEscape }}{{ end }}"
    span = f"from={_moment(f'- {_BEFORE_S}')}&to={_moment(f'+ {_AFTER_S}')}"
    return f"{grafana}/d/{_INCIDENT}?{span}{scope}{incident}{node}"


def _moment(offset: str) -> str:
    """Return the template of a moment near the evaluation's, in ms: templates know no clock, but queries do."""
    return f'{{{{ query "1000 * (time() {offset})" | first | value | printf "%.0f" }}}}'


class _Dumper(yaml.SafeDumper):
    """Keeps expressions of several lines readable."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def dump(document: object) -> str:
    """Return YAML with its keys in their order and expressions as blocks."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
