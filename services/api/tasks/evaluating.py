"""The task of an evaluation: rules over recordings, beside what a run has found in each, or the detectors find now."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from detectors.contract import Finding
from detectors.registry import choose
from services.api.runs import models as runs
from services.api.runs.serializers import finding_of
from services.api.tasks.evaluation import Found, counts, evaluated, shortened
from services.api.tasks.models import TaskResult
from services.api.tasks.rule_texts import alerts_in, built_evaluator, shipped_rules
from services.api.tasks.rules_models import Evaluation
from services.kit.times import parse_time
from services.recording.embedded import steps
from services.recording.reader import Recording
from services.rules.evaluation import Settings

if TYPE_CHECKING:
    from services.api.tasks.process import Work


def carried_out(work: "Work") -> TaskResult:
    """Write evaluation.json. UserError: a recording cannot be read, or the rule engine fails."""
    needs, sent = work.needs, work.folder / "rules.yaml"
    own = sent.is_file()
    files = [sent] if own else shipped_rules()
    settings = Settings(interval=needs["interval"], lookback=needs["lookback"])
    recordings = [Recording.open(path) for path in needs["paths"]]
    found = []
    for number, (recording, run) in enumerate(zip(recordings, needs["runs"], strict=True)):

        def moved(share: float, number: int = number) -> None:
            work.move((number + share) / len(recordings))

        seen = _found(work, recording, run, moved)
        work.say(f"rules over {recording.manifest.name}")
        found.append(
            evaluated(recording, files, built_evaluator(), settings, seen, lambda share: moved((1 + share) / 2))
        )
    names = alerts_in(files)
    result = Evaluation(
        rules=sent.read_text(encoding="utf-8") if own else None,
        counts=counts(names, found),
        recordings=[shortened(one) for one in found],
    )
    (work.folder / "evaluation.json").write_text(result.model_dump_json(), encoding="utf-8")
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return TaskResult(title=f"{names[0]}{more}" if own else "hindcast's own rules")


def _found(work: "Work", recording: Recording, run: str | None, moved: Callable[[float], None]) -> Found:
    if run is not None:
        rows = work.store.all("SELECT body FROM findings WHERE run = ? ORDER BY place", (run,))
        stored = (runs.Finding.model_validate_json(row["body"]) for row in rows)
        return Found([state for one in stored if not one.shadow for state in _states(one)], run)
    work.say(f"detectors over {recording.manifest.name}")
    start, length = recording.manifest.start, max(recording.manifest.end - recording.manifest.start, 1)
    findings = []
    for step in steps(recording, choose()):
        findings += step.findings
        moved((step.at - start) / length / 2)
    return Found(findings)


def _states(one: runs.Finding) -> Iterator[Finding]:
    """Yield a finding as it fired and, where it is over, as it was resolved."""
    firing = finding_of(one)
    yield firing
    if one.resolved_at is not None:
        yield replace(firing, state="resolved", detected_at=parse_time(one.resolved_at))
