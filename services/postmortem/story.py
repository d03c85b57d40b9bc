"""What happened, in a few sentences for those who were not there."""

from services.kit.times import format_time
from services.postmortem.case import Case, place
from services.postmortem.document import Block, Section, Text
from services.postmortem.impact import cut_short
from services.postmortem.timeline import gap

_TELLER = {
    "synthetic": "The scenario's own story (of the whole cluster: made smaller, names and numbers of nodes differ)",
    "captured": "What was written when it was captured",
    "imported": "What was written when it was imported",
}

_WHOLE_DOLLARS = 10
"""From so many on, cents say nothing."""


def story(case: Case, price: float | None) -> Section:
    """Return the section; `price` is USD per GPU-hour."""
    manifest, finding = case.recording.manifest, case.finding(case.root.id)
    where = f" {place(case.cause.entity)}: {case.whereabouts}." if case.whereabouts else ""
    blocks: list[Block] = [
        Text(f"{finding.summary}.{where}"),
        Text(f"{_course(case)} {_losses(case, price)}"),
        Text(f"{_TELLER[manifest.origin]}, “{manifest.title}”: {' '.join(manifest.summary.split())}"),
    ]
    if case.others:
        others = "; ".join(f"`{one.id}` ({one.title})" for one in case.others[:5])
        more = f" and {len(case.others) - 5} more" if len(case.others) > 5 else ""
        blocks.append(Text(f"Other incidents in the recording, shown by `--incident ID`: {others}{more}."))
    return Section("What happened", blocks)


def cost(price: float | None, hours: float | None, before: str = "", after: str = "") -> str:
    """Return what GPU-hours cost, in dollars, between the words `before` and `after`; nothing without both."""
    if price is None or hours is None:
        return ""
    dollars = hours * price
    return f"{before}${dollars:,.{0 if dollars >= _WHOLE_DOLLARS else 2}f}{after}"


def _second(at: int) -> str:
    return format_time(at)[11:19]


def _course(case: Case) -> str:
    """Return when it began, was found, alerted on and over, in a sentence or two."""
    root = case.root
    words = f"It began at {_second(case.onset)} UTC. {root.detector} found it"
    words += f" {gap(root.detected_at - case.onset)} later, at"
    words += f" {_second(root.detected_at)}"
    alerted = case.alerted()
    # Detectors alone alert nobody, and the recording does not know who was alerted in the cluster.
    words += "; live, that " + (f"is a {alerted.severity}." if alerted is not None else "alerts nobody.")
    if root.resolved_at is None:
        return f"{words} It lasted to the end of the recording."
    return f"{words} It was resolved at {_second(root.resolved_at)}."


def _losses(case: Case, price: float | None) -> str:
    """Return whom it struck and what it cost, in a sentence each."""
    impact = case.incident.impact
    if not impact.jobs:
        return "No job is known that it struck."
    ended = {one.job_id: one.ended_at for one in cut_short(case)}
    users = {job.job_id: f" ({job.name}, user {job.user})" for job in case.jobs}
    words = []
    for one in impact.jobs[:3]:
        job = f"Job {one.job_id}{users.get(one.job_id, '')} on {one.gpus} GPUs"
        at = ended.get(one.job_id)
        end = "" if at is None else f", and ended at {_second(at)}"
        if one.stood_s:
            words.append(f"{job} did no step for {gap(round(one.stood_s * 1000))}{end}.")
        elif one.step_time_factor is not None and one.step_time_factor > 1:
            words.append(f"{job} took {one.step_time_factor:.2f} times as long for a step{end}.")
        elif at is not None:
            words.append(f"{job} ended at {_second(at)}, {gap(at - case.onset)} after the onset.")
        elif one.step_time_factor is None:
            words.append(f"{job} was touched; what became of its steps is not known.")
        else:
            words.append(f"{job} was touched, but kept its usual pace.")
    if len(impact.jobs) > 3:
        words.append(f"{len(impact.jobs) - 3} more jobs were touched.")
    hours = impact.gpu_hours_lost
    if hours is None:
        return " ".join([*words, "What it cost is not known: no step shows it."])
    dollars = cost(price, hours, ", which cost ")
    return " ".join([*words, f"In all, {hours:.1f} GPU-hours were lost{dollars}."])
