"""The truth of a synthetic recording: what broke, and what only looks as if it had."""

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from services.recording.model import Label
from services.synth.cluster.profile import GpuProfile
from services.synth.cluster.world import World
from services.synth.jobs.job import Run
from services.synth.story.happening import PlacedTruth
from services.synth.story.scenario import Scenario

_STOOD_STILL = 20  # usual steps: one that takes longer is no step but a stand-still
_DUE_SCRAPES = 6
"""No alert is due before so many scrapes: what is written for one cadence must be possible at another."""
_KILLED = {"FAILED", "NODE_FAIL", "TIMEOUT"}


def labels_of(
    scenario: Scenario, world: World, runs: Sequence[Run], hot: Collection[int] | None = None
) -> Iterator[Label]:
    """Yield every label: faults with their measured impact, each job's warm-up and checkpoints, distractors.

    `hot` are the nodes that heat holds down, where that is known: a fan that fails on a cluster which stays cool
    throttles nothing, unless the recording was over before it could.
    """
    for happening in scenario.happenings:
        for placed in happening.truths(world):
            if placed.span[0] >= scenario.duration:
                continue  # made shorter than it was written
            seen_whole = hot is not None and placed.span[1] <= scenario.duration
            if placed.truth.fault == "thermal_throttle" and seen_whole and not set(placed.nodes) & set(hot or ()):
                continue
            mount = placed.entity.get("mount")
            feeling = runs if mount is None else [run for run in runs if mount in _mounts(run, world)]
            yield _fault(
                scenario, placed, feeling, world.profile.gpu, _DUE_SCRAPES * world.profile.collector_interval_s
            )
    for run in runs:
        yield from _of_life(scenario, run)
    for declared in scenario.distractors:
        if declared.at >= scenario.duration:
            continue
        entity = _placed(declared.entity, world)
        yield _distractor(scenario, declared.id, entity, (declared.at, declared.until), declared.note)


def _placed(entity: dict[str, str | int], world: World) -> dict[str, str | int]:
    """Return an entity by the names of the cluster that is made; a leaf's `uplink` (its number) becomes its port."""
    placed = dict(entity)
    if isinstance(node := placed.get("node"), str):
        placed["node"] = world.names[world.node(node)]
    if isinstance(gpu := placed.get("gpu"), int):
        placed["gpu"] = gpu % world.profile.node.gpus
    if isinstance(mount := placed.get("mount"), str):
        placed["mount"] = world.mount(mount)
    if isinstance(switch := placed.get("switch"), str):
        placed["switch"] = world.fabric.switches[world.switch(switch)]
        if "uplink" in placed:
            return world.fabric.ends(world.uplink(switch, int(placed["uplink"])))[0]
    return placed


def _mounts(run: Run, world: World) -> set[str]:
    training = run.spec.training
    return {world.profile.mount_of(path).mount for path in (training.reads_from, training.checkpoints_to)}


def _of_life(scenario: Scenario, run: Run) -> Iterator[Label]:
    """Yield what looks wrong in any job's life and is not: its warm-up, its checkpoints, its evaluations."""
    job: dict[str, str | int] = {"job_id": run.spec.id}
    if len(run.start) and run.warm > 0:
        note = "launch, loading of the checkpoint and first steps"
        yield _distractor(scenario, f"d-{run.spec.id}-warm-up", job, (run.spec.start, run.warm), note)
    for number, (begin, end) in enumerate(run.checkpoints, start=1):
        if begin >= run.end:
            continue  # the job was over before it
        following = np.flatnonzero(run.start >= end)
        recovered = end + float(run.total[following[0]]) if len(following) else end
        note = "the job writes a checkpoint: its GPUs compute nothing, then comes one slow step"
        span = (begin, min(recovered, run.end))
        if span[1] > 0:
            yield _distractor(scenario, f"d-{run.spec.id}-checkpoint-{number}", job, span, note)
    for number, (begin, end) in enumerate(run.evaluations, start=1):
        note = "the job evaluates its model: no step is reported, its GPUs draw less"
        if end > 0 and begin < run.end:
            yield _distractor(scenario, f"d-{run.spec.id}-evaluation-{number}", job, (begin, min(end, run.end)), note)


def _ms(scenario: Scenario, seconds: float) -> int:
    return scenario.start + int(min(max(seconds, 0.0), scenario.duration) * 1000)


def _distractor(
    scenario: Scenario, name: str, entity: dict[str, str | int], span: tuple[float, float], note: str
) -> Label:
    onset, end = (_ms(scenario, at) for at in span)
    return Label(id=name, fault="none", entity=entity, onset=onset, end=end, within_s=0, distractor=True, note=note)


def _draws(run: Run, card: GpuProfile) -> float:
    """Return what all but the thriftiest sixth of a job's GPUs draw while they compute, W."""
    return (1 - card.power_spread) * (
        card.resident_w + run.spec.training.intensity * (card.training_w - card.resident_w)
    )


def _fault(scenario: Scenario, placed: PlacedTruth, runs: Sequence[Run], card: GpuProfile, soonest_s: float) -> Label:
    truth, (start, end) = placed.truth, placed.span
    hit = [
        run
        for run in runs
        if (run.spec.id in placed.jobs or set(placed.nodes) & set(run.nodes))
        and run.spec.start < end
        and run.end > start
    ]
    fields: dict[str, object] = {
        "id": truth.id,
        "fault": truth.fault,
        "entity": dict(placed.entity),
        "onset": _ms(scenario, start),
        "end": _ms(scenario, end),
        "within_s": max(truth.within_s, soonest_s),
    }
    if placed.also:
        fields["also"] = [dict(entity) for entity in placed.also]
    for name in ("cause", "note", "incident", "root", "optional"):
        if value := getattr(truth, name):
            fields[name] = value
    if placed.in_traffic and not any(set(run.nodes) - set(placed.nodes) for run in hit):
        fields["optional"] = True
    if placed.allows_w is not None and not any(_draws(run, card) > placed.allows_w for run in hit):
        fields["optional"] = True
    if hit:
        fields["job_id"] = hit[0].spec.id
    if truth.root and hit:
        fields["impact"] = _impact(hit, start, end)
    return Label.model_validate(fields)


def _impact(runs: Sequence[Run], start: float, end: float) -> dict[str, int | float]:
    """Return what it cost: the jobs' steps that lie wholly in it are compared with their healthy ones.

    Where none does, because the job stood still, all its time in it is lost but that of the steps begun then. A job
    that it ended loses its last stand and all the work since its last checkpoint, which must be done again.
    """
    factors, lost, gpus = [1.0], 0.0, 0
    for run in runs:
        stop = run.start + run.total
        during = (run.start >= start) & (stop <= end)
        healthy = np.arange(len(run.start)) >= len(run.spec.training.warm_up) - run.skipped
        healthy &= (stop <= start) | (run.start >= end)
        usual = float(np.median(run.total[healthy])) if healthy.any() else run.spec.training.usual_step_s
        stretch = min(end, run.end) - max(start, run.spec.start)
        touched = (run.start < end) & (stop > start)
        longest = float((np.minimum(stop, end) - run.start)[touched].max(initial=0.0))
        stood = longest - usual if longest > _STOOD_STILL * usual else 0.0
        factor = max(1.0, float(np.median(run.total[during])) / usual) if during.any() else 1.0
        lost += len(run.gpus) / 3600 * min(stretch, stood + (stretch - stood) * (1 - 1 / factor))
        if run.state in _KILLED and start <= run.end <= end and len(run.start):
            saved = max([at for _, at in run.checkpoints if at <= run.end], default=float(run.start[0]))
            lost += len(run.gpus) / 3600 * max(0.0, run.end - saved - stood)
        gpus += len(run.gpus)
        factors.append(max(factor, longest / usual if stood else 1.0))
    return {
        "gpus": gpus,
        "jobs": len(runs),
        "step_time_factor": round(max(factors), 2),
        "gpu_hours_lost": round(lost, 1),
    }
