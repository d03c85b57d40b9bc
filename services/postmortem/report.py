"""The postmortem: every section of it, from a case and what was found out about it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from detectors.contract import Finding
from services.kit.times import format_time
from services.postmortem.actions import actions
from services.postmortem.appendix import Asked, appendix
from services.postmortem.case import Case, place
from services.postmortem.chain import chain
from services.postmortem.chart import Mark, figure
from services.postmortem.document import Block, Document, Figure, Items, Section, Table, Text, filled
from services.postmortem.earlier_detection import missing, sooner
from services.postmortem.evidence import Shown, show
from services.postmortem.impact import cut_short
from services.postmortem.rules import Alerts, rule_blocks
from services.postmortem.story import cost, story
from services.postmortem.timeline import Moment, clock, gap, moments
from services.postmortem.whatif import Nearness, Trials
from services.recording.model import Event, Label
from services.score.incidents import FACTOR_WITHIN, HOURS_LEAST, HOURS_WITHIN, factor_right, hours_right
from services.score.matching import about

_MOST_STEADY = 2
"""Signals that are drawn although they never left the band, where fewer than three did."""
_LONGEST_CELL = 160
_MOST_ODD = 20


@dataclass(frozen=True)
class Report:
    """All that the report is made of."""

    case: Case
    asked: Asked
    tried: Trials = field(default_factory=Trials)
    silent: Sequence[Nearness] = ()
    alerts: Alerts | None = None
    shown: Sequence[Shown] = field(default_factory=list)
    lines: Sequence[Event] = field(default_factory=list)
    unjudged: Sequence[str] = ()
    """What the telemetry does not show, or only late: `detectors.coverage.closing`."""


def compose(report: Report) -> Document:
    """Return the report as a document."""
    case, manifest = report.case, report.case.recording.manifest
    course = moments(case, report.shown, report.lines)
    impact, label, asked, hours = case.incident.impact, case.label, report.asked, case.incident.impact.gpu_hours_lost
    facts = [
        ("culprit", place(case.cause.entity)),
        ("fault", case.root.fault.replace("_", " ")),
        ("lasted", gap((case.over_at or manifest.end) - case.onset) + ("" if case.over_at else " and on")),
        ("found after", gap(case.root.detected_at - case.onset)),
        ("GPUs", f"{impact.gpus} on {impact.nodes} node{'s' * (impact.nodes != 1)}"),
        ("step time", _pace(case)),
        ("GPU-hours lost", _figure_of(hours, ".1f") + cost(asked.price, hours, " (", ")")),
    ]
    lacking = missing(case)
    sections = [
        story(case, asked.price),
        actions(case, report.tried, lacking),
        _timeline(course),
        _culprit(report),
        _blast(report),
        chain(case, report.shown),
        _detectors(report),
        sooner(case, report.tried, course, report.shown, lacking),
    ]
    if label is not None:
        sections.append(_against(case, label))
    if odd := [one for one in case.findings if one.severity == "info" and one.state == "firing"]:
        sections.append(_also_seen(odd))
    if report.unjudged:
        unjudged = (
            "What the recording's telemetry does not show, or only late; `hindcast coverage` says what would add what:"
        )
        sections.append(Section("What could not be judged", [Text(unjudged), Items(list(report.unjudged))]))
    title = f"Postmortem: {case.root.fault} on {place(case.cause.entity)}"
    began, over = format_time(case.onset), format_time(case.over_at or manifest.end)
    lead = f"Cluster {manifest.cluster.name}, {began[:10]}, {began[11:16]} to {over[11:16]} UTC."
    return Document(title, lead, facts, [*sections, appendix(case, report.asked)])


def _also_seen(odd: Sequence[Finding]) -> Section:
    """Return what is odd and harms nobody."""
    entries = [f"{clock(one.detected_at)}: {one.summary}" for one in odd[:_MOST_ODD]]
    if len(odd) > _MOST_ODD:
        entries.append(f"and {len(odd) - _MOST_ODD} more")
    return Section("Also seen, alerts nobody", [Items(entries)])


def _pace(case: Case) -> str:
    """Return what became of the steps of the job that fared worst."""
    impact = case.incident.impact
    if not impact.jobs:
        return "no job known"
    if stood := max((job.stood_s for job in impact.jobs), default=0.0):
        return f"no step for {gap(round(stood * 1000))}"
    if ended := cut_short(case):
        return f"job {ended[0].job_id} ended" if len(ended) == 1 else f"{len(ended)} jobs ended"
    if impact.step_time_factor is None:
        return "unknown: no steps"
    return f"{impact.step_time_factor:.2f} times the usual" if impact.step_time_factor > 1 else "as usual"


def _figure_of(value: float | None, form: str) -> str:
    """Return GPU-hours or a factor as text."""
    return "unknown" if value is None else format(value, form)


def evidence_of(case: Case) -> tuple[list[Shown], list[Event]]:
    """Return the charts worth showing, and the log lines."""
    label, root = case.label, case.root
    marks = [Mark(root.detected_at, "found", "found")]
    marks.append(Mark(root.started_at, "onset", "onset") if label is None else Mark(label.onset, "onset", "onset"))
    if root.resolved_at is not None:
        marks.append(Mark(root.resolved_at, "over", "resolved"))
    return show(case.recording, case.incident, case.jobs, marks), case.lines()


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= _LONGEST_CELL else f"{words[: _LONGEST_CELL - 1]}…"


def _timeline(course: Sequence[Moment]) -> Section:
    rows = []
    origin = next((one.at for one in course if one.kind == "onset"), None)
    if origin is None:
        origin = next(one.at for one in course if one.kind == "began")
    for number, one in enumerate(course):
        since = "" if not number else f"+{gap(one.at - course[number - 1].at)}"
        rows.append([clock(one.at), since, gap(one.at - origin), one.name, _short(one.detail)])
    strong = frozenset(
        number for number, one in enumerate(course) if one.kind in {"onset", "found", "alert", "resolved"}
    )
    day = format_time(course[0].at)[:10]
    table = Table(["time, UTC", "since the last", "since the onset", "what", ""], rows, frozenset({1, 2}), strong)
    return Section("Timeline", [Text(f"All times are UTC, {day}, by the clock of the recording."), table])


def _culprit(report: Report) -> Section:
    case, shown = report.case, report.shown
    finding = case.finding(case.root.id)
    moved = [one for one in shown if one.left_at or one.silent_at or one.signal.column == "step_time_s"]
    steady = [one for one in shown if one not in moved]
    flat = [one for one in steady if not _stirs(one)]
    extra = [one for one in steady if one not in flat][: max(0, _MOST_STEADY + 1 - len(moved))]
    blocks: list[Block] = []
    if shown:
        blocks.append(Text("The figures before and during are medians, those of counters means."))
    else:
        blocks.append(Text("The recording has no signal of the culprit that could be drawn."))
    blocks += [_figure(one) for one in shown if one in moved or one in extra]
    if rest := [one.signal.title for one in steady if one not in extra]:
        blocks.append(Text(f"Not unusual, beside its peers and its past: {', '.join(rest)}."))
    if report.lines:
        rows = [[clock(line.timestamp), line.source, line.severity, _short(line.message)] for line in report.lines]
        blocks += [
            Text("Log lines about it, around the onset:"),
            Table(["time, UTC", "source", "severity", "line"], rows),
        ]
    rows = [
        [f"`{name}`", figure(value) if isinstance(value, float) else _short(str(value))]
        for name, value in sorted(finding.evidence.items())
    ]
    half = -(-len(rows) // 2)  # two beside each other: there are many, and they are short
    pairs = [[*row, *other] for row, other in zip_longest(rows[:half], rows[half:], fillvalue=["", ""])]
    blocks.append(Text("Evidence at the time of the finding; the names end in the unit:"))
    blocks.append(Table(["what", "value", "what", "value"], pairs))
    return Section("Culprit and evidence", blocks)


def _stirs(one: Shown) -> bool:
    """Return whether there is more than zero to see."""
    return any(value == value and value != 0 for value in (one.before, one.during, one.peers_during))  # noqa: PLR0124 - NaN


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
    rest = "its peers and its own past" if one.against_peers else "its own past"
    left = f" Unlike {rest} from {clock(one.left_at)} on." if one.left_at is not None else ""
    left += f" No reading from {clock(one.silent_at)} on." if one.silent_at is not None else ""
    return Figure(chart, f"{chart.culprit}, against {chart.peers}.{left}", table)


def _blast(report: Report) -> Section:
    case, impact = report.case, report.case.incident.impact
    known = {job.job_id: job for job in case.jobs}
    rows = []
    for touched in impact.jobs:
        job = known.get(touched.job_id)
        name = f"{touched.job_id} {job.name} ({job.user})" if job is not None else touched.job_id
        slower = _figure_of(touched.step_time_factor, ".2f")
        ended = "" if touched.ended_at is None else clock(touched.ended_at)
        cells = [
            name,
            str(len(job.nodes)) if job is not None else "",
            str(touched.gpus),
            slower,
            gap(round(touched.stood_s * 1000)) if touched.stood_s else "",
        ]
        hours = touched.gpu_hours_lost
        rows.append([*cells, _figure_of(hours, ".2f"), cost(report.asked.price, hours), ended])
    total = [
        "all",
        str(impact.nodes),
        str(impact.gpus),
        _figure_of(impact.step_time_factor, ".2f"),
        "",
        _figure_of(impact.gpu_hours_lost, ".2f"),
        cost(report.asked.price, impact.gpu_hours_lost),
        "",
    ]
    columns = ["job", "nodes", "GPUs", "steps, times as long", "without a step", "GPU-hours lost", "cost, USD", "ended"]
    table = Table(columns, [*rows, total], frozenset(range(1, 8)), frozenset({len(rows)}))
    blocks: list[Block] = [filled(table)]
    if report.asked.price is None:
        blocks.append(Text("With a price of a GPU-hour (`--price`, or the console's field) the cost stands here too."))
    blocks.append(
        Text(
            "GPU-hours lost are the job's GPUs, times how long it lasted, times the share of a step that was lost:"
            " 1 - usual step time / step time, or all of it while no step came. Usual is the hour before. It lasted"
            " until the finding was resolved, which is a little later than the fault itself."
        )
    )
    return Section("Blast radius", blocks)


def _detectors(report: Report) -> Section:
    case = report.case
    streams = {"logs", *case.recording.streams()}
    near = {one.detector: one for one in report.silent}
    rows: list[list[str]] = []
    quiet: list[str] = []
    for kind, config in case.choices:
        name = kind.spec.name
        mine = [one for one in case.incident.members if one.detector == name]
        lacks = ", ".join(stream for stream in kind.spec.reads if stream not in streams)
        silent = near.get(name)
        if mine:
            first = min(mine, key=lambda one: (one.detected_at, one.id))
            first_found = f"{first.fault} at {place(first.entity)}, at {clock(first.detected_at)}"
            first_found += f", and {len(mine) - 1} more" if len(mine) > 1 else ""
            rows.append([name, "fired, in shadow" if config.shadow else "fired", first_found, lacks])
        elif lacks or (silent is not None and silent.finding is not None):
            rows.append([name, "silent", _near(silent), lacks])
        else:
            quiet.append(name)
    if quiet:
        words = "nothing, even at a quarter of their thresholds" if report.silent else ""
        rows.append([", ".join(quiet), "silent", words, ""])
    rows.sort(key=lambda row: row[1] == "silent")
    strong = frozenset(number for number, row in enumerate(rows) if row[1] != "silent")
    columns = ["detector", "in this incident", "what, or how near it came", "streams it lacked"]
    blocks: list[Block] = [filled(Table(columns, rows, strong=strong))]
    if report.silent:
        blocks.append(
            Text(
                "How near: each silent detector ran again over the incident and the hour before, with all its"
                " thresholds and waiting times at three quarters, a half and a quarter, until it fired. What it then"
                " says of other parts than the culprit is noise that its thresholds keep out. A detector is also silent"
                " where another fault explains what it sees, at any threshold: straggler, of a GPU that is throttled."
            )
        )
    blocks += rule_blocks(report.case, report.alerts)
    return Section("Who fired, who stayed silent", blocks)


def _near(one: Nearness | None) -> str:
    if one is None:
        return ""
    if one.share is None or one.finding is None:
        return "nothing, even at a quarter of its thresholds"
    where = "on the culprit" if one.at_culprit else "elsewhere"
    when = clock(one.finding.detected_at)
    return f"at {one.share:.0%} of its thresholds, {where}, at {when}: {_short(one.finding.summary)}"


def _against(case: Case, label: Label) -> Section:
    """Return how the report compares with the recording's labels: the truth that no detector saw."""
    root, impact, true = case.root, case.incident.impact, label.impact or {}
    right = root.fault == label.fault and about(label, root.entity)
    rows = [
        [
            "culprit",
            f"{label.fault} at {place(label.entity)}",
            f"{root.fault} at {place(root.entity)}",
            "right" if right else "wrong",
        ],
        ["onset", clock(label.onset), clock(root.started_at), f"{gap(root.started_at - label.onset)} apart"],
        [
            "found",
            f"due within {label.within_s:g} s",
            f"after {gap(root.detected_at - label.onset)}",
            "in time" if root.detected_at <= label.onset + label.within_s * 1000 else "late",
        ],
    ]
    if root.resolved_at is not None and label.end <= case.recording.manifest.end:
        rows.append(["over", clock(label.end), clock(root.resolved_at), f"{gap(root.resolved_at - label.end)} apart"])
    times, hours = true.get("step_time_factor"), true.get("gpu_hours_lost")
    for name, wanted, got in (("GPUs", true.get("gpus"), impact.gpus), ("jobs", true.get("jobs"), len(impact.jobs))):
        if wanted is not None:
            rows.append([name, str(wanted), str(got), "right" if wanted == got else "off"])
    if times is not None:
        near = factor_right(times, impact.step_time_factor)
        figure = _figure_of(impact.step_time_factor, ".2f")
        rows.append(["steps, times as long", f"{times:.2f}", figure, "right" if near else "off"])
    if hours is not None:
        lost = impact.gpu_hours_lost
        near = hours_right(hours, lost)
        off = f", {lost / hours - 1:+.0%}" if hours and lost is not None else ""
        verdict = f"{'right' if near else 'off'}{off}"
        rows.append(["GPU-hours lost", f"{hours:.1f}", _figure_of(lost, ".2f"), verdict])
    return Section(
        "Against the labels",
        [
            Text(
                f"Label {label.id}, which no detector sees. Right means within {FACTOR_WITHIN:.0%} of the label's"
                f" factor of step time, and within {HOURS_WITHIN:.0%}, or {HOURS_LEAST:g}, of its GPU-hours."
            ),
            Table(["", "label", "report", ""], rows, strong=frozenset({0})),
        ],
    )
