"""Strikes processes and links of a stack, and starts again what has ended, as a container's restart policy does."""

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

from benchmarks.soak.blows import CLOCK, STEPS, UPGRADES, Blow
from benchmarks.soak.brokers import Brokers
from benchmarks.soak.clocks import STEP_S, Clocks
from benchmarks.soak.network import CUTS, Network
from benchmarks.soak.releases import Releases
from services.kit.errors import UserError
from services.stack.process import ManagedProcess
from services.stack.runner import Stack

_BACK_S = 180.0
"""How long a process may take until it is healthy again, with its starts that failed."""
_ELECT_EVERY_S = 2.0


class Striker:
    """Carries out a schedule beside what else goes on. `faults`: what ended by itself, and what did not come back."""

    def __init__(
        self,
        stack: Stack,
        network: Network | None = None,
        releases: Releases | None = None,
        brokers: Brokers | None = None,
        clocks: Clocks | None = None,
    ) -> None:
        self._stack = stack
        self._network, self._releases, self._brokers, self._clocks = network, releases, brokers, clocks
        self._over = threading.Event()
        self.faults: list[str] = []

    @contextmanager
    def striking(self, blows: Sequence[Blow]) -> Iterator[None]:
        """Strike while the block runs; at its end all blows have been struck, and every process is healthy again."""
        with ThreadPoolExecutor(len(blows) + 1, thread_name_prefix="soak") as pool:
            watching = pool.submit(self._watch)
            struck = [pool.submit(self._strike, blow) for blow in blows]
            try:
                yield
                for one in struck:
                    one.result()
            finally:
                self._over.set()
                watching.result()

    def _strike(self, blow: Blow) -> None:
        if self._over.wait(blow.at_s):
            return
        if blow.kind in CUTS:
            if self._network is None:
                raise ValueError(f"{blow}: there are no links here")
            with self._network.cut(blow.victim, blow.kind):
                self._over.wait(blow.lasts_s)
            return
        if blow.kind in STEPS:
            if self._clocks is None:
                raise ValueError(f"{blow}: there are no clocks here")
            seconds = STEP_S if blow.kind == "ahead" else -STEP_S
            with self._clocks.stepped(blow.victim.removesuffix(CLOCK), seconds):
                self._over.wait(blow.lasts_s)
            return
        if blow.kind == "elect":
            if self._brokers is None:
                raise ValueError(f"{blow}: there is one broker here")
            self._brokers.change_leaders()
            for _ in range(int(blow.lasts_s / _ELECT_EVERY_S)):
                self._over.wait(_ELECT_EVERY_S)
                self._brokers.change_leaders()
            return
        process = self._stack.process(blow.victim)
        if blow.kind in ("kill", "restart", *UPGRADES):
            process.stop() if blow.kind in ("restart", "upgrade") else process.kill()
            self._over.wait(blow.lasts_s)
            if blow.kind in UPGRADES:
                if self._releases is None:
                    raise ValueError(f"{blow}: there are no other releases here")
                process.spec = replace(process.spec, env={**process.spec.env, **self._releases.make()})
            self._bring_back(process)
        elif (pid := process.pid) is not None:
            os.killpg(pid, signal.SIGSTOP)
            self._over.wait(blow.lasts_s)
            os.killpg(pid, signal.SIGCONT)

    def _watch(self) -> None:
        while not self._over.wait(0.2):
            while self._stack.deaths:
                death = self._stack.deaths.pop()
                self.faults.append(f"by itself, {death}")
                self._bring_back(self._stack.process(death.name))

    def _bring_back(self, process: ManagedProcess) -> None:
        deadline = time.monotonic() + _BACK_S
        while time.monotonic() < deadline:
            try:
                process.start()
            except UserError:  # it ended as it started, as where Kafka is away: it is started again
                self._over.wait(1)
            else:
                return
        self.faults.append(f"{process.name} was not healthy within {_BACK_S:.0f} s:\n{process.tail()}")
