"""Tasks, such as postmortems, scores and imports, each in a process of its own, with a folder for its files."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from services.api.models import Page
from services.api.runs.lifecycle import Lifecycle
from services.api.runs.runs import new_id
from services.api.runs.workers import Workers
from services.api.store import Row, Store, now_ms
from services.api.tasks.models import Task, TaskKind
from services.api.tasks.process import main
from services.kit.problems import RefusedError, missing


class Tasks:
    """The tasks there are. Raises RefusedError: 404 where there is none of an id, 409 where it is not in that state."""

    def __init__(self, store: Store, folder: Path, *, workers: int, waiting: int) -> None:
        self._store = store
        self._folder = folder
        self._waiting = waiting
        self._lifecycle = Lifecycle(store, "tasks")
        self._workers = Workers(store, self._lifecycle, main, count=workers, after=self._clean)

    def begin(self) -> None:
        """Take up what waits; delete the files that no task has."""
        known = {row["id"] for row in self._store.all("SELECT id FROM tasks")}
        for path in self._folder.glob("*"):
            if path.name not in known:
                shutil.rmtree(path, ignore_errors=True)
        self._workers.begin()

    def close(self) -> None:
        """End the processes; what they did is begun anew at the next start."""
        self._workers.close()

    def _clean(self, task: str) -> None:
        """Delete what a task that is over needs no more."""
        shutil.rmtree(self._folder / task / "scratch", ignore_errors=True)
        (self._folder / task / "upload").unlink(missing_ok=True)

    def check(self) -> None:
        """Refuse (429) one more task where too many wait."""
        with self._store.connection() as db:
            self._lifecycle.check_room(db, 1, self._waiting)

    @contextmanager
    def new_folder(self) -> Iterator[Path]:
        """Give a folder for the files of a task to come, named by that task's id; an error deletes it."""
        folder = self._folder / new_id()
        folder.mkdir(parents=True)
        try:
            yield folder
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def start(self, kind: TaskKind, asked: dict[str, Any], needs: dict[str, Any], folder: Path | None = None) -> Task:
        """Have something done. `asked` is shown, `needs` is what the process needs beside it."""
        self.check()
        if folder is None:
            with self.new_folder() as empty:
                return self.start(kind, asked, needs, empty)
        task = folder.name
        with self._store.writing() as db:
            db.execute(
                "INSERT INTO tasks (id, kind, asked, needs, state, created_ms) VALUES (?, ?, ?, ?, 'queued', ?)",
                (task, kind, json.dumps(asked), json.dumps(needs), now_ms()),
            )
        self._workers.wake()
        return self.one(task)

    def page(self, kind: str | None, after: int, limit: int) -> Page[Task]:
        """Return tasks, the latest first."""
        where = "WHERE (?1 IS NULL OR kind = ?1)"
        total = self._store.all(f"SELECT count(*) AS n FROM tasks {where}", (kind,))[0]["n"]  # noqa: S608 - ours
        query = f"SELECT * FROM tasks {where} ORDER BY created_ms DESC, rowid DESC LIMIT ?2 OFFSET ?3"  # noqa: S608 - ours
        items = [_task_of(row) for row in self._store.all(query, (kind, limit, after))]
        return Page[Task](items=items, next=str(after + limit) if limit < total - after else None, total=total)

    def going_on(self, kind: TaskKind) -> list[Task]:
        """Return the tasks of a kind that wait or are running."""
        query = "SELECT * FROM tasks WHERE kind = ? AND state IN ('queued', 'running')"
        return [_task_of(row) for row in self._store.all(query, (kind,))]

    def one(self, task: str, kind: TaskKind | None = None) -> Task:
        """Return a task (of a kind)."""
        row = self._store.one("SELECT * FROM tasks WHERE id = ? AND (?2 IS NULL OR kind = ?2)", (task, kind))
        if row is None:
            raise missing(kind or "task", task, "GET /api/v1/tasks lists those there are")
        return _task_of(row)

    def file(self, task: str, kind: TaskKind, name: str) -> Path:
        """Return a file that a task has made."""
        found = self.one(task, kind)
        if found.state != "done":
            raise RefusedError(409, f"{kind} {task} is {found.state}", remedy=f"see GET /api/v1/tasks/{task}")
        path = self._folder / found.id / name
        if not path.is_file():
            raise missing(f"{name} of {kind}", task, "ask for another form")
        return path

    def asked(self, task: str, kind: TaskKind) -> tuple[dict[str, Any], Path]:
        """Return what a task was asked, and its folder, for one that is to do the same once more."""
        return self.one(task, kind).asked, self._folder / task

    def cancel(self, task: str) -> Task:
        """End a task that waits or is running."""
        self.one(task)
        self._lifecycle.cancel(task)
        return self.one(task)

    def delete(self, task: str) -> None:
        """Delete a task that is over, with its files; a recording that it made stays."""
        self._lifecycle.check_over(task, self.one(task).state)
        with self._store.writing() as db:
            db.execute("DELETE FROM tasks WHERE id = ?", (task,))
        shutil.rmtree(self._folder / task, ignore_errors=True)


def _task_of(row: Row) -> Task:
    read = {
        "asked": json.loads(row["asked"]),
        "doing": row["doing"] if row["state"] == "running" else None,
        "created_at": row["created_ms"],
        "began_at": row["began_ms"],
        "over_at": row["over_ms"],
        "result": None if row["result"] is None else json.loads(row["result"]),
    }
    return Task.model_validate({**row, **read})
