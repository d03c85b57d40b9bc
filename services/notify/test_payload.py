from services.kit.findings import finding_record_of
from services.notify.conftest import Make
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
