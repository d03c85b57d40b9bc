"""Who is suspected, and what a finding says: the culprit's figures beside its peers', and what the job lost."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from detectors.case_book import in_words
from detectors.contract import Entity, FloatArray, Instant, IntArray, Severity
from detectors.fleet.fleet import Job
from detectors.straggler.comparison import FLOOR
from detectors.straggler.job_pace import Effect
from detectors.straggler.readings import FULL, IDLES_SPARE, LATE, LONG_WORK, LOW, SAME_ORDER, SLOW_CLOCK, STARVED
from detectors.straggler.silent_chips import Silent
from detectors.straggler.windows import BUSY, CLOCK, MEMORY, POWER, SM, SPENT, TENSOR, UTIL

PAGE_SHARE: Final = 0.25
"""A job that loses a quarter of its time is worth waking somebody: what NVIDIA's resiliency extension calls a straggler
(a relative score below 0.75)."""
MOST_NODES: Final = 2
"""More that are odd at once have something in common that is not a machine's."""
_MOST_NODE_SHARE: Final = 0.05
"""Of a large job so many more may be odd at once by themselves."""
_LASTS: Final = 5
"""Minutes; a clock that is low for less is on its way up."""
_MORE_TO_DO: Final = 1.5
"""Of the power of its peers: sixty stragglers with a lower clock, in recordings of others, draw 0.51 to 1.21 of it."""
_OTHER_WORK: Final = 0.6
"""Of the tensor activity of its peers: slow memory lengthens the step of all, and leaves each as much to compute."""
EXPLAINS: Final = 1.5
"""A job can't lose more than its culprit's work is longer, as far as both are measured. Work that is longer at an equal
clock may itself follow from what slows the job; a slow clock and idling among those that spin don't, and are given the
whole factor of two: GPU_UTIL counts a moment as busy in which any kernel ran (NVML)."""
_SIGNALS: Final = (
    ("sm_clock_mhz", CLOCK), ("power_w", POWER), ("tensor_activity", TENSOR), ("memory_activity", MEMORY),
    ("sm_activity", SM), ("busy_share", BUSY),
)  # fmt: skip


@dataclass(frozen=True)
class Suspect:
    """A GPU or node that is slow in its job, by `how`: its `ranks`' times, else its readings.

    It has been suspected for `looks`, at most the last 64, and was slow in `odd` of them; so many nodes of its job are
    (`crowd`). `lag` is by how much longer its work takes, a share (of ranks: of the step); `own` and `peers` what was
    read of it and of them by signal (clock MHz, power W, tensor, memory, busy share), `memory_clocks` of its memory and
    of theirs (MHz); `clock` the lowest of its peers' that it had, a share. It is `sure` even without a loss of the
    job's; `effect` is that, None where nothing is known of before. `seconds` of a step are the ranks'. It is slow by
    what it is beside its peers, as it may `always` have been; these are `alike` in how busy they are.
    """

    job: Job
    entity: Entity
    gpus: IntArray
    how: int
    lag: float
    since: Instant
    looks: int
    odd: int
    crowd: int
    sure: bool
    clock: float
    own: FloatArray
    peers: FloatArray
    by_chance: str
    effect: Effect | None = None
    ranks: tuple[int, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    always: bool = False
    memory_clocks: tuple[float, ...] = (np.nan, np.nan)
    grew_mib: float = 0.0
    alike: bool = False
    silent: Silent | None = None

    def is_one_of_many(self) -> bool:
        """Return whether too many nodes of its job are slow at once for a machine to be why.

        Of whole nodes, half of a job's: work was given out anew. What several have had since the first step is theirs.
        """
        nodes, whole = len(self.job.nodes), "gpu" not in self.entity
        most = max(MOST_NODES, _MOST_NODE_SHARE * nodes)
        most = min(most, max((nodes - 1) // 2, 1)) if whole else most
        return self.crowd > (1 if self.always else most)

    @property
    def starved(self) -> bool:
        """Whether its ranks' wait for data is what they lag by, more than their computation."""
        compute, data = (
            self.seconds.get(f"{name}_s", 0.0) - self.seconds.get(f"{name}_s_peers", 0.0)
            for name in ("compute", "data_wait")
        )
        return data > max(compute, 0.0)

    def ratio(self, *signals: int) -> float:
        """Return its reading to its peers', of the signal by which it exceeds them most; NaN where none is known."""
        ratios = [
            float(self.own[one] / self.peers[one]) for one in signals if self.own[one] > 0 and self.peers[one] > 0
        ]
        return max(ratios, default=float("nan"))

    @property
    def in_step(self) -> bool:
        """Whether it gets on as its peers do: as much of its time goes to tensor work, which a step has the same of.

        Where that is not read, of who idles SM activity shows it, else that of its memory.
        """
        idles = (SM, MEMORY) if self.how == STARVED else ()
        known = [ratio for ratio in map(self.ratio, (TENSOR, *idles)) if np.isfinite(ratio)]
        return bool(known) and bool(abs(np.log(known[0])) <= np.log1p(self.lag) / 3)

    @property
    def has_slow_memory(self) -> bool:
        """Whether its memory's clock lies below its peers', as far as they are read."""
        return bool(np.log(self.memory_clocks[0] / self.memory_clocks[1]) <= LOW)

    def works_alike(self) -> bool:
        """Return whether it does at its slow clock what its peers do: it is more active by its lag, to `SAME_ORDER`.

        Who is far more active has work of its own, and a lower clock for it; who is less active is not waited for. At
        a slow clock it draws less, where tensor activity is not read: who draws as much is at its limit.
        """
        active, lag = float(np.log(self.ratio(TENSOR, MEMORY))), float(np.log1p(self.lag))
        by_power = np.isnan(self.ratio(TENSOR)) and np.log(self.ratio(POWER)) <= -lag / SAME_ORDER
        return bool(by_power or lag / SAME_ORDER <= active <= lag * SAME_ORDER)

    def is_far_slower(self) -> bool:
        """Return whether it takes a quarter longer than its peers for the same work, at a slow clock, for minutes."""
        lasts = self.sure and self.odd >= _LASTS
        return self.how == SLOW_CLOCK and lasts and self.lag >= PAGE_SHARE and self.works_alike()

    def has_more_to_do(self) -> bool:
        """Return whether it draws far more than its peers, on a lower clock: mates that wait for one draw a third of
        what they do at work, and for a part of the time.
        """
        return self.ratio(POWER) > _MORE_TO_DO

    def does_other_work(self) -> bool:
        """Return whether it works longer by moving data, and computes far less: it generates while its peers train."""
        return self.how == LONG_WORK and self.ratio(TENSOR) < _OTHER_WORK

    def is_waited_for(self, *, felt: bool = False) -> bool:
        """Return whether it is idle in between while its peers, that get on as it does, are always busy: they spin.
        Or pause all at once, and are as busy as each other in between, for what keeps SMs no more active.

        Who idles draws less than who spins. GPUs that work each for itself do not: they have more to do, or less. Where
        SM activity shows that it does as much, or the job's loss that they wait, it need not draw more: few SMs spin.
        Where its job is slower since (`felt`), its peers may idle between steps for half of what it does.
        """
        others_spin = float(np.fmax(*self.peers[[BUSY, UTIL]])) >= (1 - self.lag / 2 if felt else FULL)
        sm_read = bool(np.isfinite(self.ratio(SM)))
        spared = IDLES_SPARE * float(self.peers[BUSY] - self.own[BUSY])
        draws_less = not self.ratio(POWER) > (1 + 2 * FLOOR if felt or sm_read else 1 - spared)
        others_spin |= self.alike and sm_read
        moves_as_much = not abs(np.log(self.ratio(MEMORY))) > np.log1p(self.lag) / 3
        return self.how == STARVED and self.in_step and others_spin and draws_less and moves_as_much

    def works_on(self, slower: float) -> bool:
        """Return whether its peers do so much less than it does that they wait for it, where its job is `slower` by a
        quarter at least (a share): for what else runs on it, or for work that was given to it alone.
        """
        both = np.log(np.array([self.ratio(TENSOR), self.ratio(MEMORY)]))
        return self.how == LONG_WORK and slower >= PAGE_SHARE and bool(both.min() >= np.log1p(slower) / EXPLAINS)

    def works_in_step(self) -> bool:
        """Return whether it works longer for as much as its peers do: GPUs that work each for itself do unlike much."""
        return self.how == LONG_WORK and self.in_step

    def costs(self) -> float:
        """Return by how much the job's steps must be longer, at least, for the work that takes the suspect longer.

        Activity is a share of the time: what the suspect works longer, its peers wait. 0 where none is known.
        """
        active = np.fmax(self.peers[TENSOR], self.peers[MEMORY])
        if self.how == LONG_WORK:  # slow memory is so while it is used
            active = self.peers[MEMORY if self.ratio(MEMORY) >= np.nan_to_num(self.ratio(SM)) else SM]
            active = np.fmin(active, self.peers[BUSY])
        if self.how not in (SLOW_CLOCK, LONG_WORK) or not np.isfinite(active):
            return 0.0
        waited = min(self.lag * float(active), 0.9)
        return waited / (1 - waited)


def moves_its_job(how: int, lag: float, own: FloatArray, peers: FloatArray, size: float) -> tuple[float, float]:
    """Return by how much a culprit's own activity and power move its job's, of which it is one of `size`; logarithms.

    `own` and `peers` are by signal, logarithms. At a slow clock it is active for longer by its `lag` at most, and draws
    less; who idles, or works longer, moves both alike.
    """
    beside = np.expm1(own - peers)
    if how != SLOW_CLOCK:
        both = 0.0 if how == STARVED else float(np.log1p(lag / size))
        return both, both
    active = min(max(float(np.nan_to_num(np.fmax(beside[TENSOR], beside[MEMORY]))), 0.0), lag)
    drawn = float(np.nan_to_num(beside[POWER if np.isnan(beside[SPENT]) else SPENT]))
    return float(np.log1p(active / size)), float(np.log1p(drawn / size))


@dataclass(frozen=True, slots=True)
class Report:
    """What a finding says, beside its entity and times."""

    severity: Severity
    score: float
    summary: str
    evidence: Mapping[str, float | int | str]


def action_for(suspect: Suspect, limits: tuple[float, float] | None) -> str:
    """Return what to do first; `limits`, its power limit and its peers' (W), where it is the lower one."""
    if limits is not None:
        return f"set the power limit back (nvidia-smi -pl {limits[1]:.0f}), and find out who or what lowered it"
    if suspect.grew_mib:
        return "look for a process on the GPU that is not the job's (nvidia-smi), whose it is, and end it"
    first = "host processes, memory and CPU of the node"
    if "gpu" in suspect.entity:
        first = "the GPU with dcgmi diag -r 2"
    elif suspect.how == LATE and suspect.starved:
        first = "data loaders, local disks and mounts of the node"
    return f"check {first}; take it out of the job and restart from the last checkpoint if it stays slow"


def report_of(suspect: Suspect, now: Instant, limits: tuple[float, float] | None, *, harmless: bool = False) -> Report:
    """Return what a finding says of a suspect; `harmless`, where its job is hardly slower for it.

    `limits` are its power limit and its peers' (W), where it is the lower one.
    """
    kept: dict[str, Any] = {name: float(suspect.own[row]) for name, row in _SIGNALS}
    kept |= {f"{name}_peers": float(suspect.peers[row]) for name, row in _SIGNALS}
    kept |= dict(zip(("memory_clock_mhz", "memory_clock_mhz_peers"), suspect.memory_clocks, strict=True))
    kept |= suspect.seconds
    if suspect.silent is not None:
        kept["power_spared_share"] = -float(np.expm1(-suspect.silent.spared))
    kept = {name: value for name, value in kept.items() if np.isfinite(value)}
    kept |= {"job_id": suspect.job.job_id, "slow_for_s": (now - suspect.since) / 1000, "by_chance": suspect.by_chance}
    where, job, compared = in_words(suspect.entity), suspect.job.job_id, _compared(suspect)
    if limits is not None:
        kept |= {"power_limit_w": limits[0], "power_limit_peers_w": limits[1]}
        compared += f", at a power limit of {limits[0]:.0f} W where theirs is {limits[1]:.0f} W"
    if suspect.grew_mib:
        kept["memory_grew_mib"] = suspect.grew_mib
        compared += f", and its memory in use rose by {suspect.grew_mib / 1024:.2g} GiB, on it alone"
    if harmless:
        named = f"{where} is unlike its peers in job {job}: {compared}; the job is hardly slower for it"
        return Report("info", 0.5, named, kept | {"lag_share": suspect.lag})
    if suspect.how == LATE:
        kept |= {"lag_share_of_step": suspect.lag, "rank": suspect.ranks[0], "ranks": len(suspect.ranks)}
        lost, felt = suspect.lag, ""
    else:
        effect = suspect.effect
        kept["lag_share"], lost, felt = suspect.lag, 0.0, "; the others wait for it"
        if effect is not None and effect.slower:
            kept |= {"job_figure": effect.figure, "job_before": effect.before, "job_now": effect.now}
            kept["job_slower_share"], lost, felt = effect.slower, effect.slower, f"; {effect.words}"
    severity: Severity = "page" if lost >= PAGE_SHARE else "ticket"
    return Report(severity, min(1.0, 0.6 + lost), f"{where} holds up job {job}: {compared}{felt}", kept)


def _compared(suspect: Suspect) -> str:
    own, peers, seconds = suspect.own, suspect.peers, suspect.seconds
    if suspect.how == LATE:
        compared = f"it computes {seconds['compute_s']:.3g} s a step, its peers {seconds['compute_s_peers']:.3g} s"
        if suspect.starved:
            compared = f"it waits {seconds['data_wait_s']:.2g} s a step for data"
            compared += f", its peers {seconds['data_wait_s_peers']:.2g} s"
        waits, others = seconds["comm_wait_s"], seconds["comm_wait_s_peers"]
        if np.isfinite(waits + others):
            compared += f", and waits {waits:.2g} s for them where they wait {others:.2g} s"
        return compared
    first = ("SM", SM) if suspect.how == LONG_WORK else ("tensor", TENSOR)
    known = {f"{word} activity": suspect.ratio(signal) for word, signal in (first, ("memory", MEMORY))}
    if (suspect.how == LONG_WORK and np.isnan(suspect.ratio(SM))) or np.isnan(list(known.values())).all():
        known["power"] = suspect.ratio(POWER if np.isnan(suspect.ratio(SPENT)) else SPENT)
    ratio, most = max(((ratio, words) for words, ratio in known.items() if np.isfinite(ratio)), default=(0.0, ""))
    worked = [f"{most} {ratio:.2f} of theirs"] if most else []
    clock, usual = suspect.memory_clocks
    if suspect.how == SLOW_CLOCK and suspect.has_slow_memory:
        return ", ".join([f"memory clock {clock:.0f} MHz where its peers run at {usual:.0f} MHz", *worked])
    if suspect.how == SLOW_CLOCK:
        slow = f"SM clock {own[CLOCK]:.0f} MHz where its peers run at {peers[CLOCK]:.0f} MHz"
        return ", ".join([slow, *worked])
    if suspect.how == LONG_WORK:
        return ": ".join([*worked, "it works longer than its peers for the same step"])
    if suspect.silent is not None:
        less = -100 * np.expm1(-suspect.silent.spared)
        return f"its power has fallen by {less:.0f} % more than its peers', at the same clock and for as much work"
    return f"busy {100 * own[BUSY]:.0f} % of the time, its peers {100 * peers[BUSY]:.0f} %, at the same clock"
