"""What a user means by a recording: its directory, or the name of a scenario whose recording is made already."""

from pathlib import Path
from typing import Annotated

import typer

from services.kit.errors import UsageError


def recording_of(given: Path | None) -> Path | None:
    """Return the directory that is meant; what is there is taken as it is.

    UserError: it is the name of a scenario whose recording is not made, or nothing at all.
    """
    from detectors.nearest import meant
    from services.kit.folders import cache_dir
    from services.synth.library import is_made, scenario_paths

    if given is None or given.exists():
        return given
    scenarios, name = scenario_paths(), str(given)
    if name in scenarios:
        made = cache_dir("recordings") / name
        if is_made(scenarios[name], made):
            return made
        problem = f"{name}: a scenario, of which no recording is made yet (or it has changed since)"
        raise UsageError(problem, remedy=f"`hindcast make {name}` makes it")
    beside = [path.parent.name for path in given.parent.glob("*/recording.yaml")]
    raise UsageError(
        f"{given}: no such recording{meant(given.name, [*beside, *scenarios])}",
        remedy="give the directory that holds recording.yaml, or a name that `hindcast list` shows",
    )


def recordings_of(given: list[Path] | None) -> list[Path] | None:
    """Return the directories that are meant; UserError as for `recording_of`."""
    return None if given is None else [found for path in given if (found := recording_of(path)) is not None]


NewDir = Annotated[Path, typer.Option(help="directory to write; must not exist yet")]
RecordingDir = Annotated[
    Path,
    typer.Argument(help="a recording's directory, or its scenario's name", callback=recording_of, show_default=False),
]
