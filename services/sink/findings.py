"""What a finding leaves in Prometheus: one sample when it fires, one when it is resolved, at its own event time.

`active` is 1 when a finding fires and 0 when it is resolved; `started`, beside the 1, is when the fault began, in
seconds since the epoch, as shifted. Nothing is written in between: what is open at a time is
``last_over_time(...[range]) == 1``. So a record of the topic is all there is to know, in whatever order and however
often it is read, and a sink that starts again has nothing to remember. A finding that is open when its replay ends
stays so, as it does in the record.
"""

from collections.abc import Iterator

import numpy as np

from services.kit.findings import FindingRecord
from services.kit.series import FindingSeries, Labels
from services.kit.wire import WireError
from services.sink.encode import EARLIEST_MS, LATEST_MS, Samples
from services.sink.pages import Catalogue


class FindingWriter:
    """Names the series of one unit's findings, each once."""

    def __init__(self, series: FindingSeries, catalogue: Catalogue) -> None:
        self._series = series
        self._catalogue = catalogue
        self._numbers: dict[tuple[tuple[str, str], ...], int] = {}

    def samples(self, one: FindingRecord) -> Iterator[Samples]:
        """Yield the samples of one record of the findings topic; none of what alerts nobody.

        That is what a detector in shadow says, and what is of severity info: dashboards show what is wrong.
        Raises WireError where Prometheus cannot hold its time.
        """
        finding = one.finding
        if one.shadow or finding.severity == "info":
            return
        if not EARLIEST_MS <= one.reported_ms <= LATEST_MS:
            raise WireError(f"not a time that Prometheus can hold: {one.reported_ms} ms")
        labels = self._labels(one)
        fires = finding.state == "firing"
        yield self._sample(self._series.active, labels, one.reported_ms, 1.0 if fires else 0.0)
        if fires:
            yield self._sample(self._series.started, labels, one.reported_ms, one.onset_ms / 1000)

    def _labels(self, one: FindingRecord) -> Labels:
        finding, origin = one.finding, one.origin
        return {name: str(value) for name, value in finding.entity.items() if str(value)} | {
            "fault": finding.fault,
            "severity": finding.severity,
            "detector": finding.detector,
            "cluster": origin.cluster,
            "replay": origin.replay,
            "job": self._series.job,
            "instance": self._series.instance,
        }

    def _sample(self, metric: str, labels: Labels, at_ms: int, value: float) -> Samples:
        key = tuple(sorted((labels | {"__name__": metric}).items()))
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._catalogue.add(dict(key))
        return Samples(np.array([number]), np.array([[at_ms]]), np.array([[value]]))
