"""One run, in a process of its own: the embedded engine over a recording, what it says written to the store."""

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

from services.api.detectors.catalogue import versions
from services.api.runs.lifecycle import Lifecycle
from services.api.runs.writer import RunWriter
from services.api.store import Store
from services.detect.choices import choices_of, incident_config_of
from services.kit.errors import UserError
from services.kit.processes import end_with_parent
from services.recording.embedded import steps
from services.recording.reader import Recording

_log = logging.getLogger(__name__)
_EVERY_S = 0.25


def main(database: Path, run: str) -> None:
    """Carry out a run that was claimed; its state says at the end how that went.

    Where the service is gone it ends: nobody would hear of it, and the next start begins it anew.
    """
    end_with_parent()
    store = Store(database)
    try:
        _carry_out(store, run)
    except UserError as error:
        Lifecycle(store, "runs").end(run, "failed", str(error))
    except Exception:  # noqa: BLE001 - whatever it is, the run says that it failed
        _log.exception("run failed run=%s", run)
        Lifecycle(store, "runs").end(run, "failed", "a defect of hindcast ended it: the service's log has more")
        sys.exit(1)


def _carry_out(store: Store, run: str) -> None:
    row = store.one("SELECT path, detectors FROM runs WHERE id = ?", (run,))
    if row is None:
        return
    recording = Recording.open(row["path"])
    overrides: dict[str, Any] = json.loads(row["detectors"])
    choices = choices_of(overrides)
    shadow = {kind.spec.name for kind, config in choices if config.shadow}
    with store.writing() as db:
        db.execute("UPDATE runs SET versions = ? WHERE id = ?", (json.dumps(versions(choices)), run))
    notes = RunWriter(store, run, start_ms=recording.manifest.start, end_ms=recording.manifest.end)
    due = time.monotonic()
    for step in steps(recording, choices, incident_config_of(overrides)):
        notes.event_ms = step.at
        for finding in step.findings:
            notes.take_finding(finding, shadow=finding.detector in shadow)
        for incident in step.incidents:
            notes.take_incident(json.loads(incident.to_json()))
        if time.monotonic() >= due:
            notes.write()
            due = time.monotonic() + _EVERY_S
    notes.judge(list(recording.labels()))
    notes.write("done")
