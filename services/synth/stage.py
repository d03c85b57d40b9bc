"""Which jobs are on while a recording is made: each is laid out when its time comes and put away when it is over.

So a month of jobs takes no more memory than those of an hour.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from services.synth.effects import Effects
from services.synth.job import Run, Workload, simulate
from services.synth.power import PowerModel
from services.synth.randomness import generator
from services.synth.scenario import Scenario
from services.synth.world import World

_LOOK_BACK_S = 300.0
"""Telemetry looks back over its own interval; a run that ended longer ago is not needed."""


class Stage:
    """The runs of a scenario's jobs, in order of start, and what the machines do for those that are on."""

    def __init__(self, scenario: Scenario, world: World, power: PowerModel, effects: Effects, seed: int) -> None:
        self._world, self._power, self._effects, self._seed = world, power, effects, seed
        self._waiting = sorted(scenario.jobs, key=lambda spec: (spec.start, spec.id))
        self.workload = Workload(world.profile)
        self.finished: list[Run] = []
        """Every run that was on, without what its ranks did in each step."""

    def upto(self, end: float) -> Iterator[Run]:
        """Yield the runs that start before `end` (seconds) and were not on yet; they are on now."""
        while self._waiting and self._waiting[0].start < end:
            spec = self._waiting.pop(0)
            run = simulate(spec, self._world, self._power, self._effects, generator(self._seed, f"job {spec.id}"))
            self.workload.add(run)
            yield run

    def clear(self, before: float) -> None:
        """Put away the runs that ended well before a time (seconds)."""
        for run in self.workload.runs:
            if run.end < before - _LOOK_BACK_S:
                self.workload.drop(run)
                nothing = np.empty((0, len(run.gpus)), np.float32)
                self.finished.append(replace(run, compute=nothing, data_wait=nothing))
