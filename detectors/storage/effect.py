"""What slow storage does to somebody's work, in figures and in words; no words where it does nothing."""

from typing import Final

import numpy as np

from detectors.contract import BoolArray
from detectors.core.columns import REUSED, Columns
from detectors.core.residuals import Habit
from detectors.storage.clients import Looks
from detectors.storage.waits import Waits

Figures = dict[str, float | int | str]
HELD_UP: Final = 0.05
"""Of every second; a policy. Requests that take so much more of a client's time hold up whoever does not read ahead."""
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


def of_job(waits: Waits, job: int, name: str) -> tuple[Figures, str]:
    """Return what a job loses, as evidence and in words."""
    figures = {
        "job_data_wait_share": waits.share[job],
        "job_data_wait_share_before": waits.usual_share.level[job],
        "job_step_s": waits.step_s[job],
        "job_step_before_s": waits.usual_step.level[job],
    }
    evidence = {"job_id": name} | {key: float(value) for key, value in figures.items() if np.isfinite(value)}
    if waits.share[job] > 0 and (waits.wait_rise[job] > 0 or not waits.step_rise[job] > 0):
        return evidence, f"and job {name} waits for data for {100 * waits.share[job]:.0f} % of its steps"
    return evidence, f"and the steps of job {name} take {100 * waits.step_rise[job]:.0f} % longer"


def of_clients(usual: MountHabits, looks: Looks, place: int) -> tuple[Figures, str]:
    """Return what the clients of a mount lose where no job there reports steps.

    Requests of every client wait, far more than usual; they move half of what they did; or their requests are under
    way for `HELD_UP` of every second more.
    """
    mount, waiters, load = int(looks.mounts[place]), float(looks.waiters[place]), float(looks.load[:, place].sum())
    queue, before = float(usual.queue.level[mount]), float(usual.moved.level[mount])
    if waiters >= max(int(looks.clients[place]), 2 * queue + 4 * float(usual.queue.spread[mount])):
        return {"waiters_before": queue}, f"and {waiters:.0f} requests wait, usually {queue:.0f}"
    if load < 0.5 * before - 4 * float(usual.moved.spread[mount]):
        return {"bytes_per_s_before": before}, f"and its clients move {load / before:.2f} of what they did"
    busy, level = float(looks.busy[place]), float(usual.busy.level[mount])
    if busy - level >= HELD_UP and busy >= 2 * level:
        words = f"and each client's requests take {busy - level:.2f} s more of every second than they did"
        return {"requests_under_way": busy, "requests_under_way_before": level}, words
    return {}, ""
