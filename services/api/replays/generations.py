"""Replays by way of Kafka as runs: each generation of a replay is one, found again by what makes it what it is."""

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

from services.api.recordings.library import Library
from services.api.runs.lifecycle import Lifecycle
from services.api.runs.writer import RunWriter
from services.api.store import Store, now_ms
from services.kit.replays import DetectorSettings
from services.recording.reader import Recording


class Generation(NamedTuple):
    """What makes a generation of a replay; the shift, because a removed replay's name may be used again."""

    unit: str
    number: int
    shift_ms: int

    @property
    def run(self) -> str:
        """Return the id of its run: the same wherever and whenever it is asked for."""
        return hashlib.sha256(f"{self.unit}/{self.number}/{self.shift_ms}".encode()).hexdigest()[:12]


class Running(NamedTuple):
    """A generation whose run is not over, and for how long that run has been there (wall seconds)."""

    unit: str
    number: int
    for_s: float


class Generations:
    """The runs that are generations of replays."""

    def __init__(self, store: Store, library: Library) -> None:
        self._store = store
        self._library = library
        self._names: dict[str, str] = {}

    def opened(self, one: Generation, recording: str, detectors: DetectorSettings) -> bool:
        """See that there is a run of a generation; return whether there is: somebody may have deleted it for good.

        `recording`: the path that the replay service reads; `detectors`: the replay's own settings.
        """
        if self._store.one("SELECT 1 FROM runs WHERE id = ?", (one.run,)) is not None:
            return True
        if self._store.one("SELECT 1 FROM forgotten WHERE run = ?", (one.run,)) is not None:
            return False
        now = now_ms()
        row = (one.run, self.named(recording), recording, json.dumps(detectors), now, now, one.unit, one.number)
        with self._store.writing() as db:
            db.execute(
                "INSERT OR IGNORE INTO runs (id, recording, path, detectors, state, created_ms, began_ms, unit,"
                " generation) VALUES (?, ?, ?, ?, 'running', ?, ?, ?, ?)",
                row,
            )
        return True

    def named(self, path: str) -> str:
        """Return the name of a recording that lies at a path: the library's, else its folder's."""
        if path not in self._names:
            there = {str(place.path.resolve()): name for name, place in self._library.places().items()}
            self._names[path] = there.get(path, Path(path).name)
        return self._names[path]

    def notes(self, one: Generation, start_ms: int, end_ms: int) -> RunWriter:
        """Return the notes of a generation's run, with what was written before."""
        notes = RunWriter(self._store, one.run, start_ms=start_ms, end_ms=end_ms)
        notes.restore()
        return notes

    def running(self) -> dict[str, Running]:
        """Return every run that is a generation of a replay and not over, by id."""
        columns, now = "id, unit, generation, created_ms", now_ms()
        replays = "unit IS NOT NULL AND unit NOT LIKE '%/live'"
        rows = self._store.all(f"SELECT {columns} FROM runs WHERE {replays} AND state = 'running'")  # noqa: S608 - ours
        return {row["id"]: Running(row["unit"], row["generation"], (now - row["created_ms"]) / 1000) for row in rows}

    def end(self, run: str, state: str) -> None:
        """Note that a run is over; one that was before stays as it is."""
        Lifecycle(self._store, "runs").end(run, state)

    def judge(self, notes: RunWriter, path: str) -> None:
        """Judge a run's findings against the labels of its recording, where that can be read here."""
        if (Path(path) / "recording.yaml").is_file():
            notes.judge(list(Recording.open(path).labels()))
