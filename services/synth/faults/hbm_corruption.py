"""A GPU's memory gives wrong bits and no sign of it: only the loss of its job shows it, which rises and stays high."""

from collections.abc import Iterable
from typing import Literal

import numpy as np
from pydantic import Field

from services.synth.cluster.world import World
from services.synth.physics.effects import Effect
from services.synth.story.happening import OnGpu, PlacedTruth


class HbmCorruption(OnGpu):
    """`loss_factor`, `grad_factor`: of the job's loss and gradient norm. The label is the job's: nothing names the GPU.

    Vela: silent until the log shows inflated loss; only a diagnosis of level 3 finds it (2407.05467, section 2.3.2).
    """

    kind: Literal["hbm_corruption"]
    job: str
    loss_factor: float = Field(gt=1)
    grad_factor: float = Field(default=1.0, gt=0)

    def effects(self, world: World) -> Iterable[Effect]:
        """Inflate the loss."""
        node, detail = np.array([world.node(self.node)]), {"job": self.job}
        yield Effect("job.loss_factor", node, self.loss_factor, self.course(), detail)
        if self.grad_factor != 1:
            yield Effect("job.grad_factor", node, self.grad_factor, self.course(), detail)

    def truths(self, world: World) -> Iterable[PlacedTruth]:
        """Return the job's label."""
        del world
        if self.truth is not None:
            entity: dict[str, str | int] = {"job_id": self.job}
            yield PlacedTruth(truth=self.truth, entity=entity, span=(self.at, self.until), jobs=[self.job])
