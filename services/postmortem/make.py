"""A postmortem from a recording to a document: the run, the evidence, the trials, and the document."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TypeVar

from detectors.coverage import closing
from detectors.engine.engine import Choice
from detectors.incidents.knowledge import IncidentConfig
from services.postmortem.appendix import Asked
from services.postmortem.case import Case, investigate
from services.postmortem.document import Document
from services.postmortem.report import Report, compose, evidence_of
from services.postmortem.rules import Alerts
from services.postmortem.whatif import Trials, nearness, on_log, trials, without_streams
from services.recording.reader import Recording
from services.recording.seen import coverage_of, seen_in

_T = TypeVar("_T")


def make(
    recording: Recording,
    choices: Sequence[Choice],
    incidents: IncidentConfig,
    asked: Asked,
    executor: AbstractContextManager[Executor],
    *,
    alerts: Callable[[Case], Alerts] | None = None,
    doing: Callable[[str], None] = lambda _: None,
    moved: Callable[[float], None] = lambda _: None,
) -> tuple[Case, Document]:
    """Return the case and its report. `doing` gets what is being done, `moved` the share of the first run (0 to 1).

    `executor` is where the trials run, several at a time if it can.
    `alerts` gives the alert rules that fire on the case; without it the report has none. UserError: as `investigate`.
    """
    start, length = recording.manifest.start, max(recording.manifest.end - recording.manifest.start, 1)
    doing(f"detectors over {recording.manifest.name}")
    case = investigate(
        recording, choices, incidents, asked.incident, progress=lambda at: moved(min(1.0, (at - start) / length))
    )
    doing("evidence")
    shown, lines = evidence_of(case)
    tried, silent = Trials(on_log=on_log(case, lines)), []
    if asked.what_if:
        doing("other settings, lower thresholds, one stream less")
        with executor as pool:
            near = pool.submit(nearness, case)  # first, as it takes longest
            settings = _counted(trials(case, pool), "other settings", doing)
            blind = _counted(without_streams(case, pool), "one stream less", doing)
            tried = replace(tried, settings=list(settings), blind=list(blind))
            doing("how near silent detectors came")
            silent = near.result()
    fired = None
    if alerts is not None:
        doing("alert rules")
        fired = alerts(case)
    unjudged = closing(coverage_of(choices, seen_in(recording)))
    return case, compose(Report(case, asked, tried, silent, fired, shown, lines, unjudged))


def _counted(tried: Iterator[_T], what: str, doing: Callable[[str], None]) -> Iterator[_T]:
    """Yield what was tried, and report each with its number."""
    for number, one in enumerate(tried, 1):
        doing(f"{what}: {number} tried")
        yield one
