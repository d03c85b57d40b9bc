import hashlib
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from detectors.registry import choose
from services.kit.errors import UserError
from services.postmortem.appendix import Asked
from services.postmortem.case import Case, investigate, related
from services.postmortem.document import Document, Figure, Table
from services.postmortem.html import html
from services.postmortem.markdown import markdown
from services.postmortem.report import Report, compose
from services.postmortem.timeline import GROUP_WAIT_MS, gap, moments
from services.recording.reader import Recording

SMALL = Path(__file__).resolve().parents[2] / "replay-data" / "small"


def _table(document: Document, section: str, place: int = 0) -> Table:
    (found,) = [one for one in document.sections if one.title == section]
    return [block for block in found.blocks if isinstance(block, Table)][place]


def test_culprit_times_and_impact_are_right_to_the_label(told: tuple[Case, Report]) -> None:
    rows = {row[0]: row for row in _table(compose(told[1]), "Against the labels").rows}
    assert [rows[name][3] for name in ("culprit", "GPUs", "jobs", "steps, times as long", "GPU-hours lost")] == [
        "right"
    ] * 5
    assert rows["culprit"][2] == "power_throttle at v002"
    assert rows["found"][3] == "in time"


def test_the_timeline_runs_in_order_and_its_gaps_add_up(told: tuple[Case, Report]) -> None:
    case, report = told
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


def test_alertmanager_waits_as_long_as_the_timeline_says() -> None:
    folder = Path(__file__).resolve().parents[2] / "alert-rules"
    routes = yaml.safe_load((folder / "alertmanager.yaml").read_text())["route"]["routes"]
    (live,) = [route for route in routes if route["receiver"] == "live"]
    assert live["group_wait"] == f"{GROUP_WAIT_MS // 1000}s"


def test_the_cost_is_the_gpu_hours_at_the_price(told: tuple[Case, Report]) -> None:
    case, report = told
    total = _table(compose(report), "Blast radius").rows[-1]
    assert total[6] == f"${case.incident.impact.gpu_hours_lost * 2:,.0f}"
    free = compose(replace(report, asked=Asked(what_if=False)))
    assert _table(free, "Blast radius").rows[-1][6] == ""


def test_the_appendix_has_the_digest_of_every_file(told: tuple[Case, Report]) -> None:
    case, report = told
    digests = {row[0]: row[2].strip("`") for row in _table(compose(report), "Data appendix").rows}
    assert digests == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in case.recording.path.iterdir()
    }


def test_one_file_that_asks_for_nothing_and_says_the_same_in_both_forms(told: tuple[Case, Report]) -> None:
    document = compose(told[1])
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


def test_the_same_recording_gives_the_same_bytes(told: tuple[Case, Report]) -> None:
    from services.postmortem.report import evidence_of

    again = investigate(Recording.open(SMALL / "vela-power-brake"), choose())
    shown, lines = evidence_of(again)
    other = replace(told[1], case=again, shown=shown, lines=lines)
    assert html(compose(other)) == html(compose(told[1]))


def test_words_from_a_recording_cannot_become_markup(told: tuple[Case, Report]) -> None:
    case, report = told
    evil = replace(case, incident=replace(case.incident, title="<script>alert(1)</script>"))
    assert "<script>" not in html(compose(replace(report, case=evil)))


def test_what_healthy_recordings_and_wrong_ids_are_told(brake: Case) -> None:
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
