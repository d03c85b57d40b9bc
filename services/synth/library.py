"""The incident library: which scenarios there are, and their recordings in the user's cache."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from detectors.nearest import meant
from services.kit.errors import UsageError
from services.kit.folders import cache_dir
from services.kit.shipped import shipped
from services.recording.reader import read_manifest
from services.synth.make import AS_WRITTEN, Progress, Variant, fingerprint
from services.synth.portable import make_portably
from services.synth.story.scenario import load_scenario

LIBRARY = shipped("replay-data")


def scenario_paths() -> dict[str, Path]:
    """Return the scenario files of the library by name."""
    return {path.parent.name: path for path in sorted(LIBRARY.glob("*/scenario.yaml"))}


def find_scenario(name: str) -> Path:
    """Return the file of a scenario given by name or path; UserError if there is none."""
    path = Path(name)
    if path.is_dir() and (path / "scenario.yaml").exists():
        return path / "scenario.yaml"
    if path.is_file():
        return path
    found = scenario_paths()
    if name not in found:
        problem = f"no scenario {name!r}{meant(name, found)}"
        raise UsageError(problem, remedy=f"there are: {', '.join(found) or 'none'}")
    return found[name]


def is_made(scenario_path: Path, out: Path, variant: Variant = AS_WRITTEN) -> bool:
    """Return whether ``out`` already holds what making the scenario would give."""
    if not (out / "recording.yaml").exists():
        return False
    made_by = (read_manifest(out).model_extra or {}).get("generator")
    return isinstance(made_by, dict) and made_by.get("fingerprint") == fingerprint(scenario_path, variant)


@dataclass(frozen=True)
class Made:
    """A recording that is there now, and whether it was there before."""

    path: Path
    cached: bool


def ensure_recording(
    scenario: str, out: Path | None = None, variant: Variant = AS_WRITTEN, progress: Progress | None = None
) -> Made:
    """Make the recording of a scenario (name or file) unless ``out`` already holds just that.

    Without ``out`` it goes to the cache, under its name and what varies, where an outdated one is replaced.
    UserError: ``out`` is given and holds something else.
    """
    path = find_scenario(scenario)
    name = load_scenario(path)[0].name + variant.suffix
    target = out or cache_dir("recordings") / name
    if is_made(path, target, variant):
        return Made(target, cached=True)
    if out is not None:
        return Made(make_portably(path, target, variant, progress, name=out.resolve().name), cached=False)
    staged = target.with_name(f".{target.name}.{os.getpid()}.made")
    shutil.rmtree(staged, ignore_errors=True)
    make_portably(path, staged, variant, progress, name=name)
    if not is_made(path, target, variant):  # another process may have been quicker
        outdated = target.with_name(f".{target.name}.{os.getpid()}.outdated")
        if target.exists():
            target.rename(outdated)
        staged.rename(target)
        shutil.rmtree(outdated, ignore_errors=True)
    shutil.rmtree(staged, ignore_errors=True)
    return Made(target, cached=False)


def cached_recording(name: str) -> Path:
    """Return the recording of a scenario of the library from the cache; make it first if it is not there."""
    return ensure_recording(name).path
