"""The incident of the demo: half an hour around the onset of the Vela power brake."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from services.recording.model import Label
from services.recording.reader import Recording
from services.synth.library import cached_recording

NAME = "vela-power-brake"
_BEFORE_MS = 10 * 60_000
_AFTER_MS = 20 * 60_000


@dataclass(frozen=True)
class Incident:
    """A recording, the stretch of it that is shown, and the truth about it."""

    recording: Path
    root: Label
    start_ms: int
    end_ms: int


def prepare() -> Incident:
    """Return the incident, its recording made from the scenario file if the cache does not have it."""
    recording = Recording.open(cached_recording(NAME))
    root = next(label for label in recording.labels() if label.root)
    return Incident(recording.path, root, root.onset - _BEFORE_MS, root.onset + _AFTER_MS)


def scratch() -> tempfile.TemporaryDirectory[str]:
    """Return a folder for the servers' data that goes when the demo ends."""
    return tempfile.TemporaryDirectory(prefix="hindcast-demo-")
