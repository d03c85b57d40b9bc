"""`hindcast run` on a small recording of the real incident."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from detectors.alarms import canonical
from services.cli.run import register
from services.kit.errors import UserError
from services.recording.embedded import findings_of
from services.recording.reader import Recording
from tests.small import Brake, small_recording


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    brakes = [Brake("v002", 180, 240)]
    return small_recording(tmp_path_factory.mktemp("recordings"), "brake", nodes=4, minutes=6, brakes=brakes)


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    register(app)
    app.command()(lambda: None)
    return app


def test_the_findings_are_written_in_canonical_order_and_the_timeline_is_printed(
    app: typer.Typer, recording: Path, tmp_path: Path
) -> None:
    out = tmp_path / "findings.jsonl"
    result = CliRunner().invoke(app, ["run", str(recording), "--findings", str(out)], catch_exceptions=False)
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


def test_what_is_in_shadow_is_marked_and_makes_no_incident(app: typer.Typer, recording: Path, tmp_path: Path) -> None:
    config = tmp_path / "detectors.yaml"
    config.write_text("power_throttle: {shadow: true}\n")
    written = ["--incidents", str(tmp_path / "i.jsonl"), "--config", str(config)]
    result = CliRunner().invoke(app, ["run", str(recording), *written], catch_exceptions=False)
    assert "in shadow" in " ".join(result.stdout.split())
    assert (tmp_path / "i.jsonl").read_text() == ""


def test_the_configuration_counts(app: typer.Typer, recording: Path, tmp_path: Path) -> None:
    config = tmp_path / "detectors.yaml"
    config.write_text("power_throttle: {clock_ratio: 0.3, confirm_readings: 3}\n")
    out = tmp_path / "findings.jsonl"
    CliRunner().invoke(
        app, ["run", str(recording), "--findings", str(out), "--config", str(config)], catch_exceptions=False
    )
    later = json.loads(out.read_text().splitlines()[0])["detected_at"]
    usual = json.loads(next(findings_of(Recording.open(recording))).to_json())["detected_at"]
    assert later > usual


def test_what_cannot_be_done_is_told(app: typer.Typer, recording: Path, tmp_path: Path) -> None:
    config = tmp_path / "detectors.yaml"
    config.write_text("power_throttle: {clock_ratio: 3}\n")
    for arguments, word in (
        (["run", str(tmp_path / "absent")], "absent"),
        (["run", str(recording), "--config", str(config)], "clock_ratio"),
        (["run", str(recording), "--findings", str(tmp_path / "no" / "folder")], "cannot be written"),
    ):
        with pytest.raises(UserError, match=word):
            CliRunner().invoke(app, arguments, catch_exceptions=False)
