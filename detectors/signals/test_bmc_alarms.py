import numpy as np
import pytest

from detectors.contract import Batch, LogRecord
from detectors.fleet.fleet import Fleet
from detectors.signals.bmc_alarms import BmcAlarms, alarm_line


@pytest.mark.parametrize(("state", "worst"), [(0.0, 0), (1.0, 1), (2.0, 2), (3.0, None), (1e300, None), (-1.0, None)])
def test_a_state_beyond_critical_is_no_state(state: float, worst: int | None) -> None:
    fleet = Fleet()
    entity = fleet.index("bmc", ("v001", "psu1_status"))
    alarms = BmcAlarms(fleet, ["supply"])
    one = np.ones((1, 1), bool)
    alarms.take_sensors(
        Batch("bmc", np.array([entity]), np.array([[5000]]), one, {"state": np.array([[state]])}, {"state": one})
    )
    assert alarms.worst_state("v001") == worst


@pytest.mark.parametrize(
    ("message", "part"),
    [
        ("Power Unit | Power off/down | Asserted", None),
        ("4f | 11/03/2026 | 20:38:35 | Power Unit #0x01 | Power cycle | Asserted", None),
        ("Power Unit #0x01 | Redundancy Lost | Asserted", "supply"),
        ("Power Supply #0x52 | Power Supply AC lost | Asserted", "supply"),
        ("PSU 2 power off", "supply"),
    ],
)
def test_a_node_that_is_switched_off_has_lost_no_supply(message: str, part: str | None) -> None:
    line = alarm_line(LogRecord(5000, "sel", message, "critical", "v001"))
    assert (None if line is None else line[0]) == part
