"""A stack that outlives the command that started it: up, down."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from services.kit.errors import ServerError, UserError
from services.stack import state
from services.stack.process import tail
from services.stack.settings import ENV_PREFIX, StackSettings

# Kafka, Prometheus and Receive close their storage; each has 30 s before it is killed.
_STOP_TIMEOUT_S = 90.0


def up(settings: StackSettings, on_change: Callable[[str, str], None]) -> state.Running:
    """Start a stack in a process of its own and return it when it is healthy.

    Raises UserError where it cannot be started, with what its process reported; then nothing is left running.
    """
    settings.state_dir.mkdir(parents=True, exist_ok=True)
    log = settings.state_dir / "stack.log"
    with log.open("ab") as errors:
        # This very interpreter, running our own module.
        runner = subprocess.Popen(
            (sys.executable, "-m", "services.stack"),
            env={**os.environ, f"{ENV_PREFIX}STATE_DIR": str(settings.state_dir)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # it stays when the terminal closes
            text=True,
        )
    try:
        _follow(runner, log, on_change)
    except BaseException:  # Ctrl-C too: it must not go on starting behind the user's back
        runner.terminate()
        runner.wait(_STOP_TIMEOUT_S)
        raise
    return _running(settings.state_dir)


def down(state_dir: Path) -> bool:
    """End the stack that runs in `state_dir`; return whether there was one."""
    running = state.read(state_dir)
    if running is None:
        return False
    state.end(running, timeout_s=_STOP_TIMEOUT_S)
    state.remove(state_dir)
    return True


def _follow(runner: "subprocess.Popen[str]", log: Path, on_change: Callable[[str, str], None]) -> None:
    """Pass on what the stack's process says until it is ready. Raises UserError where it gives up or ends."""
    assert runner.stdout is not None  # noqa: S101 - Popen gives it, as stdout=PIPE asks
    with runner.stdout as lines:
        for line in lines:
            event = json.loads(line)
            if event.get("event") == "ready":
                return
            if event.get("event") == "failed":
                raise UserError(event["message"], remedy=event["remedy"], exit_code=runner.wait(_STOP_TIMEOUT_S))
            on_change(event["name"], event["state"])
    code = runner.wait(_STOP_TIMEOUT_S)
    raise ServerError(f"the stack's process ended with exit code {code}:\n{tail(log)}", remedy=f"read {log}")


def _running(state_dir: Path) -> state.Running:
    running = state.read(state_dir)
    if running is None:
        raise ServerError(f"the stack in {state_dir} ended as soon as it was ready")
    return running
