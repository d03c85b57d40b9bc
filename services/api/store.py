"""All state in one SQLite file: written by the API and by the processes of runs, one short transaction at a time."""

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from services.kit.backups import copy_store
from services.kit.durable import NO_ROOM, set_aside
from services.kit.errors import UsageError

Row = sqlite3.Row
_BUSY_S = 30.0

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE runs (
        id TEXT PRIMARY KEY, recording TEXT NOT NULL, path TEXT NOT NULL, detectors TEXT NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('queued', 'running', 'done', 'failed', 'cancelled')),
        progress REAL NOT NULL DEFAULT 0, event_ms INTEGER, findings INTEGER NOT NULL DEFAULT 0,
        incidents INTEGER NOT NULL DEFAULT 0, created_ms INTEGER NOT NULL, began_ms INTEGER, over_ms INTEGER,
        error TEXT, comparison TEXT
    ) STRICT;
    CREATE INDEX runs_by_state ON runs (state, created_ms);
    CREATE TABLE findings (
        run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE, id TEXT NOT NULL, place INTEGER NOT NULL,
        detector TEXT NOT NULL, fault TEXT NOT NULL, severity TEXT NOT NULL, state TEXT NOT NULL, node TEXT,
        verdict TEXT, body TEXT NOT NULL, PRIMARY KEY (run, id)
    ) STRICT;
    CREATE INDEX findings_in_order ON findings (run, place);
    CREATE TABLE incidents (
        run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE, id TEXT NOT NULL, place INTEGER NOT NULL,
        state TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (run, id)
    ) STRICT;
    CREATE TABLE events (
        run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE, id INTEGER NOT NULL, kind TEXT NOT NULL,
        body TEXT NOT NULL, PRIMARY KEY (run, id)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE labels (
        id TEXT PRIMARY KEY, recording TEXT NOT NULL, run TEXT NOT NULL, finding TEXT, incident TEXT,
        mark TEXT NOT NULL, note TEXT NOT NULL, author TEXT NOT NULL,
        created_ms INTEGER NOT NULL, updated_ms INTEGER NOT NULL
    ) STRICT;
    CREATE INDEX labels_by_run ON labels (run);
    CREATE TABLE shadow (detector TEXT PRIMARY KEY) STRICT;
    CREATE TABLE comparisons (
        id TEXT PRIMARY KEY, title TEXT NOT NULL, created_ms INTEGER NOT NULL, body TEXT NOT NULL
    ) STRICT;
    """,
    # A replay's generation is a run that is carried out elsewhere: `unit` is its cluster/replay, null for runs of here.
    """
    ALTER TABLE runs ADD COLUMN unit TEXT;
    ALTER TABLE runs ADD COLUMN generation INTEGER;
    CREATE INDEX runs_by_unit ON runs (unit);
    CREATE TABLE forgotten (run TEXT PRIMARY KEY) STRICT;
    CREATE TABLE alerts (
        run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE, id TEXT NOT NULL, place INTEGER NOT NULL,
        state TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (run, id)
    ) STRICT;
    CREATE INDEX alerts_in_order ON alerts (place);
    CREATE TABLE tasks (
        id TEXT PRIMARY KEY, kind TEXT NOT NULL, asked TEXT NOT NULL, needs TEXT NOT NULL, result TEXT,
        state TEXT NOT NULL CHECK (state IN ('queued', 'running', 'done', 'failed', 'cancelled')),
        progress REAL NOT NULL DEFAULT 0, doing TEXT, created_ms INTEGER NOT NULL, began_ms INTEGER, over_ms INTEGER,
        error TEXT
    ) STRICT;
    CREATE INDEX tasks_by_state ON tasks (state, created_ms);
    """,
    "ALTER TABLE runs ADD COLUMN versions TEXT;",
)
"""Numbered from 1, in order; one that was released is never changed, what comes later is added."""


def now_ms() -> int:
    """Return wall time in epoch milliseconds: when somebody asked for something."""
    return time.time_ns() // 1_000_000


def is_full(error: Exception) -> bool:
    """Return whether an error says that the disk is full."""
    if isinstance(error, sqlite3.Error):
        return error.sqlite_errorcode in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
    return isinstance(error, OSError) and error.errno in NO_ROOM


class Store:
    """The file; every use opens a connection of its own, so that threads and processes share nothing else."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def migrate(self) -> None:
        """Bring the file to this version's tables, after a copy of it as it was.

        One that is damaged is set aside: runs, labels and tasks begin anew.

        Raises UserError where a later version wrote it, or it cannot be used for another reason.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._set_aside_if_damaged()
        try:
            with self.connection() as db:
                db.execute("PRAGMA journal_mode = WAL")
                (version,) = db.execute("PRAGMA user_version").fetchone()
                if version > len(MIGRATIONS):
                    raise UsageError(
                        f"{self.path}: was written by a later hindcast (tables {version}, known {len(MIGRATIONS)})",
                        remedy="run that version, or name another HINDCAST_API_DATA_DIR",
                    )
                if 0 < version < len(MIGRATIONS):
                    copy_store(self.path, self.path.with_name(f"{self.path.name}.tables-{version}"))
                for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
                    db.executescript(f"BEGIN IMMEDIATE; {script} PRAGMA user_version = {number}; COMMIT;")
        except sqlite3.DatabaseError as error:
            raise UsageError(
                f"{self.path}: cannot be used: {error}",
                remedy="see to its disk and its permissions, or name another HINDCAST_API_DATA_DIR",
            ) from None

    def _set_aside_if_damaged(self) -> None:
        try:
            with self.connection() as db:
                found = [word for (word,) in db.execute("PRAGMA quick_check").fetchall()]
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                return
            found = [str(error)]
        if found != ["ok"]:
            for beside in ("-wal", "-shm"):
                self.path.with_name(self.path.name + beside).unlink(missing_ok=True)
            set_aside(self.path, found[0])

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """Give a connection outside any transaction, and close it."""
        db = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None)
        try:
            db.row_factory = sqlite3.Row
            db.execute("PRAGMA foreign_keys = ON")
            db.execute("PRAGMA synchronous = NORMAL")
            yield db
        finally:
            db.close()

    @contextmanager
    def migrated(self) -> Iterator[None]:
        """Migrate, and keep the file open for the block: opened anew, on a full disk, it could not even be read."""
        self.migrate()
        with self.connection() as db:
            db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            yield

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Give a connection in a transaction that is kept where nothing is raised."""
        with self.connection() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

    def all(self, query: str, given: Sequence[Any] = ()) -> list[Row]:
        """Return the rows of a query."""
        with self.connection() as db:
            return db.execute(query, given).fetchall()

    def one(self, query: str, given: Sequence[Any] = ()) -> Row | None:
        """Return the first row of a query; None without any."""
        rows = self.all(query, given)
        return rows[0] if rows else None
