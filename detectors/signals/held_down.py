"""The evidence on GPUs that something holds down, whatever it is: their figures, with their peers' beside them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from detectors.contract import FloatArray, IntArray, rfc3339
from detectors.core.statistics import median_of
from detectors.fleet.fleet import Job
from detectors.signals.bmc_alarms import Alarm
from detectors.signals.gpus_at_work import GpusAtWork
from detectors.signals.throttle_bits import named

Figures = dict[str, float | int | str]
RETURN_MS, RETURNED_MS = 3_600_000, 1_800_000
"""What is back within the hour comes and goes: it is the same trouble, and must stay away for half an hour then."""


@dataclass(frozen=True, slots=True)
class HeldDown:
    """What is known when a finding is made: indices of the GPUs held down, of the node's busy ones, of the peers."""

    held: IntArray
    mates: IntArray
    peers: IntArray
    alarm: Alarm | None
    job: Job | None
    stated: bool
    """Whether the driver says so itself, by its reasons or its counter of throttled time."""

    @property
    def share(self) -> float:
        """Return the part of the node's busy GPUs that is held down."""
        return min(1.0, len(self.held) / max(len(self.mates), 1))

    @property
    def bmc_words(self) -> str:
        """Return what the BMC says, as the end of a sentence."""
        return f"; BMC: {self.alarm.words}" if self.alarm is not None else ""

    def evidence(self, gpus: GpusAtWork, part: str) -> Figures:
        """Return the numbers, each with its unit in its name; an alarm is one of the `part` (supply, cooling)."""
        held, peers = self.held, self.peers
        figures: Figures = {
            "gpus_busy": len(self.mates),
            "peers": len(peers),
            "throttle_reasons": named(bits_of(gpus, held)),
        }
        figures |= medians(
            {
                "gpu_temp_c": gpus.temp[held],
                "sm_clock_mhz": gpus.clock[held],
                "sm_clock_before_mhz": gpus.usual["clock"].level[held],
                "sm_clock_peers_mhz": gpus.clock[peers],
                "power_w": gpus.power[held],
                "power_peers_w": gpus.power[peers],
                "activity": gpus.activity[held],
                "activity_peers": gpus.activity[peers],
            }
        )
        if not self.stated and gpus.improbable(held).any():  # else it rests on what the BMC states, or a feed shares
            figures["by_chance"] = gpus.by_chance(held)
        if self.alarm is not None:
            figures |= {f"{part}_alarm": self.alarm.words, f"{part}_alarm_at": rfc3339(self.alarm.at)}
        if self.job is not None:
            figures["job_id"] = self.job.job_id
        return figures


def bits_of(gpus: GpusAtWork, those: IntArray) -> int:
    """Return the reasons that the driver gives for any of some GPUs."""
    return int(np.bitwise_or.reduce(np.maximum(gpus.reasons[those], 0)))


def medians(columns: Mapping[str, FloatArray]) -> dict[str, float]:
    """Return the median of each column by its name, without those in which nothing is known."""
    return {name: value for name, of in columns.items() if np.isfinite(value := median_of(of))}
