"""What is to be done: what the findings recommend, what the runbook says, and what would catch it sooner next time."""

import re
from collections.abc import Sequence
from importlib import resources

from services.postmortem.case import Case, place
from services.postmortem.document import Block, Items, Section, Text
from services.postmortem.timeline import gap
from services.postmortem.whatif import Trial

_HEADINGS = ("What to do", "Diagnosis", "Mitigation")


def actions(case: Case, trials: Sequence[Trial], missing: Sequence[str]) -> Section:
    """Return the section; `missing` are the streams that detectors would have read."""
    entries: list[str] = []
    for member in case.incident.members:
        advice = case.finding(member.id).recommended_action
        line = f"{place(member.entity)} ({member.fault}): {advice}"
        if advice and line not in entries:
            entries.append(line)
    entries += [
        f"{place(one.entity)} was the root of {one.incidents} incidents in the last 28 days: take it out of service"
        for one in case.incident.offenders
        if one.incidents > 1
    ]
    free = [one for one in trials if one.worth_it]
    if free:
        most = max(free, key=lambda one: (one.gain_s or 0.0, -one.findings))
        more = f" (and with {most.findings} findings more)" if most.findings > 0 else ""
        entries.append(
            f"Try {settings(most)} for {case.root.detector}: {gap(round(1000 * (most.gain_s or 0)))} sooner here,"
            f" without a false alarm{more}; let `hindcast score` say what it costs over the whole library first"
        )
    if missing:
        entries.append(f"Collect {', '.join(missing)}: detectors that read it had nothing to go by")
    blocks: list[Block] = [Items(entries, numbered=True)]
    for heading, steps in _runbook(case.root.detector):
        blocks += [Text(f"From the runbook of {case.root.detector}, {heading.lower()}:"), *steps]
    return Section("Actions", blocks)


def settings(trial: Trial) -> str:
    """Return a trial's settings as they stand in detectors.yaml."""
    return "`" + ", ".join(f"{name}: {value:g}" for name, value in trial.settings.items()) + "`"


def _runbook(detector: str) -> list[tuple[str, list[Block]]]:
    """Return the parts of the runbook that say what to do."""
    text = (resources.files("detectors") / detector / "runbook.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    return [(name, _blocks(sections[name])) for name in _HEADINGS if name in sections]


def _blocks(text: str) -> list[Block]:
    """Return paragraphs and lists of a runbook's part; what is indented by four is left as a paragraph."""
    found: list[Block] = []
    for piece in re.split(r"\n\s*\n", text.strip()):
        entries = re.split(r"^(?:\d+\.|-) ", piece, flags=re.MULTILINE)
        head, rest = " ".join(entries[0].split()), [" ".join(entry.split()) for entry in entries[1:]]
        if head:
            found.append(Text(head))
        if rest:
            found.append(Items(rest, numbered=piece.lstrip()[0].isdigit()))
    return found
