"""What is to be done: what the findings recommend, what the runbook says, and what would catch it sooner next time."""

import re
from collections.abc import Mapping, Sequence
from importlib import resources

from services.postmortem.case import Case, place
from services.postmortem.chain import BY_HOST
from services.postmortem.document import Block, Items, Section, Text
from services.postmortem.timeline import gap
from services.postmortem.whatif import Trial, Trials

Evidence = Mapping[str, object]
_WORTH_TELLING, _WORTH_AN_ALERT_S = 1.0, 10.0
"""GPU-hours, and seconds sooner: what is less is no work for anybody."""
_HEADINGS = ("What to do", "Diagnosis", "Mitigation")


def actions(case: Case, tried: Trials, missing: Sequence[str]) -> Section:
    """Return the section; `missing` are the streams that detectors would have read."""
    evidence = case.finding(case.root.id).evidence
    entries: list[str] = []
    if evidence.get("by") == BY_HOST and "far_end" in evidence:
        entries.append(
            f"{evidence['far_end']}: drain it, and shut {place(case.cause.entity)} until its adapter stops pausing;"
            " find out what the switch's PFC watchdog did"
        )
    for member in case.incident.members:
        advice = case.finding(member.id).recommended_action
        known = f"; {case.whereabouts}" if member.id == case.root.id and case.whereabouts else ""
        line = f"{place(member.entity)} ({member.fault}{known}): {advice}"
        if advice and line not in entries:
            entries.append(line)
    users = {job.job_id: job.user for job in case.jobs if job.user}
    entries += [
        f"Let {users[one.job_id]} know what job {one.job_id} lost: {one.gpu_hours_lost:.1f} GPU-hours"
        for one in case.incident.impact.jobs[:3]
        if one.job_id in users and (one.gpu_hours_lost or 0.0) >= _WORTH_TELLING
    ]
    entries += [
        f"{place(one.entity)} was the root of {one.incidents} incidents in the last 28 days: take it out of service"
        for one in case.incident.offenders
        if one.incidents > 1
    ]
    free = [one for one in tried.settings if one.worth_it]
    if free:
        most = max(free, key=lambda one: (one.gain_s or 0.0, -one.findings))
        more = f", but with {most.findings} more findings" if most.findings > 0 else ""
        entries.append(
            f"Consider {settings(most)} for {case.root.detector}: {gap(round(1000 * (most.gain_s or 0)))} sooner here,"
            f" no more false alarms{more}; first let `hindcast score` say what it costs over the whole library"
        )
    if (log := tried.on_log) is not None and log.gain_s >= _WORTH_AN_ALERT_S and not log.elsewhere:
        entries.append(
            f"Alert on log lines like `{' '.join(log.line.message.split())}`: {gap(round(1000 * log.gain_s))} sooner"
            " here, and nowhere else in the recording"
        )
    if missing:
        entries.append(f"Collect {', '.join(missing)}: detectors read it, and the recording has none")
    blocks: list[Block] = [Items(entries, numbered=True)]
    for heading, steps in _runbook(case.root.detector, evidence):
        blocks += [Text(f"From the runbook of {case.root.detector}, {heading.lower()}:"), *steps]
    return Section("Actions", blocks)


def settings(trial: Trial) -> str:
    """Return a trial's settings as they stand in detectors.yaml."""
    return "`" + ", ".join(f"{name}: {value:g}" for name, value in trial.settings.items()) + "`"


def _runbook(detector: str, evidence: Evidence) -> list[tuple[str, list[Block]]]:
    """Return the parts of the runbook that say what to do, without what it says of other evidence."""
    text = (resources.files("detectors") / detector / "runbook.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    return [(name, _blocks(sections[name], evidence)) for name in _HEADINGS if name in sections]


def _of_other(entry: str, evidence: Evidence) -> bool:
    """Return whether an entry begins with a piece of evidence, as `name: value`, that is otherwise here."""
    named = re.match(r"`(\w+): ([^`]+)`", entry)
    return named is not None and named[1] in evidence and str(evidence[named[1]]) != named[2]


def _blocks(text: str, evidence: Evidence) -> list[Block]:
    """Return paragraphs and lists of a runbook's part; what is indented by four is left as a paragraph."""
    found: list[Block] = []
    for piece in re.split(r"\n\s*\n", text.strip()):
        entries = re.split(r"^(?:\d+\.|-) ", piece, flags=re.MULTILINE)
        head, rest = " ".join(entries[0].split()), [" ".join(entry.split()) for entry in entries[1:]]
        rest = [entry for entry in rest if not _of_other(entry, evidence)]
        if head:
            found.append(Text(head))
        if rest:
            found.append(Items(rest, numbered=piece.lstrip()[0].isdigit()))
    return found
