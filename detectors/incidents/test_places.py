from detectors.fleet.fleet import Job, JobEvent
from detectors.incidents.places import Places

_HOUR = 3_600_000


def test_a_job_that_went_on_without_a_node_and_is_forgotten_leaves_no_trace_there() -> None:
    """A job that is found by its nodes' work in step gains and loses nodes; one that is requeued moves to others."""
    places = Places({})
    places.happen(JobEvent(0, "start", Job("812", ("n1", "n2"), 0)))
    places.happen(JobEvent(_HOUR, "start", Job("812", ("n2", "n3"), 0)))
    assert places.lot({"node": "n3"}, _HOUR, 2 * _HOUR).touched == ("812",)
    assert places.lot({"node": "n1"}, _HOUR, 2 * _HOUR).touched == ()
    places.happen(JobEvent(2 * _HOUR, "end", Job("812", ("n2", "n3"), 0)))
    places.happen(JobEvent(12 * _HOUR, "start", Job("813", ("n4",), 12 * _HOUR)))
    for node in ("n1", "n2", "n3"):
        assert places.lot({"node": node}, 0, 13 * _HOUR).touched == ()
