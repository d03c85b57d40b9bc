"""The noise of a variant scales the scatter of readings and steps, and nothing else about the story."""

from pathlib import Path

import numpy as np
import pytest

from services.synth.cluster.worlds import PLAIN, Conditions
from services.synth.conftest import Telemetry, Write
from services.synth.make import AS_WRITTEN, Variant, fingerprint, make_recording
from services.synth.physics.scatter import Scatter
from services.synth.randomness import generator


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


def test_a_recording_says_that_it_was_made_with_noise(write: Write) -> None:
    scenario = write()
    assert Variant(noise=2.0).suffix == "-noise-2"
    assert AS_WRITTEN.suffix == ""
    assert len({fingerprint(scenario, Variant(noise=noise)) for noise in (1.0, 2.0)}) == 2


def test_scatter_is_white_in_no_world_and_lasts_as_a_world_says() -> None:
    shape = 4000, 20
    white = Scatter(generator(1, "x"), PLAIN, 5.0).normal("power", shape)
    assert (white == generator(1, "x").standard_normal(shape)).all()
    world = Conditions(1, {"noise.lasts_s": 50.0, "noise.tail": 0.8})
    whole = Scatter(generator(1, "x"), world, 5.0).normal("power", shape)
    parts = Scatter(generator(1, "x"), world, 5.0)
    lasting = np.concatenate([parts.normal("power", (400, 20)) for _ in range(10)])
    for found in (whole, lasting):
        after = [float(np.corrcoef(found[:-lag].ravel(), found[lag:].ravel())[0, 1]) for lag in (2, 40)]
        assert after[0] == pytest.approx(0.5 * np.exp(-10 / 50), abs=0.08)
        assert abs(after[1]) < 0.1
        tails = float((np.abs(found) > 4 * found.std()).mean())
        assert tails > 20 * 6.3e-5, "far more than a Gaussian's"
