"""Exporters that end, by systemd's line."""

from dataclasses import replace

import pytest

from detectors.tapes.cluster import START, line, name, tape_of, without
from detectors.telemetry_gap.examples import SCENE
from detectors.telemetry_gap.test_detector import NODE, firing


@pytest.mark.parametrize(
    ("unit", "at_s", "within_s"),
    [("nvidia-dcgm", 1004, (280, 300)), ("logrotate", 1004, (480, 500)), ("nvidia-dcgm", 900, (480, 500))],
    ids=["of the exporter", "of another unit", "long before"],
)
def test_where_a_line_says_that_the_exporter_ended_patience_is_not_learnt(
    unit: str, at_s: float, within_s: tuple[float, float]
) -> None:
    tape = tape_of(replace(SCENE, minutes=26))
    for begin in (200, 600):
        tape = without(tape, "dcgm", begin, begin + 240, node=name(2))
    ends = line(
        at_s, "kernel", f"systemd[1]: {unit}.service: Main process exited, code=killed, status=6/ABRT", node=NODE
    )
    (fired,) = firing(replace(without(tape, "dcgm", 1000, node=NODE), logs=[ends]))
    assert dict(fired.entity) == {"node": NODE}
    assert within_s[0] <= (fired.detected_at - START) / 1000 - 1000 <= within_s[1]
