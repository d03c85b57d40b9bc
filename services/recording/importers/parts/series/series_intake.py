"""Takes samples of named series, as any tool writes them down, into a draft: by the names and labels of exporters."""

from collections.abc import Mapping, Sequence

import numpy as np

from services.recording.importers.contract import Draft, Report
from services.recording.importers.parts.schedulers.derived_jobs import JobSpans
from services.recording.importers.parts.series.census import Census, Place
from services.recording.importers.parts.series.pivot import Wide, interval_s
from services.recording.model import Topology
from services.recording.schema import STREAMS

_SAMPLES_AT_ONCE = 300_000


class WideRows:
    """Samples of all streams on their way into a draft as rows."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._wide: dict[str, Wide] = {}
        self._every: dict[str, float | None] = {}

    def of(self, stream: str) -> Wide:
        """Return where the samples of a stream go."""
        return self._wide.setdefault(stream, Wide(stream))

    @property
    def repeated(self) -> int:
        """How many samples were for a time, entity and column that had one already."""
        return sum(one.repeated for one in self._wide.values())

    def make_room(self) -> None:
        """Hand on what there is where that is much."""
        if sum(one.samples for one in self._wide.values()) >= _SAMPLES_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Hand on what there is."""
        for stream, wide in self._wide.items():
            batch = wide.rows()
            if batch is not None and batch.num_rows:
                keys = [name for name in STREAMS[stream].key_names if name != "iteration"]
                self._every[stream] = self._every.get(stream) or interval_s(batch, keys)
                self._draft.add(stream, batch, interval_s=self._every[stream] if stream != "steps" else None)


class SeriesIntake:
    """Puts samples where the census says they belong. `node` is that of series whose labels name none."""

    def __init__(self, draft: Draft, report: Report, node: str = "") -> None:
        self._draft, self._report = draft, report
        self._census, self._jobs = Census(node=node or None), JobSpans()
        self._rows = WideRows(draft)
        self._latest = 0

    def take(
        self, metric: str, labels: Mapping[str, str], times: Sequence[int], values: Sequence[float], where: str
    ) -> None:
        """Take samples of a series: times in ms, values in the metric's unit; what has no place is counted."""
        place = self._census.place(metric, labels)
        if isinstance(place, str):
            self._report.skip(f"{place} (samples)", where, len(times))
            return
        stream = place.reading.stream
        at, found = np.array(times, np.int64), np.array(values, np.float64)
        # A loss may be NaN; any other reading that is none, or infinite, is not there.
        there = np.isfinite(found) if stream != "steps" else ~np.isinf(found)
        if not there.all():
            self._report.skip("a reading that is not there (blank or NaN)", where, int((~there).sum()))
            at, found = at[there], found[there]
        if not len(at):
            return
        self._note(place, at)
        wide = self._rows.of(stream)
        entity = wide.entity(place.key)
        readings = (found - place.reading.offset) / place.reading.scale
        wide.add_few(place.reading.column, [entity] * len(at), at.tolist(), readings.tolist())
        self._report.read["samples"] += len(at)
        self._rows.make_room()

    def finish(self) -> Topology:
        """Hand on what is left, and the jobs that series name; return the machines."""
        self._rows.flush()
        topology = self._census.topology()
        self._draft.add_jobs(self._jobs.jobs(self._latest, topology, self._report.skip))
        return topology

    def _note(self, place: Place, at: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> None:
        first, last = int(at.min()), int(at.max())
        self._latest = max(self._latest, last)
        if place.job or place.reading.stream == "steps":
            self._jobs.seen(place.reading.stream, place, first, last)
