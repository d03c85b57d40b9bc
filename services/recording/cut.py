"""Cuts a stretch out of a recording, as a recording of its own."""

from pathlib import Path

from services.kit.errors import UsageError
from services.recording.instants import format_instant
from services.recording.model import Label
from services.recording.reader import Recording
from services.recording.writer import RecordingWriter, sha256_of


def cut_recording(
    recording: Recording, out: Path, *, start: int | None = None, end: int | None = None, name: str | None = None
) -> Path:
    """Write the rows and log records with ``start <= timestamp < end`` (ms) to ``out`` and return ``out``.

    None leaves that side as it is. Jobs that overlap the stretch are kept whole. Labels that overlap it are clipped:
    a fault under way at the cut begins with the cut, one whose alert would be due after the cut is no longer required,
    and a clipped one loses its ``gpu_hours_lost``. Topology is kept whole. UserError: the stretch is empty or lies
    outside the recording, or ``out`` exists.
    """
    manifest = recording.manifest
    first, last = manifest.start if start is None else start, manifest.end if end is None else end
    if not manifest.start <= first < last <= manifest.end:
        raise UsageError(
            f"{recording.path}: no stretch from {format_instant(first)} to {format_instant(last)}",
            remedy=f"the recording lasts from {format_instant(manifest.start)} to {format_instant(manifest.end)}",
        )
    upto = None if end is None else last
    with RecordingWriter(out) as writer:
        for stream in recording.streams():
            for batch in recording.batches(stream, first, upto):
                writer.write(stream, batch, interval_s=manifest.streams[stream].interval_s)
        writer.write_events(recording.events(first, upto))
        writer.write_jobs(job for job in recording.jobs() if job.start < last and (job.end is None or job.end > first))
        if recording.labelled:
            writer.write_labels(
                clipped(label, first, last) for label in recording.labels() if label.onset < last and label.end > first
            )
        header = manifest.model_dump(exclude={"format", "streams", "files"}, exclude_unset=True)
        original = sha256_of(recording.path / "recording.yaml")
        header |= {"name": name or f"{manifest.name}-cut", "start": first, "end": last}
        header["cut_of"] = {"name": manifest.name, "manifest_sha256": original}
        writer.finish(header, recording.topology)
    return out


def clipped(label: Label, start: int, end: int) -> Label:
    """Return a label as a stretch (ms) shows it: begun with it, or cut off by its end, and then no longer required."""
    changes: dict[str, object] = {}
    if label.onset < start:
        changes["onset"] = start
    if label.end > end:
        changes["end"] = end
    if not label.distractor and max(label.onset, start) + label.within_s * 1000 > end:
        changes["optional"] = True
    if label.impact is not None and ("onset" in changes or "end" in changes):
        changes["impact"] = {key: value for key, value in label.impact.items() if key != "gpu_hours_lost"}
    return label.model_copy(update=changes)
