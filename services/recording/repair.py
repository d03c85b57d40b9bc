"""Writes a recording anew, as the format has it: rows in order, none twice, none outside; types, counts and hashes."""

from pathlib import Path

from services.recording.reader import Recording
from services.recording.writer import RecordingWriter, sha256_of


def rewrite_recording(recording: Recording, out: Path, name: str) -> Path:
    """Write all that reading `recording` gives to `out` and return `out`. UserError: ``out`` exists.

    Of one that was opened by `tidy.open_tidy`, that is all that is usable; a stream of which nothing is has no file.
    """
    manifest = recording.manifest
    with RecordingWriter(out) as writer:
        for stream in recording.streams():
            for batch in recording.batches(stream):
                writer.write(stream, batch, interval_s=manifest.streams[stream].interval_s)
        writer.write_events(recording.events())
        if (recording.path / "jobs.jsonl").exists():  # without the file no job can be held to be unknown
            writer.write_jobs(recording.jobs())
        if recording.labelled:
            writer.write_labels(recording.labels())
        header = manifest.model_dump(exclude={"format", "streams", "files"}, exclude_unset=True)
        original = sha256_of(recording.path / "recording.yaml")
        header |= {"name": name, "repair_of": {"name": manifest.name, "manifest_sha256": original}}
        if recording.left_out:
            header["repair_of"]["left_out"] = recording.left_out
        writer.finish(header, recording.topology)
    return out
