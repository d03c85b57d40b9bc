"""The truth of a synthetic recording: what broke, and what only looks as if it had."""

from collections.abc import Iterator, Sequence

import numpy as np

from services.recording.model import Label
from services.synth.happening import Told
from services.synth.job import Run
from services.synth.scenario import Scenario
from services.synth.world import World


def labels_of(scenario: Scenario, world: World, runs: Sequence[Run]) -> Iterator[Label]:
    """Yield every label: faults with their measured impact, each job's warm-up and checkpoints, distractors."""
    for happening in scenario.happenings:
        for told in happening.truths(world):
            yield _fault(scenario, told, runs)
    for run in runs:
        if len(run.start):
            yield _distractor(
                scenario,
                f"d-{run.spec.id}-warm-up",
                {"job_id": run.spec.id},
                (run.spec.start, run.warm),
                "launch, loading of the checkpoint and first steps",
            )
        for number, (begin, end) in enumerate(run.checkpoints, start=1):
            following = np.flatnonzero(run.start >= end)
            recovered = end + float(run.total[following[0]]) if len(following) else end
            yield _distractor(
                scenario,
                f"d-{run.spec.id}-checkpoint-{number}",
                {"job_id": run.spec.id},
                (begin, recovered),
                "the job writes a checkpoint: its GPUs compute nothing, then comes one slow step",
            )
    for declared in scenario.distractors:
        entity = dict(declared.entity)
        if isinstance(node := entity.get("node"), str):
            entity["node"] = world.names[world.node(node)]
        yield _distractor(scenario, declared.id, entity, (declared.at, declared.until), declared.note)


def _ms(scenario: Scenario, seconds: float) -> int:
    return scenario.start + int(min(max(seconds, 0.0), scenario.duration) * 1000)


def _distractor(
    scenario: Scenario, name: str, entity: dict[str, str | int], span: tuple[float, float], note: str
) -> Label:
    onset, end = (_ms(scenario, at) for at in span)
    return Label(id=name, fault="none", entity=entity, onset=onset, end=end, within_s=0, distractor=True, note=note)


def _fault(scenario: Scenario, told: Told, runs: Sequence[Run]) -> Label:
    truth, (start, end) = told.truth, told.span
    hit = [
        run
        for run in runs
        if (run.spec.id in told.jobs or set(told.nodes) & set(run.nodes)) and run.spec.start < end and run.end > start
    ]
    fields: dict[str, object] = {
        "id": truth.id,
        "fault": truth.fault,
        "entity": dict(told.entity),
        "onset": _ms(scenario, start),
        "end": _ms(scenario, end),
        "within_s": truth.within_s,
    }
    if told.also:
        fields["also"] = [dict(entity) for entity in told.also]
    for name in ("cause", "note", "incident", "root", "optional"):
        if value := getattr(truth, name):
            fields[name] = value
    if hit:
        fields["job_id"] = hit[0].spec.id
    if truth.root and hit:
        fields["impact"] = _impact(hit, start, end)
    return Label.model_validate(fields)


def _impact(runs: Sequence[Run], start: float, end: float) -> dict[str, int | float]:
    """Return what it cost: the jobs' steps that lie wholly in it, and stalls, are compared with their healthy ones."""
    factors, lost, gpus = [1.0], 0.0, 0
    for run in runs:
        stop = run.start + run.total
        during = (run.start >= start) & (stop <= end)
        healthy = np.arange(len(run.start)) >= len(run.spec.training.warm_up)
        healthy &= (stop <= start) | (run.start >= end)
        usual = float(np.median(run.total[healthy])) if healthy.any() else run.spec.training.compute_s
        factor = max(1.0, float(np.median(run.total[during])) / usual) if during.any() else 1.0
        stretch = min(end, run.end) - max(start, run.spec.start)
        lost += len(run.gpus) * stretch / 3600 * (1 - 1 / factor)
        gpus += len(run.gpus)
        factors.append(factor)
    return {
        "gpus": gpus,
        "jobs": len(runs),
        "step_time_factor": round(max(factors), 2),
        "gpu_hours_lost": round(lost, 1),
    }
