"""Nodes whose clocks somebody set lower, as `nvidia-smi -lgc` does: these are no cap on their power, and no brake.

Who runs at a clock that was set draws what each chip needs for it. Who is given so much power and no more runs at the
clock that each chip reaches with it (Sinha et al., SC22): then it is clocks that differ.
"""

from typing import Any, Final

import numpy as np

from detectors.contract import FloatArray, Instant

_SET: Final = float(np.log(1.6))
"""By so much more the power of GPUs differs than their clock where somebody set it. Recordings of others, a node's GPUs
at one reading: 2.2 to 2.5 in the middle of three nodes whose clocks were set, 0.75 of one that lost its feed; in the
means of a minute 2.5 to 6, and 0.85."""
_FEWEST: Final = 3
_LEAST_SPREAD: Final = 0.001
"""A clock is read in steps of 15 MHz, a hundredth: the mean of some that are equal may differ by a tenth of that."""


class SetClocks:
    """By node that is under suspicion: the sum of what its readings show, of how many, and the last one's time (ms)."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, int, Instant]] = {}

    def are_set(self, node: str, since: Instant, at: Instant, clock: FloatArray, power: FloatArray) -> bool:
        """Take note of what a node's GPUs, slow since then, read at a time (MHz, W), and return whether all that was
        read since shows a clock that was set; it does not of fewer than three GPUs.
        """
        total, count, last = self._seen.get(node, (0.0, 0, -1))
        if since > last:
            total, count = 0.0, 0
        if at > last and np.isfinite(by := _spread(clock, power)):
            total, count = total + by, count + 1
            self._seen[node] = (total, count, at)
        return count > 0 and total >= _SET * count

    def are_capped(self, node: str) -> bool:
        """Return whether what was noted of a node shows power that was given: by as much more its clocks differ."""
        total, count, _ = self._seen.get(node, (0.0, 0, -1))
        return count > 0 and total <= -_SET * count

    def forget(self, before: Instant) -> None:
        """Forget the nodes that were not suspected since."""
        self._seen = {node: seen for node, seen in self._seen.items() if seen[2] >= before}

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON can say it."""
        return {node: list(seen) for node, seen in self._seen.items()}

    def load(self, document: dict[str, Any]) -> None:
        """Take what `snapshot` returned."""
        self._seen = {node: (float(total), int(count), int(at)) for node, (total, count, at) in document.items()}


def _spread(clock: FloatArray, power: FloatArray) -> float:
    """Return by how much more the power of GPUs differs than their clock, a logarithm; NaN of few."""
    known = np.isfinite(clock) & np.isfinite(power)
    if np.count_nonzero(known) < _FEWEST:
        return float("nan")
    differs = [max(float(of[known].std() / of[known].mean()), _LEAST_SPREAD) for of in (power, clock)]
    return float(np.log(differs[0] / differs[1]))
