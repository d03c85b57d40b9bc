"""A link that flaps faster than its ends are read."""

from dataclasses import replace

import numpy as np
import pytest

from detectors.contract import FloatArray
from detectors.engine.rows import Rows
from detectors.link_fault.examples import NIC, PORT, SCENE, cable_lowered, lowered
from detectors.link_fault.test_detector import firing, run
from detectors.tapes.cluster import changed, seconds, tape_of, where


def test_losses_that_are_read_at_one_end_only_count_together() -> None:
    tape = tape_of(replace(SCENE, interval_s=30.0, minutes=20))
    tape = lowered(tape, "switch", [(420, 450)], **PORT)
    assert firing(lowered(tape, "nic", [(300, 330)], **NIC)) == []
    assert firing(lowered(tape, "nic", [(300, 330), (540, 570)], **NIC)) == [("link_flap", NIC)]


@pytest.mark.parametrize(("every_s", "found"), [(30.0, ["link_flap"]), (1e9, ["link_flap", "link_down"])])
def test_a_link_that_is_down_whenever_it_is_read_was_up_if_it_counts_losses(every_s: float, found: list[str]) -> None:
    """It is read every 30 s and lost every 30 s, for two and a half minutes, or once."""
    flaps = [(61.0, 66.0), (91.0, 96.0), (122.0, 128.0)]
    tape = cable_lowered(tape_of(replace(SCENE, interval_s=30.0, minutes=20)), [*flaps, (300.0, 450.0)])

    def count(rows: Rows, values: FloatArray) -> FloatArray:
        more = np.ceil((np.clip(seconds(rows), 300, 450) - 300) / every_s)
        return values + np.where(where(rows, **NIC), more, 0.0)

    assert [fault for fault, _ in firing(changed(tape, "nic", "link_downed", count))] == found


def test_a_link_that_one_end_reads_as_up_between_two_losses_is_not_down() -> None:
    """The switch happens to be read in each loss, for three and a half minutes."""
    tape = tape_of(replace(SCENE, interval_s=30.0, minutes=20))
    tape = lowered(tape, "switch", [(120, 150), (300, 510)], **PORT)
    assert firing(lowered(tape, "nic", [(120, 150), (300, 330), (480, 510)], **NIC)) == [("link_flap", NIC)]


@pytest.mark.parametrize(("apart_s", "found"), [(500.0, [("link_flap", NIC)]), (1000.0, [])])
def test_three_losses_in_half_an_hour_are_a_flap(apart_s: float, found: list[object]) -> None:
    losses = [(100.0 + n * apart_s, 108.0 + n * apart_s) for n in range(4)]
    assert firing(cable_lowered(tape_of(replace(SCENE, interval_s=15.0, minutes=56)), losses)) == found


@pytest.mark.parametrize(("spare", "severity"), [(True, "info"), (False, "page")])
def test_a_flap_of_a_port_that_nobody_has_used_for_an_hour_is_information(spare: bool, severity: str) -> None:
    """The topology has the cable; a notebook has the node, whose ports carry no more than management traffic."""
    tape = tape_of(replace(SCENE, interval_s=15.0, minutes=76, working=not spare))
    found = run(cable_lowered(tape, [(3700.0 + 60 * n, 3720.0 + 60 * n) for n in range(4)]))
    assert [(one.fault, one.severity) for one in found if one.state == "firing"] == [("link_flap", severity)]
    assert ("nobody has used it" in found[0].summary) == spare


def test_a_port_that_has_been_read_for_less_than_an_hour_may_be_in_use() -> None:
    tape = tape_of(replace(SCENE, interval_s=15.0, minutes=30, working=False))
    found = run(cable_lowered(tape, [(700.0 + 60 * n, 720.0 + 60 * n) for n in range(4)]))
    assert [(one.fault, one.severity) for one in found if one.state == "firing"] == [("link_flap", "page")]


def test_a_flap_of_an_unused_port_alerts_once_a_job_uses_it() -> None:
    idle = tape_of(replace(SCENE, interval_s=15.0, minutes=90, working=False))

    def sends(rows: Rows, values: FloatArray) -> FloatArray:
        return values + np.where(where(rows, **NIC), 1e9 * np.clip(seconds(rows) - 4000, 0, None), 0.0)

    tape = changed(idle, "nic", "port_xmit_data", sends)
    found = run(cable_lowered(tape, [(3700.0 + 120 * n, 3720.0 + 120 * n) for n in range(8)]))
    assert [(one.state, one.severity) for one in found] == [
        ("firing", "info"), ("firing", "page"), ("resolved", "info"), ("resolved", "page"),
    ]  # fmt: skip
    assert found[1].detected_at == found[2].detected_at


def test_a_loss_after_a_flap_is_the_flap_again_unless_it_lasts() -> None:
    flaps = [(60.0, 66.0), (90.0, 96.0), (122.0, 128.0)]
    tape = tape_of(replace(SCENE, minutes=12))
    over = 122 + 6 + 240 + 5
    assert [fault for fault, _ in firing(cable_lowered(tape, [*flaps, (over, over + 70.0)]))] == ["link_flap"]
    assert [fault for fault, _ in firing(cable_lowered(tape, [*flaps, (over, 1e9)]))] == ["link_flap", "link_down"]


def test_a_link_that_comes_back_no_more_while_it_still_counts_as_flapping_is_down() -> None:
    flaps = [(60.0, 66.0), (90.0, 96.0), (122.0, 128.0)]
    found = run(cable_lowered(tape_of(replace(SCENE, minutes=20)), [*flaps, (220.0, 900.0)]))
    assert [(f.fault, f.state) for f in found] == [
        ("link_flap", "firing"), ("link_down", "firing"), ("link_flap", "resolved"), ("link_down", "resolved"),
    ]  # fmt: skip
    assert (found[1].detected_at - found[1].started_at) / 1000 <= 160
