"""A recording of a scenario, made as `hindcast make` makes it."""

from typing import TYPE_CHECKING

from services.api.tasks.models import TaskResult
from services.api.tasks.new_recording import kept
from services.kit.processes import end_in_order
from services.synth.library import ensure_recording, scenario_paths
from services.synth.make import Variant

if TYPE_CHECKING:
    from services.api.tasks.process import Work


def carried_out(work: "Work") -> TaskResult:
    """Make it; UserError where it cannot be made. Where the task is cancelled, the generator is waited for."""
    end_in_order()
    needs = work.needs
    work.say("making")
    made = ensure_recording(
        str(scenario_paths()[needs["scenario"]]),
        out=work.scratch / str(needs["recording"]),
        variant=Variant(needs["seed"], needs["scale"], world=needs["world"]),
        progress=work.move,
    )
    return kept(work, made.path, overwrite=needs["overwrite"])
