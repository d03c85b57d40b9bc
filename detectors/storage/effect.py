"""What slow storage does to somebody's work, in figures and in words; no words where it does nothing."""

from typing import Final

import numpy as np

from detectors.contract import BoolArray, FloatArray, Instant
from detectors.core.columns import REUSED, Columns
from detectors.core.residuals import Habit
from detectors.storage.clients import Clients, Looks
from detectors.storage.part import Part, extra_s
from detectors.storage.use import JobsUse
from detectors.storage.waits import Waits

Figures = dict[str, float | int | str]
_HELD_UP: Final = 0.05
"""Of every second; a policy. Requests that take so much more of a client's time hold up whoever does not read ahead."""
_USE_COUNTS = 10.0
"""GPUs wait more for many reasons besides storage: where that is all that is known, a tenth of the time counts, as for
what else slows a job."""
_MEMORY_S: Final = 3600.0


class MountHabits(Columns):
    """By mount, what is usual: requests that wait, bytes a second of all clients, a client's requests under way."""

    axis = REUSED
    BESIDE = ("queue", "moved", "busy")

    def __init__(self) -> None:
        super().__init__()
        self.queue, self.moved, self.busy = Habit(_MEMORY_S), Habit(_MEMORY_S), Habit(_MEMORY_S)

    def learn(self, looks: Looks, calm: BoolArray, window_s: float) -> None:
        """Learn from the `calm` (k,) of the mounts that were looked at."""
        mounts = looks.mounts[calm]
        self.queue.learn(mounts, looks.waiters[calm], window_s)
        self.moved.learn(mounts, looks.load[:, calm].sum(axis=0), window_s)
        self.busy.learn(mounts, looks.busy[calm], window_s)


def felt_by(waits: Waits, use: JobsUse, now: Instant, since: Instant) -> FloatArray:
    """Return by how much of its time (jobs,) each job waits more than it did, for what is slow `since` then; NaN of
    those that neither report steps nor have GPUs that are read now.

    Of steps that take longer, where nobody says how long they wait for data, the GPUs show whether they idle for it:
    while all wait for a slow GPU they do not. Of a job without steps they are all there is.
    """
    steps, rise = waits.felt(now, since), use.felt(now, since)
    read = np.isfinite(rise)
    idle = np.where(np.isnan(waits.share) & read, np.minimum(steps, use.idle), steps)
    return np.where(np.isnan(steps) & read, rise / _USE_COUNTS, idle)


def unexplained(waits: Waits, use: JobsUse, now: Instant) -> FloatArray:
    """Return the share of its time (jobs,) that each job loses by what it does not report as a wait for data."""
    lost = np.where(waits.reported(now), waits.step_rise / (1 + waits.step_rise), use.rise)
    return np.where(np.isfinite(waits.share), 0.0, lost)


def of_job(waits: Waits, use: JobsUse, job: int, name: str) -> tuple[Figures, str]:
    """Return what a job loses, as evidence and in words."""
    figures = {
        "job_data_wait_share": waits.share[job],
        "job_data_wait_share_before": waits.usual_share.level[job],
        "job_step_s": waits.step_s[job],
        "job_step_before_s": waits.usual_step.level[job],
        "job_gpus_wait_more": use.rise[job] if use.at[job] >= 0 else np.nan,
    }
    evidence = {"job_id": name} | {key: float(value) for key, value in figures.items() if np.isfinite(value)}
    if waits.share[job] > 0 and (waits.wait_rise[job] > 0 or not waits.step_rise[job] > 0):
        return evidence, f"and job {name} waits for data for {100 * waits.share[job]:.0f} % of its steps"
    if not waits.step_rise[job] > 0:
        return evidence, f"and the GPUs of job {name} wait {100 * use.rise[job]:.0f} % more of the time than they did"
    return evidence, f"and the steps of job {name} take {100 * waits.step_rise[job]:.0f} % longer"


def figures_of(looks: Looks, place: int, expected: FloatArray, least: FloatArray) -> Figures:
    """Return a mount's figures beside what is `expected`, logarithms (2, k), and at little load, (2,) ms."""
    evidence: Figures = {"clients": int(looks.clients[place]), "waiters": float(looks.waiters[place])}
    for way, word in enumerate(("read", "write")):
        figures = {
            f"{word}_latency_ms": looks.latency[way, place],
            f"{word}_latency_at_like_load_ms": np.exp(expected[way, place]),
            f"{word}_latency_at_little_load_ms": least[way],
            f"{word}_bytes_per_s": looks.load[way, place],
        }
        evidence |= {name: float(value) for name, value in figures.items() if np.isfinite(value)}
    return evidence


def of_clients(usual: MountHabits, looks: Looks, place: int, fall: float, more_s: float) -> tuple[Figures, str]:
    """Return what the clients of a mount lose where no job there shows whether it waits.

    They move half of what they did, together, or most of them with the job that they have (`fall` is how much of it,
    NaN if not); their requests are under way for `_HELD_UP` of every second more, also at the median client
    (`more_s`, by what they take longer); or, where nobody counts those, requests of every client wait, far more than
    usual.
    """
    mount, waiters, load = int(looks.mounts[place]), float(looks.waiters[place]), float(looks.load[:, place].sum())
    queue, before = float(usual.queue.level[mount]), float(usual.moved.level[mount])
    if load < 0.5 * before - 4 * float(usual.moved.spread[mount]):
        return {"bytes_per_s_before": before}, f"and its clients move {load / before:.2f} of what they did"
    if np.isfinite(fall):
        return {"moved_of_before": fall}, f"and its clients move {fall:.2f} of what they did with the same jobs"
    busy, level = float(looks.busy[place]), float(usual.busy.level[mount])
    if busy - level >= _HELD_UP and busy >= 2 * level and more_s >= _HELD_UP:
        words = f"and each client's requests take {busy - level:.2f} s more of every second than they did"
        return {"requests_under_way": busy, "requests_under_way_before": level}, words
    if np.isnan(busy) and waiters >= max(int(looks.clients[place]), 2 * queue + 4 * float(usual.queue.spread[mount])):
        return {"waiters_before": queue}, f"and {waiters:.0f} requests wait, usually {queue:.0f}"
    return {}, ""


def of_part(clients: Clients, part: Part) -> str:
    """Return what the clients lose for whom alone a mount is slow, where no job of theirs shows whether it waits."""
    more_s = extra_s(clients, part)
    return (
        f"and each one's requests take {more_s:.2f} s more of every second than they did" if more_s >= _HELD_UP else ""
    )
