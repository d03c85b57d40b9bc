"""One child process of the stack: started, watched, stopped, and never left behind."""

import enum
import os
import shutil
import signal
import threading
from dataclasses import dataclass
from pathlib import Path

from services.kit.errors import ServerError
from services.kit.wait import until
from services.stack.child import Child, Spawner
from services.stack.ports import PortBook
from services.stack.spec import ProcessSpec

# After SIGKILL only the kernel has to act.
_KILL_TIMEOUT_S = 10.0
_TAIL_LINES = 12


class State(enum.StrEnum):
    """Where a process is in its life."""

    WAITING = "waiting"
    PREPARING = "preparing"
    STARTING = "starting"
    HEALTHY = "healthy"
    STOPPED = "stopped"
    DIED = "died"


@dataclass(frozen=True)
class Death:
    """A process that ended although nobody asked it to."""

    name: str
    reason: str
    tail: str
    log: Path

    def __str__(self) -> str:
        return f"{self.name} {self.reason}; the end of its log ({self.log}):\n{self.tail}"


class ManagedProcess:
    """A child and its life. Its methods may be called from any thread."""

    def __init__(self, spec: ProcessSpec, *, log: Path, spawner: Spawner, ports: PortBook, timeout_s: float) -> None:
        self.spec = spec
        self.log = log
        self.state = State.WAITING
        self._spawner = spawner
        self._ports = ports
        self._timeout_s = timeout_s
        self._child: Child | None = None
        self._wanted = False
        self._lock = threading.RLock()

    @property
    def name(self) -> str:
        """The name that logs, messages and `Stack.process` use."""
        return self.spec.name

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        with self._lock:
            return self._child.pid if self._child is not None and self._child.poll() is None else None

    def begin(self) -> None:
        """Start it, or its preparation, without waiting for its health."""
        with self._lock:
            if self._wanted:
                return
            self._wanted = True
            if self.spec.prepare and not (self.spec.prepared_by and self.spec.prepared_by.exists()):
                self.state = State.PREPARING
                self._child = self._spawner.spawn(self.spec, self.spec.prepare, self.log)
            else:
                self._run()

    def advance(self) -> State:
        """Move on where its preparation is over or it has become healthy, and return its state.

        Raises UserError (exit code 3) with the end of its log where it has ended instead.
        """
        with self._lock:
            child = self._child
            if self.state is State.PREPARING and child and child.poll() == 0:
                self._run()
                return self.state
            death = self.look()
        if death is not None:
            raise ServerError(f"{death}", remedy=self._remedy(death))
        if self.state is State.STARTING and self._is_healthy():
            self._mark_healthy()
        return self.state

    def look(self) -> Death | None:
        """Return how it died, where it has ended though it was to run; once per death."""
        with self._lock:
            code = self._child.poll() if self._wanted and self._child is not None else None
            if code is None:
                return None
            if code == 0 and (self.spec.once or self.state is State.PREPARING):
                return None
            self._wanted = False
            self.state = State.DIED
            self._hold_ports()
            return Death(self.name, _reason(code), self.tail(), self.log)

    def start(self) -> None:
        """Start it and wait until it is healthy. Raises UserError (exit code 3) where it ends or takes too long."""
        self.begin()
        until(
            lambda: self.advance() is State.HEALTHY,
            timeout_s=self._timeout_s,
            what=f"{self.spec.health or self.name} (log: {self.log})",
        )

    def terminate(self) -> None:
        """Ask it to end, without waiting."""
        self._signal(signal.SIGTERM)

    def wait(self) -> None:
        """Wait until it has ended; where that takes longer than its stop timeout, kill it."""
        child = self._child
        if child is None:
            return
        try:
            child.wait(self.spec.stop_timeout_s)
        except TimeoutError:
            self._signal(signal.SIGKILL)
            child.wait(_KILL_TIMEOUT_S)
        self._ended()

    def stop(self) -> None:
        """End it gracefully, by force where it does not end in time, and keep its ports for the next start."""
        self.terminate()
        self.wait()

    def kill(self) -> None:
        """End it as a crash would: SIGKILL, nothing flushed."""
        self._signal(signal.SIGKILL)
        if self._child is not None:
            self._child.wait(_KILL_TIMEOUT_S)
        self._ended()

    def restart(self) -> None:
        """Stop it and start it again on the same ports."""
        self.stop()
        self.start()

    def tail(self, lines: int = _TAIL_LINES) -> str:
        """Return the last lines of its log."""
        return tail(self.log, lines)

    def _is_healthy(self) -> bool:
        if self.spec.once:
            return self._child is not None and self._child.poll() == 0
        return self.spec.health is None or self.spec.health.check()

    def _mark_healthy(self) -> None:
        with self._lock:  # it may have been stopped while its health was asked
            if self.state is State.STARTING and (self.spec.once or self.pid is not None):
                self.state = State.HEALTHY

    def _run(self) -> None:
        for port in self.spec.ports:
            self._ports.release(port)
        self._child = self._spawner.spawn(self.spec, self.spec.argv, self.log)
        self.state = State.STARTING

    def _signal(self, number: signal.Signals) -> None:
        with self._lock:
            self._wanted = False
            if self._child is not None:
                self._child.send(number)

    def _ended(self) -> None:
        with self._lock:
            self.state = State.STOPPED
            self._hold_ports()

    def _hold_ports(self) -> None:
        for port in self.spec.ports:
            self._ports.hold(port)

    def _remedy(self, death: Death) -> str:
        if "address already in use" in death.tail.lower():
            return f"a port of {self.name} was taken; end what uses it, or choose another by HINDCAST_STACK_*_PORT"
        return f"read {self.log}"


def cut(log: Path, most: int) -> None:
    """Begin a log of more than `most` bytes anew, and keep what it had as ``NAME.log.1`` where there is room for that.

    Who writes to it goes on: each write is appended to the same file. What is written in this very moment is lost.
    """
    if not log.exists() or log.stat().st_size <= most:
        return
    before = log.with_name(f"{log.name}.1")
    try:
        shutil.copyfile(log, before)
    except OSError:  # a full disk is the last place for an endless log
        before.unlink(missing_ok=True)
    os.truncate(log, 0)


def tail(log: Path, lines: int = _TAIL_LINES) -> str:
    """Return the last lines of a log file, indented; long ones cut."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 64 * 1024))
            last = file.read().decode(errors="replace").splitlines()[-lines:]
    except OSError:
        return "    (no log)"
    return "\n".join(f"    {line[:400]}" for line in last) or "    (empty)"


def _reason(returncode: int) -> str:
    if returncode < 0:
        return f"was killed by {signal.Signals(-returncode).name}"
    return f"ended with exit code {returncode}"
