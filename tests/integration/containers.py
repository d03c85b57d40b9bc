"""The topology of services/stack in containers of the official images, started by testcontainers.

The containers use the host's network and the state folder under its own path, so the flags, files, addresses and health
checks are the very ones of the native stack; hindcast's services run as child processes beside them. Images are never
pulled here: a test run must not depend on a registry.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import docker
import pytest
import requests
from docker.errors import APIError, DockerException, ImageNotFound
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer

from services.stack.child import Child, NativeSpawner
from services.stack.recipes import RECIPES
from services.stack.runner import Stack
from services.stack.settings import StackSettings
from services.stack.spec import ProcessSpec

if TYPE_CHECKING:
    from docker.models.containers import Container

# Where the official images keep the programs that the native stack builds.
BINARIES = {"kafka": Path("/opt/kafka/libs"), **dict.fromkeys(("prometheus", "alertmanager", "thanos"), Path("/bin"))}
_REPOSITORIES = {
    "java": ("kafka", "apache/kafka:{}"),
    "prometheus": ("prometheus", "prom/prometheus:v{}"),
    "sh": ("prometheus", "prom/prometheus:v{}"),  # which calls promtool
    "alertmanager": ("alertmanager", "prom/alertmanager:v{}"),
    "thanos": ("thanos", "quay.io/thanos/thanos:v{}"),
}


def images() -> dict[str, str]:
    """Return the official image of each program, in the version that the native stack builds."""
    return {program: form.format(release(server)) for program, (server, form) in _REPOSITORIES.items()}


def promtool() -> list[str]:
    """Return the command that runs promtool from the image of Prometheus."""
    flags = ("--rm", "--interactive", "--network=host", "--pull=never", "--entrypoint=/bin/promtool")
    return ["docker", "run", *flags, images()["prometheus"]]


def release(server: str) -> str:
    """Return the release of `server`. Prometheus 3.15.0 is version 0.315.0 of its Go module."""
    version = RECIPES[server].version
    if server != "prometheus":
        return version
    minor, patch = version.split(".")[1:]
    return f"{minor[0]}.{int(minor[1:])}.{patch}"


@dataclass(frozen=True)
class ContainerChild:
    """A process in a container."""

    container: "Container"

    @property
    def pid(self) -> int:
        """The id on the host of the container's first process."""
        self.container.reload()
        return int(self.container.attrs["State"]["Pid"])

    def poll(self) -> int | None:
        """Return its exit code, None while it runs."""
        self.container.reload()
        running = self.container.attrs["State"]["Status"] in {"created", "running"}
        return None if running else int(self.container.attrs["State"]["ExitCode"])

    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended. Raises TimeoutError."""
        try:
            self.container.wait(timeout=timeout_s)
        except requests.exceptions.ConnectionError:  # the client's way to say that the time is over
            raise TimeoutError from None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the container's first process, where it still runs."""
        try:
            self.container.kill(signal=number.name)
        except APIError as error:
            if error.status_code != 409:  # 409: it does not run
                raise


class ContainerSpawner(NativeSpawner):
    """Starts the servers in containers, and everything else as a child process."""

    def __init__(self, state_dir: Path, user: str) -> None:
        super().__init__()
        self._state_dir = state_dir
        self._user = user
        self._images = images()
        self._containers: list[DockerContainer] = []

    def spawn(self, spec: ProcessSpec, argv: tuple[str, ...], log: Path) -> Child:  # type: ignore[override] # any Child
        """Start `argv`, in a container where its program has an image."""
        program = Path(argv[0]).name
        if program not in self._images:
            return super().spawn(spec, argv, log)
        container = (
            DockerContainer(self._images[program])
            .with_command(list(argv[1:]))
            .with_volume_mapping(str(self._state_dir), str(self._state_dir), "rw")
            .with_kwargs(
                # The image knows where its Java is; of the others the path is the image's own.
                entrypoint=[program if program == "java" else argv[0]],
                network_mode="host",
                user=self._user,
                working_dir=str(spec.cwd or self._state_dir),
                stop_signal="SIGTERM",
            )
        )
        self._containers.append(container)
        wrapped = container.start().get_wrapped_container()
        Thread(target=_copy_log, args=(wrapped, log), daemon=True).start()
        return ContainerChild(wrapped)

    def close(self) -> None:
        """Remove the containers."""
        for container in self._containers:
            container.stop()
        super().close()


def _copy_log(container: "Container", log: Path) -> None:
    with log.open("ab") as file:
        for part in container.logs(stream=True, follow=True):
            file.write(part)
            file.flush()


@contextmanager
def container_stack(state_dir: Path, settings: StackSettings) -> Iterator[Stack]:
    """Run the stack of `settings` in containers; skip the test where there is no engine or an image is missing."""
    try:
        client = docker.from_env()
        client.ping()
    except DockerException as error:
        pytest.skip(f"HINDCAST_STACK=containers needs a Docker engine: {error}")
    for image in images().values():
        try:
            client.images.get(image)
        except ImageNotFound:
            pytest.skip(f"HINDCAST_STACK=containers needs the image {image}: docker pull it, or run make test-compose")
    client.close()
    # Its reaper is one more image to have; the spawner removes what it started.
    testcontainers_config.ryuk_disabled = True
    owner = state_dir.stat()
    spawner = ContainerSpawner(state_dir, f"{owner.st_uid}:{owner.st_gid}")
    stack = Stack(state_dir, settings, spawner=spawner, binaries=BINARIES)
    with stack:
        stack.start_all()
        yield stack
