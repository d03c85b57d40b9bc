"""A recording of which a file is damaged: what is wrong with it is reported, and what can be read of it still is."""

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from services.kit.errors import UserError
from services.recording.conftest import batch, documents, header, topology
from services.recording.reader import Recording
from services.recording.repair import rewrite_recording
from services.recording.tidy import open_tidy
from services.recording.validate import validate_recording
from services.recording.writer import RecordingWriter
from tests.mangled import fuzzed


def _files() -> dict[str, bytes]:
    with TemporaryDirectory() as folder:
        out = Path(folder, "small")
        with RecordingWriter(out) as writer:
            for stream in ("dcgm", "steps"):
                writer.write(stream, batch(stream, 0, 5), interval_s=5)
            documents(writer)
            writer.finish(header("small"), topology())
        return {path.name: path.read_bytes() for path in out.iterdir()}


FILES = _files()


def _is_read_or_refused(name: str, content: bytes) -> None:
    with TemporaryDirectory() as folder:
        place = Path(folder, "small")
        place.mkdir()
        for other, whole in (FILES | {name: content}).items():
            (place / other).write_bytes(whole)
        for read in (validate_recording, _all_of, lambda path: rewrite_recording(open_tidy(path), path / "out", "x")):
            with suppress(UserError):
                read(place)


def _all_of(place: Path) -> None:
    recording = Recording.open(place)
    for stream in recording.streams():
        for start in (None, recording.manifest.start + 1):
            for rows in recording.batches(stream, start):
                rows.validate(full=True)
    for records in (recording.events(), recording.jobs(), recording.labels()):
        assert list(records) is not None


@fuzzed(FILES["recording.yaml"])
def test_a_damaged_manifest(content: bytes) -> None:
    _is_read_or_refused("recording.yaml", content)


@fuzzed(FILES["topology.json"])
def test_a_damaged_topology(content: bytes) -> None:
    _is_read_or_refused("topology.json", content)


@fuzzed(FILES["dcgm.parquet"], FILES["steps.parquet"])
def test_a_damaged_stream(content: bytes) -> None:
    _is_read_or_refused("dcgm.parquet", content)


@fuzzed(FILES["events.jsonl"])
def test_damaged_events(content: bytes) -> None:
    _is_read_or_refused("events.jsonl", content)


@fuzzed(FILES["jobs.jsonl"])
def test_damaged_jobs(content: bytes) -> None:
    _is_read_or_refused("jobs.jsonl", content)


@fuzzed(FILES["labels.jsonl"])
def test_damaged_labels(content: bytes) -> None:
    _is_read_or_refused("labels.jsonl", content)
