"""Findings of windows, put together as if one engine had seen the whole: a fault that lasts over a cut is one finding.

A finding belongs to the window in which it was detected. What is open at a cut goes on under the identity it has, if
the next window finds it too, be it in its warm-up; if that window never does, it counts as over at the cut. What only
the warm-up has found, and is still open at the cut, is reported then, as by a detector that was started there.
"""

from collections.abc import Iterable
from dataclasses import replace

from detectors.contract import Finding
from detectors.engine.alarms import canonical
from services.backtest.windows import Window
from services.score.comparison import identity


def stitched(parts: Iterable[tuple[Window, list[Finding]]]) -> list[Finding]:
    """Return the findings of all windows, which come in order of time, in order of time."""
    found: list[Finding] = []
    lasting: list[Finding] = []
    for window, findings in parts:
        joint = _Joint(window, lasting)
        for one in sorted(findings, key=canonical):
            joint.take(one)
        found += joint.close()
        lasting = list(joint.open.values())
    return sorted(found, key=canonical)


class _Joint:
    """One window beside what was open at its beginning."""

    def __init__(self, window: Window, lasting: Iterable[Finding]) -> None:
        self._window = window
        self._own: list[Finding] = []
        self._warm: dict[str, Finding] = {}
        """By id: what the warm-up has found and is open."""
        self._carried = list(lasting)
        """Open since before the window, and not seen in it yet."""
        self.open: dict[str, Finding] = {}
        """By the id that the window has for it: what is open, under the identity that holds."""

    def take(self, one: Finding) -> None:
        """Take the window's findings in order of time, those of its warm-up first."""
        if one.detected_at < self._window.begin:
            if one.state == "firing":
                self._warm[one.id] = one
            else:
                self._warm.pop(one.id, None)
            return
        self._warmed()
        if one.detected_at >= self._window.end:
            return
        if one.state == "firing":
            self._fire(one)
        elif one.id in self.open:
            self._own.append(replace(one, id=self.open.pop(one.id).id))

    def close(self) -> list[Finding]:
        """Return what the window adds, when all of it was taken; what it never saw was over at its beginning."""
        self._warmed()
        over = [replace(one, state="resolved", detected_at=self._window.begin) for one in self._carried]
        return self._own + over

    def _warmed(self) -> None:
        """Let what is open at the cut go on, or report it, once."""
        for one in self._warm.values():
            self._fire(one)
        self._warm.clear()

    def _fire(self, one: Finding) -> None:
        same = next((other for other in self._carried if identity(other) == identity(one)), None)
        if same is not None:
            self._carried.remove(same)
        else:
            self._own.append(one)
        self.open[one.id] = same or one
