"""A recording that a task has made: put among those that were imported, what others measured validated before."""

from pathlib import Path
from typing import TYPE_CHECKING

from services.api.tasks.models import TaskResult
from services.kit.errors import UserError
from services.recording.validate import validate_recording

if TYPE_CHECKING:
    from services.api.tasks.process import Work
    from services.recording.importers.contract import Report

_SHOWN = 10


def taken(work: "Work", made: Path, report: "Report") -> TaskResult:
    """Keep what a capture or an import has made; UserError where it is not valid, or there is one of that name."""
    work.say("validating")
    violations = validate_recording(made)
    if violations:
        shown = "; ".join(str(violation) for violation in violations[:_SHOWN])
        raise UserError(f"what was made is no valid recording: {shown}", remedy="report it, with the source")
    return kept(work, made, str(report).replace(str(work.scratch), "..."))


def kept(work: "Work", made: Path, notes: str | None = None, *, overwrite: bool = False) -> TaskResult:
    """Put a recording where it is found; UserError where there is one of that name that is not to be replaced."""
    target = Path(work.needs["recordings"]) / made.name
    target.parent.mkdir(parents=True, exist_ok=True)
    replaced = work.scratch / "replaced"
    if overwrite and target.exists():
        target.rename(replaced)
    try:
        made.rename(target)  # which takes no folder's place that has files in it
    except OSError:
        raise UserError(f"there is a recording {made.name}", remedy="give this one another name") from None
    return TaskResult(recording=made.name, notes=notes)
