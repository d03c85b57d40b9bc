"""A rack that is rebooted as planned, as the library has it: every alert is a false one."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from detectors.registry import choose
from services.recording.embedded import findings_of
from services.recording.reader import Recording
from services.synth.make import Variant, make_recording

SCENARIO = Path(__file__).parents[2] / "replay-data" / "vela-rack-reboot" / "scenario.yaml"
CONCERNED = {"gpu_lost", "node_down", "nvlink", "telemetry_gap"}
"""Detectors of what is silent or counts anew; the others have nothing to see here."""
ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"


def test_nobody_is_alerted(tmp_path: Path) -> None:
    out = make_recording(SCENARIO, tmp_path / "reboot", Variant(scale=0.12, duration_s=3840, interval_s=30))
    recording = Recording.open(out)
    closed = {event.node or "" for event in recording.events() if "state set to DRAIN" in event.message}
    assert len(closed) >= 2
    batches = [batch.select(["timestamp", "node", "gpu", ENERGY]) for batch in recording.batches("dcgm")]
    dcgm = pa.Table.from_batches(batches)
    for node in closed:  # it did fall silent for minutes, and counts anew
        one = dcgm.filter((pc.field("node") == node) & (pc.field("gpu") == 0))
        times, counted = one["timestamp"].cast(pa.int64()).to_numpy(), one[ENERGY].to_numpy()
        longest = int(np.diff(times).argmax())
        assert times[longest + 1] - times[longest] > 300_000
        assert counted[longest + 1] < counted[longest] / 10
    choices = [one for one in choose() if one[0].spec.name in CONCERNED]
    assert len(choices) == len(CONCERNED)
    assert list(findings_of(recording, choices)) == []
