"""Prometheus' compliance tests of remote-write receivers, fetched as a Go module and built into the servers' cache."""

import functools
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from services.stack.build import ensure
from services.stack.recipes import RECIPES, Recipe
from services.stack.settings import load_settings
from services.stack.toolchain import GO, require

MODULE = "github.com/prometheus/compliance/remotewrite/receiver"
VERSION = "0.0.0-20260806071727-67b8327a2e93"
SUM = "h1:VPMEZpXBAlaQrdz+ER6AQ9ArmxkYSy/SxkUixEwtH3Q="
"""Of the whole module, as go.sum would have it; the module's own go.sum pins all that it needs."""
_PROGRAM = "receiver.test"


@dataclass(frozen=True)
class _Suite(Recipe):
    """Built in the module itself: its go.mod has another path than it is published under, so no other can need it."""

    @property
    def source(self) -> Path:
        """The module's folder in Go's cache."""
        return _module()

    @property
    def version(self) -> str:
        """The module's version."""
        return VERSION

    def command(self, tool: str, out: Path) -> tuple[str, ...]:
        """Return the command that builds the tests as a program."""
        return (
            tool, "test", "-c", "-mod=readonly", "-buildvcs=false", "-trimpath", "-tags", self.tags,
            "-ldflags", "-s -w", "-o", f"{out / _PROGRAM}", *self.packages,
        )  # fmt: skip


_SUITE = _Suite("receiver-compliance", "", (GO,), (_PROGRAM,), (".",), "remove_all_sd")


@functools.cache
def _module() -> Path:
    """Return the folder of the module, fetched the first time."""
    done = subprocess.run(
        (require(GO), "mod", "download", "-json", f"{MODULE}@v{VERSION}"),
        env={**os.environ, "GOWORK": "off"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{MODULE} could not be fetched: {done.stdout}{done.stderr}"
    found = json.loads(done.stdout)
    assert found["Sum"] == SUM, f"{MODULE} v{VERSION} is not what it was: {found['Sum']}"
    return Path(found["Dir"])


def program() -> Path:
    """Return the tests as a program, built first where it is not in the cache."""
    RECIPES.setdefault(_SUITE.name, _SUITE)
    return ensure(load_settings().cache_dir, (_SUITE.name,))[_SUITE.name] / _PROGRAM
