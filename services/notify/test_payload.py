import pytest

from services.kit.wire import WireError
from services.notify.conftest import MadeRecord, Make
from services.notify.finding_record import finding_record_of
from services.notify.payload import annotations_of, labels_of


def test_labels_follow_the_schema_and_hold_nothing_that_changes(make: Make) -> None:
    labels = dict(labels_of(finding_record_of(make(1))))
    assert labels == {
        "alertname": "PowerThrottle",
        "fault": "power_throttle",
        "severity": "page",
        "cluster": "vela",
        "node": "node-7",
        "replay": "drill",
        "source": "detector",
        "detector": "power_throttle",
    }


def test_the_rack_is_a_label_where_it_is_known(make: Make) -> None:
    plain = finding_record_of(make(1))
    assert dict(labels_of(plain._replace(rack="r07"))) == dict(labels_of(plain)) | {"rack": "r07"}


def test_labels_of_another_run_generation_and_state_are_the_same(make: Make) -> None:
    one = labels_of(finding_record_of(make(1)))
    other = labels_of(finding_record_of(make(9, "resolved", onset_ms=1_700_000_900_000, generation=3, shift_ms=77)))
    assert one == other


def test_annotations_hold_recording_time_and_shifted_time(make: Make) -> None:
    annotations = annotations_of(
        finding_record_of(make(1, shift_ms=3_600_000)), runbook_base_url="https://runbooks.example/d/"
    )
    assert annotations["started_at"] == "2023-11-14T22:13:20.000Z"
    assert annotations["started_at_shifted"] == "2023-11-14T23:13:20.000Z"
    assert annotations["detected_at_shifted"] == "2023-11-14T23:13:35.000Z"
    assert annotations["evidence"] == "gpus: 8\npeers_power_w: 398.5\npower_w: 151.25"
    assert annotations["runbook_url"] == "https://runbooks.example/d/power_throttle/runbook.md"


def test_the_incident_is_an_annotation_and_no_label(make: Make) -> None:
    plain, put = make(1), make(1, headers=[("incident", b"4f3a")])
    assert annotations_of(finding_record_of(put), runbook_base_url=None)["incident"] == "4f3a"
    assert "incident" not in annotations_of(finding_record_of(plain), runbook_base_url=None)
    assert labels_of(finding_record_of(put)) == labels_of(finding_record_of(plain))


def test_a_live_alert_has_one_time_only(make: Make) -> None:
    annotations = annotations_of(finding_record_of(make(1, replay="live")), runbook_base_url=None)
    assert "started_at" in annotations
    assert not [name for name in annotations if name.endswith("_shifted") or name == "runbook_url"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"not json", "Invalid JSON"),
        (b"", "no value"),
        (b"{}", "id: Field required"),
        (b'{"started_at": "yesterday"}', "started_at: Value error, 'yesterday' is not an RFC 3339 time"),
        (b'{"started_at": 5}', "started_at: Value error, not a time as text"),
        (b'{"fault": "gremlins"}', "fault: Value error, no such fault"),
    ],
)
def test_an_unreadable_finding_is_named(make: Make, value: bytes, reason: str) -> None:
    record = MadeRecord(value, make(1).headers, 1)
    with pytest.raises(WireError, match=reason):
        finding_record_of(record)


def test_a_finding_that_ends_before_it_began_is_refused(make: Make) -> None:
    with pytest.raises(WireError, match="before started_at"):
        finding_record_of(make(1, at_ms=1))


def test_a_record_without_origin_is_refused(make: Make) -> None:
    with pytest.raises(WireError, match="unknown schema"):
        finding_record_of(MadeRecord(make(1).value, [], 1))
