"""Every alert is tested both ways, has a runbook, keeps to one label schema, and looks at live series only."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from prometheus_client import REGISTRY
from typer.testing import CliRunner

from detectors.contract import Severity
from detectors.faults import faults
from detectors.registry import discover
from services.cli.main import app

ROOT = Path(__file__).parents[2]
ALERT_RULES = ROOT / "alert-rules"
PIPELINE = ALERT_RULES / "pipeline.yaml"
# What the rules report that is no fault by the recording format: conditions that may lead to one, and the path itself.
OWN_NAMES = {"psu_failed", "fan_failed", "inlet_hot", "pipeline", "watchdog"}
ENTITY = {"node", "gpu", "nic", "switch", "port", "mount", "job_id"}
ALWAYS_FIRES = {"Watchdog"}
# What comes by remote-write; recorded series have colons.
RAW = r"DCGM_\w+|node_infiniband_\w+|sonic_\w+|ipmi_\w+|hindcast_\w+|up"


@dataclass(frozen=True)
class Alert:
    """An alert of a rule file, with its tests and its runbook."""

    name: str
    rule: dict[str, Any]
    tests: Path
    runbook: Path


def _alerts() -> list[Alert]:
    found = []
    for file in [*sorted((ALERT_RULES / "detectors").glob("*.yaml")), PIPELINE]:
        folder = ROOT / "detectors" / file.stem
        tests = ALERT_RULES / "pipeline_test.yaml" if file == PIPELINE else folder / "rules_test.yaml"
        runbook = ALERT_RULES / "runbooks" / "pipeline.md" if file == PIPELINE else folder / "runbook.md"
        for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]:
            found += [Alert(rule["alert"], rule, tests, runbook) for rule in group["rules"] if "alert" in rule]
    return found


ALERTS = _alerts()
by_name = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)


def test_every_detector_has_rules() -> None:
    named = {path.stem for path in (ALERT_RULES / "detectors").glob("*.yaml")}
    assert named == {path.parent.name for path in (ROOT / "detectors").glob("*/rules.yaml")}
    assert set(discover()) == named, "a detector needs a rules.yaml; then run `hindcast generate`"


def test_names_are_given_once() -> None:
    names = [alert.name for alert in ALERTS]
    assert len(names) == len(set(names))


@by_name
def test_there_is_a_case_that_fires_and_one_that_does_not(alert: Alert) -> None:
    fires, quiet = 0, 0
    for case in yaml.safe_load(alert.tests.read_text(encoding="utf-8"))["tests"]:
        for check in case.get("promql_expr_test", ()):
            asked = f'alertname="{alert.name}"' in check["expr"] and 'alertstate="firing"' in check["expr"]
            fires += asked and bool(check["exp_samples"])
        for check in case.get("alert_rule_test", ()):
            if check["alertname"] == alert.name:
                # A case without series is quiet whatever the rule says.
                quiet += not check["exp_alerts"] and bool(case["input_series"])
                fires += bool(check["exp_alerts"])
    assert fires, f"{alert.tests}: {alert.name} has no case that fires"
    assert quiet or alert.name in ALWAYS_FIRES, f"{alert.tests}: {alert.name} has no near miss"


@by_name
def test_its_runbook_says_what_to_do(alert: Alert) -> None:
    sections = re.split(r"(?m)^### ", alert.runbook.read_text(encoding="utf-8"))
    own = [section for section in sections if section.splitlines()[0].strip() == alert.name]
    assert len(own) == 1, f"{alert.runbook} has no section {alert.name}"
    for part in ("Meaning", "Impact", "Diagnosis", "Mitigation"):
        assert re.search(rf"(?m)^- {part}: \S", own[0]), f"{alert.runbook}: {alert.name} lacks {part}"
    link = alert.rule["annotations"]["runbook_url"]
    assert link == f"{alert.runbook.relative_to(ROOT)}#{alert.name.lower()}"


@by_name
def test_it_keeps_to_the_schema(alert: Alert) -> None:
    labels, annotations = alert.rule["labels"], alert.rule["annotations"]
    assert labels["severity"] in get_args(Severity)
    assert labels["fault"] in {*faults(), *OWN_NAMES}
    assert labels["source"] == "rule"
    assert "replay" in labels or "replay" in alert.rule["expr"]
    # Nothing that changes while an alert lasts: Alertmanager would take it for another.
    assert all("$value" not in text for text in labels.values())
    for name in ("summary", "impact", "first_step"):
        assert annotations[name], name
    if alert.tests.parent != ALERT_RULES:
        assert "from=" in annotations["dashboard_url"]
        assert f"&var-incident={labels['fault']}%20of%20" in annotations["dashboard_url"]
        assert any(f"$labels.{name}" in annotations["summary"] for name in ENTITY), "the summary does not say where"


@pytest.mark.parametrize("file", sorted((ALERT_RULES / "detectors").glob("*.yaml")), ids=lambda path: path.stem)
def test_rules_look_at_live_series_only(file: Path) -> None:
    """A Prometheus evaluates at wall time, where a replay's series mean nothing."""
    for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]:
        for rule in group["rules"]:
            by_pattern = re.compile(r"\{__name__[^}]*\}")
            raw = by_pattern.findall(rule["expr"])
            raw += re.findall(rf"(?<![:\w])(?:{RAW})(?![:\w])(\{{[^}}]*\}})?", by_pattern.sub("", rule["expr"]))
            assert all('replay=~"live|"' in selector for selector in raw), rule


def test_links_lead_to_ones_own_sites(tmp_path: Path) -> None:
    given = ["--grafana", "https://grafana.example/", "--runbooks", "https://git.example/hindcast/blob/main"]
    done = CliRunner().invoke(app, ["rules", "--write", str(tmp_path), *given], catch_exceptions=False)
    assert done.exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in (ALERT_RULES / "detectors").iterdir()}
    text = (tmp_path / "gpu_lost.yaml").read_text(encoding="utf-8")
    assert "localhost" not in text
    assert "dashboard_url: https://grafana.example/d/hindcast-incident?from=" in text
    assert "https://git.example/hindcast/blob/main/detectors/gpu_lost/runbook.md#gpumissing" in text


def test_pipeline_rules_read_what_services_export() -> None:
    import services.detect.service
    import services.kit.deadletter
    import services.notify.delivery
    import services.replay.metrics
    import services.sink.metrics  # noqa: F401 - each registers its metrics

    exported = {sample for metric in REGISTRY.collect() for sample in (metric.name, f"{metric.name}_total")}
    text = PIPELINE.read_text(encoding="utf-8")
    expressions = [rule["expr"] for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
    read = {name for expr in expressions for name in re.findall(r"(?<![:\w])hindcast_\w+", expr)}
    assert read
    assert read <= exported
