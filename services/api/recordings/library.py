"""The recordings there are: those that were imported, and those of folders that are only read."""

import logging
import shutil
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from services.api.recordings.models import (
    Coverage,
    Job,
    LogLine,
    LogLines,
    Node,
    RecordingDetail,
    RecordingSummary,
    Stream,
    Truth,
)
from services.api.settings import ApiSettings
from services.detect.choices import choices_of
from services.kit.errors import UserError
from services.kit.problems import RefusedError, missing
from services.recording import model
from services.recording.reader import Recording, read_lines, read_manifest
from services.recording.schema import STREAMS
from services.recording.seen import coverage_json, coverage_of, seen_in
from services.recording.stream_file import open_stream

if TYPE_CHECKING:
    from detectors.coverage import Seen

_log = logging.getLogger(__name__)
_LISTED = "GET /api/v1/recordings lists those there are"
_NOT_DRAWN = frozenset({"timestamp", "iteration"})


class Place(NamedTuple):
    """Where a recording lies."""

    path: Path
    read_only: bool


class Window(NamedTuple):
    """A stretch of recording time in epoch milliseconds, both included."""

    start: int
    end: int


class Library:
    """Finds recordings by name. Those that were imported come first where names are the same."""

    def __init__(self, settings: ApiSettings) -> None:
        self.imported = settings.data_dir / "recordings"
        self._folders = settings.library
        self._lock = threading.Lock()
        self._summaries: dict[Path, tuple[int, RecordingSummary]] = {}
        self._seen: dict[Path, tuple[int, Seen]] = {}

    def places(self) -> dict[str, Place]:
        """Return where each recording lies, by name."""
        found: dict[str, Place] = {}
        for folder in self._folders:
            found |= {path.name: Place(path, True) for path in _recordings_in(folder)}
        return found | {path.name: Place(path, False) for path in _recordings_in(self.imported)}

    def place(self, name: str) -> Place:
        """Return where a recording lies; RefusedError (404) where there is none of that name."""
        place = self.places().get(name)
        if place is None:
            raise missing("recording", name, _LISTED)
        return place

    def open(self, name: str) -> Recording:
        """Open a recording; RefusedError (404) where there is none of that name."""
        return Recording.open(self.place(name).path)

    def summaries(self) -> list[RecordingSummary]:
        """Return all recordings, by name; one that cannot be read is left out, and the log says why."""
        found: list[RecordingSummary] = []
        for name, place in sorted(self.places().items()):
            try:
                found.append(self.summary(place))
            except UserError as error:
                _log.warning("recording left out name=%s error=%s", name, error.message)
        return found

    def summary(self, place: Place) -> RecordingSummary:
        """Return what a recording is, read again only where its manifest was written anew; RefusedError (404)."""
        try:
            written = (place.path / "recording.yaml").stat().st_mtime_ns
            with self._lock:
                at, known = self._summaries.get(place.path, (0, None))
            if known is None or at != written:
                known = _summary(place)
                with self._lock:
                    self._summaries[place.path] = (written, known)
        except FileNotFoundError:  # it was deleted just now
            raise missing("recording", place.path.name, _LISTED) from None
        return known

    def detail(self, name: str) -> RecordingDetail:
        """Return all about a recording but its data."""
        place = self.place(name)
        recording = Recording.open(place.path)
        return RecordingDetail(
            **self.summary(place).model_dump(),
            source=recording.manifest.source,
            seed=recording.manifest.seed,
            streams=[_stream(recording, kind) for kind in recording.streams()],
            nodes=[_node(node) for node in recording.topology.nodes],
            switches=[switch.name for switch in recording.topology.switches],
            jobs=[Job.model_validate(job, from_attributes=True) for job in recording.jobs()],
            truths=[truth(label) for label in recording.labels()],
        )

    def coverage(self, name: str, detectors: Mapping[str, Any]) -> Coverage:
        """Return what a recording's telemetry can show the detectors so configured; what arrived is read once."""
        path = self.place(name).path
        written = (path / "recording.yaml").stat().st_mtime_ns
        with self._lock:
            at, seen = self._seen.get(path, (0, None))
        if seen is None or at != written:
            seen = seen_in(Recording.open(path))
            with self._lock:
                self._seen[path] = (written, seen)
        return Coverage(recording=name, **coverage_json(coverage_of(choices_of(detectors), seen), seen))

    def delete(self, name: str) -> None:
        """Delete a recording that was imported; RefusedError (403) for one of a folder that is only read."""
        place = self.place(name)
        if place.read_only:
            raise RefusedError(
                403, f"{name} belongs to the library that is only read", remedy="delete imported ones only"
            )
        doomed = place.path.with_name(f".{place.path.name}.deleted")
        try:
            place.path.rename(doomed)  # from now on nobody finds it
        except OSError:
            raise RefusedError(409, f"{name} is being deleted", remedy="see whether it is gone") from None
        with self._lock:
            self._summaries.pop(place.path, None)
            self._seen.pop(place.path, None)
        shutil.rmtree(doomed, ignore_errors=True)

    def logs(
        self, name: str, window: Window, *, limit: int, node: str, severity: str, source: str, contains: str
    ) -> LogLines:
        """Return the first lines of a window that are of a node, severity and source and contain a text."""
        wanted = contains.casefold()
        items: list[LogLine] = []
        for event in self.open(name).events(window.start, window.end + 1):
            if (node and event.node != node) or (severity and event.severity != severity):
                continue
            if (source and event.source != source) or wanted not in event.message.casefold():
                continue
            if len(items) == limit:
                return LogLines(items=items, more=True)
            items.append(LogLine.model_validate({**event.model_dump(), "at": event.timestamp}))
        return LogLines(items=items, more=False)


def _recordings_in(folder: Path) -> Iterator[Path]:
    if (folder / "recording.yaml").is_file():
        yield folder
    elif folder.is_dir():
        for path in sorted(folder.iterdir()):
            if not path.name.startswith(".") and (path / "recording.yaml").is_file():
                yield path


def _summary(place: Place) -> RecordingSummary:
    name = place.path.name
    try:
        manifest = read_manifest(place.path)
        labels = [label for label in read_lines(place.path / "labels.jsonl", model.Label) if not label.distractor]
    except UserError as error:
        raise UserError(f"recording {name}: {error.message}", remedy=error.remedy) from None
    beside = {
        "name": name,
        "summary": " ".join(manifest.summary.split()),
        "duration_s": (manifest.end - manifest.start) / 1000,
        "faults": sorted({label.fault for label in labels}),
        "labelled": len(labels),
        "size_bytes": sum(path.stat().st_size for path in place.path.iterdir() if path.is_file()),
        "read_only": place.read_only,
    }
    return RecordingSummary.model_validate({**manifest.model_dump(), **beside})


def _node(node: model.Node) -> Node:
    parts = {"gpus": [gpu.gpu for gpu in node.gpus], "nics": [nic.nic for nic in node.nics]}
    return Node.model_validate({**node.model_dump(), **parts})


def _stream(recording: Recording, kind: str) -> Stream:
    schema, info = STREAMS[kind], recording.manifest.streams[kind]
    keys = [key for key in schema.key_names if key not in _NOT_DRAWN and not (kind == "steps" and key == "node")]
    left_out = _NOT_DRAWN | set(schema.key_names) | schema.text_values
    with open_stream(recording.path / schema.file) as file:
        fields = [
            field.name
            for field in file.schema_arrow
            if field.name not in left_out and (pa.types.is_integer(field.type) or pa.types.is_floating(field.type))
        ]
    return Stream(kind=kind, interval_s=info.interval_s, rows=info.rows, keys=keys, fields=fields)


def truth(label: model.Label) -> Truth:
    """Return a label as the API says it."""
    return Truth.model_validate(label.model_dump(exclude_none=True))
