"""GPUs at work: what is called improbable is improbable."""

import numpy as np
import pytest

from detectors.contract import FloatArray
from detectors.core.evidence import Evidence
from detectors.engine.engine import Choice
from detectors.registry import choose
from detectors.tapes.gpus import Cluster
from detectors.tapes.tape import play

_CLUSTER = Cluster(nodes=6, gpus=4, minutes=60, interval_s=10.0)


def _clock(chance: np.random.Generator) -> FloatArray:
    """Return clocks (ticks, GPUs), MHz: half stand still, half wander under a cap, each about a level of its own."""
    shape = (_CLUSTER.ticks, _CLUSTER.nodes * _CLUSTER.gpus)
    wander = np.zeros(shape)
    for tick in range(1, shape[0]):
        wander[tick] = 0.6 * wander[tick - 1] + chance.normal(0, 20, shape[1])
    capped = np.arange(shape[1]) % 2 == 1
    return np.where(capped, 1320 + chance.normal(0, 12, shape[1]) + np.round(wander / 15) * 15, 1410.0)


@pytest.mark.parametrize("name", ["power_throttle", "thermal_throttle"])
def test_clocks_that_wander_under_a_cap_are_no_evidence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, odd = 0, 0
    take = Evidence.look

    def counted(self: Evidence, entities: np.ndarray, odds: FloatArray, at: int, *, weight: float = 1.0) -> None:
        nonlocal looks, odd
        looks, odd = looks + int(np.isfinite(odds).sum()), odd + int((odds < 0.05).sum())
        take(self, entities, odds, at, weight=weight)
        # The budget asks for 16. What a GPU lacks of its peers for good adds up, as heat is compared with them alone.
        assert name == "thermal_throttle" or self.wealth.max() < 16

    monkeypatch.setattr(Evidence, "look", counted)
    columns = {
        "DCGM_FI_DEV_SM_CLOCK": _clock(np.random.default_rng(7)),
        "DCGM_FI_DEV_POWER_USAGE": _CLUSTER.steady(390),
        "DCGM_FI_DEV_GPU_UTIL": _CLUSTER.steady(100),
        "DCGM_FI_DEV_GPU_TEMP": _CLUSTER.steady(60),
    }
    choices: list[Choice] = [choice for choice in choose() if choice[0].spec.name == name]
    found, _ = play(_CLUSTER.tape(columns), choices)
    assert found == []
    assert looks > 5000
    assert odd / looks < 0.1
