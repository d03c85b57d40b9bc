"""The programs that the native stack is built and run with: found, and their versions read."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from services.kit.errors import UsageError


@dataclass(frozen=True)
class Tool:
    """A program, the version it must have, how it prints it, and how to get it on Debian."""

    name: str
    purpose: str
    minimum: tuple[int, ...]
    version_argv: tuple[str, ...]
    version_pattern: str
    remedy: str


GO = Tool(
    "go",
    "builds Prometheus, Alertmanager and Thanos",
    (1, 26),
    ("version",),
    r"go(\d+)\.(\d+)",
    "Debian's own Go may be older: take 1.26 or later from go.dev/dl, unpack it to /usr/local and put "
    "/usr/local/go/bin on PATH",
)
JAVA = Tool("java", "runs Kafka", (17,), ("-version",), r'version "(\d+)', "apt-get install openjdk-17-jdk-headless")
MAVEN = Tool("mvn", "fetches Kafka", (3, 6), ("-version",), r"Maven (\d+)\.(\d+)", "apt-get install maven")
NODE = Tool(
    "node",
    "builds the web console",
    (20, 19),
    ("--version",),
    r"v(\d+)\.(\d+)",
    "take Node 20.19 or later with npm from nodejs.org, then make console; all but the console works without",
)
CHROMIUM = Tool(
    "chromium",
    "is what the console's tests look at it with",
    (110,),
    ("--version",),
    r"Chromium (\d+)",
    "apt-get install chromium",
)
GIT = Tool("git", "fetches hindcast", (2,), ("--version",), r"version (\d+)", "apt-get install git")
MAKE = Tool("make", "runs the Makefile", (4,), ("--version",), r"Make (\d+)", "apt-get install make")


@dataclass(frozen=True)
class Found:
    """What is there of a tool: its path and version, or what is wrong with it."""

    path: str = ""
    version: str = ""
    problem: str = ""


def look_for(tool: Tool) -> Found:
    """Find `tool` on PATH (Java in JAVA_HOME first) and read its version."""
    path = _path(tool)
    if path is None:
        return Found(problem="not found")
    try:
        # The programs are the ones named above, found on the user's own PATH.
        done = subprocess.run(  # noqa: S603 - see above
            (path, *tool.version_argv), capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Found(path=path, problem=f"does not run: {error}")
    match = re.search(tool.version_pattern, done.stdout + done.stderr)
    if match is None:
        return Found(path=path, problem="does not print its version")
    version = ".".join(match.groups())
    if tuple(int(part) for part in match.groups()) < tool.minimum:
        least = ".".join(str(part) for part in tool.minimum)
        return Found(path=path, version=version, problem=f"{version} is too old: {least} or later is needed")
    return Found(path=path, version=version)


def require(tool: Tool) -> str:
    """Return the path of `tool`. Raises UserError (exit code 2) with how to get it where it is missing or too old."""
    found = look_for(tool)
    if found.problem:
        raise UsageError(f"{tool.name} {tool.purpose}, and {found.problem}", remedy=tool.remedy)
    return found.path


def _path(tool: Tool) -> str | None:
    home = os.environ.get("JAVA_HOME")
    if tool is JAVA and home and os.access(Path(home) / "bin" / "java", os.X_OK):
        return str(Path(home) / "bin" / "java")
    return shutil.which(tool.name)
