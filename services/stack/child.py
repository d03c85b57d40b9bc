"""Starts and signals the child processes of a runner."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from services.stack.spec import ProcessSpec

_LAUNCH = Path(__file__).with_name("launch.py")


class Child(Protocol):
    """A running process, or what is left of it."""

    @property
    def pid(self) -> int:
        """Its process id on this machine."""

    def poll(self) -> int | None:
        """Return its exit code (minus the signal that ended it), None while it runs."""

    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended. Raises TimeoutError."""

    def send(self, number: signal.Signals) -> None:
        """Send a signal to it and to what it has started, where it still runs."""


class Spawner(Protocol):
    """Starts children."""

    def spawn(self, spec: ProcessSpec, argv: tuple[str, ...], log: Path) -> Child:
        """Start `argv` with the environment and folder of `spec`, its output appended to `log`."""

    def close(self) -> None:
        """Let go of what starting children took; to be called when all have ended."""


@dataclass(frozen=True)
class NativeChild:
    """A child process that leads a session of its own."""

    popen: "subprocess.Popen[bytes]"

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.popen.pid

    def poll(self) -> int | None:
        """Return its exit code, None while it runs."""
        return self.popen.poll()

    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended. Raises TimeoutError."""
        try:
            self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError from None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to its group: it and whatever it has started."""
        if self.popen.poll() is None:  # so it is not reaped, and its id cannot belong to anybody else
            os.killpg(self.popen.pid, number)


class NativeSpawner:
    """Starts children from one thread that lives as long as the runner.

    The kernel sends a child its parent-death signal when the *thread* that started it ends, not the process; started
    from a short-lived thread, a server would be killed for no visible reason.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spawner")

    def spawn(self, spec: ProcessSpec, argv: tuple[str, ...], log: Path) -> NativeChild:
        """Start `argv` in a session of its own, with the environment and folder of `spec`, output appended to `log`."""
        return self._thread.submit(self._spawn, spec, argv, log).result()

    @staticmethod
    def _spawn(spec: ProcessSpec, argv: tuple[str, ...], log: Path) -> NativeChild:
        guarded = (sys.executable, "-I", "-S", str(_LAUNCH), str(os.getpid()), *argv)
        with log.open("ab") as output:
            output.write(f"--- {datetime.now(UTC).isoformat(timespec='seconds')} starting {argv[0]}\n".encode())
            output.flush()
            # Commands come from the topology and the services' list; no shell is involved.
            return NativeChild(
                subprocess.Popen(  # noqa: S603 - see above
                    guarded,
                    env={**os.environ, **spec.env},
                    cwd=spec.cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C in a terminal reaches the runner alone, which stops in order
                )
            )

    def close(self) -> None:
        """End the thread; to be called when all children are stopped."""
        self._thread.shutdown()
