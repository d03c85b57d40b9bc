"""Fit on healthy stretches, then show a slow card: it is pointed at, with what is off, and nothing else is."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.kit.errors import UserError
from services.model.artefact import Model
from services.model.conftest import Slow, label_of, write_recording
from services.model.fit import fit
from services.model.novelty import novelties
from services.recording.conftest import edit_manifest
from services.recording.reader import Recording


def test_a_slow_card_is_pointed_at_and_nothing_else(model: Model, slow_recording: Path) -> None:
    found = list(novelties(Recording.open(slow_recording), model))
    assert [(dict(one.entity), one.state) for one in found] == [
        ({"node": "n2", "gpu": 3}, "firing"),
        ({"node": "n2", "gpu": 3}, "resolved"),
    ]
    label = label_of(Slow())
    begun, ended = found
    assert label.onset - 60_000 <= begun.started_at <= label.onset + 60_000
    assert begun.detected_at <= label.onset + 4 * 60_000
    assert label.end <= ended.detected_at <= label.end + 5 * 60_000
    clock = begun.metrics[0]
    assert clock.name == "DCGM_FI_DEV_SM_CLOCK"
    assert clock.value == pytest.approx(840, rel=0.02)
    assert clock.peers == pytest.approx(1400, rel=0.02)
    assert clock.deviations < -10


def test_it_is_no_finding_and_names_no_fault(model: Model, slow_recording: Path) -> None:
    line = json.loads(next(novelties(Recording.open(slow_recording), model)).to_json())
    assert line["kind"] == "novelty"
    assert line["severity"] == "info"
    assert "fault" not in line


def test_healthy_gpus_are_not_novel(model: Model, tmp_path: Path) -> None:
    other = write_recording(tmp_path / "other", minutes=240, seed=5)
    assert list(novelties(Recording.open(other), model)) == []


@settings(max_examples=4, deadline=None)
@given(max_rows=st.integers(500, 20_000))
def test_the_same_however_it_is_read(model: Model, slow_recording: Path, max_rows: int) -> None:
    recording = Recording.open(slow_recording)
    whole = [one.to_json() for one in novelties(recording, model)]
    assert [one.to_json() for one in novelties(recording, model, max_rows=max_rows)] == whole


def test_faults_and_what_surrounds_them_are_not_fitted_on(
    model: Model, healthy_recordings: list[Path], slow_recording: Path
) -> None:
    with_fault = fit([*healthy_recordings, slow_recording])
    *healthy, slow = with_fault.facts.recordings
    assert {one.left_out for one in healthy} == {0}
    # 15 minutes of fault, 5 before and 15 after, of 16 GPUs; the windows that touch an end are out as well.
    assert 35 * 16 <= slow.left_out <= 37 * 16
    assert slow.rows + slow.left_out <= 120 * 16
    assert with_fault.facts.threshold < 2 * model.facts.threshold


def test_the_same_recordings_give_the_same_model(model: Model, healthy_recordings: list[Path]) -> None:
    assert fit(healthy_recordings).facts == model.facts
    assert 0.9 <= model.facts.explained_variance <= 1
    assert model.facts.rows > 5000


def test_too_little_is_reported(tmp_path: Path) -> None:
    short = write_recording(tmp_path / "short", minutes=30, seed=9)
    with pytest.raises(UserError, match=r"healthy GPU-windows .* needed"):
        fit([short])


def test_a_recording_without_gpus_or_jobs_has_nothing_novel(model: Model, slow_recording: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("recording.yaml", "topology.json", "dcgm.parquet", "steps.parquet"):
        (bare / name).write_bytes((slow_recording / name).read_bytes())
    edit_manifest(bare, lambda content: content.pop("files"))
    assert list(novelties(Recording.open(bare), model)) == []
