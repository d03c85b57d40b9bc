"""straggler on a chip that is slow at its full clock, which its power alone shows."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detectors.contract import FloatArray
from detectors.engine.state import pack, unpack
from detectors.fleet.fleet import Fleet
from detectors.signals.xid_watch import XID_FIELD
from detectors.spec import configure
from detectors.straggler.detector import Straggler
from detectors.straggler.examples import CLOCK, POWER, TENSOR, UTIL, Slow, Training, from_to
from detectors.straggler.test_detector import entities, run, since
from detectors.straggler.test_readings import FIRST, ONLY, SEEN, without_steps
from detectors.tapes.gpus import START

BEGUN_S, OVER_S = 900, 2100
CHIP = replace(SEEN, felt="chip", minutes=50, slow=[Slow([FIRST], BEGUN_S, OVER_S, factor=1.18)])


@pytest.mark.parametrize("found_in", [run, without_steps], ids=["the job's steps", "no steps"])
def test_the_one_whose_power_falls_further_than_its_peers_holds_up_the_job(found_in: Any) -> None:
    fired, resolved = found_in(CHIP)
    assert (dict(fired.entity), fired.severity, fired.state, resolved.state) == (ONLY, "ticket", "firing", "resolved")
    assert BEGUN_S + 300 <= since(fired) <= BEGUN_S + 720
    assert abs((fired.started_at - START) / 1000 - BEGUN_S) <= 180
    assert OVER_S < since(resolved) <= OVER_S + 660
    assert "at the same clock and for as much work" in fired.summary
    assert 0.03 < float(fired.evidence["power_spared_share"]) < 0.06
    assert 0.1 < float(fired.evidence["job_slower_share"]) < 0.2


def _drawn(ranks: Sequence[int], share: float) -> Any:
    """Return a change by which some GPUs draw a share of what they would, from when the job is slower on."""

    def change(at_s: FloatArray, values: FloatArray) -> FloatArray:
        chosen = np.isin(np.arange(values.shape[1]), ranks)[None, :] & (at_s >= BEGUN_S)
        return np.where(chosen, share * values, values)

    return change


UNIFORM = replace(CHIP, slow=[], uniform=[(BEGUN_S, OVER_S, 1.18)])


@pytest.mark.parametrize(
    "quiet",
    [
        UNIFORM,
        replace(UNIFORM, uniform=[], dcgm={POWER: _drawn([FIRST], 0.95)}),
        replace(UNIFORM, dcgm={POWER: _drawn([FIRST, 3], 0.95)}),
        replace(UNIFORM, dcgm={POWER: _drawn([FIRST], 0.8)}),
        replace(CHIP, dcgm={TENSOR: _drawn([FIRST], 0.9)}),
        replace(CHIP, dcgm={UTIL: from_to(90.0, BEGUN_S, OVER_S, [FIRST])}),
        replace(CHIP, dcgm={CLOCK: _drawn([FIRST], 0.97)}),
        replace(CHIP, nodes=1, gpus=4, slow=[Slow([0], BEGUN_S, OVER_S, factor=1.18)]),
        replace(CHIP, slow=[Slow([FIRST], BEGUN_S, OVER_S, factor=1.06)]),
    ],
    ids=["all alike", "nobody is slower", "two of them", "far more than the job lost", "less to do", "idle in between",
         "its clock", "few", "hardly slower"],
)  # fmt: skip
def test_power_alone_is_no_reason(quiet: Training) -> None:
    assert [one for one in without_steps(quiet) if "fallen by" in one.summary] == []


@pytest.mark.parametrize(("code", "found"), [(74.0, []), (13.0, [ONLY])], ids=["its links", "its program"])
def test_a_fault_that_the_gpu_reports_by_its_last_xid_is_why(code: float, found: list[Any]) -> None:
    def reported(at_s: FloatArray, values: FloatArray) -> FloatArray:
        mine = (np.arange(values.shape[1]) == FIRST)[None, :] & (at_s >= BEGUN_S + 60)
        return np.where(mine, code, 0.0)

    assert entities(replace(CHIP, dcgm={XID_FIELD: reported})) == found


def test_who_is_slow_by_that_for_good_is_one_finding_until_its_job_ends() -> None:
    lasting = replace(CHIP, slow=[Slow([FIRST], BEGUN_S, factor=1.18)], minutes=80, ends_s=4500)
    assert entities(lasting) == [ONLY]
    assert run(lasting)[-1].summary.endswith("its job has ended")


def test_a_state_of_an_older_version_is_gone_on_with() -> None:
    config, fleet = configure(Straggler.config_type, Straggler.spec, {}), Fleet({})
    document, arrays = unpack(Straggler(config, fleet).snapshot())
    rest = {name: value for name, value in document["rest"].items() if ".silent." not in name}
    arrays = {name: array for name, array in arrays.items() if ".silent." not in name}
    assert len(rest) < len(document["rest"])
    Straggler.restore(config, fleet, pack(document | {"rest": rest}, arrays))
