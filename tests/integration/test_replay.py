"""The replay service against a real broker: what arrives is the recording, whatever happens on the way."""

import re
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kafka import KafkaConsumer
from typer.testing import CliRunner

from services.cli.pipeline import Pipeline
from services.cli.serving.replay import commands
from services.kit import topics
from services.kit.errors import UserError
from services.kit.kafka import KafkaSettings
from services.kit.replay_directory import ReplayDirectory
from services.kit.replays import REMOVED_MARK, ReplayState
from services.kit.times import format_time, parse_time
from services.kit.units import assigned
from services.kit.wait import until
from services.kit.wire import Watermark
from services.replay.conftest import END, START, write_recording
from tests import web
from tests.integration.recorded_feed import all_records
from tests.integration.replayed import STREAMS, Arrived, Service, arrived, check_marks, expected, unique


def announced_over(kafka: KafkaSettings, unit: str) -> ReplayState:
    """Return the state of a replay that its service has ended, once the topic has it: it is shown before that."""
    with closing(ReplayDirectory(kafka)) as directory:

        def over() -> ReplayState | None:
            directory.follow()
            return state if (state := directory.states[unit]).over else None

        return until(over, what=f"the end of {unit} to be announced")


@contextmanager
def running(kafka: KafkaSettings, folder: Path, **env: str) -> Iterator[Service]:
    service = Service(kafka.bootstrap, folder, env)
    service.start()
    try:
        yield service
    finally:
        assert service.end(signal.SIGTERM) == 0


@pytest.fixture(scope="module")
def service(kafka: KafkaSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The service that most tests share; each of them replays a recording of its own name."""
    with running(kafka, tmp_path_factory.mktemp("replay")) as service:
        yield service


@pytest.fixture
def recording(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A recording named after the test, so that its unit is its own."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower()).strip("-")[:50].strip("-")
    return write_recording(tmp_path / name)


def check_whole(kafka: KafkaSettings, name: str, recording: Path) -> Arrived:
    """Assert that all of a recording has arrived as one generation of a replay; return it."""
    (found,) = arrived(kafka, f"vela/{name}").values()
    for stream in STREAMS:
        assert found.rows(stream) == expected(recording, stream)
    check_marks(found, END)
    return found


def test_what_arrives_is_the_recording(service: Service, kafka: KafkaSettings, recording: Path) -> None:
    name = service.begin(recording, speed="max")
    status = service.wait(name)
    found = check_whole(kafka, name, recording)
    assert {stream: status["rows"][stream] for stream in STREAMS} == {s: len(found.rows(s)) for s in STREAMS}
    assert found.origin.shift_ms == status["shift_ms"]
    assert status["progress"] == 1
    assert status["position"] == format_time(END)


def test_the_topology_and_the_state_come_before_the_first_row(
    service: Service, kafka: KafkaSettings, recording: Path
) -> None:
    name = service.begin(recording, speed="max", shift="keep")
    service.wait(name)
    announced_over(kafka, f"vela/{name}")
    (found,) = arrived(kafka, f"vela/{name}").values()
    announced = [
        (record.key.decode(), record.timestamp, record.value)
        for record in Pipeline(kafka, {}).records(topics.REPLAYS)
        if record.key.decode().startswith(f"vela/{name}")
    ]
    assert [key for key, _, _ in announced] == [f"vela/{name}/topology", f"vela/{name}", f"vela/{name}"]
    first, last = (ReplayState.model_validate_json(value) for _, _, value in announced[1:])
    assert (first.state, last.state) == ("running", "ended")
    assert first.streams == STREAMS
    assert (first.from_ms, first.to_ms, first.shift_ms, first.target) == (START, END, 0, "receive")
    appended = [at for stamps in found.appended_ms.values() for at in stamps]
    assert announced[1][1] <= min(appended)
    assert max(appended) <= announced[2][1]


def test_all_of_a_replay_lies_in_the_partition_that_was_assigned_to_it(
    service: Service, kafka: KafkaSettings, reader: KafkaConsumer, recording: Path
) -> None:
    names = [service.begin(recording, speed="max") for _ in range(3)]
    for name in names:
        service.wait(name)
    recorded = assigned(kafka)
    lies: dict[str, set[tuple[str, int]]] = {name: set() for name in names}
    for topic, stream in topics.declared().streams().items():
        for record in all_records(reader, topic):
            if (name := (record.key or b"").decode().removeprefix("vela/")) in lies:
                lies[name].add((stream, record.partition))
    assert lies == {name: {(stream, recorded[f"vela/{name}"]) for stream in STREAMS} for name in names}


def test_pauses_and_speeds_change_nothing_of_what_arrives(
    service: Service, kafka: KafkaSettings, recording: Path
) -> None:
    name = service.begin(recording, speed=100)
    service.wait_progress(name, 0.2)
    paused = service.call("POST", f"/{name}/pause")
    assert paused["state"] == "paused"
    held = service.call("GET", f"/{name}")["event_time"]
    assert service.call("POST", f"/{name}/speed", speed=200)["event_time"] == held
    resumed = service.call("POST", f"/{name}/resume")
    assert (resumed["state"], resumed["speed"]) == ("running", 200)
    service.call("POST", f"/{name}/speed", speed="max")
    service.wait(name)
    check_whole(kafka, name, recording)


def test_a_window_is_sent_and_nothing_around_it(service: Service, kafka: KafkaSettings, recording: Path) -> None:
    begin, end = START + 100_000, START + 200_000
    name = service.begin(recording, speed="max", to=format_time(end), **{"from": "+00:01:40"})
    service.wait(name)
    (found,) = arrived(kafka, f"vela/{name}").values()
    for stream in STREAMS:
        assert found.rows(stream) == expected(recording, stream, begin, end)
    check_marks(found, end)


def test_kill_and_restart_lose_nothing(kafka: KafkaSettings, tmp_path: Path, recording: Path) -> None:
    with running(kafka, tmp_path) as service:
        name = service.begin(recording, speed=100)
        before = service.call("GET", f"/{name}")
        for progress in (0.3, 0.5):
            service.wait_progress(name, progress)
            service.end(signal.SIGKILL)
            service.start()
        service.call("POST", f"/{name}/speed", speed="max")
        after = service.wait(name)
    assert {key: after[key] for key in ("shift_ms", "generation")} == {
        key: before[key] for key in ("shift_ms", "generation")
    }
    (found,) = arrived(kafka, f"vela/{name}").values()
    for stream in STREAMS:
        assert unique(found.rows(stream)) == expected(recording, stream)
        assert after["rows"][stream] == len(expected(recording, stream))
    assert found.watermarks("dcgm")[-1] == Watermark(END, end=True)


def test_a_stopped_service_goes_on_with_what_was_paused(kafka: KafkaSettings, tmp_path: Path, recording: Path) -> None:
    with running(kafka, tmp_path) as service:
        name = service.begin(recording, speed=100)
        service.wait_progress(name, 0.2)
        paused = service.call("POST", f"/{name}/pause")
        assert service.end(signal.SIGTERM) == 0
        service.start()
        taken_up = service.call("GET", f"/{name}")
        assert (taken_up["state"], taken_up["rows"]) == ("paused", paused["rows"])
        service.call("POST", f"/{name}/speed", speed="max")
        service.call("POST", f"/{name}/resume")
        service.wait(name)
    check_whole(kafka, name, recording)


def test_two_replays_at_once_are_kept_apart(service: Service, kafka: KafkaSettings, recording: Path) -> None:
    first = service.begin(recording, speed=200)
    second = service.begin(recording, speed=300, shift="keep")
    assert (first, second) == (recording.name, f"{recording.name}-2")
    for name in (first, second):
        service.wait(name)
        found = check_whole(kafka, name, recording)
        assert found.origin.target == ("receive" if name == second else "prometheus")


def test_a_seek_is_a_new_generation_warmed_from_before(kafka: KafkaSettings, tmp_path: Path, recording: Path) -> None:
    with running(kafka, tmp_path, HINDCAST_REPLAY_WARM_S="60") as service:
        name = service.begin(recording, speed=100)
        service.wait_progress(name, 0.1)
        target = START + 300_000
        moved = service.call("POST", f"/{name}/seek", to="+00:05:00")
        assert (moved["generation"], moved["from"]) == (1, format_time(target))
        service.call("POST", f"/{name}/speed", speed="max")
        service.wait(name)
        service.call("POST", f"/{name}/seek", to=format_time(START))  # back, and after its end
        service.wait(name)
        announced = announced_over(kafka, f"vela/{name}")
    found = arrived(kafka, f"vela/{name}")
    assert sorted(found) == [0, 1, 2]
    assert all(found[0].watermarks(stream)[-1].end for stream in STREAMS)
    for stream in STREAMS:
        assert found[1].rows(stream) == expected(recording, stream, target - 60_000, END)
        assert found[2].rows(stream) == expected(recording, stream)
        assert max(found[0].appended_ms[stream]) <= min(found[1].appended_ms[stream])
    assert (announced.generation, announced.warm_from_ms, announced.state) == (2, START, "ended")
    assert len({one.origin.shift_ms for one in found.values()}) == 1


def test_stop_ends_the_streams_where_they_are(service: Service, kafka: KafkaSettings, recording: Path) -> None:
    name = service.begin(recording, speed=60)
    service.wait_progress(name, 0.2)
    stopped = service.call("POST", f"/{name}/stop")
    assert stopped["state"] == "stopped"
    (found,) = arrived(kafka, f"vela/{name}").values()
    at_ms = parse_time(stopped["position"])
    assert START < at_ms < END
    for stream in STREAMS:
        until_there = [row for row in expected(recording, stream) if row["timestamp"] <= at_ms]
        assert found.rows(stream) == until_there
    check_marks(found, at_ms)
    refused = web.post(f"{service.url}/api/v1/replays/{name}/pause")
    assert refused.status_code == 400


def test_rm_forgets_the_replay_and_its_tenant_and_a_name_used_again_counts_on(
    kafka: KafkaSettings, tmp_path: Path, recording: Path
) -> None:
    tenants = tmp_path / "receive"
    with running(kafka, tmp_path, HINDCAST_REPLAY_RECEIVE_DATA=str(tenants)) as service:
        name = service.begin(recording, speed=10, shift="keep")
        for tenant in (name, "another"):
            (tenants / tenant / "chunks_head").mkdir(parents=True)
        service.call("DELETE", f"/{name}")
        assert [path.parent.name for path in tenants.glob(f"*/{REMOVED_MARK}")] == [name]
        assert service.call("GET") == []
        assert not list((tmp_path / "state").iterdir())
        directory = ReplayDirectory(kafka)
        assert directory.states[f"vela/{name}"].state == "removed"
        directory.close()
        assert service.begin(recording, speed="max") == name
        assert service.wait(name)["generation"] == 1


def test_the_command_line_steers_it(service: Service, recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HINDCAST_REPLAY_URL", service.url)

    def hindcast(*words: str) -> str:
        result = CliRunner().invoke(commands, words)
        assert result.exit_code == 0, result.output
        return result.output

    name = recording.name
    assert "running" in hindcast("start", str(recording), "--speed", "20")
    assert "paused" in hindcast("pause", name)
    assert "speed 5x" in hindcast("speed", name, "5")
    assert "generation 1" in hindcast("seek", name, "+00:02:00")
    assert "running" in hindcast("resume", name)
    assert name in hindcast("list")
    assert "stopped" in hindcast("stop", name)
    assert f'"name": "{name}"' in hindcast("status", name, "--json")
    assert "ended  100.0%" in hindcast("start", str(recording), "--speed", "max", "--name", f"{name}-w", "--wait")
    assert f"removed {name}" in hindcast("rm", name)
    lost = CliRunner().invoke(commands, ["status", name]).exception
    assert isinstance(lost, UserError)
    assert (lost.exit_code, lost.message) == (2, f"there is no replay named {name}")


def test_a_recording_that_breaks_off_fails_the_replay_and_is_named(
    service: Service, kafka: KafkaSettings, recording: Path
) -> None:
    whole = (recording / "dcgm.parquet").read_bytes()
    name = service.begin(recording, speed="max")
    service.wait(name)
    (recording / "dcgm.parquet").write_bytes(whole[: len(whole) // 2])
    refused = web.post(f"{service.url}/api/v1/replays", json={"recording": str(recording)}, timeout=300)
    assert (refused.status_code, refused.json()["title"]) == (422, "Unprocessable Entity")
    assert "dcgm.parquet: not a readable Parquet file" in refused.json()["detail"]
    service.call("POST", f"/{name}/seek", to="+00:00:00")
    failed = service.wait(name, "failed")
    assert "dcgm.parquet: not a readable Parquet file" in failed["error"]
    (recording / "dcgm.parquet").write_bytes(whole)
    resumed = service.call("POST", f"/{name}/resume")
    assert resumed["generation"] == 2
    assert service.wait(name)["error"] is None
    found = arrived(kafka, f"vela/{name}")[2]
    for stream in STREAMS:
        assert found.rows(stream) == expected(recording, stream)


def test_a_messy_recording_is_sent_clean_and_says_so_and_strict_fails(
    service: Service, kafka: KafkaSettings, recording: Path, tmp_path: Path
) -> None:
    """Rows twice, out of order and behind the end: what arrives is what the clean recording has."""
    clean = Path(shutil.copytree(recording, tmp_path / "clean"))
    table = pq.read_table(recording / "dcgm.parquet")
    late = table.slice(0, 1).set_column(0, "timestamp", pa.array([END + 1]).cast(table.schema.field(0).type))
    order = [*range(40, 80), *range(40), *range(80, table.num_rows), 5]
    pq.write_table(pa.concat_tables([table.take(pa.array(order)), late]), recording / "dcgm.parquet")
    name = service.begin(recording, speed="max")
    words = f"2 of {len(order) + 1:,} rows of dcgm.parquet left out (1 outside of start and end, 1 that repeat"
    assert words in service.wait(name)["left_out"]
    (found,) = arrived(kafka, f"vela/{name}").values()
    for stream in STREAMS:
        assert sorted(found.rows(stream), key=repr) == sorted(expected(clean, stream), key=repr)
    strict = service.begin(recording, speed="max", strict=True, name="messy-and-strict")
    assert "dcgm.parquet: row" in service.wait(strict, "failed")["error"]


def test_a_broker_that_was_away_is_waited_for(
    stack: Any, service: Service, kafka: KafkaSettings, recording: Path
) -> None:
    name = service.begin(recording, speed=60)
    service.wait_progress(name, 0.2)
    broker = stack.process("kafka")
    broker.stop()
    try:
        lagging = "the lag to be reported"
        until(lambda: service.call("GET", f"/{name}")["lag_s"] > 1, what=lagging)
    finally:
        broker.start()
    status = service.wait(name)
    assert status["max_lag_s"] > 1
    check_whole(kafka, name, recording)


@pytest.mark.parametrize(
    ("asked", "status", "detail"),
    [
        ({"recording": "/nowhere"}, 400, "/nowhere: no such recording"),
        ({"speed": 0.5}, 400, "speed"),
        ({"speed": 1001}, 400, "speed"),
        ({"colour": "red"}, 400, "colour"),
        ({"shift": "start-now", "speed": 2}, 400, "start-now"),
        ({"name": "../x"}, 400, "cannot be the name"),
    ],
)
def test_a_bad_request_is_a_problem_with_a_remedy(
    service: Service, recording: Path, asked: dict[str, Any], status: int, detail: str
) -> None:
    answer = web.post(f"{service.url}/api/v1/replays", json={"recording": str(recording)} | asked)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert detail in answer.json()["detail"]
    assert answer.json()["remedy"]


def test_a_recording_outside_the_configured_folders_is_refused(
    kafka: KafkaSettings, tmp_path: Path, recording: Path
) -> None:
    with running(kafka, tmp_path, HINDCAST_REPLAY_RECORDINGS=f'["{tmp_path}/elsewhere"]') as service:
        answer = web.post(f"{service.url}/api/v1/replays", json={"recording": str(recording)})
    assert answer.status_code == 400
    assert "not in a folder that this service may replay from" in answer.json()["detail"]


def test_without_a_broker_a_start_is_refused_and_nothing_is_kept(tmp_path: Path, recording: Path) -> None:
    with socket.socket() as held:  # a port that is taken and answers nobody
        held.bind(("127.0.0.1", 0))
        kafka = KafkaSettings(bootstrap=f"127.0.0.1:{held.getsockname()[1]}")
        with running(kafka, tmp_path, HINDCAST_KAFKA_BOOTSTRAP_TIMEOUT_S="1") as service:
            answer = web.post(f"{service.url}/api/v1/replays", json={"recording": str(recording)}, timeout=300)
            assert service.call("GET") == []
    assert answer.status_code == 503
    assert f"no Kafka broker answers at {kafka.bootstrap}" in answer.json()["detail"]
    assert "HINDCAST_KAFKA_BOOTSTRAP" in answer.json()["remedy"]


def test_metrics_show_lag_position_and_rows(service: Service, recording: Path) -> None:
    name = service.begin(recording, speed="max")
    service.wait(name)
    text = web.get(f"{service.url}/metrics").text
    shown = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("hindcast_replay_"))
    assert float(shown[f'hindcast_replay_lag_seconds{{replay="{name}"}}']) == 0
    assert float(shown[f'hindcast_replay_position_seconds{{replay="{name}"}}']) == END / 1000
    rows = shown[f'hindcast_replay_rows_total{{replay="{name}",stream="dcgm"}}']
    assert float(rows) == len(expected(recording, "dcgm"))
