"""alert-rules/detectors: Prometheus' rule files, made from the rules that lie beside the detectors.

What every alert has alike is added here: where it comes from, whose it is, and the links.
"""

from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from services.kit.errors import UserError

GRAFANA = "http://localhost:3000"
"""Where docker-compose.yml shows Grafana; other sites replace it in the files they load."""
_INCIDENT = "hindcast-incident"
_VARIABLES = {"cluster": "cluster", "replay": "replay", "node": "node", "job": "job_id"}
"""The dashboard's variables, and the labels that give them."""
_BEFORE_S, _AFTER_S = 1800, 600
"""What the dashboard's link shows around the evaluation; an alert's onset is at most its `for` earlier."""


def detectors_with_rules() -> list[str]:
    """Return the names of the detectors that have a rules.yaml."""
    folder = resources.files("detectors")
    return sorted(entry.name for entry in folder.iterdir() if (entry / "rules.yaml").is_file())


def generated_rules() -> dict[str, str]:
    """Return the text of every file of alert-rules/detectors, by name. UserError where a rules.yaml is no rule file."""
    return {f"{name}.yaml": _generated(name) for name in detectors_with_rules()}


def rule_files(folder: Path) -> list[Path]:
    """Return the rule files of a checkout's alert-rules folder that evaluate telemetry."""
    return sorted((folder / "detectors").glob("*.yaml"))


def _generated(detector: str) -> str:
    source = f"detectors/{detector}/rules.yaml"
    text = (resources.files("detectors") / detector / "rules.yaml").read_text(encoding="utf-8")
    try:
        groups = yaml.safe_load(text)["groups"]
        for group in groups:
            group["rules"] = [
                _completed(rule, f"detectors/{detector}/runbook.md") if "alert" in rule else rule
                for rule in group["rules"]
            ]
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise UserError(f"{source}: not a rule file: {error}", remedy="`promtool check rules` says where") from error
    return f"# Made from {source} by `hindcast generate`: change it there.\n{dump({'groups': groups})}"


def _completed(rule: dict[str, Any], runbook: str) -> dict[str, Any]:
    labels = {
        **rule["labels"],
        "source": "rule",
        # Telemetry that comes without a replay label, as from one's own exporters, is live.
        "replay": '{{ or $labels.replay "live" }}',
    }
    annotations = {
        **rule["annotations"],
        "runbook_url": f"{runbook}#{rule['alert'].lower()}",
        "dashboard_url": _dashboard(),
    }
    return {**rule, "labels": labels, "annotations": annotations}


def _dashboard() -> str:
    variables = "".join(f"&var-{name}={{{{ $labels.{label} | urlQueryEscape }}}}" for name, label in _VARIABLES.items())
    return f"{GRAFANA}/d/{_INCIDENT}?from={_moment(f'- {_BEFORE_S}')}&to={_moment(f'+ {_AFTER_S}')}{variables}"


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
