"""What each part of the method contributes: detectors scored with one part switched off at a time.

Training seeds only: scenarios of the library as written, at a tenth of their nodes, made first where they are not in
the cache. A part is switched off by the detectors' own configuration: one that needs two readings is set to take one.
The model of novelty is fitted on other seeds, and shown what it has to say of the faults that a detector would have
named.

Grouping into incidents changes no finding: what it contributes is how much less there is to look at.

    python -m benchmarks.ablation [--model FILE] [--out FILE] [SCENARIO or recording's directory...]

A row for each part is printed after every recording, over those that are done: it may be broken off at any time.
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from detectors.contract import Finding
from detectors.engine.alarms import canonical
from detectors.engine.engine import Choice
from detectors.incidents.report import Incident
from detectors.registry import choose, discover
from services.model.artefact import Model, load
from services.model.fit import fit
from services.model.novelty import Novelty, novelties
from services.recording.embedded import findings_of, latest, steps
from services.recording.model import Label
from services.recording.reader import Recording
from services.score.matching import Outcome, about, judge
from services.score.suite import node_days
from services.score.tally import Tally, tally, upper_bound
from services.synth.library import ensure_recording
from services.synth.make import Variant

SCALE = 0.1
SCENARIOS = (
    "vela-power-brake", "blue-vela-straggler", "vela-fan-failure", "blue-vela-symbol-errors", "sierra-ras-burst",
    "sakuraone-pfc-storm", "vela-nvswitch-fatal", "blue-vela-throttled-gpu", "lustre-slow-oss", "vela-row-remap",
    "summit-bandwidth-outliers", "vela-healthy", "blue-vela-failing-gpus", "vela-pcie-degraded",
)  # fmt: skip
FITTED_ON = (
    ("vela-healthy", 101), ("vela-healthy", 102), ("blue-vela-healthy-day", 101), ("summit-burst-buffer", 101),
    ("sakuraone-job-states", 101), ("sierra-congestion", 101),
)  # fmt: skip
"""Scenarios and seeds (of training) that the model is fitted on."""
_NOTHING = 1e-3

Overrides = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Part:
    """A part of the method, and the settings with which the detectors do without it."""

    title: str
    overrides: Overrides


PARTS: tuple[Part, ...] = (
    Part("everything on", {}),
    Part(
        "less continuity",
        {
            "congestion": {"sustain_s": _NOTHING},
            "gpu_lost": {"least_s": _NOTHING},
            "link_fault": {"confirm_s": 0},
            "node_down": {"least_s": _NOTHING},
            "power_throttle": {"confirm_readings": 1},
            "telemetry_gap": {"least_s": _NOTHING},
        },
    ),
)


@dataclass
class Score:
    """What became of labels and findings over the recordings that are done."""

    outcomes: list[Outcome] = field(default_factory=list)
    findings: int = 0
    node_days: float = 0.0

    def add(self, findings: Sequence[Finding], labels: Sequence[Label], days: float) -> None:
        """Add one recording."""
        raised = [finding for finding in findings if finding.state == "firing"]
        self.outcomes += judge(findings, labels)
        self.findings += len(raised)
        self.node_days += days

    @property
    def cells(self) -> dict[str, float]:
        """The row of the table."""
        counts: Tally = tally(self.outcomes)["all"]
        return {
            "precision": counts.precision,
            "recall": counts.recall,
            "F1": counts.f1,
            "false/100 nd": 100 * counts.false_alarms / self.node_days,
            "upper 95 %": 100 * upper_bound(counts.false_alarms) / self.node_days,
            "alerts": self.findings,
            "again": counts.repeats,
            "p50 s": counts.delay_s(0.5),
            "p95 s": counts.delay_s(0.95),
        }

    @property
    def where(self) -> str:
        """The faults that were missed or falsely reported."""
        mistakes = [
            f"{fault} {counts.misses} missed, {counts.false_alarms} false"
            for fault, counts in tally(self.outcomes).items()
            if fault != "all" and counts.misses + counts.false_alarms
        ]
        return "; ".join(mistakes) or "nothing missed, nothing false"


@dataclass
class Alone:
    """What the model says of labels of nodes and GPUs, had their detector been switched off."""

    labels: Counter[str] = field(default_factory=Counter)
    named: Counter[str] = field(default_factory=Counter)
    """By the detector, in time."""
    pointed_at: Counter[str] = field(default_factory=Counter)
    """By the model, while the fault lasted."""
    delays_s: list[float] = field(default_factory=list)
    only: list[str] = field(default_factory=list)
    """Labels that the detectors missed and the model pointed at."""
    elsewhere: int = 0
    """Novelties on what no label names while it lasts, nor five minutes after."""
    node_days: float = 0.0

    def add(self, found: Sequence[Novelty], labels: Sequence[Label], outcomes: Sequence[Outcome], days: float) -> None:
        """Add one recording; `outcomes` are those of all detectors."""
        truths = [label for label in labels if not label.distractor]
        begun = [one for one in found if one.state == "firing"]
        hits = {outcome.label.id for outcome in outcomes if outcome.kind == "hit" and outcome.label is not None}
        self.node_days += days
        for label in truths:
            if "node" not in label.entity:
                continue
            self.labels[label.fault] += 1
            self.named[label.fault] += label.id in hits
            there = [
                one.detected_at
                for one in begun
                if label.onset <= one.detected_at <= label.end and about(label, one.entity)
            ]
            if there:
                self.pointed_at[label.fault] += 1
                self.delays_s.append((min(there) - label.onset) / 1000)
                if label.id not in hits and not label.optional:
                    self.only.append(f"{label.fault} of {label.entity}")
        self.elsewhere += sum(
            not any(
                label.onset <= one.detected_at <= label.end + AFTER_MS and about(label, one.entity) for label in truths
            )
            for one in begun
        )


AFTER_MS = 300_000


@dataclass
class Grouped:
    """What there is to look at, with findings one by one and as incidents."""

    events: int = 0
    """Faults that require an alert; those of one incident of the labels count as one."""
    findings: int = 0
    pages: int = 0
    incidents: int = 0
    paging: int = 0
    """Incidents with a finding that pages."""

    def add(self, findings: Sequence[Finding], incidents: Sequence[Incident], labels: Sequence[Label]) -> None:
        """Add one recording; `incidents` are all revisions."""
        raised = [finding for finding in findings if finding.state == "firing"]
        kept = latest(incidents)
        required = [label for label in labels if not (label.distractor or label.optional)]
        self.events += len({label.incident or label.id for label in required})
        self.findings += len(raised)
        self.pages += sum(finding.severity == "page" for finding in raised)
        self.incidents += len(kept)
        self.paging += sum(any(member.severity == "page" for member in incident.members) for incident in kept)


@dataclass
class Results:
    """All tables."""

    parts: dict[str, Score] = field(default_factory=lambda: {part.title: Score() for part in PARTS})
    alone: Alone = field(default_factory=Alone)
    grouped: Grouped = field(default_factory=Grouped)


def main() -> None:
    """Score the recordings one after the other, and print the table after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="*", help="scenarios of the library, or recordings; else a fixed set")
    parser.add_argument("--model", type=Path, help="what `hindcast fit` wrote; else one is fitted")
    parser.add_argument("--out", type=Path, help="write the figures there, as JSON")
    given = parser.parse_args()
    model = load(given.model)[0] if given.model is not None else fit([path_of(*one) for one in FITTED_ON])
    results, names = Results(), given.name or SCENARIOS
    changed = {part.title: _changed(part) for part in PARTS}
    for done, name in enumerate(names, start=1):
        began = time.process_time()
        path = path_of(name)
        _take(Recording.open(path), results, model, changed)
        print(f"\n{done} of {len(names)}: {path.name}, {time.process_time() - began:.0f} s of CPU", flush=True)
        _print(results)
        if given.out is not None:
            parts = {title: score.cells | {"where": score.where} for title, score in results.parts.items()}
            figures = {"recordings": names[:done], "parts": parts, "grouped": vars(results.grouped)}
            given.out.write_text(json.dumps(figures, indent=1) + "\n")


def path_of(name: str, seed: int | None = None) -> Path:
    """Return a recording given by its directory, or that of a scenario, made if it is not there."""
    if (Path(name) / "recording.yaml").exists():
        return Path(name)
    return ensure_recording(name, variant=Variant(seed=seed, scale=SCALE)).path


def _take(recording: Recording, results: Results, model: Model, changed: Mapping[str, Sequence[Choice]]) -> None:
    labels, days = list(recording.labels()), node_days(recording)
    whole, incidents = [], []
    for step in steps(recording, choose()):
        whole += step.findings
        incidents += step.incidents
    for part in PARTS:
        # Detectors know nothing of each other: only those that are configured otherwise need to be run again.
        kept = [finding for finding in whole if finding.detector not in part.overrides]
        again = list(findings_of(recording, changed[part.title])) if part.overrides else []
        results.parts[part.title].add(sorted(kept + again, key=canonical), labels, days)
    results.alone.add(list(novelties(recording, model)), labels, judge(whole, labels), days)
    results.grouped.add(whole, incidents, labels)


def _changed(part: Part) -> list[Choice]:
    others = {name: {"enabled": False} for name in discover() if name not in part.overrides}
    return choose({**part.overrides, **others})


def _print(results: Results) -> None:
    titles = list(next(iter(results.parts.values())).cells)
    print(f"{'':<42}" + "".join(f"{title:>13.12}" for title in titles))
    for title, score in results.parts.items():
        print(f"{title:<42}" + "".join(f"{cell:>13.4g}" for cell in score.cells.values()))
    for title, score in results.parts.items():
        print(f"  {title}: {score.where}")
    grouped, alone = results.grouped, results.alone
    print(
        f"{grouped.events} events: {grouped.findings} findings ({grouped.pages} pages) one by one, "
        f"{grouped.incidents} incidents ({grouped.paging} with a page) when grouped"
    )
    print(f"the model alone, of labels on nodes and GPUs, in {alone.node_days:.1f} node-days:")
    for fault, count in sorted(alone.labels.items()):
        print(
            f"  {fault:<22} {count:>3} labels, {alone.named[fault]:>3} named, {alone.pointed_at[fault]:>3} pointed at"
        )
    delay = f"{np.median(alone.delays_s):.0f} s" if alone.delays_s else "-"
    rate = 100 * alone.elsewhere / alone.node_days
    print(
        f"  together {sum(alone.labels.values())} labels, {sum(alone.named.values())} named, "
        f"{sum(alone.pointed_at.values())} pointed at (p50 {delay}), {len(alone.only)} by the model only "
        f"{alone.only or ''}; {alone.elsewhere} elsewhere, {rate:.0f} in 100 node-days",
        flush=True,
    )


if __name__ == "__main__":
    main()
