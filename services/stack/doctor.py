"""What a machine lacks for hindcast, and how to get it."""

import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from services.stack.build import cached
from services.stack.recipes import RECIPES
from services.stack.settings import StackSettings, load_settings
from services.stack.toolchain import CHROMIUM, GIT, GO, JAVA, MAKE, MAVEN, NODE, Tool, look_for

Mode = Literal["native", "docker", "embedded"]
# Measured: 4.8 GB while building (module and build caches of Go), 0.2 GB stay here; the rest is for data.
_BUILD_GB = 6
_RUN_GB = 1
_MINIMUM_PYTHON = (3, 11)


@dataclass(frozen=True)
class Finding:
    """One line of the diagnosis."""

    subject: str
    # ok: as it should be. missing: needed for the native stack. optional: works without.
    verdict: Literal["ok", "missing", "optional"]
    detail: str
    remedy: str = ""


def examine(settings: StackSettings) -> list[Finding]:
    """Look at everything that hindcast needs on this machine; nothing is changed and no network is used."""
    built = {name: cached(name, settings.cache_dir) is not None for name in RECIPES}
    go_built = all(built[name] for name in ("prometheus", "alertmanager", "thanos"))
    return [
        _system(),
        _python(),
        # Nothing of the stack itself needs these two.
        _tool(GIT, needed=False),
        _tool(MAKE, needed=False),
        # What is built already needs its build tool no more; Java is needed to run.
        _tool(GO, needed=not go_built),
        _tool(JAVA, needed=True),
        _tool(MAVEN, needed=not built["kafka"]),
        _tool(NODE, needed=False),
        _tool(CHROMIUM, needed=False),
        _disk(settings.cache_dir, _RUN_GB if all(built.values()) else _BUILD_GB),
        Finding("servers", "ok", ", ".join(f"{n} {'built' if done else 'to be built'}" for n, done in built.items())),
        _docker(),
    ]


def can_run_native(findings: list[Finding]) -> bool:
    """Return whether the native stack can be built and run."""
    return not any(finding.verdict == "missing" for finding in findings)


def mode(findings: list[Finding]) -> Mode:
    """Return how `hindcast demo` runs here: on the native stack, else on Docker, else without servers."""
    if can_run_native(findings):
        return "native"
    return "docker" if any(f.subject == "docker" and f.verdict == "ok" for f in findings) else "embedded"


def demo_mode() -> Mode:
    """Return how `hindcast demo` runs on this machine, by the settings in the environment."""
    return mode(examine(load_settings()))


def _system() -> Finding:
    if platform.system() == "Linux":
        return Finding("system", "ok", f"Linux on {platform.machine()}")
    return Finding("system", "missing", platform.system(), "the native stack runs on Linux; elsewhere use Docker")


def _python() -> Finding:
    version = platform.python_version()
    if sys.version_info >= _MINIMUM_PYTHON:
        return Finding("python", "ok", version)
    return Finding("python", "missing", f"{version}, 3.11 or later is needed", "apt-get install python3 python3-venv")


def _tool(tool: Tool, *, needed: bool) -> Finding:
    found = look_for(tool)
    if not found.problem:
        return Finding(tool.name, "ok", f"{found.version} ({found.path}): {tool.purpose}")
    verdict: Literal["missing", "optional"] = "missing" if needed else "optional"
    return Finding(tool.name, verdict, f"{found.problem}; it {tool.purpose}", tool.remedy)


def _disk(folder: Path, needed_gb: int) -> Finding:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free_gb = shutil.disk_usage(existing).free / 1e9
    if free_gb >= needed_gb:
        return Finding("disk", "ok", f"{free_gb:.0f} GB free at {existing}")
    return Finding(
        "disk",
        "missing",
        f"{free_gb:.1f} GB free at {existing}, {needed_gb} GB are needed",
        "make room, or set HINDCAST_STACK_CACHE_DIR and HINDCAST_STACK_STATE_DIR to a larger disk",
    )


def _docker() -> Finding:
    path = shutil.which("docker")
    if path is None:
        return Finding(
            "docker", "optional", "not found; the native stack does not need it", "apt-get install docker.io"
        )
    try:
        done = subprocess.run(  # noqa: S603 - the docker client on the user's own PATH
            (path, "compose", "version"), capture_output=True, text=True, timeout=20, check=False
        )
        engine = subprocess.run(  # noqa: S603 - as above
            (path, "info", "--format", "{{.ServerVersion}}"), capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("docker", "optional", f"does not run: {error}")
    if engine.returncode or not engine.stdout.strip():
        return Finding("docker", "optional", "the client is there, but no engine answers", "systemctl start docker")
    if done.returncode:
        return Finding("docker", "optional", "no compose plugin", "install the docker-compose-plugin package")
    return Finding("docker", "ok", f"engine {engine.stdout.strip()}")
