import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from detectors.faults import faults
from detectors.registry import choose
from services.kit.errors import UserError
from services.postmortem.appendix import Asked
from services.postmortem.case import Case, investigate, loud_lines, related
from services.postmortem.catalogue import CLOCK
from services.postmortem.chart import figure
from services.postmortem.document import Document, Figure, Items, Table, Text
from services.postmortem.html import html
from services.postmortem.markdown import markdown
from services.postmortem.report import Report, compose
from services.postmortem.rules import Alerts
from services.postmortem.timeline import GROUP_WAIT_MS, clock, gap, moments
from services.postmortem.whatif import Trial, Trials
from services.recording.model import Event
from services.recording.reader import Recording
from services.rules.evaluation import Came

SMALL = Path(__file__).resolve().parents[2] / "replay-data" / "small"


def _table(document: Document, section: str, place: int = 0) -> Table:
    (found,) = [one for one in document.sections if one.title == section]
    return [block for block in found.blocks if isinstance(block, Table)][place]


def test_culprit_times_and_impact_are_right_to_the_label(made: tuple[Case, Report]) -> None:
    rows = {row[0]: row for row in _table(compose(made[1]), "Against the labels").rows}
    for name in ("culprit", "GPUs", "jobs", "steps, times as long", "GPU-hours lost"):
        assert rows[name][3].startswith("right"), name
    assert rows["culprit"][2] == "power_throttle at v002"
    assert rows["found"][3] == "in time"


def test_the_timeline_runs_in_order_and_its_gaps_add_up(made: tuple[Case, Report]) -> None:
    case, report = made
    course = moments(case, report.shown, report.lines)
    names = [one.name for one in course]
    for earlier, later in (
        ("Onset (label)", "First signal in the data"),
        ("First signal in the data", "Root cause found"),
        ("Root cause found", "Alert (page)"),
        ("Fault over (label)", "Root cause resolved"),
    ):
        assert names.index(earlier) < names.index(later)
    assert [one.at for one in course] == sorted(one.at for one in course)
    assert "Power Supply" in course[names.index("First signal in the data")].detail
    rows = _table(compose(report), "Timeline").rows
    found = next(row for row in rows if row[3] == "Root cause found")
    assert found[2] == gap(case.root.detected_at - case.labels[0].onset)


def _waits(route: dict[str, Any], labels: dict[str, str]) -> str:
    """Return the group_wait of the route that an alert takes: the first that matches, again in each below it."""
    for below in route.get("routes", []):
        matchers = [re.fullmatch(r'(\w+)(=~|!=|=)"(.*)"', matcher) for matcher in below["matchers"]]
        tests = [(labels.get(one[1], ""), one[2], one[3]) for one in matchers if one is not None]
        assert len(tests) == len(matchers)
        if all(
            bool(re.fullmatch(want, got)) if how == "=~" else (got == want) == (how == "=") for got, how, want in tests
        ):
            return _waits({"group_wait": route["group_wait"], **below}, labels)
    return str(route["group_wait"])


@pytest.mark.parametrize("severity", ["page", "ticket"])
@pytest.mark.parametrize("fault", list(faults()))
def test_alertmanager_waits_as_long_as_the_timeline_says(severity: str, fault: str) -> None:
    text = (Path(__file__).resolve().parents[2] / "alert-rules" / "alertmanager.yaml").read_text()
    root = {"group_wait": "30s", **yaml.safe_load(text)["route"]}
    waits = _waits(root, {"replay": "live", "severity": severity, "fault": fault})
    assert waits == f"{GROUP_WAIT_MS[severity] // 1000}s"


@pytest.mark.parametrize("severity", ["page", "ticket"])
def test_an_alert_goes_out_when_its_group_has_been_waited_for(
    made: tuple[Case, Report], severity: Literal["page", "ticket"]
) -> None:
    case, report = made
    members = tuple(replace(one, severity=severity) for one in case.incident.members)
    case = replace(case, incident=replace(case.incident, members=members))
    (alert,) = [one for one in moments(case, report.shown, report.lines) if one.kind == "alert"]
    assert alert.name == f"Alert ({severity})"
    assert alert.at == case.root.detected_at + GROUP_WAIT_MS[severity]


def test_who_jams_a_port_is_named_first_and_what_is_plugged_into_it(made: tuple[Case, Report]) -> None:
    case, report = made
    assert case.whereabouts.startswith("rack r")
    assert "power feeds pdu-a" in case.whereabouts
    node = case.recording.topology.nodes[0]
    nic = next(nic for nic in node.nics if nic.port)
    port = {"switch": str(nic.switch), "port": str(nic.port)}
    evidence: dict[str, float | int | str] = {
        "by": "pauses from its host",
        "far_end": node.name,
        "ports_hot": 45,
        "switches_hot": 10,
    }
    jam = replace(
        case,
        findings=[replace(one, evidence=evidence) for one in case.findings],
        incident=replace(case.incident, causes=(replace(case.cause, entity=port),)),
    )
    assert jam.whereabouts == f"the port of {node.name} {nic.nic}, rack {node.rack}"
    document = compose(replace(report, case=jam))
    by_title = {one.title: one.blocks[0] for one in document.sections}
    chain, todo = by_title["Root-cause chain"], by_title["Actions"]
    assert isinstance(chain, Items)
    assert isinstance(todo, Items)
    assert any(entry.startswith(f"{node.name} → power_throttle") for entry in chain.entries)
    assert any("44 more ports, 10 switches" in entry for entry in chain.entries)
    assert todo.entries[0].startswith(f"{node.name}: drain it, and shut {nic.switch} {nic.port}")
    story = by_title["What happened"]
    assert isinstance(story, Text)
    assert f"{nic.switch} {nic.port}: {jam.whereabouts}." in story.words


def test_of_the_rules_on_the_fault_that_stayed_silent_the_report_names_how_near_they_came(
    made: tuple[Case, Report],
) -> None:
    def came(rule: str, condition: str, value: float, *, met: bool, within: str = "") -> tuple[str, Came]:
        return "v002 GPU 3", Came(rule, condition, within, {}, made[0].root.started_at, value, 0.5, met)

    alerts = Alerts(
        [],
        {"NodePowerBrake": 20_000},
        [
            came("GpuPowerViolation", "rate > 0.5", 0.11, met=False),
            came("GpuPowerViolation", "rate > 0.5", 0.23, met=False),
            came("GpuPowerViolation", "clock < 0.5", 0.3, met=True),
            came("GpuPowerViolation", "clock", 0.1, met=False, within="clock < 0.5"),
            came("GpuPowerBrake", "brake == 0.5", 0.5, met=True),
        ],
    )
    section = compose(replace(made[1], alerts=alerts)).sections[6]
    assert section.title == "Who fired, who stayed silent"
    table = section.blocks[-1]
    assert isinstance(table, Table)
    near = {row[0]: row[1] for row in table.rows}
    assert near["NodePowerBrake"] == "its condition was true for 20.0 s, of the 10s that it waits"
    never = "its condition was never true"
    assert near["GpuPowerLimitLow"] == never
    at = clock(made[0].root.started_at)
    assert near["GpuPowerViolation"] == f"{never}: `rate > 0.5` came to 0.23 of 0.5 (v002 GPU 3, {at})"
    assert near["GpuPowerBrake"].startswith(f"{never}: each comparison in it was at some time, not all at once")
    assert near["GpuPowerBrake"].endswith("or what stands behind its `unless` was true too")


def test_the_first_paragraphs_name_when_whom_and_what_it_cost(made: tuple[Case, Report]) -> None:
    case, report = made
    (story,) = [one for one in compose(report).sections if one.title == "What happened"]
    words = " ".join(block.words for block in story.blocks if isinstance(block, Text))
    hours = case.incident.impact.gpu_hours_lost
    for part in (
        "; live, that is a page.",
        "times as long for a step",
        f"{hours:.1f} GPU-hours were lost, which cost $",
    ):
        assert part in words


def test_lengths_begin_at_one_onset(made: tuple[Case, Report]) -> None:
    case, report = made
    facts = dict(compose(report).facts)
    assert case.over_at is not None
    since_onset = {row[3]: row[2] for row in _table(compose(report), "Timeline").rows}
    assert facts["lasted"] == gap(case.over_at - case.labels[0].onset) == since_onset["Root cause resolved"]
    assert facts["found after"] == since_onset["Root cause found"]


@pytest.mark.parametrize(("ms", "words"), [(119_940, "119.9 s"), (1_048_991, "17 min 29 s"), (7_199_600, "2 h 0 min")])
def test_a_length_is_rounded_not_cut(ms: int, words: str) -> None:
    assert gap(ms) == words


def test_a_job_that_is_killed_before_its_next_step_does_not_keep_its_pace(made: tuple[Case, Report]) -> None:
    case, report = made
    (job,) = case.incident.impact.jobs
    ended = case.onset + 59_000
    killed = replace(job, step_time_factor=None, stood_s=0.0, gpu_hours_lost=None, ended_at=ended)
    impact = replace(case.incident.impact, jobs=(killed,), step_time_factor=None, gpu_hours_lost=None)
    case = replace(case, incident=replace(case.incident, impact=impact))
    document = compose(replace(report, case=case))
    facts = dict(document.facts)
    assert (facts["step time"], facts["GPU-hours lost"]) == (f"job {job.job_id} ended", "unknown")
    words = " ".join(block.words for block in document.sections[0].blocks if isinstance(block, Text))
    assert f"ended at {clock(ended)[:8]}, 59.0 s after the onset. What it cost is not known" in words
    assert _table(document, "Blast radius").rows[-1][3:5] == ["unknown", "unknown"]


def test_what_to_do_stands_before_how_it_was_found(made: tuple[Case, Report]) -> None:
    assert [one.title for one in compose(made[1]).sections[:3]] == ["What happened", "Actions", "Timeline"]


def test_what_a_trial_changes_is_no_total(made: tuple[Case, Report]) -> None:
    _, report = made
    trial = Trial("half the patience", {"confirm_readings": 1}, 0.0, 0, 0)
    table = _table(compose(replace(report, tried=Trials(settings=[trial]))), "What would have caught it sooner")
    assert table.columns[2:4] == ["more false alarms", "more findings"]


def test_a_line_written_just_before_the_label_begins_is_the_first_signal(
    made: tuple[Case, Report],
) -> None:
    case, _ = made
    first = case.lines()[0]
    onset = first.timestamp + 300
    late = [label.model_copy(update={"onset": onset}) for label in case.labels]
    members = tuple(replace(one, started_at=onset) for one in case.incident.members)
    moved = replace(case, labels=late, incident=replace(case.incident, members=members))
    assert moved.lines()[0] == first


def test_what_a_switch_logs_is_of_its_port_and_what_others_log_of_a_node_is_of_the_node() -> None:
    def line(node: str, message: str, severity: Literal["info", "warning"] = "warning") -> Event:
        return Event(timestamp=0, source="kernel", node=node, severity=severity, message=message)

    storm = line("leaf-1", "PFC Watchdog detected PFC storm on port Ethernet40, queue index 3")
    other = line("leaf-1", "PFC Watchdog detected PFC storm on port Ethernet400, queue index 3")
    calm = line("leaf-1", "storm restored on port Ethernet40", "info")
    drained = line("head", "node v001 not responding")
    events = [other, storm, calm, drained]
    assert loud_lines(events, {"switch": "leaf-1", "port": "Ethernet40"}) == [storm]
    assert loud_lines(events, {"switch": "leaf-1", "port": "Ethernet8"}) == [other, storm]
    assert loud_lines(events, {"node": "v001"}) == [drained]
    assert loud_lines(events, {"node": "v0"}) == []


def test_the_cost_is_the_gpu_hours_at_the_price(made: tuple[Case, Report]) -> None:
    case, report = made
    table = _table(compose(report), "Blast radius")
    assert (
        table.rows[-1][table.columns.index("cost, USD")] == f"${(case.incident.impact.gpu_hours_lost or 0.0) * 2:,.2f}"
    )
    free = compose(replace(report, asked=Asked(what_if=False)))
    assert "cost, USD" not in _table(free, "Blast radius").columns


def test_the_chain_goes_from_the_supply_by_what_the_charts_show_to_the_job(made: tuple[Case, Report]) -> None:
    case, report = made
    (section,) = [one for one in compose(report).sections if one.title == "Root-cause chain"]
    (items,) = [block for block in section.blocks if isinstance(block, Items)]
    assert len(items.entries) == 3
    assert "Power Supply" in items.entries[0].split("→")[0]
    clock = next(one for one in report.shown if one.signal == CLOCK)
    assert f"SM clock from {figure(clock.before)} to {figure(clock.during)} MHz" in items.entries[1]
    assert items.entries[2].startswith(f"power_throttle at v002 → job {case.incident.impact.jobs[0].job_id}: ")


def test_the_appendix_has_the_digest_of_every_file(made: tuple[Case, Report]) -> None:
    case, report = made
    digests = {row[0]: row[2].strip("`") for row in _table(compose(report), "Data appendix").rows}
    assert digests == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in case.recording.path.iterdir()
    }


def test_one_file_that_asks_for_nothing_and_says_the_same_in_both_forms(made: tuple[Case, Report]) -> None:
    document = compose(made[1])
    page, text = html(document), markdown(document)
    assert not re.findall(r"(?:src|href|url|@import)\s*[=(]", page)
    assert "<script" not in page
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page
    for section in document.sections:
        assert f"## {section.title}" in text
        for block in section.blocks:
            if isinstance(block, Table):
                for row in block.rows:
                    assert all(cell.replace("|", "\\|").replace("<", "&lt;") in text for cell in row)
            if isinstance(block, Figure):
                assert block.caption in text
    figures = sum(isinstance(block, Figure) for section in document.sections for block in section.blocks)
    assert page.count("<svg") == figures >= 3


def test_the_same_recording_gives_the_same_bytes(made: tuple[Case, Report]) -> None:
    from services.postmortem.report import evidence_of

    again = investigate(Recording.open(SMALL / "vela-power-brake"), choose())
    shown, lines = evidence_of(again)
    other = replace(made[1], case=again, shown=shown, lines=lines)
    assert html(compose(other)) == html(compose(made[1]))


def test_words_from_a_recording_cannot_become_markup(made: tuple[Case, Report]) -> None:
    case, report = made
    manifest = case.recording.manifest.model_copy(update={"title": "<script>alert(1)</script>"})
    evil = replace(case, recording=replace(case.recording, manifest=manifest))
    assert "&lt;script>" in html(compose(replace(report, case=evil))).replace("&gt;", ">")
    assert "<script>" not in html(compose(replace(report, case=evil)))


def test_what_healthy_recordings_and_wrong_ids_are_answered(brake: Case) -> None:
    with pytest.raises(UserError, match="no incident was found"):
        investigate(Recording.open(SMALL / "vela-healthy"), choose())
    with pytest.raises(UserError, match="nonesuch"):
        investigate(brake.recording, brake.choices, chosen="nonesuch")


def test_parts_are_related_by_place_node_or_switch() -> None:
    assert related({"node": "a", "gpu": 1}, {"node": "a"})
    assert related({"switch": "s", "port": "1"}, {"switch": "s", "port": "2"})
    assert not related({"node": "a"}, {"node": "b"})
    assert not related({"job_id": "1"}, {"node": "b"})


def test_lengths_of_time_are_in_words() -> None:
    assert [gap(ms) for ms in (0, 900, 119_900, 125_000, 7_260_000, -1500)] == [
        "0.0 s", "0.9 s", "119.9 s", "2 min 5 s", "2 h 1 min", "-1.5 s",
    ]  # fmt: skip
