"""What a finding tells: the culprit's figures beside its peers', its own past, and what the job lost."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from detectors.contract import IntArray, Severity
from detectors.straggler.activity import BUSY, CLOCK, LONG_WORK, MEMORY, POWER, SLOW_CLOCK, TENSOR
from detectors.straggler.pace import Pace
from detectors.straggler.watch import Suspect

_PAGE_SHARE: Final = 0.25
"""A job that loses a quarter of its time is worth waking somebody: what NVIDIA's resiliency extension calls a straggler
(a relative score below 0.75)."""
_SIGNALS: Final = (
    ("sm_clock_mhz", CLOCK), ("power_w", POWER), ("tensor_activity", TENSOR), ("memory_activity", MEMORY),
    ("busy_share", BUSY),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Saying:
    """What a finding says, beside its entity and times."""

    severity: Severity
    score: float
    summary: str
    evidence: Mapping[str, float | int | str]


def action(whole: bool) -> str:
    """Return what to do first."""
    first = "host processes, memory and CPU of the node" if whole else "the GPU with dcgmi diag -r 2"
    return f"check {first}; take it out of the job and restart from the last checkpoint if it stays slow"


def of_ranks(
    job_id: str, where: str, pace: Pace, ranks: IntArray, slow_for_s: float, clock: NDArray[Any], clocks: NDArray[Any]
) -> Saying:
    """Return what ranks' own times tell; `clock` MHz of their GPUs and `clocks` of all the job's."""
    others = np.setdiff1d(np.flatnonzero(pace.seen > 0), ranks)
    lag = float(np.median(pace.behind[ranks]))
    computes, peers = _median(pace.computes_s[ranks]), _median(pace.computes_s[others])
    waits, peers_wait, level = _median(pace.waits_s[ranks]), _median(pace.waits_s[others]), _median(pace.level[ranks])
    told = f"{where} holds up job {job_id}: it computes {computes:.3g} s a step, its peers {peers:.3g} s"
    if np.isfinite(waits) and np.isfinite(peers_wait):
        told += f", and waits {waits:.2g} s where they wait {peers_wait:.2g} s"
    figures = {
        "compute_s": computes,
        "compute_s_peers": peers,
        "compute_s_own_level": level,
        "comm_wait_s": waits,
        "comm_wait_s_peers": peers_wait,
        "step_time_s": pace.step_s,
        "lag_share_of_step": lag,
        "sm_clock_mhz": _median(clock),
        "sm_clock_mhz_peers": _median(clocks),
    }
    kept: dict[str, float | int | str] = {name: value for name, value in figures.items() if np.isfinite(value)}
    kept |= {"job_id": job_id, "peers": len(others), "slow_for_s": slow_for_s}
    kept |= {"rank": int(ranks[0]), "ranks": len(ranks)}
    return Saying("page" if lag >= _PAGE_SHARE else "ticket", min(1.0, 0.7 + lag), told, kept)


def of_readings(suspect: Suspect, where: str, slow_for_s: float, harmless: bool) -> Saying:
    """Return what DCGM's readings tell of a GPU or node, and what its job lost."""
    own, peers, effect = suspect.own, suspect.peers, suspect.effect
    ratio = own / peers
    active = TENSOR if abs(ratio[TENSOR] - 1) >= abs(ratio[MEMORY] - 1) or np.isnan(ratio[MEMORY]) else MEMORY
    worked = f"{'tensor' if active == TENSOR else 'memory'} activity {ratio[active]:.2f} of theirs"
    if np.isnan(ratio[active]):
        worked = f"power {ratio[POWER]:.2f} of theirs"
    if suspect.how == SLOW_CLOCK:
        told = f"SM clock {own[CLOCK]:.0f} MHz where its peers run at {peers[CLOCK]:.0f} MHz, {worked}"
    elif suspect.how == LONG_WORK:
        told = f"{worked}: it works longer than its peers for the same step"
    else:
        told = f"busy {100 * own[BUSY]:.0f} % of the time, its peers {100 * peers[BUSY]:.0f} %, at the same clock"
    figures: dict[str, Any] = {name: float(own[row]) for name, row in _SIGNALS}
    figures |= {f"{name}_peers": float(peers[row]) for name, row in _SIGNALS}
    kept = {name: value for name, value in figures.items() if np.isfinite(value)}
    kept |= {"job_id": suspect.job.job_id, "slow_for_s": slow_for_s, "lag_share": suspect.lag}
    if suspect.by_chance:
        kept["by_chance"] = suspect.by_chance
    if harmless:
        named = f"{where} is unlike its peers in job {suspect.job.job_id}: {told}; the job is hardly slower for it"
        return Saying("info", 0.5, named, kept)
    held = f"{where} holds up job {suspect.job.job_id}: {told}"
    if effect is None or effect.slower == 0:
        return Saying("ticket", 0.6, f"{held}; the others wait for it", kept)
    kept |= {"job_figure": effect.figure, "job_before": effect.before, "job_now": effect.now}
    kept["job_slower_share"] = effect.slower
    severity: Severity = "page" if effect.slower >= _PAGE_SHARE else "ticket"
    return Saying(severity, min(1.0, 0.7 + effect.slower), f"{held}; {effect.words}", kept)


def _median(values: NDArray[Any]) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else float("nan")
