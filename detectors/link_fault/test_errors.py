"""link_fault on errors between the published bar and what only minutes of evidence show."""

from dataclasses import replace

import pytest

from detectors.link_fault.examples import PORT, SCENE, UNCORRECTABLE
from detectors.link_fault.test_detector import run
from detectors.tapes.cluster import START, growing, tape_of


@pytest.mark.parametrize("seed", [3, 6])
@pytest.mark.parametrize("interval_s", [5.0, 10.0])
def test_errors_at_half_the_bar_for_more_than_a_minute_are_a_fault(interval_s: float, seed: int) -> None:
    scene = replace(SCENE, minutes=16, interval_s=interval_s, seed=seed)
    (found,) = run(growing(tape_of(scene), "switch", UNCORRECTABLE, 6.0, 600, 1e9, **PORT))
    assert (found.fault, dict(found.entity)) == ("link_errors", PORT)
    assert (found.detected_at - START) / 1000 - 600 <= 75 + 3 * interval_s
