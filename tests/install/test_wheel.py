"""The wheel, installed into an empty environment, does what a checkout does: no file of the checkout is needed."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
SCENARIOS = {path.parent.name for path in (ROOT / "replay-data").glob("*/scenario.yaml")}
Run = Callable[..., str]

pytestmark = [pytest.mark.install, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel, install it into an empty environment, and return the folder of its commands."""
    folder = tmp_path_factory.mktemp("wheel")
    uv = shutil.which("uv", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    assert uv, "make setup installs uv"
    for command in (
        ["build", "--quiet", "--wheel", "--out-dir", str(folder), str(ROOT)],
        ["venv", "--quiet", "--python", sys.executable, str(folder / "venv")],
    ):
        subprocess.run([uv, *command], check=True)
    wheel = next(folder.glob("*.whl"))
    subprocess.run(
        [uv, "pip", "install", "--quiet", "--python", str(folder / "venv/bin/python"), str(wheel)], check=True
    )
    return folder / "venv" / "bin"


@pytest.fixture(scope="module")
def run(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run a command of the installed hindcast, in a folder of its own with a home of its own."""
    home = tmp_path_factory.mktemp("home")

    def run(*words: str, code: int = 0) -> str:
        done = subprocess.run(
            [str(installed / "hindcast"), *words],
            cwd=home, env=_alone(home, installed), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    return run


def _alone(home: Path, installed: Path) -> dict[str, str]:
    """Return an environment that knows neither the checkout nor a toolchain."""
    return {"HOME": str(home), "PATH": str(installed)}


def test_its_version_is_that_of_the_package(run: Run, installed: Path) -> None:
    assert re.fullmatch(r"hindcast \d+\.\d+\.\d+\n", run("--version"))
    assert list(installed.parent.glob("lib/python*/site-packages/hindcast_gpu-*.dist-info"))


def test_the_library_is_there_and_recordings_are_made_and_run(run: Run, installed: Path) -> None:
    listed = run("list")
    assert SCENARIOS
    assert [name for name in SCENARIOS if name not in listed] == []
    run("make", "vela-power-brake", "--scale", "0.05", "--duration", "+00:05:00", "--out", "minutes")
    assert "valid" in run("validate", "minutes")
    small = next(installed.parent.glob("lib/python*/site-packages/services/shipped/replay-data/small/vela-power-brake"))
    assert "power_throttle" in run("run", str(small))


def test_alert_rules_and_settings_are_there(run: Run) -> None:
    run("rules", "--write", "rules")
    assert "detectors" in run("config", "init", "detectors.yaml") + run("config", "check", "detectors.yaml")
    assert "fleet" in run("dashboards", "list")


def test_without_toolchains_the_doctor_says_what_the_demo_lacks(run: Run) -> None:
    assert "Go" in run("doctor", code=1)


def test_the_api_answers_with_the_small_recordings(installed: Path, tmp_path: Path) -> None:
    env = _alone(tmp_path, installed) | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [str(installed / "hindcast"), "api", "--port", "0"], cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stderr is not None
        address = next(found[1] for line in server.stderr if (found := re.search(r"address=(http://\S+)", line)))
        names = {one["name"] for one in httpx.get(f"{address}/api/v1/recordings", timeout=300).json()}
        server.terminate()
    assert {"vela-power-brake", "vela-healthy", "sakuraone-job-hang"} <= names
