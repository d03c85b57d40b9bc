"""What heat does to clocks: at the highest operating temperature the driver takes power back, at the slowdown
temperature the hardware divides the clock.

Computed before the jobs are laid out, for the GPUs whose cooling a happening disturbs, as if they were all at full
work: the hottest sets the pace of its job and is; the others are cooler than that, and a limit that they don't reach
does not bite (see caps.py). The temperatures that telemetry shows come from thermal.py, with what is really drawn.

NVIDIA A100: highest operating temperature 85, slowdown 89 degrees; H100 about 87 and 89 (captures of nvidia-smi).
How fast a driver takes back and gives is estimated. It goes by the slow half of the warming, as of the heat sink: the
half that follows at once (thermal.py) would make it hunt within seconds.
"""

import numpy as np

from detectors.signals.throttle_bits import HW_SLOWDOWN, HW_THERMAL, SW_THERMAL
from services.synth.cluster.profile import ClusterProfile
from services.synth.physics.caps import Following, Hold
from services.synth.physics.effects import Floats, Ints
from services.synth.physics.power import PowerModel
from services.synth.physics.thermal import ThermalModel

_STEP_S = 1.0
_CHUNK_S = 600.0  # so much is looked at at a time, so that long disturbances take no memory
_NOTED_EVERY_S = 10.0  # the hold is noted this often
_AFTERMATH_S = 900.0  # so long after a disturbance nothing is hot any more
_TAKEN_BACK, _GIVEN = 0.0015, 0.0006  # of a GPU's power, a second and kelvin too hot or too cool
_MOST = 0.012  # of a GPU's power, a second, either way
_LEEWAY_K = 1.0  # below the highest operating temperature power is given back
_DIVIDED = 0.45  # of the clock is left in a hardware slowdown
_COOL_AGAIN_K = 6.0  # below the slowdown temperature the hardware lets go
_LEAST = 0.25  # of a GPU's power: the driver goes no lower


def heat_limits(profile: ClusterProfile, thermal: ThermalModel, power: PowerModel, duration_s: float) -> list[Hold]:
    """Return what the heat holds down in a recording of that length, node by node."""
    nodes, spans = thermal.disturbed()
    if not len(nodes):
        return []
    gpus = (nodes[:, None] * profile.node.gpus + np.arange(profile.node.gpus)).ravel()
    state = _Drivers(profile, thermal, power, gpus)
    times: list[float] = []
    limits: list[Floats] = []
    bits: list[Ints] = []
    for begin, end in _joined(
        [(max(start - 60.0, 0.0), min(stop + _AFTERMATH_S, duration_s)) for start, stop in spans]
    ):
        state.settle(begin)
        for now, limit, reasons in state.run(begin, end):
            if not limits or np.any(limit != limits[-1]) or np.any(reasons != bits[-1]):
                times.append(now)
                limits.append(limit)
                bits.append(reasons)
    if not any(reasons.any() for reasons in bits):
        return []
    found: list[Hold] = []
    at, most, why = np.array(times), np.array(limits), np.array(bits)
    for number, node in enumerate(nodes):
        mine = slice(number * profile.node.gpus, (number + 1) * profile.node.gpus)
        if not why[:, mine].any():
            continue
        moved = np.ones(len(at), dtype=bool)
        moved[1:] = np.any(most[1:, mine] != most[:-1, mine], axis=1) | np.any(why[1:, mine] != why[:-1, mine], axis=1)
        found.append(Following(int(node), gpus[mine], at[moved], most[moved][:, mine], why[moved][:, mine]))
    return found


def _joined(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if begin >= end:
            continue
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


class _Drivers:
    """The drivers of some GPUs at full work: temperatures, what each may draw, whether the hardware has stepped in."""

    def __init__(self, profile: ClusterProfile, thermal: ThermalModel, power: PowerModel, gpus: Ints) -> None:
        self._profile, self._thermal, self._gpus = profile, thermal, gpus
        self._full = power.working_power(gpus)
        self._divided = power.power_at_clock(_DIVIDED, gpus)
        self._wanted = np.zeros(profile.gpu_count)
        self._wanted[gpus] = self._full
        self._limit = self._full.copy()
        self._slowed = np.zeros(len(gpus), dtype=bool)
        self._chip: Floats = np.zeros(len(gpus))

    def settle(self, at: float) -> None:
        """Start from temperatures that have long settled."""
        base, slope = self._course(np.array([at]))
        self._chip = base[0] + slope[0] * self._full
        self._limit = self._full.copy()
        self._slowed[:] = False

    def _course(self, at: Floats) -> tuple[Floats, Floats]:
        """Return temperature at no power, and kelvin per watt, at times: each (times, gpus)."""
        times = np.broadcast_to(at[:, None], (len(at), self._profile.nodes))
        zero = self._thermal.settled(times, np.zeros((len(at), self._profile.gpu_count)))[:, self._gpus]
        full = self._thermal.settled(times, np.broadcast_to(self._wanted, (len(at), len(self._wanted))))[:, self._gpus]
        return zero, (full - zero) / self._full

    def run(self, begin: float, end: float) -> list[tuple[float, Floats, Ints]]:
        """Return (time, limits, reasons) every now and then from ``begin`` to ``end``."""
        gpu = self._profile.gpu
        keep = np.exp(-_STEP_S / gpu.thermal_time_constant_s)
        every = round(_NOTED_EVERY_S / _STEP_S)
        noted: list[tuple[float, Floats, Ints]] = []
        for chunk in np.arange(begin, end, _CHUNK_S):
            at = np.arange(chunk, min(chunk + _CHUNK_S, end), _STEP_S)
            coarse = np.append(at[::every], at[-1] + _STEP_S)
            bases, slopes = self._course(coarse)
            for number, now in enumerate(at):
                row = number // every
                drawn = np.where(self._slowed, np.minimum(self._divided, self._limit), self._limit)
                self._chip = bases[row] + slopes[row] * drawn + keep * (self._chip - bases[row] - slopes[row] * drawn)
                was = self._slowed
                self._slowed = np.where(was, self._chip > gpu.slowdown_c - _COOL_AGAIN_K, self._chip >= gpu.slowdown_c)
                over = self._chip - gpu.max_op_c
                taken = np.where(over > 0, np.minimum(_TAKEN_BACK * over, _MOST), 0.0)
                spare = np.clip(-over - _LEEWAY_K, 0.0, None)
                given = np.where(self._slowed, 0.0, np.minimum(_GIVEN * spare, _MOST))
                self._limit = np.clip(self._limit + self._full * (given - taken), _LEAST * self._full, self._full)
                if number % every == 0 or np.any(was != self._slowed):
                    drawn = np.where(self._slowed, np.minimum(self._divided, self._limit), self._limit)
                    held = np.where(self._limit < 0.995 * self._full, SW_THERMAL, 0)
                    reasons = np.where(self._slowed, HW_SLOWDOWN | HW_THERMAL, held)
                    limit = np.where(reasons > 0, np.round(drawn), np.round(self._full))
                    noted.append((float(now), limit, reasons.astype(np.int64)))
        noted.append((end, np.round(self._full), np.zeros(len(self._gpus), dtype=np.int64)))
        return noted
