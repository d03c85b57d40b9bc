"""A stretch of a recording, read where it lies: nothing is copied."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from services.recording.cut import clipped
from services.recording.model import Event, Job, Label
from services.recording.reader import Recording


@dataclass(frozen=True, kw_only=True)
class Stretch(Recording):
    """What lies within ``manifest.start`` and ``manifest.end`` of `whole`, both included; jobs that overlap it."""

    whole: Recording

    def batches(
        self,
        stream: str,
        start: int | None = None,
        end: int | None = None,
        *,
        max_rows: int = 65_536,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows as `Recording.batches` does, of the stretch alone."""
        yield from self.whole.batches(stream, *self._within(start, end), max_rows=max_rows, columns=columns)

    def events(self, start: int | None = None, end: int | None = None) -> Iterator[Event]:
        """Yield the log records of the stretch."""
        yield from self.whole.events(*self._within(start, end))

    def jobs(self) -> Iterator[Job]:
        """Yield the jobs that overlap the stretch."""
        first, last = self.manifest.start, self.manifest.end
        yield from (job for job in self.whole.jobs() if job.start <= last and (job.end is None or job.end >= first))

    def labels(self) -> Iterator[Label]:
        """Yield the labels that overlap the stretch, clipped to it (`cut.clipped`)."""
        first, last = self.manifest.start, self.manifest.end
        for label in self.whole.labels():
            if label.onset <= last and label.end >= first:
                yield clipped(label, first, last)

    def _within(self, start: int | None, end: int | None) -> tuple[int, int]:
        first, last = self.manifest.start, self.manifest.end + 1
        return first if start is None else max(start, first), last if end is None else min(end, last)


def stretch_of(recording: Recording, start: int, end: int) -> Recording:
    """Return the rows, lines, jobs and labels from `start` to `end` (ms, both included).

    A stretch that reaches beyond the recording ends with it.
    """
    manifest = recording.manifest
    first, last = max(start, manifest.start), min(end, manifest.end)
    if (first, last) == (manifest.start, manifest.end):
        return recording
    part = manifest.model_copy(update={"start": first, "end": last})
    return Stretch(recording.path, part, recording.topology, recording.left_out, whole=recording)
