"""What a finding tells: the culprit's figures beside its peers'."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from detectors.contract import Evidence, FloatArray, IntArray, Severity
from detectors.straggler.pace import Pace

_PAGE_SHARE = 0.25
"""A job that loses a quarter of its time is worth waking somebody (judgement)."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How far GPUs lag: seconds a step, MHz; NaN where not known."""

    share: float = float("nan")
    step_s: float = float("nan")
    compute_s: float = float("nan")
    peers_compute_s: float = float("nan")
    wait_s: float = float("nan")
    peers_wait_s: float = float("nan")
    level_s: float = float("nan")
    peers: int = 0
    clock_mhz: float = float("nan")
    peers_clock_mhz: float = float("nan")

    @classmethod
    def of(cls, pace: Pace, ranks: IntArray, clock: FloatArray, clocks: FloatArray) -> "Lag":
        """Return how far some ranks of a job lag; `clock` of their GPUs and `clocks` of all, MHz."""
        others = np.setdiff1d(np.flatnonzero(pace.seen > 0), ranks)
        return cls(
            share=float(np.median(pace.behind[ranks])),
            step_s=pace.step_s,
            compute_s=_median(pace.computes_s[ranks]),
            peers_compute_s=_median(pace.computes_s[others]),
            wait_s=_median(pace.waits_s[ranks]),
            peers_wait_s=_median(pace.waits_s[others]),
            level_s=_median(pace.level[ranks]),
            peers=len(others),
            clock_mhz=_median(clock),
            peers_clock_mhz=_median(clocks),
        )


@dataclass(frozen=True, slots=True)
class Case:
    """What is known of a straggler when it is reported."""

    job_id: str
    node: str
    gpu: int | None
    ranks: list[int]
    slow_for_s: float
    lag: Lag

    @property
    def severity(self) -> Severity:
        """A page where the job loses much."""
        return "page" if self.lag.share >= _PAGE_SHARE else "ticket"

    @property
    def score(self) -> float:
        """Surer, the farther it lags; clocks alone are weaker evidence."""
        return min(1.0, 0.7 + self.lag.share) if np.isfinite(self.lag.share) else 0.6

    @property
    def summary(self) -> str:
        """One line for the alert."""
        where = self.node if self.gpu is None else f"{self.node} GPU {self.gpu}"
        lag = self.lag
        if not self.ranks:
            told = f"SM clock {lag.clock_mhz:.0f} MHz against {lag.peers_clock_mhz:.0f} MHz of its peers"
            return f"{where} is slow in job {self.job_id}: {told}, and no reason given"
        told = f"computes {lag.compute_s:.3g} s a step, its peers {lag.peers_compute_s:.3g} s"
        if np.isfinite(lag.wait_s) and np.isfinite(lag.peers_wait_s):
            told += f", and waits {lag.wait_s:.2g} s where they wait {lag.peers_wait_s:.2g} s"
        return f"{where} holds up job {self.job_id}: it {told}"

    @property
    def action(self) -> str:
        """What to do first."""
        whole = "host processes, memory and CPU of the node" if self.gpu is None else "the GPU with dcgmi diag -r 2"
        return f"check {whole}; take it out of the job and restart from the last checkpoint if it stays slow"

    @property
    def evidence(self) -> Evidence:
        """Return the figures by name; those that are not known are left out."""
        lag = self.lag
        figures: dict[str, Any] = {
            "compute_s": lag.compute_s,
            "compute_s_peers": lag.peers_compute_s,
            "compute_s_own_level": lag.level_s,
            "comm_wait_s": lag.wait_s,
            "comm_wait_s_peers": lag.peers_wait_s,
            "step_time_s": lag.step_s,
            "lag_share_of_step": lag.share,
            "sm_clock_mhz": lag.clock_mhz,
            "sm_clock_mhz_peers": lag.peers_clock_mhz,
        }
        told: dict[str, float | int | str] = {name: value for name, value in figures.items() if np.isfinite(value)}
        told |= {"job_id": self.job_id, "peers": lag.peers, "slow_for_s": self.slow_for_s}
        if self.ranks:
            told["rank"] = self.ranks[0]
            told["ranks"] = len(self.ranks)
        return told


def _median(values: FloatArray) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else float("nan")
