"""What is asked for and takes long, carried out one process each, so many at a time, in the order it was asked for."""

import logging
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

from services.api.runs.lifecycle import Lifecycle
from services.api.store import Store
from services.kit.processes import Worker

Target = Callable[[Path, str], None]
"""Carries one out, in a process of its own: the store's file, its id."""
_log = logging.getLogger(__name__)
_LOOK_S = 0.1


class Workers:
    """The threads that see the rows of a table through.

    `clear` deletes what an earlier try has left; `after` is called when the process of one that is over is gone.
    """

    def __init__(
        self,
        store: Store,
        lifecycle: Lifecycle,
        target: Target,
        *,
        count: int,
        clear: Callable[[sqlite3.Connection, str], None] = lambda _db, _row: None,
        after: Callable[[str], None] = lambda _row: None,
    ) -> None:
        self._store, self._lifecycle, self._target = store, lifecycle, target
        self._count, self._clear, self._after = count, clear, after
        self._wake = threading.Condition()
        self._closing = False
        self._threads: list[threading.Thread] = []

    def begin(self) -> None:
        """Take up what waits, and what was running when the service ended, which begins anew."""
        self._lifecycle.put_back()
        self._threads = [
            threading.Thread(target=self._see_through, name=f"{self._lifecycle.table}-{number}", daemon=True)
            for number in range(self._count)
        ]
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Have it look at once: something waits."""
        with self._wake:
            self._wake.notify_all()

    def close(self) -> None:
        """End the processes; what they did is begun anew at the next start."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        for thread in self._threads:
            thread.join()

    def _see_through(self) -> None:
        held: str | None = None
        while not self._closing:
            try:
                if held is not None:  # it was claimed, and the disk is full, say, or no process can be had
                    self._lifecycle.put_back(held)
                held = self._lifecycle.claim(self._clear)
                if held is not None:
                    self._process(held)
                    held = None
                    continue
            except Exception:  # noqa: BLE001 - whatever it is: what waits must not wait for the next start
                _log.exception("%s cannot be seen through, trying again", self._lifecycle.table)
            with self._wake:
                if not self._closing:
                    self._wake.wait(1.0)

    def _process(self, row: str) -> None:
        name = f"{self._lifecycle.table}-{row}"
        process = Worker(target=self._target, args=(self._store.path, row), name=name, daemon=True)
        process.start()
        try:
            while process.is_alive():
                process.join(_LOOK_S)
                if self._closing or not self._lifecycle.is_running(row):
                    process.join(0 if self._closing else _LOOK_S)
                    break
        finally:
            process.terminate()
            process.join()
        if self._closing:
            return
        error = f"its process ended with code {process.exitcode}: out of memory, or killed"
        self._lifecycle.end(row, "failed", error)
        self._after(row)
