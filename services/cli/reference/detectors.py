"""docs/reference/detectors.md, detectors-yaml.md and alerts.md: what is found, how soon, from what, and settings."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from detectors.contract import Default, Detector, Rung
from detectors.faults import faults
from detectors.incidents.knowledge import TABLE
from detectors.registry import BUDGET, BUDGET_DEFAULT, XIDS, allowances, discover
from services.cli.reference.tables import code, page, table
from services.rules.files import generated_rules

_ROOT = Path(__file__).resolve().parents[3]
_DETECTORS = """\
What each detector finds, on whom, how soon after a sudden onset (with readings every 5 s), and what it needs for
that. A fault has rungs: with the telemetry of the first it is found most surely and soonest; with less, as the later
ones say. `hindcast coverage` says on which rung a recording or a Prometheus stands, and what to add. The runbook of
a detector says what a finding means, what is not found, and what to do. Thresholds:
[detectors.yaml](detectors-yaml.md)."""
_SETTINGS = f"""\
A detectors.yaml says what differs from these defaults. `hindcast config init` writes one with all of them commented
out, `hindcast config check FILE` says what is wrong with one. Commands take it as `--config FILE`, services as
`HINDCAST_DETECT_CONFIG`.

`{BUDGET}` ({BUDGET_DEFAULT}) is the rate of false alarms that is allowed to all detectors together, `calibration`
the file that `hindcast calibrate` wrote ([detection](../detection.md)), `{XIDS}` what a site says of XIDs, by code,
as in `{{121: {{class: gpu_lost, action: RESET_GPU}}}}` ([XIDs](xids.md)). Every detector also takes `enabled` (default
true) and `shadow` (default false; true: its findings are recorded and nobody is alerted)."""
_ALERTS = """\
Prometheus' alert rules in [alert-rules](../../alert-rules/README.md), for those who run Prometheus alone, and those
on hindcast itself. Detectors' findings become alerts of the same labels, named after the fault."""


def summary() -> str:
    """Return the table of what is found: fault, on whom, how soon, from what, by which detector."""
    rows = []
    for name, kind in sorted(discover().items()):
        for fault in kind.spec.faults:
            rungs = kind.spec.ladders.get(fault, ())
            last = rungs[-1].within_s if rungs else kind.spec.latency_s
            first = rungs[0].within_s if rungs else kind.spec.latency_s
            soon = _span(first) if first == last else f"{_span(first)}; {_span(last)} with least"
            needs = _needs(rungs[0]) if rungs else ""
            rows.append((code(fault), ", ".join(faults()[fault].entities), soon, needs, f"[{name}](#{name})"))
    return table(("fault", "found on", "within", "best from", "detector"), rows)


def detectors() -> str:
    """Return the page of the detectors."""
    return page(
        "Detectors", _DETECTORS, "## All faults\n", summary(), *(_one(*one) for one in sorted(discover().items()))
    )


def _one(name: str, kind: type[Detector]) -> str:
    spec = kind.spec
    link = f"[runbook](../../detectors/{name}/runbook.md)"
    share = (
        f"{allowances(1)[name]:.0%} of the false alarms allowed"
        if spec.budget_share
        else "none: it reports what is stated"
    )
    reads = ", ".join(code(stream) for stream in spec.reads)
    lines = [f"## {name}\n", f"Version {spec.version}; reads {reads}; false alarms: {share}; {link}.\n"]
    for fault in spec.faults:
        lines.append(f"### {fault}\n")
        rungs = spec.ladders.get(fault, ())
        if rungs:
            rows = [(rung.sees, _span(rung.within_s), _needs(rung)) for rung in rungs]
            lines.append(table(("what it sees", "within", "needs"), rows))
        else:
            lines.append(f"Within {_span(spec.latency_s)}.\n")
    return "\n".join(lines)


def _needs(rung: Rung) -> str:
    """Return what a rung needs, one alternative after the other."""
    return "; ".join(
        " or ".join(code(one.split(".", 1)[-1] if one.startswith("dcgm.") else one) for one in need.split("|"))
        for need in rung.needs
    )


def _span(seconds: float) -> str:
    return f"{seconds / 60:g} min" if seconds >= 120 and seconds % 30 == 0 else f"{seconds:g} s"


def settings() -> str:
    """Return the page of detectors.yaml."""
    parts = [f"## {name}\n\n{_defaults(kind.spec.defaults)}" for name, kind in sorted(discover().items())]
    return page(
        "detectors.yaml",
        _SETTINGS,
        *parts,
        f"## incidents\n\nHow findings become incidents.\n\n{_defaults(TABLE.settings)}",
    )


def _defaults(defaults: Mapping[str, Default]) -> str:
    rows = [(code(name), code(default.value), default.unit, default.source) for name, default in defaults.items()]
    return table(("setting", "default", "unit", "where it comes from"), rows) if rows else "It has none of its own.\n"


def alerts() -> str:
    """Return the page of the alert rules."""
    parts = []
    pipeline = (_ROOT / "alert-rules" / "pipeline.yaml").read_text(encoding="utf-8")
    # From what rules.yaml give now, and not from the files that the same `hindcast generate` is about to write.
    for file, text in [*sorted(generated_rules().items()), ("pipeline.yaml", pipeline)]:
        rows, name = list(_rules(yaml.safe_load(text))), file.removesuffix(".yaml")
        book = "alert-rules/runbooks/pipeline.md" if name == "pipeline" else f"detectors/{name}/runbook.md"
        parts.append(
            f"## {name}\n\n[Runbook](../../{book}).\n\n"
            + table(("alert", "fault", "severity", "for", "what it says"), rows)
        )
    return page("Alerts", _ALERTS, *parts)


def _rules(document: dict[str, list[dict[str, list[dict[str, dict[str, str]]]]]]) -> Iterator[tuple[str, ...]]:
    for group in document["groups"]:
        for rule in group["rules"]:
            if "alert" in rule:
                labels, notes = rule["labels"], rule["annotations"]
                yield (
                    code(rule["alert"]),
                    code(labels.get("fault", "")),
                    labels.get("severity", ""),
                    str(rule.get("for", "")),
                    notes["summary"],
                )
