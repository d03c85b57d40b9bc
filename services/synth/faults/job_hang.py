"""A job stands still: its ranks wait for each other in a collective, busy and cool, and no step ends.

If NCCL's watchdog is on, every rank writes that its collective ran out of time, and the job fails (PyTorch's
ProcessGroupNCCL; its timeout is 10 minutes unless set, and half an hour is often set).
"""

from collections.abc import Iterable
from typing import Literal

import numpy as np
from pydantic import Field

from services.recording.model import Event
from services.synth.cluster.world import World
from services.synth.logs.lines import Logs
from services.synth.physics.effects import Course, Effect
from services.synth.story.happening import Lasting, PlacedTruth

_SPEAKERS = 4  # so many ranks' lines arrive before the launcher ends them all
_LAUNCHER_S = 3.0  # from the first line until the launcher has ended every rank
_TORN = "To avoid data inconsistency, we are taking the entire process down."


class JobHang(Lasting):
    """Until `until` it goes on by itself; with `timeout_s` the watchdog ends it, if that is sooner."""

    kind: Literal["job_hang"]
    job: str
    timeout_s: float | None = Field(default=None, gt=0)
    sequence: int = Field(default=482113, description="of the collective that never ends, as the watchdog counts")

    @property
    def _torn_down(self) -> float | None:
        """When the watchdog ends the job; None if it does not."""
        end = np.inf if self.timeout_s is None else self.at + self.timeout_s
        return end if end < self.until else None

    def effects(self, world: World) -> Iterable[Effect]:
        """Halt the job, and end it where the watchdog does."""
        del world
        nowhere = np.empty(0, dtype=np.int64)
        yield Effect("job.halted", nowhere, 1.0, self.course(), {"job": self.job})
        if self._torn_down is not None:
            over = Course.between(self._torn_down + _LAUNCHER_S, self.until + _LAUNCHER_S)
            yield Effect("job.ended", nowhere, 1.0, over, {"job": self.job, "state": "FAILED"})

    def lines(self, world: World, logs: Logs) -> Iterable[Event]:
        """Return the watchdogs' lines."""
        del world
        if self._torn_down is None or self.timeout_s is None:
            return
        limit = round(self.timeout_s * 1000)
        for number in range(_SPEAKERS):
            rank, at = number * 5, self._torn_down + 0.11 * number
            work = f"WorkNCCL(SeqNum={self.sequence}, OpType=ALLREDUCE, NumelIn=16777216, NumelOut=16777216"
            head = f"[rank{rank}]:[E ProcessGroupNCCL.cpp:616] [Rank {rank}]"
            text = f"{head} Watchdog caught collective operation timeout: {work}, Timeout(ms)={limit})"
            over = f"ran for {limit + 37 + 11 * number} milliseconds before timing out."
            yield logs.trainer(at, self.job, f"{text} {over}", severity="error", rank=rank)
        text = f"[rank0]:[E ProcessGroupNCCL.cpp:1182] [Rank 0] Process group watchdog thread terminated. {_TORN}"
        yield logs.trainer(self._torn_down + 1.2, self.job, text, severity="critical", rank=0)

    def truths(self, world: World) -> Iterable[PlacedTruth]:
        """Return the job's label: until it goes on or is ended."""
        del world
        if self.truth is not None:
            end = self.until if self._torn_down is None else self._torn_down + _LAUNCHER_S
            yield PlacedTruth(truth=self.truth, entity={"job_id": self.job}, span=(self.at, end), jobs=[self.job])
