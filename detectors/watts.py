"""What a node draws, as its BMC says: the one sign of life that does not go through the node itself."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, Instant
from detectors.fleet import Fleet
from detectors.presence import Presence, Roster

_WATTS = re.compile(r"(node|system|sys|total|chassis|dcmi|server).*(power|pwr|watt)|^(power|pwr|watts)", re.IGNORECASE)
_NOT_WATTS = re.compile(r"status|state|redundan|limit|cap|psu|supply", re.IGNORECASE)
_LEARN = 0.2
_PLAUSIBLE_W = 1e6


class Watts:
    """By BMC sensor: when it was heard; of those that read a node's power, the watts and the level before them."""

    def __init__(self, fleet: Fleet, roster: Roster) -> None:
        self._fleet, self._roster = fleet, roster
        self.presence = Presence("bmc")
        self._watts = np.empty(0)
        self._before = np.empty(0)
        self._level = np.empty(0)
        self._counts = np.empty(0, np.bool_)

    def take(self, batch: Batch) -> None:
        """Take the BMCs' readings."""
        self.presence.take(batch)
        more = len(self.presence) - len(self._watts)
        if more > 0:
            keys = self._fleet.entities("bmc")[len(self._watts) : len(self.presence)]
            counts = [bool(_WATTS.search(str(key[1])) and not _NOT_WATTS.search(str(key[1]))) for key in keys]
            self._counts = np.concatenate([self._counts, np.array(counts, bool)])
            blank = np.full(more, np.nan)
            self._watts = np.concatenate([self._watts, blank])
            self._before = np.concatenate([self._before, blank])
            self._level = np.concatenate([self._level, blank])
        if "reading" not in batch.values:
            return
        here = np.flatnonzero(self._counts[batch.entities])
        those = batch.entities[here]
        for tick in range(len(batch.at)):
            value = batch.values["reading"][tick, here]
            fine = batch.present[tick, here] & batch.valid["reading"][tick, here]
            fine &= (value >= 0) & (value < _PLAUSIBLE_W)
            entities, watts = those[fine], value[fine]
            level = self._level[entities]
            self._watts[entities], self._before[entities] = watts, np.where(np.isnan(level), watts, level)
            self._level[entities] = np.where(np.isnan(level), watts, level + _LEARN * (watts - level))

    def since(self, node: int, since: Instant) -> tuple[float, float]:
        """Return a node's watts by a reading after `since`, and what they used to be; NaN where there is none."""
        those = self._sensors(node)
        those = those[self.presence.last[those] > since]
        if not len(those):
            return np.nan, np.nan
        return float(self._watts[those[0]]), float(self._before[those[0]])

    def known(self, node: int) -> bool:
        """Return whether a node's BMC has ever said what the node draws."""
        return bool(len(self._sensors(node)))

    def _sensors(self, node: int) -> NDArray[np.int64]:
        owner = self._roster.owners("bmc", len(self.presence))
        return np.flatnonzero((owner == node) & self._counts & np.isfinite(self._watts))

    def snapshot(self) -> tuple[list[int], dict[str, NDArray[Any]]]:
        """Return the state as numbers and arrays."""
        numbers, arrays = self.presence.snapshot()
        more = {"watts": self._watts, "before": self._before, "level": self._level, "counts": self._counts}
        return numbers, arrays | {f"watts_{name}": array for name, array in more.items()}

    def load(self, numbers: list[int], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take what `snapshot` returned."""
        self.presence.load(numbers, arrays)
        self._watts, self._before = arrays["watts_watts"], arrays["watts_before"]
        self._level, self._counts = arrays["watts_level"], arrays["watts_counts"]
