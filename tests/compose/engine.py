"""A Docker engine with Compose: the machine's own if it answers, else one of this test's, with its own folders."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from services.kit.errors import UserError
from services.kit.wait import until
from services.stack.settings import default_cache_dir

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "docker" / "compose-plugin"
_PACKAGES = ("docker.io", "iptables", "tini")
_STOP_S = 30.0


def cache() -> Path:
    """Return where the engine's data, the Compose plugin and the base image are kept between runs."""
    return default_cache_dir().parent / "compose"


class Docker:
    """The docker command, pointed at one engine; `ours` if this test has started that."""

    def __init__(self, env: Mapping[str, str], *, ours: bool = False) -> None:
        self.env = {**os.environ, **env}
        self.ours = ours

    def __call__(self, *words: str, **env: str) -> str:
        """Run `docker words…` in the root of the repository and return its output; raise UserError with its errors."""
        done = subprocess.run(
            ["docker", *words], cwd=ROOT, env={**self.env, **env}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise UserError(f"docker {' '.join(words[:6])} … failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        return done.stdout

    def answers(self) -> bool:
        """Return whether the engine answers."""
        if shutil.which("docker") is None:
            return False
        return subprocess.run(["docker", "info"], env=self.env, capture_output=True, check=False).returncode == 0


@contextmanager
def engine() -> Iterator[Docker]:
    """Give an engine that can run Compose; what was started for it is ended."""
    config = cache() / "docker-config"
    machines = Docker({"DOCKER_CONFIG": str(config)})
    _plugin(config)
    if machines.answers():
        yield machines
        return
    with _daemon() as socket:
        yield Docker({"DOCKER_CONFIG": str(config), "DOCKER_HOST": f"unix://{socket}"}, ours=True)


@contextmanager
def _daemon() -> Iterator[Path]:
    if os.geteuid() != 0:
        raise UserError("no Docker engine answers, and only root can start one", remedy="start Docker, or run as root")
    if any(shutil.which(name) is None for name in ("dockerd", "iptables", "tini")):
        _run("apt-get", "install", "-y", "--no-install-recommends", *_PACKAGES)
    folder = cache() / "engine"
    folder.mkdir(parents=True, exist_ok=True)
    run = Path("/run/hindcast-compose-test")
    socket = run / "docker.sock"
    run.mkdir(exist_ok=True)
    command = [
        "dockerd", "--data-root", str(folder / "data"), "--exec-root", str(run / "exec"),
        "--pidfile", str(run / "pid"), "-H", f"unix://{socket}",
    ]  # fmt: skip
    with (folder / "dockerd.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as daemon:
        docker = Docker({"DOCKER_HOST": f"unix://{socket}"})
        try:
            until(
                lambda: docker.answers() or daemon.poll() is not None, what=f"dockerd (log: {folder / 'dockerd.log'})"
            )
            if daemon.poll() is not None:
                raise UserError(f"dockerd ended at once; see {folder / 'dockerd.log'}")
            yield socket
        finally:
            daemon.terminate()
            daemon.wait(_STOP_S)


def _plugin(config: Path) -> None:
    """Build Compose as a plugin of the docker command, unless an earlier run has."""
    plugin = config / "cli-plugins" / "docker-compose"
    if not plugin.exists():
        plugin.parent.mkdir(parents=True, exist_ok=True)
        package = "github.com/docker/compose/v2/cmd"
        version = "-X github.com/docker/compose/v2/internal.Version=v2.40.3"
        flags = ("-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags", f"-s -w {version}")
        _run("go", "build", *flags, "-o", str(plugin), package, cwd=PLUGIN)


def _run(*command: str, cwd: Path = ROOT) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"{' '.join(command[:4])} … failed:\n{done.stderr[-4000:]}")
