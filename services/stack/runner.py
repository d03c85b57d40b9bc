"""Runs the real servers as child processes on loopback.

    with Stack.start(state_dir=tmp_path) as stack:              # Kafka, Prometheus, Alertmanager, Thanos: all healthy
        stack.addresses.kafka, stack.addresses.prometheus_write, stack.addresses.thanos_query
        stack.process("prometheus").stop()                      # .start() .restart() .kill()
        stack.add_process(spec)                                 # one of hindcast_services, or any ProcessSpec
        stack.flush_receive()                                   # what Receive holds is in the object store
        stack.check()                                           # raises where a process has died by itself

`only=("kafka", "prometheus")` starts just those, and what they need; `services=hindcast_services.services` starts
hindcast's own services too. Leaving the block ends every process; if the
runner itself is killed, the kernel ends them.
"""

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import IO, Self

from services.kit.errors import ServerError, UsageError
from services.kit.wait import until
from services.stack import build, monitor, state
from services.stack.child import NativeSpawner, Spawner
from services.stack.configs import WEBHOOK_URL_FILE
from services.stack.hindcast_services import ServiceContext, Services
from services.stack.ports import PortBook
from services.stack.process import Death, ManagedProcess, State, cut
from services.stack.settings import StackSettings, load_settings
from services.stack.spec import ProcessSpec
from services.stack.topology import binaries_of, describe, servers

_log = logging.getLogger(__name__)

OnChange = Callable[[str, State], None]
# How often the monitor looks whether a process has died.
_LOOK_S = 0.2


class Stack:
    """The servers, and hindcast's services, of one state folder."""

    def __init__(
        self,
        state_dir: Path,
        settings: StackSettings,
        *,
        only: Collection[str] | None = None,
        services: Services | None = None,
        on_change: OnChange | None = None,
        spawner: Spawner | None = None,
        binaries: Mapping[str, Path] | None = None,
    ) -> None:
        """Prepare folders, ports and configuration; nothing is started yet.

        The servers of `binaries`, by default those built into the cache, are started by `spawner`, by default as child
        processes; the tests have one that starts containers.

        Raises UserError: a server that cannot be built, a port in use, a state folder another stack works in.
        """
        self.state_dir = state_dir.absolute()
        self.settings = settings
        self.logs = self.state_dir / "logs"
        self.deaths: list[Death] = []
        self._on_change = on_change
        self._lock_file = _own(self.state_dir)
        self._ports = PortBook()
        self._spawner = spawner or NativeSpawner()
        self._closing = threading.Event()
        self._publishing = threading.Lock()
        self._monitor: threading.Thread | None = None
        self._processes: dict[str, ManagedProcess] = {}
        self._seen: dict[str, State] = {}
        try:
            names = _with_needed(only, servers(settings))
            if binaries is None:
                binaries = build.ensure(settings.cache_dir, binaries_of(names))
            topology = describe(settings, self.state_dir, binaries, self._ports)
            for folder in (self.logs, *topology.folders, *(path.parent for path in topology.files)):
                folder.mkdir(parents=True, exist_ok=True)
            for path, text in topology.files.items():
                path.touch(0o600)  # an address that alerts are sent to may be a secret
                path.write_text(text, encoding="utf-8")
            self.addresses = topology.addresses
            for spec in topology.processes:
                if spec.name in names:
                    self.add(spec)
            for spec in services(self.service_context()) if services is not None else ():
                self.add(spec)
        except BaseException:
            self.stop()
            raise

    @classmethod
    def start(
        cls,
        state_dir: Path | None = None,
        settings: StackSettings | None = None,
        *,
        only: Collection[str] | None = None,
        services: Services | None = None,
        on_change: OnChange | None = None,
    ) -> Self:
        """Build what is missing, start the servers, and return the stack when all are healthy.

        Raises UserError as the constructor does, and (exit code 3) with the end of its log where a process does not
        become healthy; then nothing is left running.
        """
        settings = settings or load_settings()
        stack = cls(state_dir or settings.state_dir, settings, only=only, services=services, on_change=on_change)
        try:
            stack.start_all()
        except BaseException:
            stack.stop()
            raise
        return stack

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def process(self, name: str) -> ManagedProcess:
        """Return the process `name`. Raises UserError with the names there are."""
        try:
            return self._processes[name]
        except KeyError:
            raise UsageError(
                f"this stack has no process {name!r}", remedy=f"it has {', '.join(self._processes)}"
            ) from None

    @property
    def processes(self) -> tuple[ManagedProcess, ...]:
        """All processes, in the order in which they were added."""
        return tuple(self._processes.values())

    def service_context(self) -> ServiceContext:
        """Return what descriptions of hindcast's services are made from."""
        folder = self.state_dir / "services"
        folder.mkdir(exist_ok=True)
        return ServiceContext(self.addresses, folder, self._ports, self.set_webhook)

    def add_process(self, spec: ProcessSpec) -> ManagedProcess:
        """Start one more process, wait until it is healthy and return it."""
        process = self.add(spec)
        process.start()
        self._report(process)
        self._publish()
        return process

    def add(self, spec: ProcessSpec) -> ManagedProcess:
        """Add a process for `start_all` to start when what it needs is healthy."""
        if spec.name in self._processes:
            raise UsageError(f"this stack has a process {spec.name!r} already")
        process = self._processes[spec.name] = ManagedProcess(
            spec,
            log=self.logs / f"{spec.name}.log",
            spawner=self._spawner,
            ports=self._ports,
            timeout_s=self.settings.start_timeout_s,
        )
        if spec.url:
            self.addresses.services[spec.name] = spec.url
        return process

    def remove(self, name: str) -> None:
        """End a process and forget it, so that another may have its name."""
        self.process(name).stop()
        del self._processes[name]
        self.addresses.services.pop(name, None)
        self._publish()

    def set_webhook(self, url: str) -> None:
        """Have Alertmanager deliver the alerts of replays to `url`, unless a setting says where to."""
        if self.settings.webhook_url is None:
            (self.state_dir / "config" / WEBHOOK_URL_FILE).write_text(url, encoding="utf-8")

    def start_all(self) -> None:
        """Start what is not running, each process as soon as those it needs are healthy.

        Raises UserError (exit code 3) where one ends or is not healthy in time.
        """
        if self._monitor is None:
            self._monitor = threading.Thread(target=self._watch, name="stack-monitor", daemon=True)
            self._monitor.start()
        began: dict[str, float] = {}

        def all_healthy() -> bool:
            self.check()
            for process in self.processes:
                self._begin_or_advance(process, began)
            return all(process.state is State.HEALTHY for process in self.processes)

        until(all_healthy, timeout_s=self.settings.start_timeout_s * 3, what="the stack to be healthy", interval_s=0.02)
        self._publish()

    def check(self) -> None:
        """Raise UserError (exit code 3) naming the processes that died by themselves, with the end of their logs."""
        if self.deaths:
            raise ServerError("\n".join(str(death) for death in self.deaths), remedy=f"read the logs in {self.logs}")

    def flush_receive(self) -> None:
        """Have Thanos Receive put all it holds into the object store, and leave it running.

        Receive writes and uploads its heads as it stops, all but the samples of the newest timestamp (its flush ends
        one millisecond early). These are then alone in the head, which the next stop writes whole: two restarts.
        """
        receive = self.process("receive")
        receive.restart()
        receive.restart()

    def stop(self) -> None:
        """End every process, those that others need last. May be called twice."""
        self._closing.set()
        if self._monitor is not None:
            self._monitor.join()
            self._monitor = None
        remaining = [process for process in self.processes if process.pid is not None]
        while remaining:
            needed = {name for process in remaining for name in process.spec.after}
            wave = [process for process in remaining if process.name not in needed]
            for process in wave:
                process.terminate()
            for process in wave:
                try:
                    process.wait()
                except TimeoutError:
                    _log.error("process does not end even by SIGKILL name=%s pid=%s", process.name, process.pid)
                self._report(process)
            remaining = [process for process in remaining if process not in wave]
        self._spawner.close()
        self._ports.close()
        if not self._lock_file.closed:
            state.remove(self.state_dir)
            self._lock_file.close()

    def _begin_or_advance(self, process: ManagedProcess, began: dict[str, float]) -> None:
        if process.state in {State.WAITING, State.STOPPED, State.DIED}:
            if all(self.process(name).state is State.HEALTHY for name in process.spec.after):
                process.begin()
                began[process.name] = time.monotonic()
        elif process.state is not State.HEALTHY:
            process.advance()
            waited_s = time.monotonic() - began.get(process.name, time.monotonic())
            if waited_s > self.settings.start_timeout_s:
                raise ServerError(
                    f"{process.name} runs but is not healthy after {waited_s:.0f} s: waited for {process.spec.health}; "
                    f"the end of its log ({process.log}):\n{process.tail()}",
                    remedy="raise HINDCAST_STACK_START_TIMEOUT_S on a slow machine",
                )
        self._report(process)

    def _report(self, process: ManagedProcess) -> None:
        if self._seen.get(process.name) is process.state:
            return
        self._seen[process.name] = process.state
        _log.info("process name=%s state=%s pid=%s log=%s", process.name, process.state, process.pid, process.log)
        if self._on_change is not None:
            self._on_change(process.name, process.state)

    def _watch(self) -> None:
        while not self._closing.wait(_LOOK_S):
            for log in (self.state_dir / "stack.log", *(process.log for process in self.processes)):
                cut(log, self.settings.log_bytes)
            for process in self.processes:
                # While it is being started, who starts it finds out, and says so.
                death = process.look() if process.state is State.HEALTHY else None
                if death is not None:
                    self.deaths.append(death)
                    _log.error("process died %s", death)
                    self._report(process)
                    self._publish()

    def _publish(self) -> None:
        with self._publishing:  # the monitor does it too
            state.write(
                self.state_dir,
                state.Running(
                    runner=state.identify(os.getpid()),
                    processes={p.name: state.identify(pid) for p in self.processes if (pid := p.pid) is not None},
                    deaths={death.name: str(death) for death in self.deaths},
                    addresses=self.addresses.as_dict(),
                ),
            )
            targets = self.state_dir / "config" / monitor.TARGETS_FILE
            written = targets.with_suffix(".new")
            written.write_text(monitor.targets(self.addresses.services), encoding="utf-8")
            written.replace(targets)  # whole at any time: it is read whenever it changes


def _own(state_dir: Path) -> IO[str]:
    """Return the locked lock file of `state_dir`: the kernel lets go of it when this process ends."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        file = (state_dir / "lock").open("w", encoding="ascii")
    except OSError as error:
        raise UsageError(
            f"cannot write to the state folder {state_dir}: {error.strerror}",
            remedy="choose another by HINDCAST_STACK_STATE_DIR",
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise UsageError(
            f"a stack is running already in {state_dir}",
            remedy="end it (hindcast stack down), or choose another folder by HINDCAST_STACK_STATE_DIR",
        ) from None
    return file


def _with_needed(only: Collection[str] | None, there: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return which of the servers that are `there`, each with those it needs, to start: the named ones and their needs.

    Raises UserError for a name there is not.
    """
    if only is None:
        return tuple(there)
    unknown = sorted(set(only) - set(there))
    if unknown:
        raise UsageError(f"no such server: {', '.join(unknown)}", remedy=f"there are {', '.join(there)}")
    wanted = set(only)
    while needed := {other for name in wanted for other in there[name]} - wanted:
        wanted |= needed
    return tuple(name for name in there if name in wanted)
