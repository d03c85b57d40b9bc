"""`hindcast run` on a small recording of the real incident."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from detectors.engine.alarms import canonical
from services.cli.conftest import hindcast
from services.cli.detection import run
from services.kit.errors import UserError
from services.kit.times import format_time
from services.recording.conftest import edit_lines, without_file
from services.recording.degrade import degrade_recording
from services.recording.embedded import findings_of
from services.recording.reader import Recording
from tests.hostile import hostile_recording
from tests.small import Brake, small_recording


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    brakes = [Brake("v002", 180, 240)]
    return small_recording(tmp_path_factory.mktemp("recordings"), "brake", nodes=4, minutes=6, brakes=brakes)


def test_the_findings_are_written_in_canonical_order_and_the_timeline_is_printed(
    recording: Path, tmp_path: Path
) -> None:
    out = tmp_path / "findings.jsonl"
    result = hindcast("run", str(recording), "--findings", str(out), catch=False)
    assert result.exit_code == 0
    lines = out.read_text().splitlines()
    assert [(json.loads(line)["state"], json.loads(line)["entity"]) for line in lines] == [
        ("firing", {"node": "v002"}),
        ("resolved", {"node": "v002"}),
    ]
    found = list(findings_of(Recording.open(recording)))
    assert lines == [finding.to_json() for finding in sorted(found, key=canonical)]
    assert "node=v002" in result.stdout
    (label,) = (label for label in Recording.open(recording).labels() if not label.distractor)
    assert f"{(found[0].detected_at - label.onset) / 1000:.1f} s" in result.stdout
    assert "1 finding(s), 1 resolved; 1 labelled fault(s)" in result.stdout
    (incident,) = (json.loads(line) for line in (tmp_path / "incidents.jsonl").read_text().splitlines())
    assert (incident["state"], [member["id"] for member in incident["members"]]) == ("closed", [found[0].id])
    assert incident["impact"]["gpus"] == 32
    shown = " ".join(result.stdout.split())
    assert incident["title"] in shown
    assert "root cause: power_throttle node=v002 (100%)" in shown


def test_what_is_in_shadow_is_marked_and_makes_no_incident(recording: Path, tmp_path: Path) -> None:
    config = tmp_path / "detectors.yaml"
    config.write_text("power_throttle: {shadow: true}\n")
    written = ["--incidents", str(tmp_path / "i.jsonl"), "--config", str(config)]
    result = hindcast("run", str(recording), *written, catch=False)
    assert "in shadow" in " ".join(result.stdout.split())
    assert (tmp_path / "i.jsonl").read_text() == ""


def test_the_configuration_counts(recording: Path, tmp_path: Path) -> None:
    config = tmp_path / "detectors.yaml"
    config.write_text("power_throttle: {clock_ratio: 0.3, confirm_readings: 3}\n")
    out = tmp_path / "findings.jsonl"
    hindcast("run", str(recording), "--findings", str(out), "--config", str(config), catch=False)
    later = json.loads(out.read_text().splitlines()[0])["detected_at"]
    usual = json.loads(next(findings_of(Recording.open(recording))).to_json())["detected_at"]
    assert later > usual


def test_a_finding_that_alerts_nobody_is_listed_apart(capsys: pytest.CaptureFixture[str], recording: Path) -> None:
    opened = Recording.open(recording)
    (fired, *_) = findings_of(opened)
    odd = [replace(fired, severity="info", summary=f"port {number} is unlike its peers") for number in range(12)]
    run._print(opened, odd, set())
    run._print_harmless(odd)
    printed = capsys.readouterr().out
    assert "0 finding(s), 0 resolved; 1 labelled fault(s)" in printed
    shown = printed.partition("also seen, alerts nobody")[2]
    assert "port 0 is unlike its peers" in shown
    assert "port 10" not in shown
    assert "and 2 more" in shown
    run._print_harmless([fired])
    assert capsys.readouterr().out == ""


def test_a_name_with_brackets_is_printed_whole(capsys: pytest.CaptureFixture[str], recording: Path) -> None:
    opened = Recording.open(recording)
    (fired, *_) = findings_of(opened)
    run._print(opened, [replace(fired, entity={"node": "n[red]1[/]"})], set())
    assert "node=n[red]1[/]" in capsys.readouterr().out


def test_the_culprit_is_named_in_full_on_a_narrow_terminal_and_in_a_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, recording: Path
) -> None:
    opened = Recording.open(recording)
    (fired, *_) = findings_of(opened)
    place: dict[str, str | int] = {"node": "rack-a7-chassis-03-node-0041.gpu.example.org", "gpu": 7}
    found = [replace(fired, entity=place, fault="straggling_communication_of_a_rank")]
    whole = f"node={place['node']} gpu=7"
    monkeypatch.setenv("COLUMNS", "80")
    run._print(opened, found, set())
    lines = capsys.readouterr().out.splitlines()
    cells = "".join(line.split("│")[3].strip() for line in lines if line.count("│") > 3)
    assert cells.replace(" ", "") == whole.replace(" ", "")
    monkeypatch.delenv("COLUMNS")
    run._print(opened, found, set())
    assert whole in capsys.readouterr().out


def test_a_hit_has_its_delay_where_the_score_counts_one(
    capsys: pytest.CaptureFixture[str], recording: Path, tmp_path: Path
) -> None:
    """On an entity that is as right, and on one that was well again before the alert came."""
    other = Path(shutil.copytree(recording, tmp_path / "brake"))
    (fired, *_) = findings_of(Recording.open(recording))

    def changed(line: str) -> str:
        label = json.loads(line)
        if not label.get("distractor"):
            label |= {"also": [{"node": "v001"}], "end": format_time(fired.detected_at - 1000)}
        return f"{json.dumps(label)}\n"

    edit_lines(other, "labels.jsonl", lambda lines: [changed(line) for line in lines])
    opened = Recording.open(other)
    (label,) = (label for label in opened.labels() if not label.distractor)
    run._print(opened, [replace(fired, entity={"node": "v001"})], set())
    assert f"{(fired.detected_at - label.onset) / 1000:.1f} s" in capsys.readouterr().out


def test_it_ends_with_what_could_not_be_judged_and_why(recording: Path, tmp_path: Path) -> None:
    poor = degrade_recording(Recording.open(recording), tmp_path / "poor", ("steps", "storage"))
    without_file(poor, "labels.jsonl")
    config = tmp_path / "detectors.yaml"
    config.write_text("telemetry_gap: {enabled: false}\n")
    result = hindcast("run", str(poor), "--config", str(config), catch=False)
    words = " ".join(result.stdout.split())
    assert "switched off: telemetry_gap" in words
    assert words.endswith("`hindcast coverage` says what would show more.")
    assert "nobody has labelled it" in words


def test_what_cannot_be_done_is_refused(recording: Path, tmp_path: Path) -> None:
    config = tmp_path / "detectors.yaml"
    config.write_text("power_throttle: {clock_ratio: 3}\n")
    for arguments, word in (
        (["run", str(tmp_path / "absent")], "absent"),
        (["run", str(recording), "--config", str(config)], "clock_ratio"),
        (["run", str(recording), "--findings", str(tmp_path / "no" / "folder")], "cannot be written"),
    ):
        with pytest.raises(UserError, match=word):
            hindcast(*arguments, catch=False)


@pytest.mark.parametrize("option", ["--findings", "--incidents"])
def test_a_folder_that_is_not_there_is_refused_before_the_work(recording: Path, tmp_path: Path, option: str) -> None:
    result = hindcast("run", str(recording), option, str(tmp_path / "no" / "lines.jsonl"))
    assert isinstance(result.exception, UserError)
    assert "cannot be written" in result.exception.message
    assert "brake" not in result.output


def test_a_log_line_does_not_steer_the_terminal(tmp_path: Path) -> None:
    source = Path("replay-data/small/vela-power-brake")
    hostile = hostile_recording(source, tmp_path / "hostile", node="v002", job_id="812")
    result = hindcast("run", str(hostile), catch=False)
    assert "owned='log line'" in result.stdout.replace("\n", " ")
    assert all(character.isprintable() or character == "\n" for character in result.stdout)
