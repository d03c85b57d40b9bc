"""What is asked for and takes long, carried out one process each, so many at a time, in the order it was asked for."""

import logging
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from services.api.store import Store, now_ms
from services.kit.processes import Worker

Target = Callable[[Path, str], None]
"""Carries one out, in a process of its own: the store's file, its id."""
_log = logging.getLogger(__name__)
_LOOK_S = 0.1


class Workers:
    """The threads that see the rows of a table through. The table has the columns state, progress and the times.

    `ours`: an SQL condition on the rows that are carried out here; `clear` deletes what an earlier try has left;
    `after` is called when the process of one that is over is gone.
    """

    def __init__(
        self,
        store: Store,
        table: Literal["runs", "tasks"],
        target: Target,
        *,
        count: int,
        ours: str = "1",
        clear: Callable[[sqlite3.Connection, str], None] = lambda _db, _row: None,
        after: Callable[[str], None] = lambda _row: None,
    ) -> None:
        self._store, self._table, self._target = store, table, target
        self._count, self._ours, self._clear, self._after = count, ours, clear, after
        self._wake = threading.Condition()
        self._closing = False
        self._threads: list[threading.Thread] = []

    def begin(self) -> None:
        """Take up what waits, and what was running when the service ended, which begins anew."""
        query = f"UPDATE {self._table} SET state = 'queued', began_ms = NULL WHERE state = 'running' AND {self._ours}"  # noqa: S608 - names of ours
        with self._store.writing() as db:
            db.execute(query)
        self._threads = [
            threading.Thread(target=self._see_through, name=f"{self._table}-{number}", daemon=True)
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
                    self._put_back(held)
                held = self._claim()
                if held is not None:
                    self._process(held)
                    held = None
                    continue
            except Exception:  # noqa: BLE001 - whatever it is: what waits must not wait for the next start
                _log.exception("%s cannot be seen through, trying again", self._table)
            with self._wake:
                if not self._closing:
                    self._wake.wait(1.0)

    def _claim(self) -> str | None:
        """Return one that waits, which from now on is running; nothing is left of an earlier try."""
        next_one = f"SELECT id FROM {self._table} WHERE state = 'queued' ORDER BY created_ms, rowid LIMIT 1"  # noqa: S608 - names of ours
        begins = f"UPDATE {self._table} SET state = 'running', progress = 0, began_ms = ? WHERE id = ?"  # noqa: S608 - as above
        with self._store.writing() as db:
            found = db.execute(next_one).fetchone()
            if found is None:
                return None
            row = str(found["id"])
            self._clear(db, row)
            db.execute(begins, (now_ms(), row))
            return row

    def _put_back(self, row: str) -> None:
        query = f"UPDATE {self._table} SET state = 'queued', began_ms = NULL WHERE state = 'running' AND id = ?"  # noqa: S608 - names of ours
        with self._store.writing() as db:
            db.execute(query, (row,))

    def _process(self, row: str) -> None:
        process = Worker(target=self._target, args=(self._store.path, row), name=f"{self._table}-{row}", daemon=True)
        process.start()
        try:
            while process.is_alive():
                process.join(_LOOK_S)
                if self._closing or not self._is_running(row):
                    process.join(0 if self._closing else _LOOK_S)
                    break
        finally:
            process.terminate()
            process.join()
        if self._closing:
            return
        ended = f"UPDATE {self._table} SET state = 'failed', error = ?, over_ms = ? WHERE id = ? AND state = 'running'"  # noqa: S608 - as above
        with self._store.writing() as db:
            words = f"its process ended with code {process.exitcode}: out of memory, or killed"
            db.execute(ended, (words, now_ms(), row))
        self._after(row)

    def _is_running(self, row: str) -> bool:
        found = self._store.one(f"SELECT state FROM {self._table} WHERE id = ?", (row,))  # noqa: S608 - as above
        return found is not None and found["state"] == "running"
