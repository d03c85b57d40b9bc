"""How high a score was for k of the last n windows: odd for one minute is a checkpoint's edge, or a slow read."""

from typing import Final

import numpy as np

from detectors.contract import FloatArray
from services.model.peers import Compared

NEEDED: Final = 3
WINDOW: Final = 4
"""Three of four minutes: published systems ask for four; one may fall into a checkpoint (judgement)."""


class Continuity:
    """The last scores of every GPU, in the job it is in."""

    def __init__(self) -> None:
        self._at = np.empty((0, WINDOW), np.int64)
        self._score = np.empty((0, WINDOW))
        self._job = np.empty(0, np.int64)

    def hold(self, window: Compared, scores: FloatArray) -> FloatArray:
        """Take one window's scores (n,) and return what `NEEDED` of the last `WINDOW` windows reached; -inf: fewer."""
        gpus, jobs, start = window.gpus, window.jobs, window.start
        self._grow(int(gpus.max(initial=-1)) + 1)
        moved = gpus[self._job[gpus] != jobs]
        self._at[moved] = -(2**62)
        self._job[gpus] = jobs
        self._at[gpus] = np.concatenate([self._at[gpus, 1:], np.full((len(gpus), 1), start)], axis=1)
        self._score[gpus] = np.concatenate([self._score[gpus, 1:], scores[:, None]], axis=1)
        recent = self._at[gpus] > start - WINDOW * (window.end - start)
        ranked = np.sort(np.where(recent, self._score[gpus], -np.inf), axis=1)
        return np.asarray(ranked[:, WINDOW - NEEDED])

    def _grow(self, count: int) -> None:
        more = count - len(self._job)
        if more > 0:
            self._at = np.concatenate([self._at, np.full((more, WINDOW), -(2**62))])
            self._score = np.concatenate([self._score, np.zeros((more, WINDOW))])
            self._job = np.concatenate([self._job, np.full(more, -1, np.int64)])
