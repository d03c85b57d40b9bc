"""`hindcast replay` without a replay service: where it looks, and what it says."""

import json
import socket
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from detectors.registry import BUDGET, XIDS, discover
from services.cli.serving.replay import _detection, commands, control_url
from services.detect.calibration import FORMAT
from services.kit.errors import UserError
from services.kit.replays import plain
from services.replay.settings import ControlSettings
from services.replay.spec import ReplayRequest


def failure(*words: str) -> UserError:
    error = CliRunner().invoke(commands, words).exception
    assert isinstance(error, UserError)
    return error


def test_an_unreachable_service_is_named_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{held.getsockname()[1]}"
        monkeypatch.setenv("HINDCAST_REPLAY_URL", address)
        error = failure("list")
    assert (error.exit_code, error.message) == (3, f"no replay service answers at {address} (ConnectError)")
    assert "HINDCAST_REPLAY_URL" in error.remedy


def test_something_else_at_that_address_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setenv("HINDCAST_REPLAY_URL", f"http://127.0.0.1:{other.getsockname()[1]}")

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")

        thread = threading.Thread(target=answer)
        thread.start()
        error = failure("status", "vela")
        thread.join()
    assert error.exit_code == 3
    assert "answers 404, and not as the replay service does" in error.message


@pytest.mark.parametrize("speed", ["fast", "", "1x"])
def test_a_speed_that_is_none_is_refused(speed: str) -> None:
    error = failure("start", ".", "--speed", speed)
    assert (error.exit_code, error.remedy) == (2, "give 1 to 1000, or max")


def test_a_wrong_configuration_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    config = tmp_path / "detectors.yaml"
    config.write_text("straggler: {no_such: 1}\n", encoding="utf-8")
    error = failure("start", ".", "--config", str(config))
    assert error.exit_code == 2
    assert "detectors.yaml: 1 thing(s) wrong" in error.message


def test_a_budget_and_a_calibration_become_what_a_replay_can_carry(tmp_path: Path) -> None:
    config, calibration = tmp_path / "detectors.yaml", tmp_path / "calibration.json"
    config.write_text(f"{BUDGET}: 2\nstraggler: {{shadow: true}}\ncalibration: calibration.json\n", encoding="utf-8")
    spec = discover()["straggler"].spec
    tails = {"clock": {"bins": [3], "counts": [7.0]}}
    known = {"straggler": {"version": spec.version, "tails": tails}}
    whole = {"format": FORMAT, "cluster": "c", "fitted_node_days": 1, "sources": [], "measured": None}
    calibration.write_text(json.dumps(whole | {"detectors": known}))
    carried = ReplayRequest.model_validate({"recording": "r", **_detection(config, None)})
    assert carried.detectors["straggler"] == {BUDGET: 2 * spec.budget_share, "shadow": True}
    assert plain(carried.calibration) == {"straggler": tails}
    config.write_text(f"{XIDS}: {{121: {{class: gpu_lost}}}}\nstraggler: {{shadow: true}}\n", encoding="utf-8")
    carried = ReplayRequest.model_validate({"recording": "r", **_detection(config, None)})
    assert carried.detectors["gpu_lost"] == {XIDS: {"121": {"class": "gpu_lost"}}}
    assert carried.detectors["straggler"] == {XIDS: {"121": {"class": "gpu_lost"}}, "shadow": True}
    assert _detection(None, calibration) == {"detectors": {}, "calibration": {"straggler": tails}}


def test_without_a_setting_or_a_stack_it_is_the_default_port(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.delenv("HINDCAST_REPLAY_URL", raising=False)
    monkeypatch.setenv("HINDCAST_STACK_STATE_DIR", str(tmp_path_factory.mktemp("no-stack")))
    assert control_url(ControlSettings()) == "http://127.0.0.1:8480"
