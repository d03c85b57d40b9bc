"""The states of what is carried out in a process of its own: queued, running, then done, failed or cancelled."""

import sqlite3
from collections.abc import Callable
from typing import Literal

from services.api.store import Store, now_ms
from services.kit.problems import RefusedError

_OPEN = ("queued", "running")


class Lifecycle:
    """The states of a table's rows. The table has the columns state, progress, error and the times.

    `ours`: an SQL condition on the rows that are carried out here.
    """

    def __init__(self, store: Store, table: Literal["runs", "tasks"], *, ours: str = "1") -> None:
        self.table = table
        self._store, self._ours = store, ours
        self._kind = table.removesuffix("s")

    def check_room(self, db: sqlite3.Connection, new: int, most: int) -> None:
        """Refuse (429) `new` more rows where more than `most` would then wait."""
        query = f"SELECT count(*) AS n FROM {self.table} WHERE state = 'queued'"  # noqa: S608 - names of ours, as below
        waiting = db.execute(query).fetchone()["n"]
        if waiting + new > most:
            raise RefusedError(429, f"{waiting} {self.table} wait already", remedy="wait for them, or cancel some")

    def claim(self, clear: Callable[[sqlite3.Connection, str], None]) -> str | None:
        """Return the row that has waited longest, from now on running; `clear` deletes what an earlier try has left."""
        first = f"SELECT id FROM {self.table} WHERE state = 'queued' ORDER BY created_ms, rowid LIMIT 1"  # noqa: S608
        begins = f"UPDATE {self.table} SET state = 'running', progress = 0, began_ms = ? WHERE id = ?"  # noqa: S608
        with self._store.writing() as db:
            found = db.execute(first).fetchone()
            if found is None:
                return None
            row = str(found["id"])
            clear(db, row)
            db.execute(begins, (now_ms(), row))
            return row

    def put_back(self, row: str | None = None) -> None:
        """Let a row that is running wait again; without one, all of ours."""
        query = f"UPDATE {self.table} SET state = 'queued', began_ms = NULL WHERE state = 'running'"  # noqa: S608
        with self._store.writing() as db:
            db.execute(f"{query} AND (?1 = id OR ?1 IS NULL AND {self._ours})", (row,))

    def is_running(self, row: str) -> bool:
        """Return whether a row is running still: it may have been cancelled."""
        found = self._store.one(f"SELECT state FROM {self.table} WHERE id = ?", (row,))  # noqa: S608
        return found is not None and found["state"] == "running"

    def end(self, row: str, state: str, error: str | None = None) -> None:
        """Write how a row that is running ended; one that was over before stays as it is."""
        query = f"UPDATE {self.table} SET state = ?, error = ?, over_ms = ? WHERE id = ? AND state = 'running'"  # noqa: S608
        with self._store.writing() as db:
            db.execute(query, (state, error, now_ms(), row))

    def cancel(self, row: str) -> None:
        """End a row that waits or is running; RefusedError (409) where it is over."""
        query = f"UPDATE {self.table} SET state = 'cancelled', over_ms = ? WHERE id = ? AND state IN {_OPEN}"  # noqa: S608
        with self._store.writing() as db:
            changed = db.execute(query, (now_ms(), row)).rowcount
        if not changed:
            raise RefusedError(409, f"{self._kind} {row} is over", remedy="delete it, if it is in the way")

    def check_over(self, row: str, state: str) -> None:
        """Refuse (409) what a row in this state is asked for too early."""
        if state in _OPEN:
            remedy = f"cancel it first: POST /api/v1/{self.table}/{row}/cancel"
            raise RefusedError(409, f"{self._kind} {row} is {state}", remedy=remedy)
