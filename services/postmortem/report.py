"""The postmortem: every section of it, from a case and what was found out about it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from detectors.contract import Finding
from services.kit.times import format_time
from services.postmortem.actions import actions
from services.postmortem.appendix import Asked, appendix
from services.postmortem.case import Case, place
from services.postmortem.chart import Mark, figure
from services.postmortem.document import Block, Document, Figure, Items, Section, Table, Text
from services.postmortem.evidence import Shown, show
from services.postmortem.sooner import missing, sooner
from services.postmortem.timeline import Moment, gap, moments
from services.postmortem.whatif import Nearness, Trial
from services.recording.model import Event, Label
from services.score.incidents import FACTOR_WITHIN, HOURS_LEAST, HOURS_WITHIN
from services.score.matching import about

_MOST_STEADY = 2
"""Signals that are drawn although they never left the band, where fewer than three did."""
_LONGEST_CELL = 160
_TELLER = {
    "synthetic": "The scenario's story (of the whole cluster: made smaller, the names and numbers of nodes differ)",
    "captured": "What was written when it was captured",
    "imported": "What was written when it was imported",
}


@dataclass(frozen=True)
class Alerts:
    """What alert rules did: those that fired while the incident lasted; without `--rules` nobody knows."""

    fired: Sequence[Finding]
    apart: int
    """How many more fired in the recording that cannot be judged (informative, or of no fault of the labels')."""


@dataclass(frozen=True)
class Report:
    """All that the report tells of."""

    case: Case
    asked: Asked
    trials: Sequence[Trial] = ()
    blind: Sequence[Trial] = ()
    """Each without one of the streams."""
    silent: Sequence[Nearness] = ()
    alerts: Alerts | None = None
    shown: Sequence[Shown] = field(default_factory=list)
    lines: Sequence[Event] = field(default_factory=list)


def compose(report: Report) -> Document:
    """Return the report as a document."""
    case, manifest = report.case, report.case.recording.manifest
    course = moments(case, report.shown, report.lines)
    impact, label = case.incident.impact, case.label
    facts = [
        ("culprit", place(case.cause.entity)),
        ("fault", case.root.fault.replace("_", " ")),
        (
            "lasted",
            gap((case.over_at or manifest.end) - case.incident.started_at) + ("" if case.over_at else " and on"),
        ),
        ("found after", gap(case.root.detected_at - (label.onset if label is not None else case.root.started_at))),
        ("GPUs", f"{impact.gpus} on {impact.nodes} node{'s' * (impact.nodes != 1)}"),
        ("step time", f"{impact.step_time_factor:.2f} times" if impact.step_time_factor > 1 else "as usual"),
        ("GPU-hours lost", f"{impact.gpu_hours_lost:.1f}{_cost(report, impact.gpu_hours_lost, ' (', ')')}"),
    ]
    lacking = missing(case)
    sections = [
        _story(case),
        _timeline(course),
        _culprit(report),
        _blast(report),
        _chain(case),
        _detectors(report),
        sooner(case, report.trials, report.blind, course, lacking),
        actions(case, report.trials, lacking),
    ]
    if label is not None:
        sections.append(_against(case, label))
    title = f"Postmortem: {case.root.fault} on {place(case.cause.entity)}"
    lead = f"{manifest.cluster.name}, {format_time(case.incident.started_at)[:10]}. {case.incident.title}."
    return Document(title, lead, facts, [*sections, appendix(case, report.asked)])


def evidence_of(case: Case) -> tuple[list[Shown], list[Event]]:
    """Return the charts worth showing, and the log lines."""
    label, root = case.label, case.root
    marks = [Mark(root.detected_at, "found", "found")]
    marks.append(Mark(root.started_at, "onset", "onset") if label is None else Mark(label.onset, "onset", "onset"))
    if root.resolved_at is not None:
        marks.append(Mark(root.resolved_at, "over", "resolved"))
    return show(case.recording, case.incident, case.jobs, marks), case.lines()


def _clock(at: int) -> str:
    return format_time(at)[11:23]


def _cost(report: Report, hours: float, before: str = "", after: str = "") -> str:
    return "" if report.asked.price is None else f"{before}${hours * report.asked.price:,.0f}{after}"


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= _LONGEST_CELL else f"{words[: _LONGEST_CELL - 1]}…"


def _story(case: Case) -> Section:
    manifest, finding = case.recording.manifest, case.finding(case.root.id)
    blocks: list[Block] = [
        Text(f"{finding.summary}."),
        Text(f"{_TELLER[manifest.origin]}, “{manifest.title}”: {' '.join(manifest.summary.split())}"),
    ]
    if case.others:
        told = "; ".join(f"`{one.id}` ({one.title})" for one in case.others[:5])
        more = f" and {len(case.others) - 5} more" if len(case.others) > 5 else ""
        blocks.append(
            Text(f"The recording has {len(case.others)} other incident(s), told by `--incident ID`: {told}{more}.")
        )
    return Section("What happened", blocks)


def _timeline(course: Sequence[Moment]) -> Section:
    rows = []
    origin = next((one.at for one in course if one.kind == "onset"), None)
    if origin is None:
        origin = next(one.at for one in course if one.kind == "began")
    for number, one in enumerate(course):
        since = "" if not number else f"+{gap(one.at - course[number - 1].at)}"
        rows.append([_clock(one.at), since, gap(one.at - origin), one.name, _short(one.detail)])
    strong = frozenset(
        number for number, one in enumerate(course) if one.kind in {"onset", "found", "alert", "resolved"}
    )
    day = format_time(course[0].at)[:10]
    table = Table(["time, UTC", "since the last", "since the onset", "what", ""], rows, frozenset({1, 2}), strong)
    return Section("Timeline", [Text(f"All times are event time, {day}, UTC."), table])


def _culprit(report: Report) -> Section:
    case, shown = report.case, report.shown
    finding = case.finding(case.root.id)
    moved = [one for one in shown if one.left_at or one.silent_at or one.signal.column == "step_time_s"]
    steady = [one for one in shown if one not in moved]
    flat = [one for one in steady if not _stirs(one)]
    extra = [one for one in steady if one not in flat][: max(0, _MOST_STEADY + 1 - len(moved))]
    blocks: list[Block] = [_figure(one) for one in shown if one in moved or one in extra]
    if rest := [one.signal.title for one in steady if one not in extra]:
        blocks.append(Text(f"Looked at, and within what peers and the past show: {', '.join(rest)}."))
    if not shown:
        blocks.append(Text("The recording has no signal of the culprit that could be drawn."))
    if report.lines:
        rows = [[_clock(line.timestamp), line.source, line.severity, _short(line.message)] for line in report.lines]
        blocks += [Text("Its log around the onset:"), Table(["time, UTC", "source", "severity", "line"], rows)]
    rows = [
        [f"`{name}`", figure(value) if isinstance(value, float) else _short(str(value))]
        for name, value in sorted(finding.evidence.items())
    ]
    blocks += [Text("The finding's evidence, units in the names:"), Table(["what", "value"], rows)]
    return Section("Culprit and evidence", blocks)


def _stirs(one: Shown) -> bool:
    """Return whether there is more than zero to see."""
    return any(value == value and value != 0 for value in (one.before, one.during, one.peers_during))  # noqa: PLR0124 - NaN


def _rest(one: Shown) -> str:
    return "them and from its own past" if one.against_peers else "that"


def _figure(one: Shown) -> Figure:
    chart = one.chart
    table = Table(
        ["", "before", "during"],
        [
            [chart.culprit, figure(one.before), figure(one.during)],
            [chart.peers, figure(one.peers_before), figure(one.peers_during)],
        ],
        figures=frozenset({1, 2}),
    )
    left = f" Apart from {_rest(one)} from {_clock(one.left_at)} on." if one.left_at is not None else ""
    left += f" Silent from {_clock(one.silent_at)} on." if one.silent_at is not None else ""
    return Figure(chart, f"{chart.culprit} against {chart.peers}.{left}", table)


def _blast(report: Report) -> Section:
    case, impact = report.case, report.case.incident.impact
    known = {job.job_id: job for job in case.jobs}
    rows = []
    for touched in impact.jobs:
        job = known.get(touched.job_id)
        name = f"{touched.job_id} {job.name} ({job.user})" if job is not None else touched.job_id
        factor = "" if touched.step_time_factor is None else f"{touched.step_time_factor:.2f}"
        ended = "" if touched.ended_at is None else _clock(touched.ended_at)
        cells = [
            name,
            str(len(job.nodes)) if job is not None else "",
            str(touched.gpus),
            factor,
            gap(round(touched.stood_s * 1000)) if touched.stood_s else "",
        ]
        rows.append([*cells, f"{touched.gpu_hours_lost:.2f}", _cost(report, touched.gpu_hours_lost), ended])
    total = [
        "all",
        str(impact.nodes),
        str(impact.gpus),
        f"{impact.step_time_factor:.2f}",
        "",
        f"{impact.gpu_hours_lost:.2f}",
        _cost(report, impact.gpu_hours_lost),
        "",
    ]
    columns = ["job", "nodes", "GPUs", "steps, times as long", "without a step", "GPU-hours lost", "cost, USD", "ended"]
    blocks: list[Block] = [Table(columns, [*rows, total], frozenset(range(1, 8)), frozenset({len(rows)}))]
    if report.asked.price is None:
        blocks.append(Text("Say `--price USD_PER_GPU_HOUR` for the cost."))
    blocks.append(
        Text(
            "GPU-hours lost: the time in which the job's GPUs did nothing new, from the onset until it was over;"
            " the usual step time is that of the hour before."
        )
    )
    return Section("Blast radius", blocks)


def _chain(case: Case) -> Section:
    incident = case.incident
    names = {one.id: f"{one.fault} at {place(one.entity)}" for one in incident.members}

    def named(end: str) -> str:
        return names.get(end, " ".join(end.removeprefix("seen:").replace("job:", "job ").split()))

    links = [f"{named(link.cause)} → {named(link.effect)}: {link.because}" for link in incident.chain]
    blocks: list[Block] = [Items(links, numbered=True)] if links else [Text("Nothing else was found that it led to.")]
    rows = [
        [f"{one.fault} at {place(one.entity)}", f"{one.score:.0%}", "; ".join(one.reasons)] for one in incident.causes
    ]
    blocks += [
        Text("What speaks for each possible root cause:"),
        Table(["cause", "share", "because"], rows, frozenset({1})),
    ]
    if incident.unlisted:
        blocks.append(Text(f"{incident.unlisted} further findings are part of the incident and not listed."))
    return Section("Root-cause chain", blocks)


def _detectors(report: Report) -> Section:
    case = report.case
    streams = {"logs", *case.recording.streams()}
    silent = {one.detector: one for one in report.silent}
    rows: list[list[str]] = []
    strong: set[int] = set()
    for kind, config in case.choices:
        name = kind.spec.name
        mine = [one for one in case.incident.members if one.detector == name]
        lacks = [stream for stream in kind.spec.reads if stream not in streams]
        if mine:
            strong.add(len(rows))
            first = min(mine, key=lambda one: (one.detected_at, one.id))
            said = (
                f"{len(mine)} finding(s), first at {_clock(first.detected_at)}: {first.fault} at {place(first.entity)}"
            )
            state = "fired, in shadow" if config.shadow else "fired"
        else:
            said, state = _near(silent.get(name)), "silent"
        rows.append([name, state, said, ", ".join(lacks)])
    columns = ["detector", "in this incident", "what, or how near it came", "reads, and had not"]
    blocks: list[Block] = [Table(columns, rows, strong=frozenset(strong))]
    if report.silent:
        blocks.append(
            Text(
                "How near: each silent detector ran again over the incident and the hour before, with all its"
                " thresholds and waiting times at three quarters, a half and a quarter, until it spoke. What it then"
                " says of other parts than the culprit is noise that its thresholds keep out."
            )
        )
    blocks += _rules(report)
    return Section("Who fired, who stayed silent", blocks)


def _near(one: Nearness | None) -> str:
    if one is None:
        return ""
    if one.share is None or one.finding is None:
        return "nothing, even at a quarter of its thresholds"
    where = "on the culprit" if one.at_culprit else "elsewhere"
    when = _clock(one.finding.detected_at)
    return f"at {one.share:.0%} of its thresholds, {where}, at {when}: {_short(one.finding.summary)}"


def _rules(report: Report) -> list[Block]:
    if report.alerts is None:
        return [Text("Alert rules were not evaluated; `--rules` does.")]
    case = report.case
    if not report.alerts.fired:
        return [Text("No alert rule fired on the incident.")]
    rows = [
        [
            one.detector,
            one.severity,
            place(one.entity),
            _clock(one.detected_at),
            gap(one.detected_at - case.root.detected_at),
        ]
        for one in report.alerts.fired[:20]
    ]
    first = report.alerts.fired[0]
    sooner = case.root.detected_at - first.detected_at
    words = (
        f"{first.detector} would have fired {gap(sooner)} before the detector did."
        if sooner > 0
        else f"No rule fired before the detector; the first, {first.detector}, came {gap(-sooner)} later."
    )
    return [
        Text(f"Alert rules that fired while it lasted, by Prometheus' own engine. {words}"),
        Table(["rule", "severity", "entity", "fired", "after the detector"], rows, frozenset({4})),
    ]


def _against(case: Case, label: Label) -> Section:
    """Return how the report compares with the recording's labels: the truth that no detector saw."""
    root, told, true = case.root, case.incident.impact, label.impact or {}
    right = root.fault == label.fault and about(label, root.entity)
    rows = [
        [
            "culprit",
            f"{label.fault} at {place(label.entity)}",
            f"{root.fault} at {place(root.entity)}",
            "right" if right else "wrong",
        ],
        ["onset", _clock(label.onset), _clock(root.started_at), f"{gap(root.started_at - label.onset)} apart"],
        [
            "found",
            f"due within {label.within_s:g} s",
            f"after {gap(root.detected_at - label.onset)}",
            "in time" if root.detected_at <= label.onset + label.within_s * 1000 else "late",
        ],
    ]
    if root.resolved_at is not None and label.end <= case.recording.manifest.end:
        rows.append(["over", _clock(label.end), _clock(root.resolved_at), f"{gap(root.resolved_at - label.end)} apart"])
    factor, hours = true.get("step_time_factor"), true.get("gpu_hours_lost")
    for name, wanted, got in (("GPUs", true.get("gpus"), told.gpus), ("jobs", true.get("jobs"), len(told.jobs))):
        if wanted is not None:
            rows.append([name, str(wanted), str(got), "right" if wanted == got else "off"])
    if factor is not None:
        near = abs(told.step_time_factor - factor) <= FACTOR_WITHIN * factor
        rows.append(
            ["steps, times as long", f"{factor:.2f}", f"{told.step_time_factor:.2f}", "right" if near else "off"]
        )
    if hours is not None:
        near = abs(told.gpu_hours_lost - hours) <= max(HOURS_LEAST, HOURS_WITHIN * hours)
        rows.append(["GPU-hours lost", f"{hours:.1f}", f"{told.gpu_hours_lost:.2f}", "right" if near else "off"])
    return Section(
        "Against the labels",
        [
            Text(
                f"Label {label.id}, which no detector saw. Right means: within {FACTOR_WITHIN:.0%} of the factor,"
                f" {HOURS_WITHIN:.0%} or {HOURS_LEAST:g} of the GPU-hours."
            ),
            Table(["", "label", "report", ""], rows, strong=frozenset({0})),
        ],
    )
