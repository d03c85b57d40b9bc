"""One task, in a process of its own."""

import json
import logging
import math
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.api.runs.lifecycle import Lifecycle
from services.api.store import Store, is_full, now_ms
from services.api.tasks.models import LibraryScore, TaskResult
from services.kit.errors import UserError
from services.kit.processes import end_with_parent

if TYPE_CHECKING:
    from services.recording.importers.parts.series.query_api import Access
    from services.score.suite import Scored

_log = logging.getLogger(__name__)
_EVERY_S = 0.25
_STEPS = 20
"""Steps of the least score, 0 to 1, at which the curve has points."""


class Work:
    """A task under way: what is asked, its folder, and how to say how far it is."""

    def __init__(self, store: Store, task: str, needs: dict[str, Any]) -> None:
        self.needs = needs
        self.folder = store.path.parent / "tasks" / task
        self.scratch = self.folder / "scratch"
        """For what is not whole yet; deleted at the end."""
        self.store, self._task = store, task
        self._doing: str | None = None
        self._progress = 0.0
        self._due = 0.0

    def access(self) -> "Access":
        """Return how the server is asked that the task is about."""
        from services.recording.importers.parts.series.query_api import Access

        given = self.needs["server"]
        token, password, ca = (
            given[name] and Path(given[name]) for name in ("bearer_file", "password_file", "ca_file")
        )
        return Access(given["url"], token, given["user"], password, ca, given["tenant"])

    def say(self, doing: str) -> None:
        """Say what is being done."""
        self._doing, self._due = doing, 0.0
        self.move(self._progress)

    def move(self, progress: float) -> None:
        """Say how far it is (0 to 1)."""
        self._progress = progress if math.isfinite(progress) else 0.0
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _EVERY_S
        query = "UPDATE tasks SET progress = ?, doing = ? WHERE id = ? AND state = 'running'"
        with self.store.writing() as db:
            db.execute(query, (min(1.0, max(0.0, self._progress)), self._doing, self._task))

    def done(self, result: TaskResult) -> None:
        """Write what came of it."""
        query = (
            "UPDATE tasks SET state = 'done', progress = 1, result = ?, over_ms = ? WHERE id = ? AND state = 'running'"
        )
        with self.store.writing() as db:
            db.execute(query, (result.model_dump_json(), now_ms(), self._task))

    def failed(self, words: str) -> None:
        """Write why nothing came of it."""
        Lifecycle(self.store, "tasks").end(self._task, "failed", self._public(words))

    def _public(self, words: str) -> str:
        """Return a message without where things lie here, which is nobody's business."""
        hidden = [
            str(self.scratch),
            str(self.folder),
            *(str(self.needs[name]) for name in ("path",) if name in self.needs),
        ]
        hidden += [str(value) for name, value in self.needs.get("server", {}).items() if value and name != "user"]
        for text in [*hidden, *self.needs.get("paths", [])]:
            words = words.replace(text, "..." if text == str(self.scratch) else text.rpartition("/")[2])
        return words.strip()


def main(database: Path, task: str) -> None:
    """Carry out a task that was claimed; its state says at the end how that went. It ends where the service is gone."""
    end_with_parent()
    store = Store(database)
    row = store.one("SELECT kind, needs FROM tasks WHERE id = ?", (task,))
    if row is None:
        return
    work = Work(store, task, json.loads(row["needs"]))
    shutil.rmtree(work.scratch, ignore_errors=True)
    work.scratch.mkdir(parents=True)
    words, status = None, 0
    try:
        work.done(_KINDS[row["kind"]](work))
    except UserError as error:
        words = f"{error.message}. {error.remedy or ''}"
    except Exception as error:  # noqa: BLE001 - whatever it is, the task says that it failed
        if is_full(error):
            words = "the disk is full. Make room where the service keeps its data"
        else:
            _log.exception("task failed task=%s", task)
            words, status = "a defect of hindcast ended it: the service's log has more", 1
    finally:
        shutil.rmtree(work.scratch, ignore_errors=True)
    if words is not None:  # on a disk that was full there is room to say so, now that its files are gone
        work.failed(words)
    sys.exit(status)


def _postmortem(work: Work) -> TaskResult:
    import yaml

    from services.api.tasks.alert_rules import alerts_of
    from services.detect.choices import choices_of, incident_config_of
    from services.kit.executors import alone
    from services.postmortem import html, markdown
    from services.postmortem.appendix import Asked
    from services.postmortem.make import make
    from services.recording.reader import Recording

    needs, config = work.needs, None
    if needs["detectors"]:
        config = work.folder / "detectors.yaml"
        config.write_text(yaml.safe_dump(needs["detectors"], sort_keys=True), encoding="utf-8")
    case, document = make(
        Recording.open(needs["path"]),
        choices_of(needs["detectors"]),
        incident_config_of(needs["detectors"]),
        Asked(needs["price"], config, needs["incident"], needs["rules"], needs["what_if"]),
        alone(),
        alerts=(lambda found: alerts_of(found, build=False)) if needs["rules"] else None,
        doing=work.say,
        moved=work.move,
    )
    (work.folder / "report.html").write_text(html.html(document), encoding="utf-8")
    (work.folder / "report.md").write_text(markdown.markdown(document), encoding="utf-8")
    return TaskResult(title=document.title, incident=case.incident.id, recording=case.recording.manifest.name)


def _score(work: Work) -> TaskResult:
    from services.detect.choices import choices_of
    from services.score.suite import Scorecard, score_recording

    paths = [Path(path) for path in work.needs["paths"]]
    choices = choices_of(work.needs["detectors"])
    card = Scorecard()
    for number, path in enumerate(paths):
        work.say(path.name)
        work.move(number / len(paths))
        card.recordings.append(score_recording(path, choices))
    score = LibraryScore.model_validate({**card.as_json(), "curve": _curve(card.recordings, paths)})
    (work.folder / "score.json").write_text(score.model_dump_json(), encoding="utf-8")
    return TaskResult()


def _curve(scored: "list[Scored]", paths: list[Path]) -> list[dict[str, float | int | None]]:
    """Return precision and recall over the least score that counts, judged anew at each."""
    import numpy as np

    from services.recording.reader import Recording
    from services.score.matching import judge
    from services.score.tally import tally

    labels = [Recording.open(path).truth() for path in paths]
    raised = [[outcome.finding for outcome in one.outcomes if outcome.finding is not None] for one in scored]
    points: list[dict[str, float | int | None]] = []
    for least in np.linspace(0.0, 1.0, _STEPS + 1).round(4).tolist():
        kept = [[finding for finding in findings if finding.score >= least] for findings in raised]
        counts = tally(outcome for one, truths in zip(kept, labels, strict=True) for outcome in judge(one, truths))[
            "all"
        ]
        points.append({"least_score": least, **counts.figures()})
    return points


def _capture(work: Work) -> TaskResult:
    from services.api.tasks.new_recording import taken
    from services.recording.importers.prometheus import capture

    needs = work.needs
    out = work.scratch / str(needs["name"])
    only = {"cluster": needs["cluster"], "replay": needs["replay"]}
    how = {"step": needs["step_s"], "shift": needs["shift_s"], "progress": work.move}
    report = capture(out, work.access(), needs["from"], needs["to"], **only, **how)
    return taken(work, out, report)


def _import(work: Work) -> TaskResult:
    from services.api.tasks.new_recording import taken
    from services.kit.unpacking import named_upload, unpacked
    from services.recording.importers.registry import discover

    needs = work.needs
    options = dict(needs["options"])
    if needs["importer"] == "heap":  # which unpacks by itself, archives in archives too, within the same bounds
        options["most_bytes"] = min(options.get("most_bytes", needs["unpacked_bytes"]), needs["unpacked_bytes"])
        source = named_upload(work.folder / "upload", work.scratch, needs["filename"])
    else:
        source = unpacked(work.folder / "upload", work.scratch, needs["filename"], needs["unpacked_bytes"])
    out = work.scratch / "out" / str(needs["name"])
    out.parent.mkdir()
    _, convert = discover()[needs["importer"]]
    report = convert(source, out, **options, progress=work.move)
    return taken(work, out, report)


def _evaluation(work: Work) -> TaskResult:
    from services.api.tasks.evaluating import carried_out

    return carried_out(work)


def _backtest(work: Work) -> TaskResult:
    from services.api.tasks.backtesting import carried_out

    return carried_out(work)


def _make(work: Work) -> TaskResult:
    from services.api.tasks.making import carried_out

    return carried_out(work)


_KINDS: dict[str, Callable[[Work], TaskResult]] = {
    "postmortem": _postmortem,
    "score": _score,
    "capture": _capture,
    "import": _import,
    "evaluation": _evaluation,
    "backtest": _backtest,
    "make": _make,
}
