"""The peers of a GPU: at work in the same job, of the same model, on other nodes, and themselves not in question."""

import numpy as np

from detectors.contract import BoolArray, IntArray
from detectors.fleet import Fleet
from detectors.power_throttle.config import PowerThrottleConfig
from detectors.power_throttle.machines import Machines
from detectors.power_throttle.readings import HW_POWER_BRAKE, GpuReadings
from detectors.statistics import masked_median, peer_distance


class Peers:
    """Finds peers, and asks them about a GPU whose own level is not known."""

    def __init__(self, config: PowerThrottleConfig, fleet: Fleet, machines: Machines, gpus: GpuReadings) -> None:
        self._config, self._fleet, self._machines, self._gpus = config, fleet, machines, gpus

    def of(self, gpu: int, fresh: BoolArray) -> IntArray:
        """Return the peers of a GPU: those in its job if they are enough to speak of, else all of its model."""
        machines = self._machines
        own = machines.node[gpu]
        alike = fresh & self._gpus.busy & (self._gpus.register == 0)
        alike &= (machines.model == machines.model[gpu]) & (machines.node != own)
        job = self._fleet.job_of(machines.names[own], int(machines.gpu[gpu]))
        if job is not None:
            numbers = [machines.number(node) for node in job.nodes]
            mates = alike & np.isin(machines.node, numbers)
            if mates.sum() >= self._config.peer_minimum:
                return np.flatnonzero(mates)
        return np.flatnonzero(alike)

    def confirm(self, suspect: BoolArray, fresh: BoolArray) -> BoolArray:
        """Return, for every GPU, whether a suspicion on it holds: by its own level, else by its peers."""
        holds = self._gpus.judged.copy()
        open_question = np.flatnonzero(suspect & ~holds)
        for node in np.unique(self._machines.node[open_question]):
            those = open_question[self._machines.node[open_question] == node]
            holds[those] = self._against(those, self.of(int(those[0]), fresh))
        return holds

    def _against(self, those: IntArray, peers: IntArray) -> BoolArray:
        gpus = self._gpus
        power, clock = gpus.power[those], gpus.clock[those]
        if len(peers) < self._config.peer_minimum:
            # Nobody to compare with: only the brake's own bit counts, and power below what halved clocks can draw.
            bar = self._config.power_ratio**2 * gpus.limit[those]
            alone: BoolArray = (gpus.reasons[those] > 0) & (gpus.reasons[those] & HW_POWER_BRAKE != 0) & (power <= bar)
            return alone
        clocks, powers = gpus.clock[peers], gpus.power[peers]
        was_clock = np.full(len(those), masked_median(clocks, np.isfinite(clocks)))
        was_power = np.full(len(those), masked_median(powers, np.isfinite(powers)))
        fell, _ = gpus.fell(those, power, clock, was_power, was_clock)
        far = peer_distance(clock, clocks, self._config.clock_floor_mhz) <= -self._config.peer_deviations
        return fell & (far | ~np.isfinite(clock))
