"""A job's loss and gradient norm leave their course: a jump, a slow rise, or no number any more.

Silent corruption shows in nothing else (Vela's report: corrupted HBM was found by its inflated loss); what is wrong is
named by the label's cause.
"""

from collections.abc import Iterable
from typing import Literal

import numpy as np
from pydantic import Field

from services.synth.cluster.world import World
from services.synth.physics.effects import Effect
from services.synth.story.happening import Lasting, PlacedTruth


class LossAnomaly(Lasting):
    """The job's loss is `loss_factor` times, its gradient norm `grad_factor` times what they would be; or both NaN."""

    kind: Literal["loss_anomaly"]
    job: str
    loss_factor: float = Field(default=1.0, gt=0)
    grad_factor: float = Field(default=1.0, gt=0)
    nan: bool = False

    def effects(self, world: World) -> Iterable[Effect]:
        """Change what the trainer reports; its steps take as long as ever."""
        del world
        nowhere, job, course = np.empty(0, dtype=np.int64), {"job": self.job}, self.course()
        if self.nan:
            yield Effect("job.loss_nan", nowhere, 1.0, course, job)
        if self.loss_factor != 1.0:
            yield Effect("job.loss_factor", nowhere, self.loss_factor, course, job)
        if self.grad_factor != 1.0:
            yield Effect("job.grad_factor", nowhere, self.grad_factor, course, job)

    def truths(self, world: World) -> Iterable[PlacedTruth]:
        """Return the job's label."""
        del world
        if self.truth is not None:
            yield PlacedTruth(
                truth=self.truth, entity={"job_id": self.job}, span=(self.at, self.until), jobs=[self.job]
            )
