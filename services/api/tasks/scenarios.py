"""The scenarios that come with hindcast: which there are, what was made of them, and what a recording of one takes."""

import shutil
from functools import cache
from typing import NamedTuple

from detectors.nearest import meant
from services.api.recordings.library import Library, Place
from services.api.recordings.models import Cluster
from services.api.runs.runs import Runs
from services.api.tasks.scenario_models import MakeRequest, Scenario
from services.api.tasks.tasks import Tasks
from services.kit.errors import UserError
from services.kit.problems import RefusedError
from services.recording.reader import read_manifest
from services.synth.cluster.profile import ClusterProfile
from services.synth.library import scenario_paths
from services.synth.make import Variant, cluster_that_fits
from services.synth.story.scenario import load_scenario

# Fitted to eight makings on two cores: 2.3 s and 3 MB of 23 GPUs for three hours, 7.5 s and 59 MB of 768, 15.6 s and
# 60 MB of 288 for 38 hours.
_START_S, _S_PER_READING, _S_PER_HOUR = 2.0, 3e-6, 0.25
_BYTES_PER_READING, _BYTES_PER_HOUR = 45, 600_000


class _Cost(NamedTuple):
    seconds: float
    size_bytes: int


def _cost(profile: ClusterProfile, duration_s: float) -> _Cost:
    """Return about how long making a recording takes, and how large it is."""
    readings, hours = profile.gpu_count * duration_s / profile.collector_interval_s, duration_s / 3600
    seconds = _START_S + _S_PER_READING * readings + _S_PER_HOUR * hours
    return _Cost(round(seconds, 1), round(_BYTES_PER_READING * readings + _BYTES_PER_HOUR * hours))


@cache
def _written() -> tuple[Scenario, ...]:
    """Return the scenarios as their files say it: those do not change while a service runs."""
    found = []
    for name, path in scenario_paths().items():
        scenario, profile, _ = load_scenario(path)
        interval = scenario.interval_s or profile.collector_interval_s
        cost = _cost(profile.model_copy(update={"collector_interval_s": interval}), scenario.duration)
        found.append(
            Scenario(
                name=name,
                title=scenario.title,
                summary=" ".join(scenario.summary.split()),
                duration_s=scenario.duration,
                cluster=Cluster(
                    name=profile.name, nodes=profile.nodes, gpus=profile.gpu_count, gpu_model=profile.gpu.model
                ),
                faults=sorted({one.truth.fault for one in scenario.happenings if one.truth is not None}),
                source=scenario.source,
                seed=scenario.seed,
                making_s=cost.seconds,
                making_bytes=cost.size_bytes,
                recording=None,
            )
        )
    return tuple(found)


def listed(library: Library) -> list[Scenario]:
    """Return the scenarios by name, each with what was made of it."""
    places = library.places()
    made = {one.name for one in _written() if one.name in places and _is_whole(places[one.name])}
    return [one.model_copy(update={"recording": one.name if one.name in made else None}) for one in _written()]


def checked(scenario: str, asked: MakeRequest, library: Library, tasks: Tasks, runs: Runs) -> str:
    """Return the name that a recording to be made will have.

    Raises RefusedError: 422 where nothing can be made of what is asked, 409 where there is one already, or it is being
    made, 507 where the disk has no room for it.
    """
    path = scenario_paths().get(scenario)
    if path is None:
        problem = f"there is no scenario {scenario}{meant(scenario, scenario_paths())}"
        raise RefusedError(422, problem, remedy="GET /api/v1/scenarios lists those there are")
    try:
        variant = Variant(asked.seed, asked.scale, world=asked.world)
        written, world = cluster_that_fits(path, variant)
    except UserError as error:
        raise RefusedError(422, error.message, remedy=error.remedy) from None
    name = written.name + variant.suffix
    _check_free(name, asked.overwrite, library, tasks, runs)
    needed, free = _cost(world.profile, written.duration).size_bytes, shutil.disk_usage(library.imported.parent).free
    if needed > free:
        problem = f"the disk is full: {name} is about {needed / 1e6:,.0f} MB, and {free / 1e6:,.0f} MB are free"
        raise RefusedError(507, problem, remedy="make room where the service keeps its data, or give a smaller scale")
    return name


def _check_free(name: str, overwrite: bool, library: Library, tasks: Tasks, runs: Runs) -> None:
    for task in tasks.going_on("make"):
        if task.asked["recording"] == name:
            raise RefusedError(409, f"{name} is being made", remedy=f"wait for task {task.id}, or cancel it")
    place = library.places().get(name)
    if place is None or (place.read_only and not _is_whole(place)):
        return
    if not overwrite:
        remedy = "open it, or give another seed, scale or world; `overwrite` replaces it"
        raise RefusedError(409, f"there is a recording {name}", remedy=remedy)
    if runs.uses(name):
        raise RefusedError(409, f"a run of {name} waits or is running", remedy="cancel it first, or wait")


def _is_whole(place: Place) -> bool:
    """Return whether a recording is all that the generator made, and not the small part that comes with hindcast."""
    try:
        manifest = read_manifest(place.path)
    except (UserError, FileNotFoundError):  # the list of recordings says more, or it was deleted just now
        return False
    return {"generator", "cut_of"} & (manifest.model_extra or {}).keys() == {"generator"}
