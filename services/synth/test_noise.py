"""The noise of a variant scales the scatter of readings and steps, and nothing else about the story."""

from pathlib import Path

import numpy as np

from services.synth.conftest import Telemetry, Write
from services.synth.make import AS_WRITTEN, Variant, fingerprint, make_recording


def test_readings_and_steps_scatter_so_many_times_as_much(write: Write, tmp_path: Path) -> None:
    scenario = write({"duration": "+00:07:00", "happenings": []})
    calm, usual, loud = (
        Telemetry(make_recording(scenario, tmp_path / str(noise) / "tiny-brake", Variant(noise=noise)))
        for noise in (0.0, 1.0, 4.0)
    )
    rows = [len(made.seconds("dcgm")) for made in (calm, usual, loud)]
    assert rows[0] > rows[2], "more scrapes go missing"
    idle = [made.dcgm("DCGM_FI_DEV_POWER_USAGE", 0, 20).reshape(-1, 8).std(axis=0).mean() for made in (calm, usual)]
    assert idle[0] < 0.01 < idle[1]
    spreads = []
    for made in (calm, usual, loud):
        ranks = made.column("steps", "rank") >= 0
        spreads.append(float(np.nanstd(made.column("steps", "compute_s")[ranks][-200:])))
    assert spreads[0] < spreads[1] < spreads[2]


def test_a_recording_tells_that_it_was_made_with_noise(write: Write) -> None:
    scenario = write()
    assert Variant(noise=2.0).suffix == "-noise-2"
    assert AS_WRITTEN.suffix == ""
    assert len({fingerprint(scenario, Variant(noise=noise)) for noise in (1.0, 2.0)}) == 2
