"""Which jobs are on while a recording is made: each is laid out as time goes on and put away when it is over.

So a month of jobs takes no more memory than those of an hour.
"""

from collections.abc import Iterator

import numpy as np

from services.synth.cluster.world import World
from services.synth.jobs.job import LOOK_BACK_S, Layout, Run
from services.synth.physics.effects import Effects
from services.synth.physics.power import PowerModel
from services.synth.physics.workload import Workload
from services.synth.story.scenario import JobSpec


class JobTimeline:
    """The runs of jobs, in order of start, and what the machines do for those that are on."""

    def __init__(self, jobs: list[JobSpec], world: World, power: PowerModel, effects: Effects, seed: int) -> None:
        self._world, self._power, self._effects, self._seed = world, power, effects, seed
        self._waiting = sorted((spec for spec in jobs if spec.after is None), key=lambda spec: (spec.start, spec.id))
        self._following = [spec for spec in jobs if spec.after is not None]
        self._layouts: list[Layout] = []
        self.workload = Workload(world.profile)
        self.finished: list[Run] = []
        """Every run that was on, without what its ranks did in each step."""

    def upto(self, end: float) -> Iterator[Run]:
        """Lay out what happens before `end` (seconds); yield the runs that start before it and were not on yet."""
        before = len(self._layouts)
        for layout in self._layouts:
            layout.run.forget(end - 2 * LOOK_BACK_S)
            self._go_on(layout, end)
        while self._waiting and self._waiting[0].start < end:
            spec = self._waiting.pop(0)
            layout = Layout(spec, self._world, self._power, self._effects, self._seed)
            self._go_on(layout, end)
            self._layouts.append(layout)
            self.workload.add(layout.run)
        self.workload.refresh()
        yield from [layout.run for layout in self._layouts[before:]]

    def _go_on(self, layout: Layout, end: float) -> None:
        """Lay a run out; a job that waits for its end is put in line once that is known."""
        layout.advance(end)
        run = layout.run
        if run.ended is None:
            return
        for spec in [spec for spec in self._following if spec.after == run.spec.id]:
            moved = {"submit": spec.submit + run.end, "start": spec.start + run.end, "after": None}
            self._following.remove(spec)
            self._waiting.append(spec.model_copy(update=moved))
        self._waiting.sort(key=lambda spec: (spec.start, spec.id))

    def clear(self, before: float) -> list[Run]:
        """Put away the runs that ended well before a time (seconds), and return them."""
        over = [layout for layout in self._layouts if layout.run.end < before - LOOK_BACK_S or before == np.inf]
        for layout in over:
            self.workload.drop(layout.run)
            layout.run.forget(np.inf)
            self._layouts.remove(layout)
            self.finished.append(layout.run)
        return [layout.run for layout in over]
