import numpy as np
import pytest

from detectors.contract import Batch
from detectors.fleet.fleet import Fleet
from detectors.signals.bmc_alarms import BmcAlarms


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
