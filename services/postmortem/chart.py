"""A line over time against a band, as SVG that follows the page's colours and prints, and as a row of characters."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

import numpy as np

from detectors.contract import FloatArray, Instant, IntArray

WIDE, HIGH = 760, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 26, 24
_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)
_BARS = "▁▂▃▄▅▆▇█"
_CHARACTERS = 60


@dataclass(frozen=True)
class Mark:
    """A moment that is marked: `kind` is onset, found or over."""

    at: Instant
    kind: str
    name: str


@dataclass(frozen=True)
class Chart:
    """One signal: (n,) times in ms, the culprit's values, and the band's low, middle and high; NaN where nothing is."""

    title: str
    unit: str
    culprit: str
    peers: str
    at: IntArray
    values: FloatArray
    low: FloatArray
    middle: FloatArray
    high: FloatArray
    marks: Sequence[Mark] = ()

    def svg(self) -> str:
        """Return it as SVG; colours come from the page's style, by class."""
        begin, end = int(self.at[0]), int(self.at[-1])
        bottom, top, ticks = _scale([self.values, self.low, self.high])

        def across(at: float) -> float:
            return _LEFT + (at - begin) / max(end - begin, 1) * (WIDE - _LEFT - _RIGHT)

        def down(value: float) -> float:
            return HIGH - _BOTTOM - (value - bottom) / (top - bottom) * (HIGH - _TOP - _BOTTOM)

        parts = [f'<path class="grid" d="M{_LEFT} {down(tick):.1f}H{WIDE - _RIGHT}"/>' for tick in ticks]
        parts += [
            f'<text x="{_LEFT - 6}" y="{down(tick) + 4:.1f}" text-anchor="end">{figure(tick)}</text>' for tick in ticks
        ]
        parts += [
            f'<text x="{across(at):.1f}" y="{HIGH - 6}" text-anchor="middle">{escape(_clock(at, end - begin))}</text>'
            for at in _moments(begin, end)
        ]
        x = [across(float(at)) for at in self.at]
        parts += [_band(x, [down(v) for v in self.low], [down(v) for v in self.high])]
        parts += [f'<path class="middle" d="{_line(x, [down(value) for value in self.middle])}"/>']
        parts += [f'<path class="culprit" d="{_line(x, [down(value) for value in self.values])}"/>']
        for mark in self.marks:
            if begin <= mark.at <= end:
                place = across(mark.at)
                parts.append(f'<path class="mark {mark.kind}" d="M{place:.1f} {_TOP}V{HIGH - _BOTTOM}"/>')
        parts += _names(self.marks, begin, end, across)
        description = f"{self.title}: {self.culprit} against {self.peers}"
        return (
            f'<svg viewBox="0 0 {WIDE} {HIGH}" role="img" aria-label="{escape(description)}">'
            f"<title>{escape(description)}</title>{''.join(parts)}</svg>"
        )

    def characters(self) -> str:
        """Return culprit and middle of the band as two rows of characters on one scale."""
        if not (np.isfinite(self.values).any() or np.isfinite(self.middle).any()):
            return ""
        both = np.concatenate([self.values, self.middle])
        low, high = float(np.nanmin(both)), float(np.nanmax(both))
        width = max(len(self.culprit), len(self.peers))
        rows = [(self.culprit, self.values), (self.peers, self.middle)]
        return "\n".join(
            f"{name.ljust(width)}  {_row(values, low, high)}" for name, values in rows if np.isfinite(values).any()
        )


def figure(value: float | None) -> str:
    """Return a figure as it is read: four digits at most, thousands apart; nothing where there is none."""
    if value is None or not math.isfinite(value):
        return ""
    if value == 0:
        return "0"
    if abs(value) >= 1e6:
        return f"{value / 1e6:.3g} M"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2f}".rstrip("0").rstrip(".") if abs(value) >= 10 else f"{value:.3g}"


def _scale(parts: Sequence[FloatArray]) -> tuple[float, float, list[float]]:
    """Return bottom and top of the axis and where its lines are: round figures, and zero where it is near."""
    known = np.concatenate([part[np.isfinite(part)] for part in parts])
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    if low >= 0 and low < 0.6 * high:
        low = 0.0
    if high - low <= 1e-9 * max(abs(high), 1e-9):
        low, high = low - (abs(low) * 0.1 or 0.5), high + (abs(high) * 0.1 or 0.5)
    step = 10 ** math.floor(math.log10((high - low) / 4))
    step = next(step * times for times in (1, 2, 5, 10) if (high - low) / (step * times) <= 5)
    bottom, top = math.floor(low / step) * step, math.ceil(high / step) * step
    return bottom, top, [bottom + step * number for number in range(round((top - bottom) / step) + 1)]


def _moments(begin: Instant, end: Instant) -> list[Instant]:
    step = next((1000 * step for step in _STEPS_S if (end - begin) / (1000 * step) <= 8), 1000 * _STEPS_S[-1])
    first = -(-begin // step) * step
    margin = (end - begin) // 30
    return [at for at in range(first, end + 1, step) if begin + margin <= at <= end - margin]


def _clock(at: Instant, span: int) -> str:
    moment = datetime.fromtimestamp(at / 1000, tz=UTC)
    return moment.strftime("%H:%M:%S" if span < 480_000 else "%H:%M" if span < 172_800_000 else "%m-%d %H:%M")


def _line(x: Sequence[float], y: Sequence[float]) -> str:
    """Return a path with a gap wherever there is no value; a lone one is a dot."""
    words, pen = [], False
    for number, (across, down) in enumerate(zip(x, y, strict=True)):
        if not math.isfinite(down):
            pen = False
            continue
        words.append(f"{'L' if pen else 'M'}{across:.1f} {down:.1f}")
        if not pen and (number + 1 == len(y) or not math.isfinite(y[number + 1])):
            words.append("h1")
        pen = True
    return "".join(words)


def _band(x: Sequence[float], low: Sequence[float], high: Sequence[float]) -> str:
    """Return the band, in as many pieces as there are stretches with values."""
    known = [math.isfinite(one) and math.isfinite(other) for one, other in zip(low, high, strict=True)]
    pieces, begin = [], 0
    while begin < len(known):
        if not known[begin]:
            begin += 1
            continue
        end = begin
        while end < len(known) and known[end]:
            end += 1
        there = [f"{x[place]:.1f} {high[place]:.1f}" for place in range(begin, end)]
        back = [f"{x[place]:.1f} {low[place]:.1f}" for place in reversed(range(begin, end))]
        pieces.append(f"M{'L'.join([*there, *back])}Z")
        begin = end
    return f'<path class="band" d="{"".join(pieces)}"/>'


def _names(marks: Sequence[Mark], begin: Instant, end: Instant, across: object) -> list[str]:
    """Return the marks' names above the chart; those that would stand on each other share one."""
    assert callable(across)  # noqa: S101 - for the type checker
    shown: list[tuple[float, str]] = []
    for mark in sorted(marks, key=lambda one: one.at):
        if not begin <= mark.at <= end:
            continue
        place = float(across(mark.at))
        if shown and place - shown[-1][0] < 8 * len(shown[-1][1]):
            shown[-1] = (shown[-1][0], f"{shown[-1][1]}, {mark.name}")
        else:
            shown.append((place, mark.name))
    names = []
    for place, name in shown:
        side = "end" if place > WIDE - 9 * len(name) else "start"
        names.append(f'<text class="name" x="{place:.1f}" y="{_TOP - 9}" text-anchor="{side}">{escape(name)}</text>')
    return names


def _row(values: FloatArray, low: float, high: float) -> str:
    edges = np.linspace(0, len(values), min(_CHARACTERS, len(values)) + 1).astype(int)
    cells = []
    for begin, end in itertools.pairwise(edges):
        part = values[begin:end]
        part = part[np.isfinite(part)]
        share = 0.0 if not len(part) or high <= low else (float(np.mean(part)) - low) / (high - low)
        cells.append(_BARS[min(len(_BARS) - 1, int(share * len(_BARS)))] if len(part) else " ")
    return "".join(cells)
