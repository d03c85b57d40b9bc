"""What the peers of a GPU at work say: the same model, in the same job, on other nodes, and not hot themselves."""

from dataclasses import dataclass

import numpy as np

from detectors.contract import BoolArray, IntArray
from detectors.fleet import Fleet
from detectors.gpus import GpuLayout
from detectors.statistics import masked_median
from detectors.thermal_throttle.config import ThermalThrottleConfig
from detectors.thermal_throttle.readings import THERMAL, GpuHeat


@dataclass(frozen=True, slots=True)
class Usual:
    """The peers' medians: MHz, degrees, W; NaN where none is known."""

    count: int
    clock: float
    temp: float
    power: float


class Peers:
    """Finds peers and asks them."""

    def __init__(self, config: ThermalThrottleConfig, fleet: Fleet, layout: GpuLayout, gpus: GpuHeat) -> None:
        self._config, self._fleet, self._layout, self._gpus = config, fleet, layout, gpus
        self.model: IntArray = np.empty(0, np.int64)
        self._models: dict[str, int] = {}

    def extend(self) -> list[str]:
        """Take note of the GPUs that were not known before; return their models."""
        told, layout = self._fleet.nodes, self._layout
        names = [
            str(told.get(layout.names[node], {}).get("gpu_model") or "")
            for node in layout.node[len(self.model) :].tolist()
        ]
        numbers = [self._models.setdefault(name, len(self._models)) for name in names]
        self.model = np.concatenate([self.model, np.array(numbers, np.int64)])
        return names

    def of(self, gpu: int, fresh: BoolArray) -> IntArray:
        """Return the peers of a GPU: those in its job if they are enough to speak of, else all of its model."""
        own = int(self._layout.node[gpu])
        alike = fresh & self._cool() & (self.model == self.model[gpu]) & (self._layout.node != own)
        job = self._fleet.job_of(self._layout.names[own], int(self._layout.gpu[gpu]))
        if job is not None:
            numbers = [self._layout.number(node) for node in job.nodes]
            mates = alike & np.isin(self._layout.node, numbers)
            if mates.sum() >= self._config.peer_minimum:
                return np.flatnonzero(mates)
        return np.flatnonzero(alike)

    def _cool(self) -> BoolArray:
        bits = np.where(self._gpus.reasons > 0, self._gpus.reasons, 0)
        return np.asarray(self._gpus.busy & ~self._gpus.held & ((bits & THERMAL) == 0))

    def usual(self, peers: IntArray) -> Usual:
        """Return the medians of some peers; of too few nothing is known."""
        if len(peers) < self._config.peer_minimum:
            return Usual(len(peers), np.nan, np.nan, np.nan)
        columns = np.stack([self._gpus.clock[peers], self._gpus.temp[peers], self._gpus.power[peers]])
        clock, temp, power = masked_median(columns, np.isfinite(columns)).tolist()
        return Usual(len(peers), clock, temp, power)

    def set_bars(self, asking: BoolArray, fresh: BoolArray) -> None:
        """Let the peers of the GPUs that ask say what is too slow and too hot; take back what was said to others."""
        gpus = self._gpus
        gpus.clock_bar[~asking] = np.nan
        gpus.heat_bar[~asking] = np.nan
        those = asking.nonzero()[0]
        for node in np.unique(self._layout.node[those]):
            here = those[self._layout.node[those] == node]
            usual = self.usual(self.of(int(here[0]), fresh))
            gpus.clock_bar[here] = self._config.clock_ratio * usual.clock
            gpus.heat_bar[here] = usual.temp + self._config.peer_excess_k
