"""link_fault on errors between the published bar and what only minutes of evidence show."""

from dataclasses import replace

import pytest

from detectors.link_fault.examples import NIC, PORT, SCENE, UNCORRECTABLE
from detectors.link_fault.test_detector import run
from detectors.tapes.cluster import START, growing, tape_of


@pytest.mark.parametrize("seed", [3, 6])
@pytest.mark.parametrize("interval_s", [5.0, 10.0])
def test_errors_at_half_the_bar_for_more_than_a_minute_are_a_fault(interval_s: float, seed: int) -> None:
    scene = replace(SCENE, minutes=16, interval_s=interval_s, seed=seed)
    (found,) = run(growing(tape_of(scene), "switch", UNCORRECTABLE, 6.0, 600, 1e9, **PORT))
    assert (found.fault, dict(found.entity)) == ("link_errors", PORT)
    assert (found.detected_at - START) / 1000 - 600 <= 75 + 3 * interval_s


def test_damaged_frames_are_counted_by_the_kernel_too() -> None:
    """A NIC whose driver's own counters nobody reads."""
    tape = growing(tape_of(replace(SCENE, minutes=16)), "nic", "rx_crc_errors_phy", 30.0, 300, 600, **NIC)
    other = {"rx_crc_errors_phy": "rx_crc_errors"}
    rows = [
        replace(
            rows,
            values={other.get(field, field): column for field, column in rows.values.items()},
            valid={other.get(field, field): column for field, column in rows.valid.items()},
        )
        for rows in tape.rows
    ]
    fired, resolved = run(replace(tape, rows=rows))
    assert (fired.fault, dict(fired.entity), resolved.state) == ("link_errors", NIC, "resolved")
    assert "rx_crc_errors" in fired.summary
