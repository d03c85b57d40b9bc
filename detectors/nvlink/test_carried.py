"""The one field that has all traffic of a GPU's NVLinks: a rate by DCGM, a counter by its name."""

import numpy as np
import pytest

from detectors.contract import FloatArray, LogRecord
from detectors.nvlink.carried import Carried
from detectors.nvlink.examples import LONG, RECEIVED, SENT, links, weakened
from detectors.nvlink.lines import fabric_line
from detectors.nvlink.test_detector import TOTAL, fired, gpu
from detectors.tapes.gpus import START, name


def test_lost_traffic_is_found_by_the_field_that_is_a_rate() -> None:
    columns = weakened(LONG, links(LONG, pauses=[(200, 231)]), [1], (600, 9999), 0.4)
    columns[TOTAL] = (columns.pop(SENT) + columns.pop(RECEIVED)) / 1e6
    assert fired(LONG.tape(columns)) == [gpu(0, 1)]


@pytest.mark.parametrize("held", [True, False])
def test_a_gpu_that_is_held_at_two_fifths_of_its_clock_carries_so_much_and_its_links_are_well(held: bool) -> None:
    columns = weakened(LONG, links(LONG), [1], (600, 9999), 0.4)
    columns["DCGM_FI_DEV_SM_CLOCK"] = np.full(columns[SENT].shape, 1980.0)
    columns["DCGM_FI_DEV_SM_CLOCK"][LONG.at_s[:, 1] > 600, 1] = 795.0 if held else 1980.0
    assert fired(LONG.tape(columns)) == ([] if held else [gpu(0, 1)])


def carried(readings: FloatArray) -> FloatArray:
    """Return what is given of one GPU at each of its readings (n,), 10 s apart."""
    links_of = Carried()
    links_of.grow(1)
    one, at = np.array([0]), np.arange(len(readings)) * 10_000
    return np.concatenate([links_of.take(one, at[n : n + 1], readings[n : n + 1]) for n in range(len(readings))])


def test_what_goes_up_and_down_is_a_rate_and_what_grows_is_none() -> None:
    chance = np.random.default_rng(7)
    rate = 150_000 * (1 + 0.05 * chance.normal(size=60))
    assert carried(rate)[20:] == pytest.approx(rate[20:])
    counter = np.cumsum(rate * 10)
    assert carried(counter)[6:] == pytest.approx(rate[6:])


def test_a_counter_that_begins_anew_or_of_which_a_copy_comes_late_stays_one() -> None:
    counter = np.cumsum(np.full(100, 1e6))
    anew = np.where(np.arange(100) < 50, counter, counter - counter[49])
    assert carried(anew)[60:] == pytest.approx(1e5)
    late = counter.copy()
    late[5::10] = counter[3:-2:10]
    given = carried(late)
    assert np.isnan(given[5::10]).all()
    assert given[18::10] == pytest.approx(1e5)


@pytest.mark.parametrize(("severity", "found"), [("Fatal", True), ("Non-fatal", False)])
def test_the_switch_drivers_code_in_the_fabric_managers_log(severity: str, found: bool) -> None:
    message = f"[ERROR] NVSwitch 2 SXid (PCI:0000:c5:00.0): 20034, {severity}, Link 50 LTSSM Fault Up"
    line = fabric_line(LogRecord(START, "fabricmanager", message, "error", name(0)))
    assert (line is not None) is found
    assert line is None or line.code == 20034


def test_while_a_users_profiler_has_the_counters_the_field_of_one_direction_stands_in_for_nothing() -> None:
    columns = links(LONG)
    columns[TOTAL] = columns[SENT] / 1e6
    profiled = (LONG.at_s[:, 1] > 600) & (LONG.at_s[:, 1] < 1000)
    for field in (SENT, RECEIVED):
        columns[field] = np.where(profiled[:, None] & (np.arange(columns[field].shape[1]) == 1), np.nan, columns[field])
    assert fired(LONG.tape(columns)) == []
