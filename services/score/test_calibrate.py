from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pytest

from detectors.contract import Batch, DetectorConfig, DetectorSpec, Finding, Instant, LogRecord
from detectors.core.tails import Tails
from detectors.engine.engine import Choice
from detectors.engine.state import pack
from detectors.fleet.fleet import Fleet
from services.kit.errors import UserError
from services.recording.cut import cut_recording
from services.recording.reader import Recording
from services.score.calibrate import halves, learnt

HEALTHY = Path(__file__).parents[2] / "replay-data" / "small" / "vela-healthy"


class Learner:
    """Learns every temperature, and finds nothing."""

    spec: ClassVar[DetectorSpec] = DetectorSpec(
        name="learner", version=1, faults=(), reads=("dcgm",), fields={"dcgm": ("DCGM_FI_DEV_GPU_TEMP",)},
        latency_s=0, defaults={}, budget_share=0.1,
    )  # fmt: skip
    config_type: ClassVar[type[DetectorConfig]] = DetectorConfig

    def __init__(self, config: DetectorConfig, fleet: Fleet) -> None:
        del fleet
        self.tails = Tails(config.calibration)

    def logs(self, records: Sequence[LogRecord]) -> Sequence[Finding]:
        del records
        return ()

    def observe(self, batch: Batch) -> Sequence[Finding]:
        self.tails["warmth"].learn(np.ravel(batch.sound["DCGM_FI_DEV_GPU_TEMP"][batch.present]))
        return ()

    def advance(self, now: Instant) -> Sequence[Finding]:
        del now
        return ()

    def snapshot(self) -> bytes:
        return pack({}, {})

    @classmethod
    def restore(cls, config: DetectorConfig, fleet: Fleet, state: bytes) -> Self:
        del state
        return cls(config, fleet)


def with_(calibration: Mapping[str, Any]) -> list[Choice]:
    return [(Learner, DetectorConfig(calibration=calibration.get("learner", {})))]


def rows(recordings: Sequence[Recording]) -> int:
    return sum(one.manifest.streams["dcgm"].rows for one in recordings)


def test_one_recording_is_cut_in_the_middle_of_its_time(tmp_path: Path) -> None:
    whole = Recording.open(HEALTHY)
    (earlier,), (later,) = halves([whole], tmp_path)
    assert earlier.manifest.start == whole.manifest.start
    assert earlier.manifest.end == later.manifest.start
    assert later.manifest.end == whole.manifest.end
    assert abs(earlier.manifest.end * 2 - whole.manifest.start - whole.manifest.end) <= 1
    assert rows([earlier, later]) == rows([whole])


def test_of_several_only_the_one_across_the_middle_is_cut(tmp_path: Path) -> None:
    whole = Recording.open(HEALTHY)
    start, length = whole.manifest.start, whole.manifest.end - whole.manifest.start
    parts = [start + length * part // 4 for part in (0, 1, 3)]
    pieces = [
        Recording.open(cut_recording(whole, tmp_path / f"p{n}", start=begin, end=end, name=f"p{n}"))
        for n, (begin, end) in enumerate(zip(parts, [*parts[1:], whole.manifest.end], strict=True))
    ]
    earlier, later = halves(pieces[::-1], tmp_path)
    assert [one.manifest.name for one in earlier] == ["p0", "p1-earlier"]
    assert [one.manifest.name for one in later] == ["p1-later", "p2"]


def test_too_little_history_is_refused(tmp_path: Path) -> None:
    whole = Recording.open(HEALTHY)
    short = cut_recording(whole, tmp_path / "short", end=whole.manifest.start + 90_000, name="short")
    with pytest.raises(UserError, match="too little history"):
        halves([Recording.open(short)], tmp_path)


def test_what_is_learnt_adds_up_over_recordings(tmp_path: Path) -> None:
    earlier, later = halves([Recording.open(HEALTHY)], tmp_path)
    progress: list[float] = []
    known = learnt([*earlier, *later], with_, lambda _name, share: progress.append(share))
    assert sum(known["learner"]["warmth"]["counts"]) == rows([*earlier, *later])
    assert max(progress) == 1.0
