"""Runs: asked for, carried out one process each, looked at, cancelled, deleted."""

import json
import sqlite3
import uuid
from pathlib import Path
from typing import Any

from services.api.models import Page
from services.api.recordings.library import Library
from services.api.runs.lifecycle import Lifecycle
from services.api.runs.models import Alert, Finding, Incident, Run, Timeline
from services.api.runs.process import main
from services.api.runs.serializers import finding_of, run_of, score_of, timeline
from services.api.runs.workers import Workers
from services.api.settings import ApiSettings
from services.api.store import Row, Store, now_ms
from services.detect.choices import choices_of, incident_config_of
from services.kit.problems import RefusedError, missing
from services.recording.reader import Recording
from services.score.matching import Outcome, judge


def new_id() -> str:
    """Return an identity of something that somebody asked for."""
    return uuid.uuid4().hex[:12]


def _clear(db: sqlite3.Connection, run: str) -> None:
    for table in ("findings", "incidents", "events"):
        db.execute(f"DELETE FROM {table} WHERE run = ?", (run,))  # noqa: S608 - the names stand above


class Runs:
    """The runs there are, and what sees them through: processes here, or, for replays, the services behind Kafka."""

    def __init__(self, store: Store, library: Library, settings: ApiSettings) -> None:
        self._store = store
        self._library = library
        self._settings = settings
        self._lifecycle = Lifecycle(store, "runs", ours="unit IS NULL")
        self._workers = Workers(store, self._lifecycle, main, count=settings.workers, clear=_clear)

    # ---- carried out

    def begin(self) -> None:
        """Take up what waits, and what was running when the service ended, which begins anew."""
        self._workers.begin()

    def close(self) -> None:
        """End the processes; what they did is begun anew at the next start."""
        self._workers.close()

    # ---- asked for

    def start(self, recording: str, detectors: dict[str, Any]) -> Run:
        """Have the detectors run over a recording; raises as `start_sets`."""
        return self.start_sets([recording], [detectors])[0][0]

    def start_sets(
        self, recordings: list[str], configurations: list[dict[str, Any]], comparison: str | None = None
    ) -> list[list[Run]]:
        """Have detectors run over recordings under each configuration, each in a run of its own; all or none.

        Raises RefusedError (404, or 429 where too many wait), UserError where a configuration is wrong.
        """
        effective = [json.dumps(self.configured(detectors)) for detectors in configurations]
        paths = [self._library.place(name).path.resolve() for name in recordings]
        made: list[list[str]] = []
        with self._store.writing() as db:
            self._lifecycle.check_room(db, len(paths) * len(effective), self._settings.waiting)
            for detectors_text in effective:
                made.append([new_id() for _ in paths])
                db.executemany(
                    "INSERT INTO runs (id, recording, path, detectors, state, created_ms, comparison)"
                    " VALUES (?, ?, ?, ?, 'queued', ?, ?)",
                    [
                        (name, recording, str(path), detectors_text, now_ms(), comparison)
                        for name, recording, path in zip(made[-1], recordings, paths, strict=True)
                    ],
                )
        self._workers.wake()
        return [[self.one(run) for run in runs] for runs in made]

    def configured(self, detectors: dict[str, Any]) -> dict[str, Any]:
        """Return a configuration with the detectors in shadow that are set so, unless it has them otherwise itself.

        UserError where it is wrong.
        """
        choices_of(detectors)
        incident_config_of(detectors)
        stored = {str(row["detector"]) for row in self._store.all("SELECT detector FROM shadow")}
        return {
            name: ({"shadow": True} if name in stored else {}) | detectors.get(name, {})
            for name in sorted(stored | detectors.keys())
        }

    def cancel(self, run: str) -> Run:
        """End a run that waits or is running; RefusedError (409) where it is over."""
        found = self.one(run)
        if found.replay is not None and found.state == "running":
            raise RefusedError(
                409, f"run {run} is replay {found.replay}", remedy=f"POST /api/v1/replays/{found.replay}/stop"
            )
        self._lifecycle.cancel(run)
        return self.one(run)

    def delete(self, run: str) -> None:
        """Delete a run that is over; RefusedError (409) where it is not, or a comparison needs it."""
        row = self._row(run)
        self._lifecycle.check_over(run, row["state"])
        needs = self._store.one("SELECT id FROM comparisons WHERE instr(body, ?)", (json.dumps(run),))
        if needs is not None:
            raise RefusedError(409, f"comparison {needs['id']} needs run {run}", remedy="delete that comparison")
        with self._store.writing() as db:
            db.execute("DELETE FROM runs WHERE id = ?", (run,))
            if row["unit"] is not None:  # Kafka still has it
                db.execute("INSERT OR IGNORE INTO forgotten VALUES (?)", (run,))

    # ---- looked at

    def _row(self, run: str) -> Row:
        row = self._store.one("SELECT * FROM runs WHERE id = ?", (run,))
        if row is None:
            raise missing("run", run, "GET /api/v1/runs lists those there are")
        return row

    def one(self, run: str) -> Run:
        """Return a run; RefusedError (404) where there is none."""
        return run_of(self._row(run))

    def recording(self, run: str) -> Recording:
        """Open the recording of a run; RefusedError (410) where it was deleted since."""
        row = self._row(run)
        if not Path(row["path"]).is_dir():
            raise RefusedError(
                410, f"the recording of run {run} was deleted", remedy=f"import {row['recording']} again"
            )
        return Recording.open(row["path"])

    def place(self, run: str) -> tuple[Path, dict[str, Any]]:
        """Return where a run's recording lies, and the settings of its detectors; RefusedError (410, 404)."""
        return self.recording(run).path, json.loads(self._row(run)["detectors"])

    def uses(self, recording: str) -> bool:
        """Return whether a run of a recording waits or is running."""
        query = "SELECT count(*) AS n FROM runs WHERE recording = ? AND state IN ('queued', 'running')"
        return bool(self._store.all(query, (recording,))[0]["n"])

    def latest(self, recording: str) -> str | None:
        """Return the last run of a recording that is done, of here, with the detectors as they come."""
        plain = "detectors = '{}' AND unit IS NULL AND state = 'done'"
        query = f"SELECT id FROM runs WHERE recording = ? AND {plain} ORDER BY created_ms DESC, rowid DESC LIMIT 1"  # noqa: S608 - ours
        row = self._store.one(query, (recording,))
        return None if row is None else str(row["id"])

    def page(self, recording: str | None, replay: str | None, after: int, limit: int) -> Page[Run]:
        """Return runs, the latest first."""
        where = "(?1 IS NULL OR recording = ?1) AND (?2 IS NULL OR unit LIKE '%/' || ?2)"
        rows, page = self._part("runs", where, [recording, replay], "created_ms DESC, rowid DESC", after, limit)
        return Page[Run](items=[run_of(row) for row in rows], **page)

    def _part(
        self, table: str, where: str, given: list[str | None], order: str, after: int, limit: int
    ) -> tuple[list[Row], dict[str, Any]]:
        """Return a part of the rows that there are, and what its page says beside them."""
        query = f"FROM {table} WHERE {where}"
        total = self._store.all(f"SELECT count(*) AS n {query}", given)[0]["n"]
        rows = self._store.all(f"SELECT * {query} ORDER BY {order} LIMIT ? OFFSET ?", [*given, limit, after])
        return rows, {"next": str(after + limit) if 0 < limit < total - after else None, "total": total}

    def findings(self, run: str, after: int = 0, limit: int = -1, **wanted: str | None) -> Page[Finding]:
        """Return findings in order of their detection; `wanted`: values of columns of the table."""
        self.one(run)
        asked = {name: value for name, value in wanted.items() if value is not None}
        where = " AND ".join(["run = ?", *(f"{name} = ?" for name in asked)])
        rows, page = self._part("findings", where, [run, *asked.values()], "place", after, limit)
        return Page[Finding](items=[Finding.model_validate_json(row["body"]) for row in rows], **page)

    def finding(self, run: str, finding: str) -> Finding:
        """Return a finding; RefusedError (404) where there is none."""
        return Finding.model_validate_json(self._found(run, "finding", finding)["body"])

    def _found(self, run: str, kind: str, name: str) -> Row:
        """Return a row of a run's findings or incidents; RefusedError (404) where there is none."""
        self.one(run)
        row = self._store.one(f"SELECT body FROM {kind}s WHERE run = ? AND id = ?", (run, name))  # noqa: S608 - ours
        if row is None:
            raise missing(kind, name, f"GET /api/v1/runs/{run}/{kind}s lists those there are")
        return row

    def incidents(self, run: str, state: str | None = None, after: int = 0, limit: int = -1) -> Page[Incident]:
        """Return incidents as they opened."""
        self.one(run)
        where = "run = ?1 AND (?2 IS NULL OR state = ?2)"
        rows, page = self._part("incidents", where, [run, state], "place, id", after, limit)
        return Page[Incident](items=[Incident.model_validate_json(row["body"]) for row in rows], **page)

    def incident(self, run: str, incident: str) -> Incident:
        """Return an incident; RefusedError (404) where there is none."""
        return Incident.model_validate_json(self._found(run, "incident", incident)["body"])

    def alerts(self, run: str | None = None, state: str | None = None, after: int = 0, limit: int = -1) -> Page[Alert]:
        """Return alerts as they were sent, the latest first."""
        if run is not None:
            self.one(run)
        where = "(?1 IS NULL OR run = ?1) AND (?2 IS NULL OR state = ?2)"
        rows, page = self._part("alerts", where, [run, state], "place DESC, id", after, limit)
        return Page[Alert](items=[Alert.model_validate_json(row["body"]) for row in rows], **page)

    def outcomes(self, run: str) -> list[Outcome]:
        """Return what became of each label and finding of a run; what was found in shadow does not count."""
        findings = [finding_of(one) for one in self.findings(run).items if not one.shadow]
        return judge(findings, self.recording(run).truth())

    def timeline(self, run: str) -> Timeline:
        """Return all moments of a run, and its score once it is done and there are labels."""
        found, labels = self.one(run), list(self.recording(run).labels())
        entries = timeline(labels, self.findings(run).items, self.incidents(run).items)
        scored = found.state == "done" and bool(labels)
        return Timeline(run=run, entries=entries, score=score_of(self.outcomes(run)) if scored else None)

    def events(self, run: str, after: int) -> list[Row]:
        """Return what happened in a run after an event's number."""
        query = "SELECT id, kind, body FROM events WHERE run = ? AND id > ? ORDER BY id LIMIT 500"
        return self._store.all(query, (run, after))

    def last_event(self, run: str) -> int:
        """Return the number of the last event of a run, 0 without any."""
        return int(self._store.all("SELECT max(id) AS last FROM events WHERE run = ?", (run,))[0]["last"] or 0)

    def by_state(self) -> dict[str, int]:
        """Return how many runs there are in each state."""
        return {
            row["state"]: row["n"] for row in self._store.all("SELECT state, count(*) AS n FROM runs GROUP BY state")
        }
