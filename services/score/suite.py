"""Scores detectors over many recordings, and adds up."""

import concurrent.futures
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from detectors.contract import Finding
from detectors.coverage import closing
from detectors.engine.engine import Choice
from detectors.registry import choose
from services.kit.processes import pool_of
from services.recording.degrade import degrade_recording
from services.recording.embedded import latest, steps
from services.recording.model import Label
from services.recording.reader import Recording, times_of
from services.recording.seen import coverage_of, seen_in
from services.recording.tidy import open_tidy
from services.score.controls import chance, constant
from services.score.incidents import IncidentTally, judge_incidents
from services.score.matching import Outcome, judge
from services.score.tally import Manners, Tally, figure, manners, tally, upper_bound

_DAY_MS = 86_400_000
_CONTROL_SEED = 20260101


@dataclass(frozen=True)
class Scored:
    """One recording, scored: its outcomes, and the counts of the two controls; `intervals_s` are its streams'."""

    name: str
    seed: int | None
    cluster: str
    node_days: float
    outcomes: Sequence[Outcome]
    manners: Manners
    controls: Mapping[str, Tally]
    intervals_s: Mapping[str, float]
    incidents: IncidentTally = field(default_factory=IncidentTally)
    unjudged: Sequence[str] = field(default_factory=list)
    """What the telemetry does not show, or only late: `detectors.coverage.closing`."""
    labelled: bool = True
    """Whether what is true of it is known: without that its findings are neither hits nor false alarms."""
    left_out: str = ""


@dataclass
class Scorecard:
    """All recordings together."""

    recordings: list[Scored] = field(default_factory=list)

    @property
    def node_days(self) -> float:
        """Days of telemetry of which the truth is known, summed over the nodes."""
        return sum(one.node_days for one in self.recordings if one.labelled)

    @property
    def by_fault(self) -> dict[str, Tally]:
        """Counts by fault; under ``all`` those of all."""
        return tally(outcome for one in self.recordings for outcome in one.outcomes)

    @property
    def controls(self) -> dict[str, Tally]:
        """Counts of the detectors that know nothing."""
        total: dict[str, Tally] = {}
        for one in self.recordings:
            for name, counts in sorted(one.controls.items()):
                total.setdefault(name, Tally()).merge(counts)
        return total

    @property
    def manners(self) -> Manners:
        """How findings behaved."""
        total = Manners()
        for one in self.recordings:
            total.merge(one.manners)
        return total

    @property
    def incidents(self) -> IncidentTally:
        """How incidents were found."""
        total = IncidentTally()
        for one in self.recordings:
            total.merge(one.incidents)
        return total

    def false_alarms(self) -> list[tuple[str, Outcome]]:
        """Return every false alarm with its recording's name."""
        return [(one.name, outcome) for one in self.recordings for outcome in one.outcomes if outcome.kind == "false"]

    def as_json(self) -> dict[str, Any]:
        """Return all figures as JSON can say them; what has no value is null."""
        false_alarms = self.by_fault["all"].false_alarms
        return {
            "recordings": [
                {
                    "name": one.name,
                    "seed": one.seed,
                    "cluster": one.cluster,
                    "node_days": round(one.node_days, 4),
                    "outcomes": dict(Counter(outcome.kind for outcome in one.outcomes)),
                    "missed": [_place(o.label) for o in one.outcomes if o.kind == "miss" and o.label],
                    "false": [_alarm(o.finding) for o in one.outcomes if o.kind == "false" and o.finding],
                    "fired": [_alarm(o.finding) for o in one.outcomes if o.kind == "unknown" and o.finding],
                    "labelled": one.labelled,
                    "left_out": one.left_out,
                    "unjudged": list(one.unjudged),
                }
                for one in self.recordings
            ],
            "node_days": round(self.node_days, 3),
            "false_alarms_per_100_node_days": figure(100 * false_alarms / self.node_days if self.node_days else np.nan),
            "false_alarms_per_100_node_days_upper_95": figure(
                100 * upper_bound(false_alarms) / self.node_days if self.node_days else np.nan
            ),
            "faults": {name: counts.figures() for name, counts in self.by_fault.items()},
            "controls": {name: counts.figures() for name, counts in self.controls.items()},
            "manners": vars(self.manners),
            "incidents": vars(self.incidents),
        }


def _place(label: Label) -> dict[str, Any]:
    return {"id": label.id, "fault": label.fault, "entity": dict(label.entity)}


def _alarm(finding: Finding) -> dict[str, Any]:
    return {"fault": finding.fault, "entity": dict(finding.entity), "summary": finding.summary}


def score_recording(
    path: Path, choices: Sequence[Choice] | None = None, *, strict: bool = False, healthy: bool = False
) -> Scored:
    """Run the detectors over a recording and judge what they say. UserError: the recording can't be read.

    What a detector in shadow says does not count. `strict`: rows that cannot be right are refused, not left out.
    `healthy`: where nobody has labelled it, nothing was wrong.
    """
    recording = open_tidy(path, strict=strict)
    choices = choose() if choices is None else choices
    shadow = {kind.spec.name for kind, config in choices if config.shadow}
    found = list(steps(recording, choices))
    findings = [finding for step in found for finding in step.findings if finding.detector not in shadow]
    truth = [] if healthy and not recording.labelled else recording.truth()
    labels = truth or []
    incidents = IncidentTally()
    for one in judge_incidents(latest(incident for step in found for incident in step.incidents), labels):
        incidents.add(one)
    incidents.wrong = [f"{recording.manifest.name}, {words}" for words in incidents.wrong]
    outcomes = judge(findings, truth)
    nodes_of = {job.job_id: set(job.nodes) for job in recording.jobs()}
    raised = sum(finding.state == "firing" for finding in findings)
    controls = {"constant": constant(recording), "random": chance(recording, max(raised, len(labels)), _CONTROL_SEED)}
    return Scored(
        recording.manifest.name,
        recording.manifest.seed,
        recording.manifest.cluster.name,
        node_days(recording),
        outcomes,
        manners(findings, labels, outcomes, nodes_of, recording.manifest.end),
        {name: tally(judge(found, truth))["all"] for name, found in controls.items()},
        {stream: info.interval_s for stream, info in recording.manifest.streams.items() if info.interval_s},
        incidents,
        closing(coverage_of(choices, seen_in(recording))),
        truth is not None,
        recording.left_out,
    )


def score_without(
    path: Path, choices: Sequence[Choice] | None, without: Sequence[str], *, strict: bool, healthy: bool
) -> Scored:
    """Score a recording from which telemetry was taken away (`without.WORDS`); nothing taken away, as it is."""
    if not without:
        return score_recording(path, choices, strict=strict, healthy=healthy)
    recording = open_tidy(path, strict=strict)
    with tempfile.TemporaryDirectory(prefix="hindcast-degraded-") as folder:
        name = recording.manifest.name
        scored = score_recording(degrade_recording(recording, Path(folder) / name, without), choices, healthy=healthy)
        return replace(scored, left_out=recording.left_out)


def node_days(recording: Recording) -> float:
    """Return the days between each node's first and last sample, summed over the nodes."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for stream in recording.streams():
        for batch in recording.batches(stream, columns=()):
            if "node" not in batch.schema.names:
                continue
            column: Any = batch.column("node")  # a dictionary of names: the reader sees to that
            times = times_of(batch)
            codes = column.indices.fill_null(-1).to_numpy(zero_copy_only=False)
            names = column.dictionary.to_pylist()
            known = codes >= 0
            low = np.full(len(names), np.iinfo(np.int64).max)
            high = np.full(len(names), np.iinfo(np.int64).min)
            np.minimum.at(low, codes[known], times[known])
            np.maximum.at(high, codes[known], times[known])
            for name, begin, end in zip(names, low.tolist(), high.tolist(), strict=True):
                if begin <= end:
                    first[name] = min(begin, first.get(name, begin))
                    last[name] = max(end, last.get(name, end))
    return sum(last[name] - first[name] for name in first) / _DAY_MS


def score_all(
    paths: Iterable[Path],
    choices: Sequence[Choice] | None = None,
    *,
    workers: int = 2,
    scored: Callable[[Scored], None] | None = None,
    without: Sequence[str] = (),
    strict: bool = False,
    healthy: bool = False,
) -> Scorecard:
    """Score recordings, several at a time; `scored` is called with each as it is done. The order is that of `paths`.

    `without` says what is taken away from them first (`without.WORDS`).
    """
    listed = list(paths)
    done: dict[Path, Scored] = {}
    with pool_of(workers) as pool:
        waiting = {
            pool.submit(score_without, path, choices, without, strict=strict, healthy=healthy): path for path in listed
        }
        for future in concurrent.futures.as_completed(waiting):
            done[waiting[future]] = future.result()
            if scored is not None:
                scored(done[waiting[future]])
    return Scorecard([done[path] for path in listed])
