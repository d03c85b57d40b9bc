"""What to run: the description of one process of a stack."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from services.stack.health import Health


@dataclass(frozen=True)
class ProcessSpec:
    """What to run, and what it needs."""

    name: str
    argv: tuple[str, ...]
    # What to ask; without it the process is healthy as soon as it runs.
    health: Health | None = None
    # Added to the runner's own environment.
    env: Mapping[str, str] = field(default_factory=dict)
    # The folder it runs in; the runner's own where none is given.
    cwd: Path | None = None
    # Names of the processes that must be healthy first.
    after: tuple[str, ...] = ()
    # Ports it will listen on.
    ports: tuple[int, ...] = ()
    # A command to run to its end before the process, unless the file `prepared_by` is there already.
    prepare: tuple[str, ...] = ()
    prepared_by: Path | None = None
    # A task, such as creating topics: it counts as healthy when it has ended with exit code 0.
    once: bool = False
    # Where it is reached, for the addresses of the stack.
    url: str = ""
    # From SIGTERM to SIGKILL: a broker closes its logs, Receive writes and uploads its blocks.
    stop_timeout_s: float = 30.0
