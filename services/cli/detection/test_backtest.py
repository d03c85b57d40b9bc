"""`hindcast backtest` over a night of a small cluster, against its tickets."""

import csv
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from detectors.engine.heard import FORGET_MS
from detectors.registry import choose, discover
from services.cli.conftest import hindcast
from services.kit.errors import UserError
from services.recording.cut import cut_recording
from services.recording.degrade import degrade_recording
from services.recording.embedded import engine_for, fed
from services.recording.instants import format_instant
from services.recording.reader import Recording
from tests.small import Brake, small_recording

invoke = partial(hindcast, "backtest", columns=100)
HOUR = 3600
BRAKES = [
    Brake("v001", 0.9 * HOUR, 1.5 * HOUR),
    Brake("v002", 2.2 * HOUR, 2.6 * HOUR),
    Brake("v001", 3.3 * HOUR, 3.7 * HOUR),
]
HOURS = 4
WINDOWS = 4
"""Of an hour each: the recording lasts from ten to two, and its first brake over the end of one."""


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("night")
    return small_recording(
        folder,
        "night",
        start="2024-04-01T22:00:00Z",
        nodes=3,
        minutes=HOURS * 60,
        brakes=BRAKES,
        interval_s=15,
    )


@pytest.fixture(scope="module")
def tickets(night: Path) -> Path:
    """Return a ticket for each label, opened twenty minutes after its onset, and three more."""
    start = Recording.open(night).manifest.start
    rows = [["id", "created", "resolved", "host", "summary", "gpu_hours_lost"]]
    for number, brake in enumerate(BRAKES, start=1):
        opened, closed = (format_instant(start + round(at * 1000)) for at in (brake.at_s + 1200, brake.until_s + 300))
        rows.append([f"OPS-{number}", opened, closed, brake.node, "power brake, clocks dropped", "10"])
    later = format_instant(start + 2 * HOUR * 1000)
    rows += [
        ["OPS-4", later, "", "v003", "GPU 2 has fallen off the bus", ""],
        ["OPS-5", later, "", "v003", "please update the BIOS", ""],
        ["OPS-6", later, "", "printer-7", "out of paper", ""],
    ]
    path = night.parent / "tickets.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return path


@pytest.fixture(scope="module")
def config(night: Path) -> Path:
    """Return a detectors.yaml that leaves three detectors on."""
    kept = {"power_throttle", "straggler", "thermal_throttle"}
    path = night.parent / "three.yaml"
    path.write_text(yaml.safe_dump({name: {"enabled": False} for name in discover() if name not in kept}))
    return path


@pytest.fixture(scope="module")
def first(night: Path, tickets: Path, config: Path) -> Path:
    """Return the folder of a first run, by one process."""
    run(night, "--incidents", str(tickets), "--config", str(config), "--workers", "1", folder=night.parent / "first")
    return night.parent / "first"


def run(night: Path, *more: str, folder: Path) -> dict[str, Any]:
    cut = ("--window", "1h", "--warm-up", "15m", "--grid", "30s")
    done = invoke(str(night), *cut, "--work", str(folder / "work"), "--out", str(folder / "out"), *more)
    assert done.exit_code == 0, done.output
    report: dict[str, Any] = json.loads((folder / "out" / "backtest.json").read_text())
    return report


def figures_in(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "out" / "backtest.json").read_text())
    return report


def test_its_figures_are_those_of_the_labels(night: Path, first: Path) -> None:
    report = figures_in(first)
    (one,) = report["subjects"]
    counts = {name: one[name] for name in ("truths", "caught", "missed", "unclear", "outside", "false")}
    assert counts == {"truths": 6, "caught": 3, "missed": 1, "unclear": 1, "outside": 1, "false": 0}
    labels = {label.id: label for label in Recording.open(night).labels() if not label.distractor}
    caught = {match["ticket"]: match for match in one["matches"] if match["verdict"] == "caught"}
    for number, brake in enumerate(BRAKES, start=1):
        match = caught[f"OPS-{number}"]
        assert (match["how"], match["alert"]["entity"]["node"]) == ("time, host, words", brake.node)
        delay_s = match["against_s"] + 1200
        assert 0 <= delay_s <= labels[f"f{number}"].within_s
    assert one["before_the_ticket"] == 3
    assert one["gpu_hours"]["lost"] == 30
    assert one["gpu_hours"]["of_unknown_cost"] == 1
    assert (one["offenders"][0]["machine"], one["offenders"][0]["days"]) == ("v001", 2)
    hours = HOURS + 1 / HOUR / 1000
    assert one["sent_a_week"]["hardware"]["page"] == pytest.approx(3 / (hours / 24 / 7), rel=1e-6)
    assert report["node_days"] == pytest.approx(3 * HOURS / 24, rel=0.01)
    drained = next(policy for policy in one["policies"] if policy["policy"] == "drain-on-page")
    assert (drained["drains"], drained["false_drains"]) == (2, 0), "v001 is away at its second page"
    assert report["worked"] == 2 * WINDOWS


def test_two_processes_come_to_the_same(night: Path, tickets: Path, config: Path, first: Path) -> None:
    folder = first.with_name("second")
    again = run(night, "--incidents", str(tickets), "--config", str(config), "--workers", "2", folder=folder)
    assert again == figures_in(first)
    assert (folder / "out" / "report.html").read_bytes() == (first / "out" / "report.html").read_bytes()


def test_only_what_has_changed_or_is_lost_is_worked_on_again(
    night: Path, tickets: Path, config: Path, first: Path
) -> None:
    changed = config.with_name("changed.yaml")
    settings = yaml.safe_load(config.read_text()) | {"power_throttle": {"confirm_readings": 3}}
    changed.write_text(yaml.safe_dump(settings))
    asked = ("--incidents", str(tickets), "--config", str(config), "--config", str(changed), "--workers", "1")
    both = run(night, *asked, folder=first)
    assert both["worked"] == WINDOWS
    before, after = both["subjects"]
    assert before["caught"] == after["caught"] == 3
    assert before["against_ticket_p50_s"] < after["against_ticket_p50_s"]
    assert run(night, *asked, folder=first)["worked"] == 0
    kept = (first / "work" / "results").glob("*/*.json")
    lost = min(path for path in kept if path.read_text(encoding="utf-8").startswith('[{"'))
    lost.write_text("[{", encoding="utf-8")
    assert run(night, *asked, folder=first)["worked"] == 1
    assert figures_in(first)["subjects"] == both["subjects"]


def test_a_match_is_corrected_in_the_file_that_a_run_wrote(
    night: Path, tickets: Path, config: Path, first: Path
) -> None:
    rows = list(csv.DictReader((first / "out" / "matches.csv").read_text(encoding="utf-8").splitlines()))
    corrected = first.with_name("corrected.csv")
    with corrected.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        for row in rows:
            writer.writerow(row | {"correct": {"OPS-4": "none", "OPS-5": "straggler"}.get(row["ticket"], "")})
    asked = ("--incidents", str(tickets), "--config", str(config), "--matches", str(corrected))
    (one,) = run(night, *asked, folder=first)["subjects"]
    assert (one["caught"], one["missed"], one["unclear"], one["outside"]) == (3, 1, 0, 2)


def test_without_tickets_the_labels_count_and_the_page_needs_nothing_else(
    night: Path, config: Path, first: Path
) -> None:
    report = run(night, "--config", str(config), folder=first)
    (one,) = report["subjects"]
    assert (report["truth"], report["worked"], one["truths"], one["caught"], one["false"]) == ("labels", 0, 3, 3, 0)
    page = (first / "out" / "report.html").read_text()
    assert "power_throttle" in page
    assert "http" not in page.replace("<!doctype html>", "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "name recordings, or a server by --url"),
        (("--url", "http://localhost:1"), "--url needs --from and --to"),
        (("NIGHT", "--window", "1x"), "--window '1x' is no length of time"),
        (("NIGHT", "--grid", "7s"), "--grid 7s is none"),
        (("NIGHT", "--from", "2031-01-01T00:00:00Z", "--to", "2031-01-02T00:00:00Z"), "nothing lies in the time"),
        (("NIGHT", "NIGHT"), "are of the same cluster and time"),
        (("NIGHT", "--rules", "no-such.yaml"), "no-such.yaml: no such rule file"),
        (("NIGHT", "--incidents", "no-such.csv"), "no-such.csv: cannot be read"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(
    night: Path, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    given = [str(night) if one == "NIGHT" else one for one in arguments]
    done = invoke(*given, "--work", str(tmp_path / "work"), "--out", str(tmp_path / "out"))
    assert isinstance(done.exception, UserError)
    assert words in str(done.exception)


@pytest.fixture(scope="module")
def hours(night: Path) -> dict[str, Recording]:
    """Return an hour of the night, with its list of jobs and without."""
    whole = Recording.open(night)
    start = whole.manifest.start + 2 * HOUR * 1000
    hour = Recording.open(cut_recording(whole, night.parent / "hour", start=start, end=start + HOUR * 1000))
    return {"listed": hour, "found": Recording.open(degrade_recording(hour, night.parent / "blind", ("jobs",)))}


@pytest.mark.parametrize("jobs", ["listed", "found"])
def test_a_detector_alone_finds_what_it_finds_beside_the_others(hours: dict[str, Recording], jobs: str) -> None:
    recording, choices = hours[jobs], choose()
    wanted = {"straggler", "power_throttle", "job_health", "congestion"}
    together = engine_for(recording, choices, grid_ms=30_000)
    found = [one.to_json() for step in fed(together, recording) for one in step.findings if one.detector in wanted]
    alone = [
        one
        for choice in choices
        if choice[0].spec.name in wanted
        for step in fed(engine_for(recording, [choice], every=True, grid_ms=30_000), recording)
        for one in step.findings
    ]
    assert sorted(found) == sorted(one.to_json() for one in alone)
    assert found


def test_a_detector_alone_is_fed_only_what_it_reads_and_what_jobs_are_found_by(hours: dict[str, Recording]) -> None:
    congestion = [choice for choice in choose() if choice[0].spec.name == "congestion"]
    fed_with = {jobs: set(engine_for(hour, congestion, every=True).fields) for jobs, hour in hours.items()}
    assert fed_with == {"listed": {"steps", "switch", "nic"}, "found": {"steps", "switch", "nic", "dcgm"}}
    hour = hours["listed"]
    week = replace(hour, manifest=hour.manifest.model_copy(update={"end": hour.manifest.start + FORGET_MS}))
    assert set(engine_for(week, congestion, every=True).fields) == set(hour.streams())
