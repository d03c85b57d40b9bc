"""What the model says of a recording: which GPUs were unlike the peers of their job, when, and in what.

It names no fault and raises no alarm: it does not know what is wrong. A novelty supports what a detector says of the
same GPU, or is something to look into that no rule has a name for.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np

from detectors.contract import Entity, FloatArray, Instant, IntArray, finding_id, rfc3339
from services.model.artefact import Model
from services.model.continuity import NEEDED, Continuity
from services.model.fields import FIELDS
from services.model.peers import Assignments, Compared, comparisons
from services.model.windows import Gpus, length_of
from services.recording.reader import Recording

NODE_SHARE: Final = 0.5
"""Of a node's GPUs: when so many are novel at once it is the node (as in the detectors)."""
CULPRIT_SHARE: Final = 0.1
"""Of the highest score in the job: what lies below is a victim of it. A third as far off, as scores are squares."""
RELEASE_SHARE: Final = 0.7
"""Of the threshold: what was novel stays so above it, as a score that hovers is one novelty (judgement)."""
RELEASE_WINDOWS: Final = 4
"""So many windows below that, or unseen, and it is over: within the five minutes in which that is due."""
_NAMED: Final = 3
_LEAST_SHARE: Final = 0.05
"""So many readings are named at most, of those that have this share in the score (judgement)."""


@dataclass(frozen=True)
class Metric:
    """One reading that is off: its value and the peers' median, how far (robust deviations), its share of the score."""

    name: str
    unit: str
    value: float
    peers: float
    deviations: float
    against_habit: float
    share: float


@dataclass(frozen=True)
class Novelty:
    """A GPU, or a node with most of its GPUs, that was unlike its peers from `started_at` on.

    `score` is how many times the threshold was reached in k of n windows.
    """

    id: str
    entity: Entity
    job_id: str
    state: Literal["firing", "resolved"]
    started_at: Instant
    detected_at: Instant
    score: float
    metrics: tuple[Metric, ...] = ()

    def to_json(self) -> str:
        """Return one line of canonical JSON; `kind` distinguishes it from a finding."""
        return json.dumps(
            {
                "kind": "novelty",
                "id": self.id,
                "entity": dict(sorted(self.entity.items())),
                "job_id": self.job_id,
                "state": self.state,
                "severity": "info",
                "started_at": rfc3339(self.started_at),
                "detected_at": rfc3339(self.detected_at),
                "score": round(self.score, 3),
                "summary": self.summary,
                "metrics": [
                    {name: round(v, 4) if isinstance(v, float) else v for name, v in vars(metric).items()}
                    for metric in self.metrics
                ],
            },
            separators=(",", ":"),
        )

    @property
    def summary(self) -> str:
        """Return it in words."""
        where = " GPU ".join(str(value) for _, value in sorted(self.entity.items(), reverse=True))
        if self.state == "resolved":
            return f"{where} is like its peers again"
        readings = ", ".join(f"{m.name} {m.value:.4g} {m.unit} (peers {m.peers:.4g})" for m in self.metrics)
        return f"{where} is unlike its peers in job {self.job_id}: {readings}"


@dataclass
class _Open:
    entity: Entity
    job_id: str
    id: str
    started_at: Instant
    members: list[int]


@dataclass
class _Watch:
    """Turns held scores into novelties: one while it lasts, and one end."""

    gpus: Gpus
    open: list[_Open] = field(default_factory=list)
    last_novel: dict[int, Instant] = field(default_factory=dict)

    def step(
        self, window: Compared, novel: FloatArray, errors: FloatArray, jobs: Mapping[int, str]
    ) -> Iterator[Novelty]:
        """Take one window: `novel` (n,) is the held score by the threshold, `errors` (n, features)."""
        now, length = window.end, window.end - window.start
        reported = {member for entry in self.open for member in entry.members}
        lasting = set(window.gpus[novel > RELEASE_SHARE].tolist()) & reported
        self.last_novel |= dict.fromkeys(lasting, now)
        yield from self.close(now, length)
        highest = np.full(int(window.jobs.max(initial=0)) + 1, -np.inf)
        np.maximum.at(highest, window.jobs, novel)
        stands_out = (novel > 1) & (novel >= CULPRIT_SHARE * highest[window.jobs])
        new = {int(window.gpus[row]): int(row) for row in np.flatnonzero(stands_out)}
        self.last_novel |= dict.fromkeys(new, now)
        reported = {member for entry in self.open for member in entry.members}
        by_node: dict[str, list[int]] = {}
        for gpu in new:
            by_node.setdefault(self.gpus.keys[gpu][0], []).append(gpu)
        for node, members in by_node.items():
            fresh = [gpu for gpu in members if gpu not in reported]
            seen = sum(self.gpus.keys[int(gpu)][0] == node for gpu in window.gpus)
            whole = next((entry for entry in self.open if dict(entry.entity) == {"node": node}), None)
            if whole is not None:
                whole.members += fresh
            elif fresh and len(members) > 1 and len(members) >= NODE_SHARE * seen:
                yield self._begin({"node": node}, fresh, window, novel, errors, jobs)
            else:
                for gpu in fresh:
                    entity: Entity = {"node": node, "gpu": self.gpus.keys[gpu][1]}
                    yield self._begin(entity, [gpu], window, novel, errors, jobs)

    def close(self, now: Instant, length: int) -> Iterator[Novelty]:
        """Yield the end of what has been quiet for long enough by `now`, with windows of `length` ms."""
        for entry in list(self.open):
            last = max(self.last_novel[member] for member in entry.members)
            if now - last >= RELEASE_WINDOWS * length:
                self.open.remove(entry)
                yield Novelty(entry.id, entry.entity, entry.job_id, "resolved", entry.started_at, now, 0.0)

    def _begin(
        self,
        entity: Entity,
        members: list[int],
        window: Compared,
        novel: FloatArray,
        errors: FloatArray,
        jobs: Mapping[int, str],
    ) -> Novelty:
        rows = np.flatnonzero(np.isin(window.gpus, members))
        worst = int(rows[np.argmax(novel[rows])])
        started = window.start - (NEEDED - 1) * (window.end - window.start)
        job = jobs[int(window.jobs[worst])]
        entry = _Open(entity, job, finding_id("novelty", entity, started), started, members)
        self.open.append(entry)
        return Novelty(
            entry.id,
            entity,
            job,
            "firing",
            started,
            window.end,
            float(novel[worst]),
            _metrics(window, worst, errors[worst]),
        )


def _metrics(window: Compared, row: int, errors: FloatArray) -> tuple[Metric, ...]:
    """Return the readings that the score is made of, the largest first."""
    count = len(FIELDS)
    by_field = errors[:count] + errors[count:]
    shares = by_field / by_field.sum()
    order: IntArray = np.argsort(-shares, kind="stable")[:_NAMED]
    return tuple(
        Metric(
            FIELDS[place].name,
            FIELDS[place].unit,
            float(np.nan_to_num(window.values[row, place])),
            float(np.nan_to_num(window.middle[row, place])),
            float(window.features[row, place]),
            float(window.features[row, count + place]),
            float(shares[place]),
        )
        for place in order.tolist()
        if shares[place] >= _LEAST_SHARE
    )


def novelties(recording: Recording, model: Model, *, max_rows: int = 32_768) -> Iterator[Novelty]:
    """Yield what is novel in a recording, in order of time, by a model; the same however many rows are read at once.

    Raises UserError where the recording cannot be read.
    """
    gpus = Gpus.of(recording)
    jobs = {place: job.job_id for place, job in enumerate(Assignments(recording, gpus).jobs)}
    watch, continuity = _Watch(gpus), Continuity()
    for window in comparisons(recording, gpus, max_rows=max_rows):
        errors = model.novelty(window.features)
        held = continuity.hold(window, errors.sum(axis=1))
        yield from watch.step(window, held / model.facts.threshold, errors, jobs)
    yield from watch.close(recording.manifest.end, length_of(recording))
