"""One detector with one setting at several values: what each would have caught and missed, and its false alarms."""

import concurrent.futures
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from detectors.contract import Default, Detector
from detectors.registry import discover
from detectors.spec import configure
from services.kit.errors import UsageError
from services.kit.processes import pool_of
from services.score.suite import Scorecard, Scored, score_recording
from services.score.tally import Tally

Value = float | int | str | bool
_TIMES = (0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0)
"""The automatic range around a default: wide enough that both ends are plainly worse, dense near the default."""


@dataclass(frozen=True)
class Point:
    """The detector's score with the setting at one value."""

    value: Value
    is_default: bool
    card: Scorecard

    @property
    def counts(self) -> Tally:
        """All its faults together."""
        return self.card.by_fault["all"]

    @property
    def per_100_node_days(self) -> float:
        """False alarms per 100 node-days; NaN without any."""
        return 100 * self.counts.false_alarms / self.card.node_days if self.card.node_days else math.nan


def kind_of(detector: str) -> type[Detector]:
    """Return a detector by name. UserError: there is none."""
    known = discover()
    if detector not in known:
        raise UsageError(f"no detector {detector!r}", remedy=f"there are: {', '.join(known)}")
    return known[detector]


def values_around(kind: type[Detector], setting: str) -> list[Value]:
    """Return values to try around a setting's default, in order; shares (0 to 1) stay shares.

    UserError: the detector has no such setting, or it is no number and has no range.
    """
    default = _default(kind, setting).value
    if isinstance(default, bool):
        return [False, True]
    if isinstance(default, str):
        raise UsageError(
            f"{setting} of {kind.spec.name} is text: it has no range", remedy=f"--setting {setting}=ONE,OTHER"
        )
    if 0 < default < 1:
        odds = default / (1 - default)
        tried: list[Value] = [float(f"{odds * times / (1 + odds * times):.3g}") for times in _TIMES]
    elif isinstance(default, int):
        tried = list(dict.fromkeys(round(default * times) for times in _TIMES))
    else:
        tried = [float(f"{default * times:.3g}") for times in _TIMES]
    return [value for value in dict.fromkeys(tried) if _fits(kind, setting, value)]


def _default(kind: type[Detector], setting: str) -> Default:
    defaults = kind.spec.defaults
    if setting not in defaults:
        raise UsageError(f"{kind.spec.name} has no setting {setting!r}", remedy=f"there are: {', '.join(defaults)}")
    return defaults[setting]


def _fits(kind: type[Detector], setting: str, value: Value) -> bool:
    try:
        configure(kind.config_type, kind.spec, {setting: value})
    except ValidationError:
        return False
    return True


def sweep(
    kind: type[Detector],
    setting: str,
    values: Sequence[Value],
    paths: Sequence[Path],
    *,
    workers: int = 2,
    progress: Callable[[int, int], None] | None = None,
) -> list[Point]:
    """Return the detector's score at each value, all else at its default; only its own faults count.

    `progress` is called with how many of the (recording, value) pairs are done, of how many. UserError: a value that
    the setting can't have.
    """
    default = _default(kind, setting).value
    wrong = [str(value) for value in values if not _fits(kind, setting, value)]
    if wrong:
        raise UsageError(
            f"{setting} of {kind.spec.name} can't be {', '.join(wrong)}", remedy=f"its default is {default}"
        )
    found: dict[tuple[int, int], Scored] = {}
    with pool_of(workers) as pool:
        waiting = {}
        for place, value in enumerate(values):
            choice = (kind, configure(kind.config_type, kind.spec, {setting: value}))
            for number, path in enumerate(paths):
                waiting[pool.submit(score_recording, path, [choice])] = (place, number)
        for future in concurrent.futures.as_completed(waiting):
            found[waiting[future]] = _only(future.result(), kind.spec.faults)
            if progress is not None:
                progress(len(found), len(waiting))
    return [
        Point(value, value == default, Scorecard([found[place, number] for number in range(len(paths))]))
        for place, value in enumerate(values)
    ]


def _only(scored: Scored, faults: Sequence[str]) -> Scored:
    """Return a score without the labels that are not this detector's to find."""
    return replace(scored, outcomes=[outcome for outcome in scored.outcomes if outcome.fault in faults])


def best(points: Sequence[Point]) -> Point:
    """Return the point of the best F1; of equals the one with fewest false alarms, then the quickest, the default."""

    def rank(point: Point) -> tuple[float, int, float, bool]:
        counts = point.counts
        quick = counts.delay_s(0.95)
        return (
            1.0 if math.isnan(counts.f1) else -counts.f1,
            counts.false_alarms,
            quick if math.isfinite(quick) else math.inf,
            not point.is_default,
        )

    return min(points, key=rank)
