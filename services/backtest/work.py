"""The work on one window, alone: what is done in a process of its own, on this machine or another."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detectors.engine.engine import Choice
from services.backtest.results import to_json
from services.backtest.windows import Window
from services.recording.embedded import engine_for, fed
from services.recording.reader import Recording
from services.recording.stretch import stretch_of
from services.rules.evaluation import Settings, evaluate
from services.rules.verdict import findings_of, node_names
from services.score.suite import node_days


@dataclass(frozen=True)
class Detection:
    """Detectors to run over a window, with the key of each one's result; no two of them are the same detector."""

    recording: Recording
    window: Window
    choices: Sequence[tuple[str, Choice]]
    grid_ms: int

    def run(self) -> dict[str, Any]:
        """Return by key what each found, its warm-up included. UserError: the recording cannot be read."""
        part = stretch_of(self.recording, self.window.read_from, self.window.read_to)
        found = defaultdict(list)
        engine = engine_for(part, [choice for _, choice in self.choices], every=True, grid_ms=self.grid_ms)
        for step in fed(engine, part):
            for finding in step.findings:
                found[finding.detector].append(finding)
        return {key: to_json(found[kind.spec.name]) for key, (kind, _) in self.choices}


@dataclass(frozen=True)
class Days:
    """How many node-days of telemetry a window has of its own."""

    recording: Recording
    window: Window
    key: str

    def run(self) -> dict[str, Any]:
        """Return it by its key. UserError: the recording cannot be read."""
        return {self.key: node_days(stretch_of(self.recording, self.window.begin, self.window.end - 1))}


@dataclass(frozen=True)
class Rules:
    """Rule files to evaluate over a window."""

    recording: Recording
    window: Window
    key: str
    files: Sequence[Path]
    settings: Settings
    evaluator: Path

    def run(self) -> dict[str, Any]:
        """Return by the key what they fired and when that was over. UserError: a rule or the recording is wrong."""
        part = stretch_of(self.recording, self.window.read_from, self.window.read_to)
        changes = evaluate(self.evaluator, part, self.files, self.settings).changes
        nodes = node_names([node.model_dump() for node in part.topology.nodes])
        findings, apart = findings_of(changes, nodes, whole=True)
        return {self.key: {"findings": to_json(findings), "apart": apart}}


Work = Detection | Days | Rules


def done(work: Work) -> dict[str, Any]:
    """Do it; a function of its own, so that any executor can send it."""
    return work.run()
