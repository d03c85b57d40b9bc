"""What a running stack writes down, so that another command can find it, describe it and end it."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from services.kit.errors import UsageError, UserError
from services.kit.wait import until

_NAME = "stack.json"


class ProcessId(BaseModel):
    """A process that cannot be mistaken for a later one with the same number."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    pid: int
    # Clock ticks after boot at which it started: /proc/PID/stat, field 22.
    started: int

    def alive(self) -> bool:
        """Return whether this very process still runs."""
        return _started(self.pid) == self.started

    def send(self, number: signal.Signals) -> None:
        """Send a signal to it, where it still runs."""
        if self.alive():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return  # it ended between the two lines


class Running(BaseModel):
    """A running stack: who runs it, its processes and its addresses."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    runner: ProcessId
    processes: Mapping[str, ProcessId]
    # Name to what is known of the end of each process that died by itself.
    deaths: Mapping[str, str] = {}
    addresses: Mapping[str, object]


def identify(pid: int) -> ProcessId:
    """Return the identity of the running process `pid`."""
    return ProcessId(pid=pid, started=_started(pid) or 0)


def write(state_dir: Path, running: Running) -> None:
    """Write down what runs in `state_dir`; readers see the old or the new text, never half of one."""
    beside = state_dir / f".{_NAME}"
    beside.write_text(running.model_dump_json(indent=2), encoding="utf-8")
    beside.rename(state_dir / _NAME)


def read(state_dir: Path) -> Running | None:
    """Return the stack that runs in `state_dir`, or None. What a killed runner left behind is not a running stack."""
    try:
        running = Running.model_validate_json((state_dir / _NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise UsageError(
            f"{state_dir / _NAME} cannot be read: {error.error_count()} errors", remedy="remove the file"
        ) from None
    return running if running.runner.alive() else None


def remove(state_dir: Path) -> None:
    """Forget what ran in `state_dir`."""
    (state_dir / _NAME).unlink(missing_ok=True)


def end(running: Running, *, timeout_s: float) -> None:
    """End the runner and with it its processes; by force where it does not end in time.

    The kernel kills the processes of a runner that is killed. Raises UserError (exit code 3) where one remains.
    """
    running.runner.send(signal.SIGTERM)
    try:
        until(lambda: not running.runner.alive(), timeout_s=timeout_s, what="the stack to end")
    except UserError:
        running.runner.send(signal.SIGKILL)
    everyone = (running.runner, *running.processes.values())
    until(lambda: not any(one.alive() for one in everyone), timeout_s=60, what="the last processes to end")


def _started(pid: int) -> int | None:
    """Return when `pid` started, or None where it does not run (any more, or is only waited for by its parent)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name, in parentheses, may hold anything; the fields after it begin with the state, field 3.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in {"Z", "X"} else int(fields[19])
