"""What the incident did to jobs, stated no more surely than their steps show."""

from detectors.incidents.report import Impact, Touched
from services.postmortem.case import Case

_ENDED_WELL = "COMPLETED"


def hours_lost(impact: Impact) -> float | None:
    """Return the GPU-hours lost; None where no step shows them: of a job that ends at once that is not zero."""
    measured = any(one.step_time_factor is not None or one.stood_s > 0 for one in impact.jobs)
    return impact.gpu_hours_lost if measured or not impact.jobs else None


def factor(impact: Impact) -> float | None:
    """Return how many times as long the worst job's steps took; None where no job's are known."""
    return impact.step_time_factor if any(one.step_time_factor is not None for one in impact.jobs) else None


def cut_short(case: Case) -> list[Touched]:
    """Return the touched jobs that ended while it lasted, but for those that were done."""
    well = {job.job_id for job in case.jobs if job.state == _ENDED_WELL}
    over = case.over_at or case.recording.manifest.end
    return [
        one
        for one in case.incident.impact.jobs
        if one.ended_at is not None and case.onset <= one.ended_at <= over and one.job_id not in well
    ]
