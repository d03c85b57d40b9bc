"""The recorder on GPUs that say what the test wants, with a clock that the test turns."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from services.kit.errors import UserError
from services.record.recorder import XID, Plan, record
from services.record.sensors import Xid
from services.recording.model import Gpu
from services.recording.reader import Recording
from services.recording.validate import validate_recording

START_S = 1_711_958_400.0


class Clock:
    """Time that passes only while somebody waits for it."""

    def __init__(self) -> None:
        self.now = START_S

    def __call__(self) -> float:
        return self.now


class Stop(threading.Event):
    """An event that lets the clock run while it is waited for, and is set at `at` seconds from the start."""

    def __init__(self, clock: Clock, at: float = 1e9) -> None:
        super().__init__()
        self._clock, self._at = clock, START_S + at

    def wait(self, timeout: float | None = None) -> bool:
        self._clock.now += timeout or 0.0
        if self._clock.now >= self._at:
            self.set()
        return self.is_set()


class TwoGpus:
    """GPU 0 has a memory sensor, GPU 1 has none; each read takes `cost_s`; an XID comes at the third."""

    model, driver = "NVIDIA Test", "570.1"

    def __init__(self, clock: Clock, cost_s: float = 0.0) -> None:
        self._clock, self._cost_s, self._reads = clock, cost_s, 0

    @property
    def gpus(self) -> Sequence[Gpu]:
        return [Gpu(gpu=0, uuid="GPU-a", pci_bus_id="00000000:07:00.0"), Gpu(gpu=1, uuid="GPU-b")]

    def read(self) -> Sequence[Mapping[str, float]]:
        self._reads += 1
        self._clock.now += self._cost_s
        watts = {"DCGM_FI_DEV_POWER_USAGE": 100.0 + self._reads}
        return [{**watts, "DCGM_FI_DEV_MEMORY_TEMP": 40.0}, watts]

    def xids(self) -> Sequence[Xid]:
        return [Xid(0, 79)] if self._reads == 3 else []

    def close(self) -> None:
        """Nothing to let go of."""


def rows(path: Path) -> pa.Table:
    return pa.Table.from_batches(Recording.open(path).batches("dcgm"))


def test_a_minute_at_two_hertz_is_a_valid_recording(tmp_path: Path) -> None:
    clock = Clock()
    out = tmp_path / "mine"
    done = record(TwoGpus(clock), out, Plan("n1", hz=2, duration_s=60), Stop(clock), clock=clock)
    assert (done.ticks, done.missed, done.xids) == (120, 0, 1)
    assert validate_recording(out) == []
    table = rows(out)
    assert table.num_rows == 240
    seconds = np.unique(table["timestamp"].cast(pa.int64()).to_numpy()) / 1000 - START_S
    assert seconds.tolist() == [number / 2 for number in range(120)]


def test_what_a_gpu_does_not_have_is_null_and_an_xid_stays(tmp_path: Path) -> None:
    clock = Clock()
    out = tmp_path / "mine"
    record(TwoGpus(clock), out, Plan("n1", duration_s=5), Stop(clock), clock=clock)
    table = rows(out)
    gpus = table["gpu"].to_pylist()
    hbm = table["DCGM_FI_DEV_MEMORY_TEMP"].to_pylist()
    assert [value for gpu, value in zip(gpus, hbm, strict=True) if gpu == 1] == [None] * 5
    assert [value for gpu, value in zip(gpus, hbm, strict=True) if gpu == 0] == [40.0] * 5
    xids = table[XID].to_pylist()
    assert [value for gpu, value in zip(gpus, xids, strict=True) if gpu == 0] == [0, 0, 79, 79, 79]
    (event,) = Recording.open(out).events()
    assert event.message.startswith("NVRM: Xid (PCI:0000:07:00): 79,")


def test_ticks_that_are_over_are_counted_and_not_made_up(tmp_path: Path) -> None:
    clock = Clock()
    out = tmp_path / "mine"
    done = record(TwoGpus(clock, cost_s=2.5), out, Plan("n1", duration_s=10), Stop(clock), clock=clock)
    assert done.missed > 0
    assert rows(out).num_rows == 2 * done.ticks
    assert Recording.open(out).manifest.source["missed_ticks"] == done.missed


def test_being_stopped_leaves_a_complete_recording(tmp_path: Path) -> None:
    clock = Clock()
    out = tmp_path / "mine"
    done = record(TwoGpus(clock), out, Plan("n1"), Stop(clock, at=7.5), clock=clock)
    assert done.ticks == 8
    assert validate_recording(out) == []


def test_a_pace_that_sensors_cannot_keep_is_refused(tmp_path: Path) -> None:
    clock = Clock()
    with pytest.raises(UserError, match="within 1 and 10"):
        record(TwoGpus(clock), tmp_path / "mine", Plan("n1", hz=50), Stop(clock), clock=clock)
    assert not (tmp_path / "mine").exists()
