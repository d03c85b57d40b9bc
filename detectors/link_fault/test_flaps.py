"""A link that flaps faster than its ends are read."""

from dataclasses import replace

from detectors.link_fault.examples import NIC, PORT, SCENE, lowered
from detectors.link_fault.test_detector import firing
from detectors.tapes.cluster import tape_of


def test_losses_that_are_read_at_one_end_only_count_together() -> None:
    tape = tape_of(replace(SCENE, interval_s=30.0, minutes=20))
    tape = lowered(tape, "switch", [(420, 450)], **PORT)
    assert firing(lowered(tape, "nic", [(300, 330)], **NIC)) == []
    assert firing(lowered(tape, "nic", [(300, 330), (540, 570)], **NIC)) == [("link_flap", NIC)]
