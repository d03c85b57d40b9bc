"""Exporters that end, by systemd's line."""

from dataclasses import replace

import pytest

from detectors.tapes.cluster import START, line, name, tape_of, without
from detectors.telemetry_gap.examples import SCENE
from detectors.telemetry_gap.test_detector import NODE, firing

_EXITED = "systemd[1]: {}.service: Main process exited, code=killed, status=6/ABRT"
_KILLED = "Memory cgroup out of memory: Killed process 20113 ({}) total-vm:5220112kB, anon-rss:514880kB"


@pytest.mark.parametrize(
    ("words", "at_s", "within_s"),
    [
        (_EXITED.format("nvidia-dcgm"), 1004, (280, 300)),
        (_EXITED.format("logrotate"), 1004, (305, 320)),
        (_EXITED.format("nvidia-dcgm"), 900, (305, 320)),
        (_KILLED.format("dcgm-exporter"), 1004, (280, 300)),
        (_KILLED.format("python3"), 1004, (305, 320)),
    ],
    ids=["of the exporter", "of another unit", "long before", "killed", "another one killed"],
)
def test_where_a_line_says_that_the_exporter_ended_patience_is_not_learnt(
    words: str, at_s: float, within_s: tuple[float, float]
) -> None:
    tape = tape_of(replace(SCENE, minutes=26))
    for begin in (200, 600):
        tape = without(tape, "dcgm", begin, begin + 282, node=name(2))
    ends = line(at_s, "kernel", words, node=NODE)
    (fired,) = firing(replace(without(tape, "dcgm", 1000, node=NODE), logs=[ends]))
    assert dict(fired.entity) == {"node": NODE}
    assert within_s[0] <= (fired.detected_at - START) / 1000 - 1000 <= within_s[1]
