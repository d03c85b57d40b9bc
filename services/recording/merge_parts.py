"""What of each recording goes into a merge: the stretch that they share, and log records by clocks that agree."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from services.recording.cut import clipped
from services.recording.importers.contract import Report
from services.recording.instants import format_instant
from services.recording.model import Event, Job, Label
from services.recording.reader import Recording, times_of

MARGIN_MS = 15 * 60_000
"""Kept before and after the telemetry: what led to it, and what logs say of how it ended."""
_LEADING = ("dcgm", "steps", "nic", "switch", "storage", "bmc")
"""The first of these that was sampled says which stretch a merge is about: logs and single dumps never stretch it."""

Stretch = tuple[int, int]
Shifts = Mapping[tuple[str, str | None], int]
"""By source and node of log records: milliseconds taken off their times."""


class Part:
    """A recording as far as it is kept (None: all of it); reads as a `Recording` does, counts what it leaves out."""

    def __init__(self, whole: Recording, kept: Stretch | None, shifts: Shifts) -> None:
        self.path, self.manifest, self.topology = whole.path, whole.manifest, whole.topology
        self.left: Counter[str] = Counter()
        self.seen: Stretch | None = None
        """First and last time of the rows and log records read so far."""
        moved = [0, *shifts.values()]
        self.span: Stretch = whole.manifest.start - max(moved), whole.manifest.end - min(moved)
        """Of the whole recording, by corrected clocks."""
        self._whole, self._kept, self._shifts = whole, kept, shifts

    @property
    def inside(self) -> bool:
        """Return whether the recording is of the stretch that is kept at all."""
        return self._kept is None or (self.span[0] <= self._kept[1] and self.span[1] >= self._kept[0])

    @property
    def words(self) -> str:
        """Return its name, and of which time it is."""
        return f"{self.manifest.name}, which is of {format_instant(self.span[0])} to {format_instant(self.span[1])}"

    def streams(self) -> tuple[str, ...]:
        """Return the streams of the whole recording."""
        return self._whole.streams()

    def batches(self, stream: str, *, max_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are kept."""
        start, end = (None, None) if self._kept is None else (self._kept[0], self._kept[1] + 1)
        rows = 0
        for batch in self._whole.batches(stream, start, end, max_rows=max_rows):
            rows += batch.num_rows
            times = times_of(batch)
            self._note(int(times[0]), int(times[-1]))
            yield batch
        self.left[f"rows of {stream}"] += self.manifest.streams[stream].rows - rows

    def events(self) -> Iterator[Event]:
        """Yield the log records that are kept, by corrected clocks."""
        for event in self._whole.events():
            shift = self._shifts.get((event.source, event.node))
            moved = event.model_copy(update={"timestamp": event.timestamp - shift}) if shift else event
            if self._kept is not None and not self._kept[0] <= moved.timestamp <= self._kept[1]:
                self.left["log records"] += 1
            else:
                self._note(moved.timestamp, moved.timestamp)
                yield moved

    def jobs(self) -> Iterator[Job]:
        """Yield the jobs that were there in the kept stretch, whole."""
        for job in self._whole.jobs():
            over = 2**62 if job.end is None else job.end
            if self._kept is None or (job.start <= self._kept[1] and over >= self._kept[0]):
                yield job
            else:
                self.left["jobs"] += 1

    def labels(self) -> Iterator[Label]:
        """Yield the labels of the kept stretch, cut to it."""
        for label in self._whole.labels():
            if self._kept is None:
                yield label
            elif label.onset < self._kept[1] and label.end > self._kept[0]:
                cut = clipped(label, *self._kept)
                self._note(cut.onset, cut.end)
                yield cut
            else:
                self.left["labels"] += 1

    @property
    def start(self) -> int:
        """Return the first time of what is kept; to be asked for when all was read."""
        return self.manifest.start if self._kept is None or self.seen is None else self.seen[0]

    @property
    def end(self) -> int:
        """Return the last time of what is kept; to be asked for when all was read."""
        return self.manifest.end if self._kept is None or self.seen is None else self.seen[1]

    def _note(self, first: int, last: int) -> None:
        held = self.seen or (first, last)
        self.seen = min(held[0], first), max(held[1], last)


def shared_stretch(recordings: Sequence[Recording]) -> Stretch | None:
    """Return what a merge keeps, epoch ms, both ends included: None where that is everything.

    It is the stretch of the leading telemetry (GPUs' if there is any) and `MARGIN_MS` before and after; where nothing
    was sampled, that of the recording with the most log records, or that of dumps of one moment if these lie outside
    of it: no log is worth more than all telemetry there is.
    """
    spans, moments = list[Stretch](), list[Stretch]()
    for stream in _LEADING:
        found = [span for one in recordings if stream in one.streams() and (span := _sampled(one, stream))]
        spans = [span for span in found if span[1] > span[0]]
        moments = moments or found
        if spans:
            break
    else:
        chatty = max(recordings, key=lambda one: sum(1 for _ in one.events()))
        if not any(True for _ in chatty.events()):
            return None
        first, last = chatty.manifest.start - MARGIN_MS, chatty.manifest.end + MARGIN_MS
        inside_log = not moments or any(first <= moment <= last for moment, _ in moments)
        spans = [(chatty.manifest.start, chatty.manifest.end)] if inside_log else moments
    kept = min(span[0] for span in spans) - MARGIN_MS, max(span[1] for span in spans) + MARGIN_MS
    inside = all(kept[0] <= one.manifest.start and one.manifest.end <= kept[1] for one in recordings)
    return None if inside else kept


def _sampled(recording: Recording, stream: str) -> Stretch | None:
    """Return first and last time of a stream, the same for a dump of one moment; None where it has no rows."""
    first = next(recording.batches(stream, max_rows=1, columns=[]), None)
    if first is None:
        return None
    begin = end = int(times_of(first)[0])
    for batch in recording.batches(stream, begin + 1, columns=[]):
        end = int(times_of(batch)[-1])
    return begin, end


def say_left_out(parts: Sequence[Part], kept: Stretch, report: Report) -> None:
    """Report what of each recording was left out."""
    for part in parts:
        for what, count in part.left.items():
            if count:
                report.skip(f"{what} outside of the stretch that is kept", part.words, count)
    if any(+part.left for part in parts):
        around = f"{format_instant(kept[0])} to {format_instant(kept[1])}"
        report.notes.append(
            f"kept {around}: the stretch of the telemetry and {MARGIN_MS // 60_000} minutes before and after it "
            "(--keep-all keeps all)"
        )
