"""Incidents of the library as clusters of AMD's GPUs would have seen them: what needs no field of NVIDIA's is found.

The readings are those of the incidents' recordings, written in the names of AMD's device-metrics-exporter as far as it
has them, and imported. The kernels' lines, in which NVIDIA's driver gives its XIDs, are gone.
"""

from pathlib import Path

import pytest

from services.recording.cut import cut_recording
from services.recording.embedded import findings_of
from services.recording.reader import Recording
from services.score.matching import judge
from services.synth.library import ensure_recording
from services.synth.make import Variant
from tests.amd_names import in_amds_names

INCIDENTS = {
    # fault: scenario, scale, and the minutes of it that are looked at
    "power_throttle": ("vela-power-brake", 0.05, 75, 105),
    "thermal_throttle": ("vela-fan-failure", 0.05, 50, 90),
    "straggler": ("blue-vela-straggler", 0.13, 30, 90),  # jobs of eight and of four nodes
    "node_down": ("vela-hgx-crash", 0.05, 40, 75),
    "ecc_uncorrectable": ("vela-cuda-memory-error", 0.05, 40, 80),
}


@pytest.mark.parametrize("fault", INCIDENTS)
def test_a_fault_is_found_by_what_amds_exporter_reports(tmp_path: Path, fault: str) -> None:
    scenario, scale, first, last = INCIDENTS[fault]
    whole = Recording.open(ensure_recording(scenario, out=tmp_path / "whole", variant=Variant(scale=scale)).path)
    begin = whole.manifest.start
    part = cut_recording(whole, tmp_path / "part", start=begin + first * 60_000, end=begin + last * 60_000)
    recording = Recording.open(in_amds_names(part, tmp_path / "amd"))
    found = [finding for finding in findings_of(recording) if finding.severity != "info"]
    outcomes = judge(found, list(recording.labels()))
    due = [outcome for outcome in outcomes if outcome.label is not None and outcome.fault == fault]
    assert [outcome.kind for outcome in due if outcome.kind in {"hit", "miss"}]
    assert [outcome for outcome in due if outcome.kind == "miss"] == []
    assert [outcome.finding for outcome in outcomes if outcome.kind == "false"] == []
