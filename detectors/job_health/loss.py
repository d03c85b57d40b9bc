"""The course of a job's loss and gradient norm, and when they leave it."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from detectors.contract import Instant
from detectors.job_health.config import JobHealthConfig

_BLOCK = 16
"""Steps whose medians make one point of the course."""
_BLOCKS = 24
_LOW = 0.2
"""The course's level is this quantile of its last blocks: a slow rise does not take it along."""
_HISTORY = 3
"""Blocks without which nothing is called a rise."""
_MAD_TO_SIGMA = 1.4826
_OVERFLOWS = 4
"""Gradients that overflow are common where a loss scale is being found: so many times as many must follow."""
_CALM = 0.25
"""A rise is over when no more than this part of the last steps lies above."""


@dataclass(frozen=True, slots=True)
class Row:
    """What a job reported of one step; NaN where it is no number, None where it was not reported."""

    at: Instant
    iteration: float | None
    loss: float | None
    grad_norm: float | None
    phase: float | None
    """Tokens of a step, or how long it took: both change when the work does."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong with a job's course, since when, and the figures."""

    what: str
    since: Instant
    evidence: dict[str, float | int | str]


@dataclass(slots=True)
class Course:
    """One job's course: bounded, as JSON can say it."""

    iteration: float = -1.0
    last_at: Instant = -1
    recent: list[list[float]] = field(default_factory=list)
    """The last steps: at, loss, grad_norm, phase, loss above, grad_norm above."""
    block: list[list[float]] = field(default_factory=list)
    blocks: list[list[float]] = field(default_factory=list)
    """Of each block: loss and its deviation, grad_norm and its deviation, phase."""
    level: list[float] = field(default_factory=lambda: [math.nan] * 5)
    """Of the course: loss and its noise, grad_norm and its noise, phase; NaN unknown."""
    counts: list[int] = field(default_factory=lambda: [0, 0])
    """How many of the last steps lie above, in loss and grad_norm."""
    finite: int = 0
    bad_loss: int = 0
    bad_grad: int = 0
    bad_since: Instant = -1
    above_since: Instant = -1

    def take(self, row: Row, config: JobHealthConfig) -> None:
        """Take the next step. One that is repeated is passed over, one that goes back begins a new course."""
        if row.iteration is not None and math.isfinite(row.iteration):
            if row.iteration == self.iteration:
                return
            if row.iteration < self.iteration:
                self.restart()
            self.iteration = row.iteration
        self.last_at = row.at
        if not self._is_number(row):
            return
        loss, grad = _number(row.loss), _number(row.grad_norm)
        self.finite += 1
        above_loss, above_grad = self._above(loss, grad, config)
        phase = _number(row.phase)
        self.recent = [*self.recent, [row.at, loss, grad, phase, above_loss, above_grad]][-config.rise_window :]
        self.counts = [int(sum(row[column] for row in self.recent)) for column in (4, 5)]
        if not (
            self.rising(config) or self.above(4) >= config.rise_steps / 2 or self.above(5) >= config.rise_steps / 2
        ):
            self._learn([loss, grad, phase])
        self._note_rise(config)

    def restart(self) -> None:
        """Begin anew: the job went back to a checkpoint, or its work is another."""
        self.recent, self.block, self.blocks, self.level = [], [], [], [math.nan] * 5
        self.counts = [0, 0]
        self.iteration, self.bad_loss, self.bad_grad, self.bad_since, self.above_since = -1.0, 0, 0, -1, -1

    def _is_number(self, row: Row) -> bool:
        bad_loss = row.loss is not None and not math.isfinite(row.loss)
        bad_grad = row.grad_norm is not None and not math.isfinite(row.grad_norm)
        if not (bad_loss or bad_grad):
            self.bad_loss = self.bad_grad = 0
            self.bad_since = -1
            return True
        self.bad_since = row.at if self.bad_since < 0 else self.bad_since
        self.bad_loss = self.bad_loss + 1 if bad_loss else 0
        self.bad_grad += 1
        return False

    def _above(self, loss: float, grad: float, config: JobHealthConfig) -> tuple[float, float]:
        if len(self.blocks) < _HISTORY:
            return 0.0, 0.0
        level, noise, grad_level, grad_noise, _ = self.level
        effect = max(config.loss_deviations * noise, config.loss_effect * abs(level))
        grad_effect = max(config.grad_deviations * grad_noise, (config.grad_factor - 1) * abs(grad_level))
        # A comparison with NaN is false: what is not known is not above.
        return float(loss > level + effect), float(grad > grad_level + grad_effect)

    def _learn(self, row: list[float]) -> None:
        self.block.append(row)
        if len(self.block) < _BLOCK:
            return
        table = np.array(self.block)
        self.block = []
        loss, grad, phase = (_quantile(table[:, column], 0.5) for column in range(3))
        spread = _quantile(np.abs(table[:, 0] - loss), 0.5), _quantile(np.abs(table[:, 1] - grad), 0.5)
        self.blocks = [*self.blocks, [loss, spread[0], grad, spread[1], phase]][-_BLOCKS:]
        known = np.array(self.blocks)
        self.level = [
            _quantile(known[:, 0], _LOW),
            _quantile(known[:, 1], 0.5) * _MAD_TO_SIGMA,
            _quantile(known[:, 2], _LOW),
            _quantile(known[:, 3], 0.5) * _MAD_TO_SIGMA,
            _quantile(known[:, 4], 0.5),
        ]

    def above(self, column: int) -> int:
        """Return how many of the last steps lay above the course, in loss (4) or grad_norm (5)."""
        return self.counts[column - 4]

    def rising(self, config: JobHealthConfig) -> bool:
        """Return whether most of the last steps lay above the course."""
        return max(self.above(4), self.above(5)) >= config.rise_steps

    def _note_rise(self, config: JobHealthConfig) -> None:
        if not self.rising(config):
            if max(self.above(4), self.above(5)) < config.rise_steps / 2:
                self.above_since = -1
            return
        if self.above_since < 0:
            column = 4 if self.above(4) >= self.above(5) else 5
            self.above_since = int(next(row[0] for row in self.recent if row[column]))

    def calm(self, config: JobHealthConfig) -> bool:
        """Return whether all is well again."""
        if self.bad_since >= 0 or not self.recent:
            return False
        return max(self.above(4), self.above(5)) <= _CALM * config.rise_window

    def verdict(self, config: JobHealthConfig) -> Verdict | None:
        """Return what is wrong, if it has lasted long enough; a change of the work begins a new course instead."""
        if self.finite >= config.nan_steps and self.bad_since >= 0:
            enough = self.bad_loss >= config.nan_steps or self.bad_grad >= _OVERFLOWS * config.nan_steps
            if enough and self.last_at - self.bad_since >= config.nan_hold_s * 1000:
                return Verdict(
                    "nan", self.bad_since, self._figures({"steps_not_a_number": max(self.bad_loss, self.bad_grad)})
                )
        if not self.rising(config) or self.last_at - self.above_since < config.rise_hold_s * 1000:
            return None
        if self._changed_work(config):
            self.restart()
            return None
        what = "loss" if self.above(4) >= config.rise_steps else "grad_norm"
        return Verdict(what, self.above_since, self._figures({"steps_above": max(self.above(4), self.above(5))}))

    def _changed_work(self, config: JobHealthConfig) -> bool:
        before, now = self.level[4], _quantile(np.array([row[3] for row in self.recent]), 0.5)
        return bool(before > 0 and abs(now / before - 1) > config.phase_change)

    def _figures(self, evidence: dict[str, float | int | str]) -> dict[str, float | int | str]:
        if self.iteration >= 0:
            evidence["iteration"] = int(self.iteration)
        table = np.array(self.recent) if self.recent else np.empty((0, 6))
        figures = {
            "loss": _quantile(table[:, 1], 0.5),
            "loss_before": self.level[0],
            "loss_noise": self.level[1],
            "grad_norm": _quantile(table[:, 2], 0.5),
            "grad_norm_before": self.level[2],
        }
        return evidence | {name: value for name, value in figures.items() if math.isfinite(value)}

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON can say it."""
        return asdict(self)


def _number(value: float | None) -> float:
    """Return a value that can be reckoned with; NaN if it was not reported."""
    return math.nan if value is None else max(-1e12, min(1e12, value))


def _quantile(values: Any, share: float) -> float:
    """Return a quantile of what is a number, without interpolation where there are few; NaN if nothing is."""
    known = np.sort(values[np.isfinite(values)])
    if not len(known):
        return math.nan
    if share == 0.5:
        return float((known[(len(known) - 1) // 2] + known[len(known) // 2]) / 2)
    return float(known[int(share * (len(known) - 1))])
