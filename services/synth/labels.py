"""The truth of a synthetic recording: what broke, and what only looks as if it had."""

from collections.abc import Iterator, Sequence

import numpy as np

from services.recording.model import Label
from services.synth.job import Run, braked_stretch
from services.synth.power import Braked
from services.synth.scenario import PowerBrake, Scenario


def labels_of(scenario: Scenario, runs: Sequence[Run], brakes: Sequence[Braked]) -> Iterator[Label]:
    """Yield every label: faults with their measured impact, each job's warm-up and checkpoints, distractors."""
    for fault, brake in zip(scenario.of_kind(PowerBrake), brakes, strict=True):
        yield _power_brake(scenario, fault, brake, runs)
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
        span = (declared.at, declared.until)
        yield _distractor(scenario, declared.id, declared.entity, span, declared.note)


def _ms(scenario: Scenario, seconds: float) -> int:
    return scenario.start + int(min(seconds, scenario.duration) * 1000)


def _distractor(
    scenario: Scenario, name: str, entity: dict[str, str | int], span: tuple[float, float], note: str
) -> Label:
    onset, end = (_ms(scenario, at) for at in span)
    return Label(id=name, fault="none", entity=entity, onset=onset, end=end, within_s=0, distractor=True, note=note)


def _power_brake(scenario: Scenario, fault: PowerBrake, brake: Braked, runs: Sequence[Run]) -> Label:
    hit = [run for run in runs if brake.node in run.nodes and braked_stretch(run, brake).any()]
    truth = fault.truth
    fields: dict[str, object] = {
        "id": truth.id,
        "fault": truth.fault,
        "entity": {"node": fault.node},
        "onset": _ms(scenario, fault.at),
        "end": _ms(scenario, brake.end),
        "within_s": truth.within_s,
        "cause": fault.cause,
    }
    if truth.note:
        fields["note"] = truth.note
    if hit:
        fields["job_id"] = hit[0].spec.id
    if truth.incident:
        fields["incident"] = truth.incident
    if truth.root:
        fields["root"] = True
    if truth.root and hit:
        fields["impact"] = _impact(hit, brake)
    return Label.model_validate(fields)


def _impact(runs: Sequence[Run], brake: Braked) -> dict[str, int | float]:
    """Return what the brake cost: the jobs' steps are compared with their own healthy ones."""
    factors, lost, gpus = [], 0.0, 0
    for run in runs:
        braked = braked_stretch(run, brake)
        healthy = np.arange(len(run.start)) >= len(run.spec.training.warm_up)
        healthy &= (run.start + run.total <= brake.start) | (run.start >= brake.end)
        usual = float(np.median(run.total[healthy])) if healthy.any() else run.spec.training.compute_s
        factors.append(float(np.median(run.total[braked])) / usual)
        stretch = min(brake.end, run.end) - max(brake.start, run.spec.start)
        lost += len(run.gpus) * stretch / 3600 * (1 - 1 / factors[-1])
        gpus += len(run.gpus)
    return {
        "gpus": gpus,
        "jobs": len(runs),
        "step_time_factor": round(max(factors), 2),
        "gpu_hours_lost": round(lost, 1),
    }
