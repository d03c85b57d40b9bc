"""What the incident did to jobs, stated no more surely than their steps show."""

from detectors.incidents.report import Touched
from services.postmortem.case import Case

_ENDED_WELL = "COMPLETED"


def cut_short(case: Case) -> list[Touched]:
    """Return the touched jobs that ended while it lasted, but for those that were done."""
    well = {job.job_id for job in case.jobs if job.state == _ENDED_WELL}
    over = case.over_at or case.recording.manifest.end
    return [
        one
        for one in case.incident.impact.jobs
        if one.ended_at is not None and case.onset <= one.ended_at <= over and one.job_id not in well
    ]
