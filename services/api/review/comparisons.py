"""Two configurations on the same recordings, by way of ordinary runs."""

import json

from services.api.review.models import Comparison, ComparisonRequest, Difference
from services.api.runs.models import Run
from services.api.runs.runs import Runs, new_id
from services.api.runs.serializers import score_of
from services.api.store import Row, Store, now_ms
from services.kit.problems import RefusedError, missing
from services.score import comparison as scoring
from services.score.matching import Outcome
from services.score.suite import Scorecard, Scored
from services.score.tally import Manners


class Comparisons:
    """The comparisons there are."""

    def __init__(self, store: Store, runs: Runs) -> None:
        self._store = store
        self._runs = runs

    def start(self, asked: ComparisonRequest) -> Comparison:
        """Start the runs of a comparison; UserError, RefusedError: as Runs.start."""
        if bool(asked.recordings) == bool(asked.before_runs):
            raise RefusedError(400, "a comparison is of recordings or of runs", remedy="name one of the two")
        recordings, name = list(dict.fromkeys(asked.recordings)), new_id()
        before: object = asked.before
        if asked.before_runs:
            first = self._done(asked.before_runs)
            recordings, before = [run.recording for run in first], first[0].detectors
            (second,) = self._runs.start_sets(recordings, [asked.after], comparison=name)
        else:
            first, second = self._runs.start_sets(recordings, [asked.before, asked.after], comparison=name)
        body = asked.model_dump() | {
            "recordings": recordings,
            "before": before,
            "before_runs": [run.id for run in first],
            "after_runs": [run.id for run in second],
        }
        with self._store.writing() as db:
            db.execute("INSERT INTO comparisons VALUES (?, ?, ?, ?)", (name, asked.title, now_ms(), json.dumps(body)))
        return self.one(name)

    def _done(self, names: list[str]) -> list[Run]:
        runs = [self._runs.one(name) for name in names]
        for run in runs:
            if run.state != "done":
                raise RefusedError(409, f"run {run.id} is {run.state}", remedy="name runs that are done")
        if len({run.recording for run in runs}) < len(runs):
            raise RefusedError(400, "two of the runs are of one recording", remedy="name one of each recording")
        return runs

    def all(self) -> list[Comparison]:
        """Return comparisons, the latest first, without what came out."""
        rows = self._store.all("SELECT * FROM comparisons ORDER BY created_ms DESC, rowid DESC")
        return [self._comparison_of(row, whole=False) for row in rows]

    def one(self, name: str) -> Comparison:
        """Return a comparison, with what came out where it is done; RefusedError (404) where there is none."""
        return self._comparison_of(self._row(name), whole=True)

    def delete(self, name: str) -> None:
        """Delete a comparison and its runs; RefusedError (409) while one of them waits or is running."""
        found = self._comparison_of(self._row(name), whole=False)
        if found.state == "running":
            raise RefusedError(409, f"comparison {name} is running", remedy="cancel its runs first, or wait")
        with self._store.writing() as db:
            db.execute("DELETE FROM comparisons WHERE id = ?", (name,))
            db.execute("DELETE FROM runs WHERE comparison = ?", (name,))

    def _row(self, name: str) -> Row:
        row = self._store.one("SELECT * FROM comparisons WHERE id = ?", (name,))
        if row is None:
            raise missing("comparison", name, "GET /api/v1/comparisons lists those there are")
        return row

    def _comparison_of(self, row: Row, *, whole: bool) -> Comparison:
        body = json.loads(row["body"])
        sides = [[self._runs.one(run) for run in body[side]] for side in ("before_runs", "after_runs")]
        runs = sides[0] + sides[1]
        states = {run.state for run in runs}
        beside = {
            "state": "running" if states & {"queued", "running"} else "done" if states == {"done"} else "failed",
            "progress": sum(run.progress for run in runs) / len(runs),
            "created_at": row["created_ms"],
            "versions": _versions(sides),
        }
        later = dict.fromkeys(("differences", "before_score", "after_score"))
        found = Comparison.model_validate({**body, **row, **beside, **later})
        if found.state != "done" or not whole:
            return found
        before, after = (self._card(side) for side in sides)
        return found.model_copy(
            update={
                "differences": [_difference(one) for one in scoring.differences(before, after)],
                "before_score": score_of(_outcomes(before)),
                "after_score": score_of(_outcomes(after)),
            }
        )

    def _card(self, runs: list[Run]) -> Scorecard:
        return Scorecard(
            [
                Scored(
                    run.recording, None, "", 0.0, self._runs.outcomes(run.id), Manners(), controls={}, intervals_s={}
                )
                for run in runs
            ]
        )


def _versions(sides: list[list[Run]]) -> dict[str, tuple[str, str]]:
    """Return what is of another version on the second side."""
    found: dict[str, tuple[str, str]] = {}
    for first, second in zip(*sides, strict=True):
        before, after = first.versions or {}, second.versions or {}
        found |= {name: (before[name], after[name]) for name in before if after.get(name, before[name]) != before[name]}
    return found


def _outcomes(card: Scorecard) -> list[Outcome]:
    return [outcome for one in card.recordings for outcome in one.outcomes]


def _difference(one: scoring.Difference) -> Difference:
    about = one.label or one.after or one.before
    return Difference(
        recording=one.recording,
        change=one.change,
        fault=one.fault,
        entity=dict(about.entity) if about else {},
        seconds=one.seconds,
        truth=one.label.id if one.label else None,
        before=one.before.id if one.before else None,
        after=one.after.id if one.after else None,
    )
