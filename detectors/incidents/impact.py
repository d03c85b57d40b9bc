"""What an incident costs: the jobs it touches, how much slower their steps are, and the GPU-hours lost."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from detectors.contract import Instant
from detectors.incidents.pace import Paces
from detectors.incidents.places import Places
from detectors.incidents.ranking import Sighted
from detectors.incidents.report import Impact, Touched

SLOWED: Final = 1.03
"""Of the usual step time: a job that only may be touched (a mount's, a switch's) counts when its steps show it; medians
of steps vary by about 1 % (nanoGPT logs)."""
_LOOK_BACK_MS = 3_600_000
"""A job's usual step time is that of the hour before the incident."""
_STOOD_MS: Final = 180_000
"""A pause so much longer than a step is a stand-still: job_health calls a job hung then, checkpoints to slow storage
take a minute or two."""
_USUAL_PAUSE = 1.5
"""A pause so much longer than the job's longest of the hour before is no checkpoint or evaluation of its own."""
_STOPPED_STEPS = 3.0
"""A job that has made no step for so many usual ones when it ends had stopped before."""
_HOUR_MS = 3_600_000


@dataclass(slots=True)
class Loss:
    """One job that is touched: its figures as last worked out. Times in ms; `usual_s` None where not known."""

    gpus: int
    nodes: int
    start: Instant
    sure: bool
    """It uses what is at fault; else it only may, and counts if its steps say so."""
    end: Instant | None = None
    usual_s: float | None = None
    usual_pause_ms: int = 0
    factor: float | None = None
    """None where no step since shows it, as of a job that stopped at once and ended: what it lost is not known."""
    stood_ms: int = 0
    hours: float = 0.0
    settled: bool = False
    """The job was over when it was last worked out."""

    def counts(self) -> bool:
        """Return whether the job is affected."""
        return self.sure or self.stood_ms > 0 or (self.factor or 1.0) >= SLOWED


class Losses:
    """The jobs touched by one incident."""

    def __init__(self, jobs: Mapping[str, Loss] | None = None) -> None:
        self.jobs: dict[str, Loss] = dict(jobs or {})

    def update(
        self,
        members: Iterable[Sighted],
        began: Instant,
        until: Instant,
        now: Instant,
        places: Places,
        paces: Paces,
    ) -> None:
        """Work out the figures at `now` of an incident that lasts from `began` to `until`."""
        for one in members:
            lot = places.lot(one.entity, one.started_at, one.resolved_at or now)
            named = [one.job] if one.job is not None else []
            for name, sure in [*((job, True) for job in (*lot.touched, *named)), *((job, False) for job in lot.maybe)]:
                self._meet(name, sure, began, now, places, paces)
        for name, loss in self.jobs.items():
            stay = places.stays.get(name)
            if stay is not None and stay.job.start == loss.start:
                loss.end = stay.end
            if not loss.settled:
                self._work_out(name, loss, began, until, now, paces)

    def _meet(self, name: str, sure: bool, began: Instant, now: Instant, places: Places, paces: Paces) -> None:
        known, stay = self.jobs.get(name), places.stays.get(name)
        if known is not None:
            known.sure |= sure
            return
        if stay is None:
            return
        before = paces.steps(name, max(began - _LOOK_BACK_MS, stay.job.start), began, now)
        gpus, nodes = places.gpus(stay.job), len(stay.job.nodes)
        self.jobs[name] = Loss(gpus, nodes, stay.job.start, sure, stay.end, before.step_s, before.pause_ms)

    @staticmethod
    def _work_out(name: str, loss: Loss, began: Instant, until: Instant, now: Instant, paces: Paces) -> None:
        begin = max(began, loss.start)
        stop = min(until, now, until if loss.end is None else loss.end)
        loss.settled = loss.end is not None and loss.end <= until
        if loss.usual_s is None or stop <= begin:
            return
        usual_ms = loss.usual_s * 1000
        during = paces.steps(name, begin, stop, now)
        if during.step_s is not None:
            loss.factor = max(1.0, during.step_s / loss.usual_s)
        still = paces.waiting_ms(name, stop)
        pause_ms = min(max(during.pause_ms, still), stop - begin)
        if pause_ms > max(_STOOD_MS + usual_ms, _USUAL_PAUSE * loss.usual_pause_ms):
            loss.stood_ms = max(loss.stood_ms, pause_ms - round(usual_ms))
            loss.factor = max(loss.factor or 1.0, pause_ms / usual_ms)
            slow = max(1.0, (during.step_s or loss.usual_s) / loss.usual_s)
        else:
            slow = loss.factor or 1.0
        lost_ms = loss.stood_ms + max(0, stop - begin - loss.stood_ms) * (1 - 1 / slow)
        loss.hours = loss.gpus * min(stop - begin, lost_ms) / _HOUR_MS
        unhurt = not loss.stood_ms and slow < SLOWED
        if loss.settled and unhurt and still > _STOPPED_STEPS * usual_ms:
            loss.factor = None  # the steps before it stopped do not show what that cost

    def impact(self, members: Iterable[Sighted], places: Places) -> Impact:
        """Return what it cost so far."""
        counted = {name: loss for name, loss in self.jobs.items() if loss.counts()}
        known = {name: stay for name in counted if (stay := places.stays.get(name)) is not None}
        nodes = {node for stay in known.values() for node in stay.job.nodes}
        long_over = sum(loss.nodes for name, loss in counted.items() if name not in known)
        idle: dict[str, int] = {}
        for one in members:
            node = one.entity.get("node")
            if node is not None and str(node) not in nodes:
                mine = 1 if "gpu" in one.entity else places.gpus_of(str(node))
                idle[str(node)] = max(mine, idle.get(str(node), 0))
        jobs = tuple(
            Touched(
                name,
                loss.gpus,
                None if loss.factor is None else round(loss.factor, 2),
                loss.stood_ms / 1000,
                None if loss.factor is None else round(loss.hours, 2),
                loss.end,
            )
            for name, loss in sorted(counted.items(), key=lambda entry: (-entry[1].hours, entry[0]))
        )
        measured = [loss for loss in counted.values() if loss.factor is not None]
        unknown = not measured and (bool(counted) or not places.stays)
        return Impact(
            gpus=sum(loss.gpus for loss in counted.values()) + sum(idle.values()),
            nodes=len(nodes | idle.keys()) + long_over,
            jobs=jobs,
            step_time_factor=None if unknown else max((job.step_time_factor or 1.0 for job in jobs), default=1.0),
            gpu_hours_lost=None if unknown else round(sum(loss.hours for loss in measured), 2),
        )

    def snapshot(self) -> list[Any]:
        """Return the state as JSON can say it."""
        return [[name, asdict(loss)] for name, loss in self.jobs.items()]

    @classmethod
    def restore(cls, state: Iterable[Any]) -> "Losses":
        """Return what `snapshot` was taken of."""
        return cls({name: Loss(**fields) for name, fields in state})
