"""Labels by people: whether a finding or an incident was right."""

from services.api.review.models import Label, LabelChange, LabelRequest
from services.api.runs.runs import Runs, new_id
from services.api.store import Row, Store, now_ms
from services.kit.problems import RefusedError, missing


class Feedback:
    """The labels there are. They outlive the run they were made in: a judgement is kept."""

    def __init__(self, store: Store, runs: Runs) -> None:
        self._store = store
        self._runs = runs

    def all(self, recording: str | None, run: str | None) -> list[Label]:
        """Return labels, the latest first."""
        query = "SELECT * FROM labels WHERE (?1 IS NULL OR recording = ?1) AND (?2 IS NULL OR run = ?2)"
        return [
            _label(row) for row in self._store.all(f"{query} ORDER BY created_ms DESC, rowid DESC", (recording, run))
        ]

    def add(self, asked: LabelRequest, author: str) -> Label:
        """Add a label to a finding or an incident; RefusedError (404, 400): none is there, none or both are named."""
        if (asked.finding is None) == (asked.incident is None):
            raise RefusedError(400, "a label is of a finding or of an incident", remedy="name one of the two")
        recording = self._runs.one(asked.run).recording
        if asked.finding is not None:
            self._runs.finding(asked.run, asked.finding)
        if asked.incident is not None:
            self._runs.incident(asked.run, asked.incident)
        name, now = new_id(), now_ms()
        row = (name, recording, asked.run, asked.finding, asked.incident, asked.mark, asked.note, author, now, now)
        with self._store.writing() as db:
            db.execute("INSERT INTO labels VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        return self.one(name)

    def one(self, name: str) -> Label:
        """Return a label; RefusedError (404) where there is none."""
        row = self._store.one("SELECT * FROM labels WHERE id = ?", (name,))
        if row is None:
            raise missing("label", name, "GET /api/v1/labels lists those there are")
        return _label(row)

    def change(self, name: str, change: LabelChange, author: str) -> Label:
        """Change a label; from then on it is that person's."""
        old = self.one(name)
        mark, note = change.mark or old.mark, old.note if change.note is None else change.note
        with self._store.writing() as db:
            query = "UPDATE labels SET mark = ?, note = ?, author = ?, updated_ms = ? WHERE id = ?"
            db.execute(query, (mark, note, author, now_ms(), name))
        return self.one(name)

    def delete(self, name: str) -> None:
        """Delete a label."""
        self.one(name)
        with self._store.writing() as db:
            db.execute("DELETE FROM labels WHERE id = ?", (name,))


def _label(row: Row) -> Label:
    return Label.model_validate({**row, "created_at": row["created_ms"], "updated_at": row["updated_ms"]})
