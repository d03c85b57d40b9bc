"""Runs over HTTP: the same findings as on the command line, streamed, stored, judged, labelled, compared."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from services.api.conftest import SMALL, Client, client_of, run_over, settings_at
from services.kit.wait import until
from services.recording.embedded import findings_of
from services.recording.reader import Recording

Done = tuple[Client, str]


def events_of(client: Client, run: str, **headers: str) -> Iterator[tuple[str, str, Any]]:
    text = client.get(f"/api/v1/runs/{run}/events", headers=headers).text
    for block in text.strip().split("\n\n"):
        parts = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if parts:
            yield parts["event"], parts.get("id", ""), json.loads(parts["data"])


def test_findings_are_those_of_the_command_line(done: Done) -> None:
    client, run = done
    answer = client.get(f"/api/v1/runs/{run}/findings").json()
    raised = [one for one in findings_of(Recording.open(SMALL / "vela-power-brake")) if one.state == "firing"]
    assert [one["id"] for one in answer["items"]] == [one.id for one in raised]
    assert answer["total"] == len(raised) >= 1
    for one, expected in zip(answer["items"], raised, strict=True):
        plain = json.loads(expected.to_json())
        assert {name: one[name] for name in plain if name != "state"} == {
            n: v for n, v in plain.items() if n != "state"
        }


def test_findings_are_judged_against_the_labels(done: Done) -> None:
    client, run = done
    (hit,) = client.get(f"/api/v1/runs/{run}/findings", params={"verdict": "hit"}).json()["items"]
    assert (hit["fault"], hit["entity"]["node"], hit["truth"]) == ("power_throttle", "v002", "f1")
    assert 0 <= hit["delay_s"] <= 90
    timeline = client.get(f"/api/v1/runs/{run}/timeline").json()
    score = timeline["score"]
    assert (score["labels"], score["hits"], score["misses"], score["recall"]) == (1, 1, 0, 1.0)
    moments = [(entry["at"], entry["moment"]) for entry in timeline["entries"] if entry["moment"] in ("onset", "end")]
    assert moments == [("2024-04-01T09:30:00.000Z", "onset"), ("2024-04-01T09:47:02.000Z", "end")]
    ats = [entry["at"] for entry in timeline["entries"]]
    assert ats == sorted(ats)


def test_findings_are_filtered_and_paged(done: Done) -> None:
    client, run = done
    whole = client.get(f"/api/v1/runs/{run}/findings").json()
    ids: list[str] = []
    after: str | None = "0"
    while after is not None:
        page = client.get(f"/api/v1/runs/{run}/findings", params={"limit": 1, "after": after}).json()
        ids += [one["id"] for one in page["items"]]
        after = page["next"]
    assert ids == [one["id"] for one in whole["items"]]
    none = client.get(f"/api/v1/runs/{run}/findings", params={"node": "v003", "fault": "power_throttle"}).json()
    assert (none["items"], none["total"], none["next"]) == ([], 0, None)
    one = client.get(f"/api/v1/runs/{run}/findings/{ids[0]}").json()
    assert one == whole["items"][0]
    assert client.get(f"/api/v1/runs/{run}/findings/0123456789abcdef").status_code == 404


def test_the_incident_names_its_root_and_its_runbook(done: Done) -> None:
    client, run = done
    incidents = client.get(f"/api/v1/runs/{run}/incidents").json()["items"]
    answer = client.get(f"/api/v1/runs/{run}/incidents/{incidents[0]['id']}").json()
    assert (answer["causes"][0]["fault"], answer["causes"][0]["entity"]["node"]) == ("power_throttle", "v002")
    assert "power_throttle" in answer["runbooks"]
    assert answer["impact"]["nodes"] >= 1


def test_events_come_in_order_and_can_be_taken_up_again(done: Done) -> None:
    client, run = done
    events = list(events_of(client, run))
    assert events[-1][0] == "over"
    assert events[-1][2]["state"] == "done"
    numbers = [int(number) for _, number, _ in events[:-1]]
    assert numbers == list(range(1, len(numbers) + 1))
    findings = {body["id"] for kind, _, body in events if kind == "finding"}
    assert findings == {one["id"] for one in client.get(f"/api/v1/runs/{run}/findings").json()["items"]}
    later = list(events_of(client, run, **{"Last-Event-ID": str(numbers[0])}))
    assert later == events[1:]


def test_there_are_so_many_viewers_and_no_more(done: Done) -> None:
    client, run = done
    streams = client._app.state.streams
    most, streams._most = streams._most, 0
    assert client.get(f"/api/v1/runs/{run}/events").status_code == 503
    streams._most = 1
    for _ in range(3):  # each place is given back
        assert client.get(f"/api/v1/runs/{run}/events").status_code == 200
    assert client.get("/api/v1/runs/0123456789ab/events").status_code == 404
    assert streams._viewers == 0
    streams._most = most


def test_what_an_earlier_version_took_is_still_shown(done: Done) -> None:
    client, run = done
    with client._app.state.streams._runs._store.writing() as db:
        db.execute("UPDATE runs SET detectors = ? WHERE id = ?", ('{"X": {"hang_s": Infinity}}', run))
    assert client.get(f"/api/v1/runs/{run}").json()["detectors"] == {"X": {"hang_s": None}}


def test_the_heat_map_of_a_run_shows_the_finding_on_the_node(done: Done) -> None:
    client, run = done
    answer = client.get("/api/v1/recordings/vela-power-brake/heatmap", params={"run": run, "points": 60}).json()
    marked = {
        row["node"] for row, cells in zip(answer["rows"], answer["cells"], strict=True) if set(cells) & set("itp")
    }
    assert marked == {"v002"}
    other = client.get("/api/v1/recordings/vela-healthy/heatmap", params={"run": run})
    assert other.status_code == 400


def test_people_say_whether_it_was_right(done: Done) -> None:
    client, run = done
    finding = client.get(f"/api/v1/runs/{run}/findings").json()["items"][0]["id"]
    asked = {"run": run, "finding": finding, "mark": "wrong", "note": "a drill"}
    made = client.post("/api/v1/labels", json=asked)
    assert made.status_code == 201
    label = made.json()
    assert (label["recording"], label["author"], label["mark"]) == ("vela-power-brake", "local", "wrong")
    changed = client.patch(f"/api/v1/labels/{label['id']}", json={"mark": "right"}).json()
    assert (changed["mark"], changed["note"]) == ("right", "a drill")
    assert client.get("/api/v1/labels", params={"run": run}).json() == [changed]
    assert client.get("/api/v1/labels", params={"recording": "vela-healthy"}).json() == []
    assert client.delete(f"/api/v1/labels/{label['id']}").status_code == 204
    assert client.get("/api/v1/labels").json() == []
    for wrong, status in (
        ({"run": run, "mark": "right"}, 400),
        ({"run": run, "finding": "0123456789abcdef", "mark": "right"}, 404),
        ({"run": "0123456789ab", "finding": finding, "mark": "right"}, 404),
        ({"run": run, "finding": finding, "mark": "perhaps"}, 400),
    ):
        assert client.post("/api/v1/labels", json=wrong).status_code == status


def test_wrong_configurations_are_refused_before_anything_runs(api: Client) -> None:
    for detectors, words in (
        ({"nonsense": {}}, "no such detector"),
        ({"\ud800": {}}, "detectors"),
        ({"job_health": {"hang_spinning_s": float("inf")}}, "finite number"),
        ({"power_throttle": {"confirm_readings": "many"}}, "power_throttle.confirm_readings"),
        ({"incidents": {"hold_s": -1}}, "incidents.hold_s"),
    ):
        asked = json.dumps({"recording": "vela-power-brake", "detectors": detectors})
        answer = api.post("/api/v1/runs", content=asked, headers={"content-type": "application/json"})
        assert (answer.status_code, words in answer.json()["detail"]) == (400, True), answer.text
    assert api.post("/api/v1/runs", json={"recording": "nothing"}).status_code == 404
    assert api.get("/api/v1/runs").json()["total"] == 0


def test_comparing_says_what_a_change_misses(tmp_path: Path) -> None:
    with client_of(settings_at(tmp_path, workers=2)) as client:
        asked = {
            "recordings": ["vela-power-brake"],
            "after": {"power_throttle": {"enabled": False}},
            "title": "without it",
        }
        made = client.post("/api/v1/comparisons", json=asked).json()
        assert (made["state"], made["differences"]) == ("running", None)
        path = f"/api/v1/comparisons/{made['id']}"
        until(lambda: client.get(path).json()["state"] != "running", what="the comparison")
        answer = client.get(path).json()
        assert answer["state"] == "done"
        (missed,) = [one for one in answer["differences"] if one["change"] == "missed"]
        assert (missed["fault"], missed["truth"], missed["entity"]) == ("power_throttle", "f1", {"node": "v002"})
        assert (answer["before_score"]["hits"], answer["after_score"]["hits"]) == (1, 0)
        assert client.get("/api/v1/comparisons").json()[0]["title"] == "without it"
        assert client.delete(f"/api/v1/runs/{answer['before_runs'][0]}").status_code == 409
        assert client.delete(path).status_code == 204
        assert client.get("/api/v1/runs").json()["total"] == 0


def test_a_version_is_compared_with_what_another_found_before(done: Done) -> None:
    client, run = done
    versions = client.get(f"/api/v1/runs/{run}").json()["versions"]
    assert {"hindcast", "power_throttle"} <= versions.keys()
    with client._app.state.streams._runs._store.writing() as db:
        older = json.dumps(versions | {"power_throttle": "0"})
        db.execute("UPDATE runs SET versions = ? WHERE id = ?", (older, run))
    others = {name: {"enabled": False} for name in versions if name not in ("hindcast", "power_throttle")}
    for wrong, status in (
        ({}, 400),
        ({"before_runs": [run], "recordings": ["vela-healthy"]}, 400),
        ({"before_runs": [run, run]}, 400),
        ({"before_runs": ["0123456789ab"]}, 404),
    ):
        assert client.post("/api/v1/comparisons", json=wrong).status_code == status, wrong
    made = client.post("/api/v1/comparisons", json={"before_runs": [run], "after": others}).json()
    assert (made["recordings"], made["before_runs"]) == (["vela-power-brake"], [run])
    path = f"/api/v1/comparisons/{made['id']}"
    until(lambda: client.get(path).json()["state"] != "running", what="the comparison")
    answer = client.get(path).json()
    assert (answer["state"], answer["versions"]) == ("done", {"power_throttle": ["0", versions["power_throttle"]]})
    assert "missed" not in {one["change"] for one in answer["differences"]}
    assert client.delete(f"/api/v1/runs/{run}").status_code == 409
    assert client.delete(path).status_code == 204
    assert client.get(f"/api/v1/runs/{run}").json()["state"] == "done"


def test_runs_outlive_the_service_and_can_be_cancelled(tmp_path: Path) -> None:
    settings = settings_at(tmp_path, waiting=2)
    with client_of(settings) as client:
        first = client.post("/api/v1/runs", json={"recording": "vela-power-brake"}).json()["id"]
        until(lambda: client.get(f"/api/v1/runs/{first}").json()["state"] == "running", what="the start")
        waits = client.post("/api/v1/runs", json={"recording": "vela-healthy"}).json()["id"]
        client.post("/api/v1/runs", json={"recording": "vela-healthy"})
        assert client.post("/api/v1/runs", json={"recording": "vela-healthy"}).status_code == 429
        assert client.delete(f"/api/v1/runs/{waits}").status_code == 409
        assert client.post(f"/api/v1/runs/{waits}/cancel").json()["state"] == "cancelled"
        assert client.post(f"/api/v1/runs/{waits}/cancel").status_code == 409
    with client_of(settings) as client:
        states = {one["id"]: one["state"] for one in client.get("/api/v1/runs").json()["items"]}
        assert states[waits] == "cancelled"
        until(lambda: client.get(f"/api/v1/runs/{first}").json()["state"] == "done", what="the run")
        assert client.get(f"/api/v1/runs/{first}/findings").json()["total"] >= 1
        assert client.delete(f"/api/v1/runs/{first}").status_code == 204
        assert client.get(f"/api/v1/runs/{first}/findings").status_code == 404


def test_shadow_is_kept_and_used(api: Client) -> None:
    listed = api.get("/api/v1/detectors").json()
    spec = next(one for one in listed if one["name"] == "power_throttle")
    assert not spec["shadow"]
    assert {"clock_ratio", "shadow"} <= set(spec["config_schema"]["properties"])
    assert next(one for one in spec["settings"] if one["name"] == "clock_ratio")["value"] == 0.7
    answer = api.put("/api/v1/detectors/power_throttle/shadow", json={"shadow": True}).json()
    assert answer["shadow"]
    assert answer["runbook"].startswith("#")
    run = run_over(api, "vela-power-brake")
    assert api.get(f"/api/v1/runs/{run}").json()["detectors"] == {"power_throttle": {"shadow": True}}
    findings = api.get(f"/api/v1/runs/{run}/findings", params={"detector": "power_throttle"}).json()["items"]
    assert all(one["shadow"] for one in findings)
    assert findings
    assert api.get(f"/api/v1/runs/{run}/timeline").json()["score"]["hits"] == 0
    api.put("/api/v1/detectors/power_throttle/shadow", json={"shadow": False})
    assert not api.get("/api/v1/detectors/power_throttle").json()["shadow"]
    assert api.put("/api/v1/detectors/nothing/shadow", json={"shadow": True}).status_code == 404
