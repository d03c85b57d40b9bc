"""Dashboards as pictures, from what a Prometheus or Thanos Query answers now."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from services.dashboards.catalogue import dashboard
from services.dashboards.draw import Mark, draw
from services.dashboards.live import Answer, Series, Source, Values, Window
from services.dashboards.model import Annotation, Dashboard


@dataclass(frozen=True)
class Rendered:
    """One dashboard: its picture, and what its queries gave."""

    name: str
    path: Path
    answers: tuple[Answer, ...]

    @property
    def empty(self) -> list[str]:
        """Return the titles of panels without any data."""
        full = {answer.panel.id for answer in self.answers if answer.series}
        return list(dict.fromkeys(answer.panel.title for answer in self.answers if answer.panel.id not in full))


def render(
    names: Sequence[str],
    url: str,
    window: Window,
    folder: Path,
    chosen: Values,
    *,
    dpi: int = 80,
) -> Iterator[Rendered]:
    """Ask all queries of the dashboards `names` and yield each as it is drawn, as ``folder/NAME.png``.

    `chosen` are values of variables; a variable that a dashboard does not have is no error.
    """
    source = Source(url, window)
    try:
        for name in names:
            board = dashboard(name)
            known = {variable.name for variable in board.templating.list}
            values = source.values(board, {key: value for key, value in chosen.items() if key in known})
            answers = source.answers(board, values)
            path = folder / f"{name}.png"
            span = window.start_ms / 1000, window.end_ms / 1000
            draw(board, answers, list(_marks(source, board, values)), values, span, path, dpi=dpi)
            yield Rendered(name, path, answers)
    finally:
        source.close()


def _marks(source: Source, board: Dashboard, values: Values) -> Iterator[Mark]:
    for annotation in board.annotations.list:
        for series in source.marks(annotation, values):
            yield from _of(annotation, series, source.window.step_s())


def _of(annotation: Annotation, series: Series, step_s: int) -> Iterator[Mark]:
    if annotation.use_value_for_time:
        for at_ms in np.unique(series.values).tolist():
            yield Mark(at_ms / 1000, at_ms / 1000, annotation.icon_color, annotation.title_format)
        return
    # Moments that lie a step apart are one stretch, as Grafana has them.
    cuts = np.flatnonzero(np.diff(series.times) > 1.5 * step_s) + 1
    for part in np.split(series.times, cuts):
        yield Mark(float(part[0]), float(part[-1]), annotation.icon_color, annotation.title_format)
