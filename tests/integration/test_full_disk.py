"""A disk that is full while a replay runs: replay and detect go on, and a crash after it changes nothing."""

import signal
from pathlib import Path

from services.cli.pipeline import DETECT_GROUP, Pipeline
from services.kit.kafka import KafkaSettings
from services.kit.wait import until
from services.recording.embedded import findings_of
from services.recording.reader import Recording
from services.stack.hindcast_services import python_service
from services.stack.runner import Stack
from tests import web
from tests.disks import small_disk
from tests.integration.replayed import Service
from tests.small import Brake, small_recording


def test_a_full_disk_is_worked_through_and_a_crash_behind_it_changes_nothing(
    stack: Stack, kafka: KafkaSettings, tmp_path: Path
) -> None:
    brakes = [Brake("v002", 200, 260), Brake("v003", 400, 599)]
    recording = small_recording(tmp_path, "full-disk", nodes=4, minutes=10, brakes=brakes)
    want = sorted(finding.to_json() for finding in findings_of(Recording.open(recording)))
    # Room for the snapshots of other tests' replays too: the broker is the session's, and detect reads all it holds.
    with small_disk(tmp_path / "disk", "64m") as disk:
        port = stack.service_context().ports.take()
        env = {
            "HINDCAST_KAFKA_BOOTSTRAP": kafka.bootstrap,
            "HINDCAST_STATUS_PORT": str(port),
            "HINDCAST_DETECT_STATE_DIR": str(disk.folder / "detect"),
            "HINDCAST_DETECT_INSTANCE": "detect",
            "HINDCAST_DETECT_SNAPSHOT_INTERVAL_S": "0.5",
        }
        detect = stack.add_process(python_service("detect-full", "services.detect", port=port, env=env))
        service = Service(kafka.bootstrap, tmp_path, {"HINDCAST_REPLAY_STATE_DIR": str(disk.folder / "replay")})
        service.start()
        try:
            pipeline = Pipeline(kafka, {"replay": service.url})
            name = service.begin(recording, speed=40)
            service.wait_progress(name, 0.2)

            def unkept() -> bool:
                disk.fill()  # what a snapshot that is replaced gives back, too
                pages = [web.get(f"{url}/metrics").text for url in (service.url, f"http://127.0.0.1:{port}")]
                return all("hindcast_state_unkept 1.0" in page for page in pages)

            until(unkept, what="both to say that their state is not kept")
            for progress, verb in ((0.2, "pause"), (1.0, "pause"), (1.0, "stop")):
                service.wait_progress(name, progress)
                refused = web.post(f"{service.url}/api/v1/replays/{name}/{verb}", timeout=300)
                assert (refused.status_code, refused.json()["title"]) == (507, "Insufficient Storage")
                assert "make room" in refused.json()["remedy"]
            assert service.call("GET", f"/{name}")["state"] == "running"
            found = f"all findings of vela/{name}"
            until(lambda: pipeline.findings(f"vela/{name}") == want, what=found, interval_s=0.5)
            detect.kill()
            service.end(signal.SIGKILL)
            disk.free()
            service.start()
            detect.start()
            Pipeline(kafka, {"replay": service.url}).wait_over(name)
            pipeline.wait_caught_up(DETECT_GROUP)
            assert pipeline.findings(f"vela/{name}") == want
        finally:
            service.end(signal.SIGTERM)
            stack.remove("detect-full")
