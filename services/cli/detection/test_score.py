"""`hindcast score` and `hindcast compare` on a small recording of the library."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest

from services.cli.conftest import hindcast
from services.kit.errors import UserError
from services.recording.conftest import without_file
from services.synth.library import LIBRARY

invoke = partial(hindcast, columns=140)
BRAKE = LIBRARY / "small" / "vela-power-brake"


def test_a_recording_is_scored_with_controls_beside(tmp_path: Path) -> None:
    out, page = tmp_path / "score.json", tmp_path / "score.html"
    result = invoke("score", str(BRAKE), "--json", str(out), "--html", str(page), "--workers", "1")
    assert result.exit_code == 0, result.output
    figures = json.loads(out.read_text())
    brake = figures["faults"]["power_throttle"]
    assert (brake["labels"], brake["hits"], brake["misses"], brake["false_alarms"]) == (1, 1, 0, 0)
    assert 0 < brake["delay_p50_s"] <= 30
    assert figures["controls"]["constant"]["precision"] < 0.05
    assert figures["controls"]["random"]["recall"] == 0
    assert figures["node_days"] > 0
    assert "training seeds" in result.output
    text = page.read_text()
    assert "power_throttle" in text
    assert "http" not in text.replace("<!doctype html>", "")


def test_where_nobody_has_labelled_anything_nothing_is_right_or_wrong(tmp_path: Path) -> None:
    unlabelled = Path(shutil.copytree(BRAKE, tmp_path / "vela-power-brake"))
    without_file(unlabelled, "labels.jsonl")
    out, page = tmp_path / "score.json", tmp_path / "score.html"
    alone = invoke("score", str(unlabelled), "--json", str(out), "--html", str(page), "--workers", "1")
    assert alone.exit_code == 0, alone.output
    figures = json.loads(out.read_text())
    (one,) = figures["recordings"]
    assert (one["labelled"], one["false"], one["missed"]) == (False, [], [])
    assert [finding["fault"] for finding in one["fired"]] == ["power_throttle"]
    assert (figures["faults"]["all"]["precision"], figures["faults"]["all"]["false_alarms"]) == (None, 0)
    assert (figures["node_days"], figures["false_alarms_per_100_node_days"]) == (0, None)
    flat = " ".join(alone.output.split())
    assert "fired in vela-power-brake: " in flat
    assert "Nobody has labelled vela-power-brake: whether what fired there is right is unknown" in flat
    assert "Faults" not in flat
    assert "fired, not labelled" in page.read_text()
    both = invoke("score", str(unlabelled), str(BRAKE), "--json", str(out), "--workers", "1")
    total = json.loads(out.read_text())["faults"]["all"]
    assert (total["labels"], total["hits"], total["false_alarms"], total["precision"]) == (1, 1, 0, 1.0)
    assert "Faults" in both.output


def test_a_change_on_what_nobody_has_labelled_is_shown_and_not_judged(tmp_path: Path) -> None:
    unlabelled = Path(shutil.copytree(BRAKE, tmp_path / "vela-power-brake"))
    without_file(unlabelled, "labels.jsonl")
    before, after = tmp_path / "before.yaml", tmp_path / "after.yaml"
    before.write_text("")
    after.write_text("power_throttle: {enabled: false}\n")
    result = invoke("compare", str(before), str(after), str(unlabelled), "--workers", "1")
    assert result.exit_code == 0, result.output
    assert "finding gone" in result.output
    assert "false alarm gone" not in result.output


def test_what_is_lost_without_some_telemetry_is_printed(tmp_path: Path) -> None:
    out = tmp_path / "score.json"
    taken = "default-fields,logs,bmc"
    result = invoke("score", str(BRAKE), "--without", taken, "--json", str(out), "--workers", "1")
    assert result.exit_code == 0, result.output
    assert "Without default-fields, logs, bmc" in result.output
    figures = json.loads(out.read_text())
    assert figures["without"] == taken.split(",")
    assert figures["with_all"]["faults"]["power_throttle"]["hits"] == 1
    assert figures["recordings"][0]["name"] == "vela-power-brake"
    lost = f"lost in vela-power-brake: power_throttle of node={json.loads(_label(BRAKE))['entity']['node']}"
    assert (lost in result.output) == (figures["faults"]["power_throttle"]["hits"] == 0)


def _label(recording: Path) -> str:
    return next(line for line in (recording / "labels.jsonl").read_text().splitlines() if "power_throttle" in line)


def test_a_change_is_shown_finding_by_finding(tmp_path: Path) -> None:
    before, after = tmp_path / "before.yaml", tmp_path / "after.yaml"
    before.write_text("power_throttle: {confirm_readings: 2}\n")
    after.write_text("power_throttle: {enabled: false}\n")
    result = invoke("compare", str(before), str(after), str(BRAKE), "--workers", "1")
    assert result.exit_code == 0, result.output
    assert "missed" in result.output
    assert "power_throttle" in result.output
    same = invoke("compare", str(before), str(before), str(BRAKE), "--workers", "1")
    assert "no difference" in same.output


@pytest.mark.parametrize("arguments", [("score",), ("score", str(BRAKE), "--all")])
def test_what_to_score_must_be_named(arguments: tuple[str, ...]) -> None:
    result = invoke(*arguments)
    assert isinstance(result.exception, UserError)
    assert "hindcast score --all" in result.exception.remedy


def test_a_name_that_is_none_is_refused(tmp_path: Path) -> None:
    result = invoke("score", "no-such-incident")
    assert isinstance(result.exception, UserError)
    assert "no scenario 'no-such-incident'" in result.exception.message
