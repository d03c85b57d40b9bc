"""Whose job a node had, or has."""

import pytest

from detectors.fleet.fleet import Fleet, Job, JobEvent
from detectors.fleet.tenancy import Tenancy

JOB = Job("7", ("n1",), 0, 8)


@pytest.mark.parametrize(("last_ms", "job_id"), [(98_000, "7"), (100_000, "7"), (104_000, None)])
def test_a_job_that_ends_with_the_last_reading_of_its_node_was_that_nodes(last_ms: int, job_id: str | None) -> None:
    tenancy = Tenancy(fleet := Fleet())
    fleet.happen(JobEvent(0, "start", JOB))
    tenancy.note(95_000)
    fleet.happen(JobEvent(98_000, "end", JOB))
    tenancy.note(100_000)
    assert tenancy.job("n1", last_ms) == job_id
