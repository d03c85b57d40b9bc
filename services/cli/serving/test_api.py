"""`hindcast api` as a process: it serves, streams, and ends when it is asked to; without tokens on loopback only."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from services.api.settings import ApiSettings, SourceSettings
from services.cli.conftest import hindcast
from services.cli.serving.api import beside_the_stack
from services.kit.errors import UserError
from services.kit.kafka import KafkaSettings
from services.kit.wait import until
from services.stack import state
from services.synth.small import FOLDER

REPO = Path(__file__).parents[3]
COMMAND = [sys.executable, "-m", "services.cli"]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        options = ["--port", "0", "--data-dir", str(tmp_path / "data"), "--library", str(FOLDER)]
        process = subprocess.Popen([*COMMAND, "api", *options], cwd=REPO, stderr=stderr)
        try:
            address = until(
                lambda: re.search(r"listening address=(\S+)", log.read_text(encoding="utf-8")), what="the API to listen"
            )
            yield address[1], process
        finally:
            process.kill()
            process.wait()


def test_it_streams_a_run_and_ends_while_somebody_follows(served: tuple[str, subprocess.Popen[bytes]]) -> None:
    base, process = served
    with httpx.Client(base_url=f"{base}/api/v1", timeout=300, trust_env=False) as client:
        run = client.post("/runs", json={"recording": "vela-power-brake"}).json()["id"]
        with client.stream("GET", f"/runs/{run}/events") as answer:
            kinds = [line.removeprefix("event: ") for line in answer.iter_lines() if line.startswith("event: ")]
        assert kinds[0] == "progress"
        assert kinds[-1] == "over"
        assert {"finding", "incident"} <= set(kinds)
        run = client.post("/runs", json={"recording": "vela-healthy"}).json()["id"]
        with client.stream("GET", f"/runs/{run}/events") as answer:
            lines = answer.iter_lines()
            assert next(lines) == "event: progress"
            process.send_signal(signal.SIGTERM)
            assert "event: over" not in list(lines)
    # uvicorn raises the signal again when it has ended; it must not look like a crash.
    assert process.wait(timeout=300) == 0


def test_beyond_loopback_it_wants_tokens(tmp_path: Path) -> None:
    options = ["--host", "0.0.0.0", "--port", "0", "--data-dir", str(tmp_path)]  # noqa: S104 - refused
    ended = subprocess.run(
        [*COMMAND, "api", *options], cwd=REPO, capture_output=True, text=True, env=dict(os.environ), check=False
    )
    assert ended.returncode == 2
    assert "HINDCAST_API_TOKENS_FILE" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_library_that_is_not_there_is_refused(tmp_path: Path) -> None:
    result = hindcast("api", "--port", "0", "--data-dir", tmp_path, "--library", FOLDER, "--library", tmp_path / "no")
    assert isinstance(result.exception, UserError)
    assert (result.exception.message, result.exception.exit_code) == (f"--library {tmp_path}/no: no such folder", 2)


def test_servers_that_nobody_named_are_those_of_a_running_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = (
        "prometheus",
        "alertmanager",
        "thanos_query",
        "receive_write",
        "receive",
        "sidecar",
        "store",
        "compact",
        "monitor",
    )
    addresses: dict[str, object] = {name: f"http://127.0.0.1/{name}" for name in names}
    addresses |= {
        "kafka": "127.0.0.1:1",
        "store_grpc": "",
        "bucket": "",
        "services": {"replay": "http://127.0.0.1/replay"},
    }
    monkeypatch.setenv("HINDCAST_STACK_STATE_DIR", str(tmp_path))
    settings, kafka = ApiSettings(data_dir=tmp_path), KafkaSettings()
    assert beside_the_stack(settings, kafka) == (settings, kafka)
    state.write(tmp_path, state.Running(runner=state.identify(os.getpid()), processes={}, addresses=addresses))
    found, broker = beside_the_stack(settings, kafka)
    assert (found.replay_url, broker.bootstrap) == ("http://127.0.0.1/replay", "127.0.0.1:1")
    assert found.sources == {"stack": SourceSettings(url="http://127.0.0.1/thanos_query")}
    named = ApiSettings(data_dir=tmp_path, replay_url="http://127.0.0.1:9")
    assert beside_the_stack(named, kafka)[0].replay_url == "http://127.0.0.1:9"
