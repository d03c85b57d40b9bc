"""Which jobs work on, by what their GPUs do: for jobs that report no steps."""

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray
from detectors.core.columns import Columns, column, put
from detectors.fleet.fleet import Fleet, Job
from detectors.fleet.gpus import GpuLayout, reported
from detectors.signals.energy import Draw

TENSOR: Final = "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"
_POWER: Final = "DCGM_FI_DEV_POWER_USAGE"
_ENERGY: Final = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
_UTIL: Final = "DCGM_FI_DEV_GPU_UTIL"
_AT_WORK: Final = 0.5
"""Of its usual tensor activity: the kernels of a collective that waits, though resident, use the tensor cores not at
all."""
SPINS: Final = 0.6
"""Of its usual power: GPUs that waited in a collective drew 0.24 to 0.55 of it in thirty hangs of recordings by others,
where the mates of a GPU that is a third slower draw 0.75. Who draws more does something."""
_LEAST: Final = 0.01
_BUSY_PERCENT: Final = 30.0
"""Below it a GPU has next to nothing to do: its power is that of idling."""
SPINNING_PERCENT: Final = 80.0
"""NCCL's kernels spin while they wait: GPU_UTIL reads 100 %, as a kernel is resident."""
_STEP: Final = 0.05
"""How far one reading at work moves what is usual: twenty of them make it."""
_UP: Final = 0.3
"""The same of a power that is higher: who waits at first is not to be taken for at work for long."""
_ALL: Final[Any] = slice(None)
_LATELY_MS: Final = 120_000
"""Two scrapes at 60 s; a checkpoint or an evaluation proves nothing either way."""


class GpuWork(Columns):
    """By GPU: when it was last read (`at`) and last read at work (`worked_at`, ms; -1 never), and how much is usual:
    the `level` of tensor activity (0 to 1), or where that is never read (not `profiled`) of power (W). It `spins`
    where it is as good as always busy, and does not work.
    """

    axis = "dcgm"
    at: IntArray = column(-1)
    worked_at: IntArray = column(-1)
    level: FloatArray = column(np.nan)
    profiled: BoolArray = column(False)
    spins: BoolArray = column(False)
    BESIDE = ("draw",)

    def __init__(self, fleet: Fleet) -> None:
        super().__init__()
        self._layout = GpuLayout(fleet)
        self.draw = Draw()

    def take(self, batch: Batch) -> None:
        """Take readings of GPUs."""
        self.grow(batch.reach)
        for tick, here in batch.ticks():
            where, at = batch.index(here, len(self)), batch.at[tick, here]
            profiled, util = self.profiled[where], reported(batch, _UTIL, tick, here)
            read, works = np.zeros((2, len(at)), bool)
            if TENSOR in batch.sound:
                tensor = reported(batch, TENSOR, tick, here, most=1.0)
                read = np.isfinite(tensor)
                anew = read & ~profiled
                if np.count_nonzero(anew):
                    self.level[where] = np.where(anew, np.nan, self.level[where])
                works = self._computes(where, tensor)
                self.profiled[where] = profiled = profiled | read
            if not profiled.all() and _UTIL in batch.sound:
                gpus, some = where, _ALL  # as mostly nobody's tensor cores are read, or everybody's
                if np.count_nonzero(profiled):
                    some = ~profiled
                    gpus = batch.entities[here][some]
                power, used = (reported(batch, name, tick, here)[some] for name in (_POWER, _ENERGY))
                power = self.draw.power(gpus, at[some], used, power, strictly=True)  # a copy shows no work
                read[some], works[some] = np.isfinite(power), self._draws(gpus, power, util[some])
            put(self.at, where, at, read)
            put(self.worked_at, where, at, works)
            self.spins[where] = (util >= SPINNING_PERCENT) & read & ~works

    def _computes(self, gpus: Any, tensor: FloatArray) -> BoolArray:
        level = self.level[gpus]
        works: BoolArray = tensor >= np.fmax(_AT_WORK * level, _LEAST)
        moved = np.where(np.isnan(level), tensor, level + _STEP * (tensor - level))
        self.level[gpus] = np.where(works, moved, level)
        return works

    def _draws(self, gpus: Any, power: FloatArray, util: FloatArray) -> BoolArray:
        """Return which GPUs work by what they draw; what idles forgets what is usual, as another job may draw less."""
        usual = self.level[gpus]
        works: BoolArray = (util >= _BUSY_PERCENT) & ~(power < SPINS * usual) & np.isfinite(power)
        more, idle = power - usual, util < _BUSY_PERCENT
        moved = usual + np.maximum(_UP * more, _STEP * more)  # up by more, as `_UP` is the greater
        np.copyto(moved, usual, where=~works)
        np.copyto(moved, (1 - _STEP) * usual, where=idle)
        np.copyto(moved, power, where=np.isnan(usual) & works)
        self.level[gpus] = moved
        return works

    def goes_on(self, job: Job, since: Instant, now: Instant, share: float) -> bool:
        """Return whether more than a share of a job's GPUs that were read after `since` have worked since, and lately.

        In a synchronous job none does for longer than a step once a node of it is dead.
        """
        heard = self._heard(job.nodes, since)
        worked = self.worked_at[heard] > max(since, now - _LATELY_MS)
        return len(heard) > 1 and int(np.count_nonzero(worked)) > share * len(heard)

    def stands_since(self, nodes: Iterable[str], since: Instant, *, spinning: bool) -> Instant:
        """Return when the GPUs of some nodes that were read after `since` last worked, in the middle; -1: never.

        With `spinning` only if most of them spin, and so wait for somebody: those of a job that has ended idle.
        """
        heard = self._heard(nodes, since)
        waits = not spinning or 2 * int(np.count_nonzero(self.spins[heard])) > len(heard)
        return int(np.median(self.worked_at[heard])) if waits and len(heard) > 1 else -1

    def _heard(self, nodes: Iterable[str], since: Instant) -> IntArray:
        self._layout.extend()
        gpus = np.concatenate([np.empty(0, np.int64), *(self._layout.members(node) for node in nodes)])
        gpus = gpus[gpus < self.count]
        return np.asarray(gpus[self.at[gpus] > since])
