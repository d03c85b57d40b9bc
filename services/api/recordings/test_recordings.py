"""Recordings over HTTP: answers are what their files hold."""

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from services.api.conftest import SMALL, Client, client_of, settings_at

BRAKE = "/api/v1/recordings/vela-power-brake"
POWER = "DCGM_FI_DEV_POWER_USAGE"


def test_the_library_is_listed(api: Client) -> None:
    listed = {one["name"]: one for one in api.get("/api/v1/recordings").json()}
    assert set(listed) == {path.name for path in SMALL.iterdir()}
    brake = listed["vela-power-brake"]
    assert (brake["faults"], brake["labelled"], brake["read_only"]) == (["power_throttle"], 1, True)
    assert brake["duration_s"] == 26 * 60


def test_one_has_its_machines_jobs_and_truths(api: Client) -> None:
    answer = api.get(BRAKE).json()
    assert [node["name"] for node in answer["nodes"]] == ["v001", "v002", "v003"]
    assert answer["nodes"][0]["gpus"] == list(range(8))
    assert answer["jobs"][0]["job_id"] == "812"
    (fault,) = [truth for truth in answer["truths"] if not truth["distractor"]]
    assert (fault["entity"], fault["onset"]) == ({"node": "v002"}, "2024-04-01T09:30:00.000Z")
    dcgm = next(stream for stream in answer["streams"] if stream["kind"] == "dcgm")
    assert dcgm["keys"] == ["node", "gpu"]
    assert POWER in dcgm["fields"]
    assert not {"node", "gpu", "timestamp"} & set(dcgm["fields"])


def test_coverage_lists_what_the_telemetry_can_show(api: Client) -> None:
    answer = api.get(f"{BRAKE}/coverage").json()
    assert len(answer["faults"]) == 19
    assert answer["intervals_s"]["dcgm"] == 15
    assert not answer["inferred_jobs"]
    assert all(one["levels"] or one["verdict"] != "sees" for one in answer["faults"])
    assert api.get("/api/v1/recordings/none/coverage").status_code == 404


def test_a_series_holds_every_reading_between_its_lowest_and_highest(api: Client) -> None:
    asked = {"kind": "dcgm", "field": POWER, "entities": "v002/3", "points": 20}
    answer = api.get(f"{BRAKE}/series", params=asked).json()
    (series,) = answer["series"]
    assert series["entity"] == {"node": "v002", "gpu": 3}
    times, values = _readings("v002", 3)
    bucket = (times - answer["times"][0]) // answer["bucket_ms"]
    for number, (low, high, mean) in enumerate(zip(series["min"], series["max"], series["mean"], strict=True)):
        own = values[bucket == number]
        if len(own):
            assert (low, high, mean) == pytest.approx((own.min(), own.max(), own.mean()), rel=1e-6)
        else:
            assert (low, high, mean) == (None, None, None)


def _readings(node: str, gpu: int) -> tuple[np.ndarray, np.ndarray]:
    table = pq.read_table(SMALL / "vela-power-brake" / "dcgm.parquet", columns=["timestamp", "node", "gpu", POWER])
    mine = np.array(
        [a == node and b == gpu for a, b in zip(table["node"].to_pylist(), table["gpu"].to_pylist(), strict=True)]
    )
    times = table["timestamp"].cast(pa.int64()).to_numpy()[mine]
    values = np.array([np.nan if one is None else one for one in table[POWER].to_pylist()], dtype=float)[mine]
    return times[~np.isnan(values)], values[~np.isnan(values)]


def test_the_culprit_leaves_the_band_of_its_peers_during_the_fault_only(api: Client) -> None:
    asked = {"kind": "dcgm", "field": "DCGM_FI_DEV_SM_CLOCK", "entities": "v002", "points": 100}
    answer = api.get(f"{BRAKE}/series", params=asked).json()
    assert len(answer["series"]) == 8
    band, times = answer["band"], np.array(answer["times"])
    assert (band["about"], band["peers"]) == ("job 812", 16)
    onset, end = 1711963800000, 1711963800000 + 17 * 60_000
    low = np.array([np.nan if one is None else one for one in band["low"]])
    clock = np.array([np.nan if one is None else one for one in answer["series"][0]["mean"]])
    during = (times > onset + 60_000) & (times < end - 60_000) & ~np.isnan(clock)
    assert during.any()
    assert (clock[during] < low[during]).all()
    assert (np.array(band["median"])[during] > clock[during]).all()


def test_what_found_no_room_in_a_chart_is_no_band_of_peers(api: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"kind": "steps", "field": "compute_s", "entities": "812", "points": 60}
    whole = api.get(f"{BRAKE}/series", params=asked).json()
    monkeypatch.setattr("services.api.recordings.charts.MOST_SERIES", 16)
    cut = api.get(f"{BRAKE}/series", params=asked).json()
    assert (len(cut["series"]), cut["left_out"]) == (16, len(whole["series"]) - 16)
    assert cut["band"] == whole["band"]


def test_a_counter_becomes_a_rate(api: Client) -> None:
    asked = {"kind": "nic", "field": "port_xmit_data", "entities": "v001/mlx5_0", "rate": "true", "points": 5000}
    answer = api.get(f"{BRAKE}/series", params=asked).json()
    rates = [one for one in answer["series"][0]["mean"] if one is not None]
    table = pq.read_table(SMALL / "vela-power-brake" / "nic.parquet")
    mine = [
        (int(at.timestamp() * 1000), value)
        for at, node, nic, value in zip(
            *(table[name].to_pylist() for name in ("timestamp", "node", "nic", "port_xmit_data")), strict=True
        )
        if (node, nic) == ("v001", "mlx5_0") and value is not None
    ]
    expected = [(b[1] - a[1]) / ((b[0] - a[0]) / 1000) for a, b in itertools.pairwise(mine) if b[1] >= a[1]]
    assert rates == pytest.approx(expected, rel=1e-5)


def test_windows_are_given_in_three_ways(api: Client) -> None:
    def bounds(from_: str, to: str) -> tuple[int, int]:
        asked = {"kind": "dcgm", "field": POWER, "entities": "v001/0", "from": from_, "to": to}
        answer = api.get(f"{BRAKE}/series", params=asked).json()
        return answer["from_ms"], answer["to_ms"]

    expected = (1711963800000, 1711963860000)
    assert bounds("2024-04-01T09:30:00Z", "2024-04-01T09:31:00Z") == expected
    assert bounds("+00:06:00", "+00:07:00") == expected
    assert bounds("1711963800000", "1711963860000") == expected
    by_hand = api.get(f"{BRAKE}/series?kind=dcgm&field={POWER}&from=+00:06:00&to=+00:07:00").json()
    assert (by_hand["from_ms"], by_hand["to_ms"]) == expected


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"kind": "dcgm", "field": "nonsense"}, "dcgm has no field nonsense"),
        ({"kind": "dcgm", "field": "\0"}, "dcgm has no field"),
        ({"kind": "dcgm", "field": "node"}, "node of dcgm is no reading"),
        ({"kind": "bmc", "field": "unit"}, "unit of bmc is no reading"),
        ({"kind": "dcgm", "field": POWER, "from": "yesterday"}, "not an RFC 3339 time"),
        ({"kind": "dcgm", "field": POWER, "from": "+00:07:00", "to": "+00:06:00"}, "the window is empty"),
        ({"kind": "dcgm", "field": POWER, "points": "0"}, "greater than or equal to 1"),
        ({"kind": "weather", "field": POWER}, "kind"),
    ],
)
def test_what_cannot_be_drawn_is_a_problem_with_a_remedy(api: Client, asked: dict[str, str], words: str) -> None:
    answer = api.get(f"{BRAKE}/series", params=asked)
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert words in answer.json()["detail"]
    assert answer.json()["remedy"]


@pytest.mark.parametrize("kind", ["nic", "switch", "bmc", "steps", "storage"])
def test_every_kind_can_be_drawn(api: Client, kind: str) -> None:
    stream = next(one for one in api.get(BRAKE).json()["streams"] if one["kind"] == kind)
    answer = api.get(f"{BRAKE}/series", params={"kind": kind, "field": stream["fields"][0], "points": 50}).json()
    assert answer["series"]
    assert set(answer["series"][0]["entity"]) == set(stream["keys"])
    key = answer["series"][0]["key"]
    again = api.get(f"{BRAKE}/series", params={"kind": kind, "field": stream["fields"][0], "entities": key}).json()
    assert [one["key"] for one in again["series"]] == [key]


def test_logs_are_filtered(api: Client) -> None:
    whole = api.get(f"{BRAKE}/logs", params={"limit": 5000}).json()
    lines = (SMALL / "vela-power-brake" / "events.jsonl").read_text(encoding="utf-8").splitlines()
    assert (len(whole["items"]), whole["more"]) == (len(lines), False)
    some = api.get(f"{BRAKE}/logs", params={"source": "sel", "node": "v002", "limit": 1}).json()
    assert [(one["source"], one["node"]) for one in some["items"]] == [("sel", "v002")]


def test_what_is_not_there_is_a_problem(api: Client) -> None:
    for path in ("recordings/nothing", "recordings/nothing/heatmap", "recordings/..%2F..%2Fetc", "runs/0", "nowhere"):
        answer = api.get(f"/api/v1/{path}")
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json"), path
        assert answer.json()["remedy"]


def test_the_library_is_not_deleted_from(api: Client) -> None:
    assert api.delete(BRAKE).status_code == 403
    assert (SMALL / "vela-power-brake" / "recording.yaml").exists()


def test_nobody_is_silent_at_the_end_whose_reading_was_not_due(api: Client) -> None:
    answer = api.get(f"{BRAKE}/heatmap", params={"points": 50}).json()
    assert answer["times"][-1] == answer["to_ms"]
    assert {row[-1] for row in answer["cells"]} <= {".", "o"}


def test_the_heat_map_shows_what_is_there_to_read(api: Client) -> None:
    answer = api.get(f"{BRAKE}/heatmap", params={"points": 50}).json()
    assert [(row["node"], row["gpu"]) for row in answer["rows"]][:9] == [*(("v001", n) for n in range(8)), ("v002", 0)]
    assert {len(row) for row in answer["cells"]} == {len(answer["times"])}
    assert set("".join(answer["cells"])) <= set("-.o")
    assert "o" in answer["cells"][0]


def test_without_entities_all_are_drawn(api: Client) -> None:
    asked = {"kind": "dcgm", "field": POWER, "points": 100}
    answer = api.get(f"{BRAKE}/series", params=asked).json()
    assert len(answer["series"]) == 24
    assert answer["left_out"] == 0
    assert answer["band"] is None


def test_a_recording_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    broken = tmp_path / "library" / "broken"
    broken.mkdir(parents=True)
    (broken / "recording.yaml").write_text("format: of another kind", encoding="utf-8")
    with client_of(settings_at(tmp_path, library=(SMALL, tmp_path / "library"))) as client:
        assert len(client.get("/api/v1/recordings").json()) == len(list(SMALL.iterdir()))
        assert client.get("/api/v1/recordings/broken").status_code == 422


def test_the_console_is_served_where_it_is_built(tmp_path: Path) -> None:
    console = tmp_path / "console"
    console.mkdir()
    (console / "index.html").write_text("<title>hindcast</title>", encoding="utf-8")
    with client_of(settings_at(tmp_path, console_dir=console)) as client:
        for path in ("/", "/recordings/vela-power-brake", "/runs/0123456789ab/incidents"):
            assert client.get(path).text == "<title>hindcast</title>"
        for path in ("/api/v1/nothing", "/assets/missing.js", "/../settings.py"):
            assert client.get(path).status_code == 404


def test_where_no_console_is_built_it_says_so(tmp_path: Path) -> None:
    with client_of(settings_at(tmp_path)) as client:
        answer = client.get("/")
        assert (answer.status_code, answer.json()["detail"]) == (404, "there is no console here")
        assert "make console" in answer.json()["remedy"]
