"""Where a job's ranks sit, and whether ranks that are slower for good are single machines or parts of the model's cut.

A pipeline stage is an aligned block of ranks, the number of stages dividing theirs. The last has the output layer and
is the usual one to be longer.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from detectors.contract import BoolArray, FloatArray, IntArray
from detectors.fleet.fleet import Job

_BLOCK_SHARE: Final = 0.9
_MOST_STAGES: Final = 16
"""Models are seldom cut into more (Megatron-LM's largest published runs have 8 to 64, of several nodes each)."""
_STAGE_RATIO: Final = 2.0
"""Times the median rank: the last stage of the ByteDance ST trace computes 1.64 times as long as the others; one of
twice as long would be cut anew."""


@dataclass(frozen=True)
class Places:
    """By rank: `node` the place of its node in `names`, and `gpu` the number of its GPU there."""

    node: IntArray
    gpu: IntArray
    names: tuple[str, ...]


def places_of(job: Job, ranks: int) -> Places | None:
    """Return where ranks 0 to `ranks` - 1 of a job sit, node after node; None if that is not known."""
    count = job.gpus_per_node
    if count is None and job.nodes and ranks % len(job.nodes) == 0:
        count = ranks // len(job.nodes)
    parts = [tuple(sorted(job.gpus[node])) if node in job.gpus else tuple(range(count or 0)) for node in job.nodes]
    if sum(map(len, parts)) < ranks or not ranks:
        return None
    node = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    gpu = np.concatenate([np.array(part, np.int64) for part in parts])
    return Places(node[:ranks], gpu[:ranks], tuple(job.nodes))


def individuals(longer: BoolArray, ratio: FloatArray, node: IntArray) -> BoolArray:
    """Return which of the ranks that have computed longer from the first step on are no pipeline stage.

    `longer`, `ratio` to the median rank's computation, and `node` have the shape (ranks,) of those that report.
    """
    left = longer.copy()
    count = len(longer)
    for stages in (stages for stages in range(2, min(_MOST_STAGES, count) + 1) if count % stages == 0):
        size = count // stages
        for stage in range(stages):
            block = slice(stage * size, (stage + 1) * size)
            if np.count_nonzero(longer[block]) < _BLOCK_SHARE * size:
                continue
            several = len(np.unique(node[block])) > 1
            modest = float(np.median(ratio[block])) <= _STAGE_RATIO
            if several or (stage == stages - 1 and modest):
                left[block] = False
    return left
