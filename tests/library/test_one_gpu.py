"""A recording of ours of one real GPU: `hindcast record` on an H100 (SXM, driver 580) that trained a small GPT.

By the clock of its day, 2026-11-27: training from 21:13:05; a checkpoint at 21:14:45; from 21:15:34 every step waited
0.6 s for data; a kernel of memory traffic alone at 21:16:24; copies to the GPU at 21:16:54; training again at 21:17:15;
a kernel that never ends at 21:17:35, as of a collective; at 21:20:55 a kernel wrote where it must not (XID 31).
"""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from detectors.contract import FloatArray
from detectors.signals.throttle_bits import SW_POWER_CAP
from services.recording.embedded import findings_of
from services.recording.reader import Recording
from services.recording.validate import validate_recording
from services.synth.cluster.profile import load_profile
from services.synth.library import LIBRARY

RUN = Path(__file__).with_name("h100-training")


def read(field: str, begin: str, end: str) -> FloatArray:
    """Return what was read of a field between two times of that day, HH:MM:SS."""
    start, stop = (
        int(datetime.fromisoformat(f"2026-11-27T{at}").replace(tzinfo=UTC).timestamp() * 1000) for at in (begin, end)
    )
    batches = Recording.open(RUN).batches("dcgm", start, stop, columns=(field,))
    return np.concatenate([batch.column(field).to_numpy(zero_copy_only=False) for batch in batches])


def test_the_hang_is_found_and_nothing_else() -> None:
    """Neither a chip that its power limit holds all the time, nor a slow input, nor a user's own bug is a fault."""
    assert validate_recording(RUN) == []
    fired, resolved = findings_of(Recording.open(RUN))
    assert (fired.fault, fired.state, resolved.state) == ("job_hang", "firing", "resolved")
    assert datetime.fromtimestamp(fired.started_at / 1000, UTC).strftime("%H:%M:%S") in {"21:17:34", "21:17:38"}
    assert fired.detected_at - fired.started_at <= 160_000


def test_the_generators_h100_draws_and_runs_as_a_real_one_does() -> None:
    gpu = load_profile(LIBRARY / "profiles" / "blue-vela.yaml").gpu
    power, clock = "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_SM_CLOCK"
    assert read(power, "21:12:30", "21:13:00").mean() == pytest.approx(gpu.idle_w, rel=0.05)
    assert read(power, "21:14:47", "21:14:52").mean() == pytest.approx(gpu.resident_w, rel=0.15)
    assert read(power, "21:13:30", "21:14:40").mean() == pytest.approx(gpu.power_limit_w, rel=0.02)
    assert read(clock, "21:12:30", "21:13:00").max() == gpu.sm_clock_idle_mhz
    assert read(clock, "21:18:00", "21:20:50").min() == gpu.sm_clock_mhz, (
        "who spins draws little, and runs at full clock"
    )
    rise = (
        read("DCGM_FI_DEV_GPU_TEMP", "21:14:20", "21:14:40").mean()
        - read("DCGM_FI_DEV_GPU_TEMP", "21:12:30", "21:13:00").mean()
    )
    assert rise == pytest.approx(gpu.kelvin_per_w * (gpu.power_limit_w - gpu.idle_w), rel=0.1)


def test_a_chip_at_its_power_limit_counts_all_of_the_time_as_a_violation() -> None:
    held = read("DCGM_FI_DEV_POWER_VIOLATION", "21:13:30", "21:14:40")
    assert np.diff(held).mean() / 1e9 == pytest.approx(1.0, abs=0.01)
    assert {int(bits) for bits in read("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "21:13:30", "21:14:40")} == {SW_POWER_CAP}


def test_who_copies_is_busy_by_the_utilisation_alone() -> None:
    assert read("DCGM_FI_DEV_GPU_UTIL", "21:17:00", "21:17:10").min() > 95
    assert read("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "21:17:00", "21:17:10").max() < 0.01
