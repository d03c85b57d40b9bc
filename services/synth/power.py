"""Power and clocks of GPUs: what they draw at what clock, the limit that software holds, the brake that firmware pulls.

Dynamic power goes with clock times voltage squared; the voltage falls with the clock down to a knee and then stays.
That one curve gives both the clock that fits under a limit and the power at a clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.synth.effects import Course, Effects, Floats
from services.synth.profile import ClusterProfile

Bools = NDArray[np.bool_]

GPU_IDLE, SW_POWER_CAP, HW_SLOWDOWN, HW_POWER_BRAKE = 0x1, 0x4, 0x8, 0x80  # DCGM's clock-event bits
_COPY_W = 28.0  # what a copy engine at full tilt adds to a resident process, estimated
_WORK_NOISE = 0.02  # relative: layers differ in how hot they run; of a 1 s mean
_BEAT_NOISE = 0.09  # relative to the swing between working and waiting, where a second holds some of both
_METER_NOISE_W = 0.9  # of the board's power meter, standard deviation
_STEADY_DUTY = 0.94  # of a step's main part a healthy rank computes; the limit is held over that mean
_CAP_BAND_W = 12.0  # a GPU whose demand is this far over its limit is held there all the time it computes


@dataclass(frozen=True)
class Activity:
    """What GPUs did in a window before a time, as fractions of it: arrays of shape (ticks, gpus).

    ``resident``: a process holds the GPU; the others are parts of that: ``busy`` computing, ``collective`` waiting in
    or doing communication, ``copying`` moving a checkpoint.
    """

    resident: Floats
    busy: Floats
    collective: Floats
    copying: Floats


@dataclass(frozen=True)
class Cap:
    """GPUs of one node held to ``watts`` each while the course is on, and DCGM's ``reasons`` for it."""

    node: int
    gpus: NDArray[np.int64]
    course: Course
    watts: float
    reasons: int


def caps_of(profile: ClusterProfile, effects: Effects) -> list[Cap]:
    """Return the caps that firmware sets, node by node."""
    found = []
    for effect in effects.of("gpu.power_cap_w"):
        nodes = effect.columns // profile.node.gpus
        for node in np.unique(nodes):
            columns = effect.columns[nodes == node]
            found.append(Cap(int(node), columns, effect.course, effect.size, int(effect.detail["reasons"])))
    return found


@dataclass(frozen=True)
class PowerReading:
    """What a GPU's sensors say at a time, shape (ticks, gpus): watts, MHz, DCGM's reason bits."""

    power_w: Floats
    sm_clock_mhz: Floats
    reasons: NDArray[np.int64]


class PowerModel:
    """The power and clocks of every GPU of a cluster; GPUs of one kind differ by a few percent."""

    def __init__(self, profile: ClusterProfile, caps: Sequence[Cap], rng: np.random.Generator) -> None:
        gpu = profile.gpu
        leak, work = 1 + gpu.power_spread * np.clip(rng.standard_normal((2, profile.gpu_count)), -2.5, 2.5)
        self._gpu = gpu
        self.caps = list(caps)
        self._idle = gpu.idle_w * leak
        self._resident = gpu.resident_w * leak
        self._collective = (gpu.collective_w - gpu.resident_w) * work
        self._work = (gpu.training_w - gpu.resident_w) * work
        self._steady = _STEADY_DUTY * self._work + (1 - _STEADY_DUTY) * self._collective
        clock = np.linspace(0.02, 1.0, 400)
        knee = gpu.knee_mhz / gpu.sm_clock_mhz
        slope = (1 - gpu.knee_voltage) / (1 - knee)
        voltage = gpu.knee_voltage + np.maximum(clock - knee, 0.0) * slope
        self._clock, self._power = clock, clock * voltage**2

    def clock_within(self, share: Floats) -> Floats:
        """Return the relative clock at which dynamic power falls to ``share`` of that at full clock."""
        return np.asarray(np.interp(share, self._power, self._clock), dtype=np.float64)

    def _power_at(self, clock: Floats) -> Floats:
        return np.asarray(np.interp(clock, self._clock, self._power), dtype=np.float64)

    def working_clock(self, cap_w: float | None = None, gpus: NDArray[np.int64] | slice = slice(None)) -> Floats:
        """Return each GPU's relative clock in training under its limit, or under ``cap_w``."""
        limit = min(self._gpu.power_limit_w, cap_w or np.inf)
        return self.clock_within((limit - self._resident[gpus]) / self._steady[gpus])

    def _dynamic(self, activity: Activity, work: Floats | float) -> Floats:
        computing = activity.busy * self._work * work
        return np.asarray(computing + activity.collective * self._collective + activity.copying * _COPY_W)

    def _still(self, activity: Activity) -> Floats:
        return np.asarray(self._idle + activity.resident * (self._resident - self._idle))

    def mean_power(self, activity: Activity, times: Floats, window: float) -> Floats:
        """Return mean watts over the window before ``times`` (ticks, nodes): what the energy counter integrates."""
        still = self._still(activity)
        power = still + self._dynamic(activity, self._power_at(self.working_clock()))
        for cap in self.caps:
            share = cap.course.mean(times[:, cap.node], window)[:, None]
            power[:, cap.gpus] += share * (np.minimum(power[:, cap.gpus], cap.watts) - power[:, cap.gpus])
        return np.minimum(power, self._gpu.power_limit_w)

    def capped_share(self, activity: Activity, times: Floats, window: float) -> Floats:
        """Return which part of the window before ``times`` a GPU's clock was held down, by software or by firmware."""
        over = self._resident + self._steady - self._gpu.power_limit_w
        share = activity.busy * np.clip(0.5 + over / (2 * _CAP_BAND_W), 0.0, 1.0)
        for cap in self.caps:
            held = cap.course.mean(times[:, cap.node], window)[:, None]
            share[:, cap.gpus] += held * (1.0 - share[:, cap.gpus])
        return np.asarray(share, dtype=np.float64)

    def read(self, activity: Activity, times: Floats, window: float, rng: np.random.Generator) -> PowerReading:
        """Return the sensors' values at ``times`` (ticks, nodes); ``activity`` is of the ``window`` before them."""
        gpu, shape = self._gpu, activity.busy.shape
        work = 1 + _WORK_NOISE * rng.standard_normal(shape)
        work += _BEAT_NOISE * np.sqrt(activity.busy * (1 - activity.busy)) * rng.standard_normal(shape)
        still, dynamic = self._still(activity), self._dynamic(activity, work)
        room = np.divide(gpu.power_limit_w - still, dynamic, out=np.full(shape, 9.0), where=dynamic > 1.0)
        clock = self.clock_within(np.minimum(room, 1.0))
        power = still + np.minimum(dynamic, gpu.power_limit_w - still)
        reasons = np.where(room < 1.0, SW_POWER_CAP, 0)
        for cap in self.caps:
            self._hold(cap, times, window, (still, dynamic, power, clock, reasons))
        power += _METER_NOISE_W * rng.standard_normal(shape)
        step = gpu.sm_clock_step_mhz
        mhz = np.round(clock * gpu.sm_clock_mhz / step) * step
        idle = activity.resident <= 0
        mhz[idle] = gpu.sm_clock_idle_mhz
        reasons[idle & ((reasons & HW_SLOWDOWN) == 0)] = GPU_IDLE
        return PowerReading(power, mhz, reasons)

    def _hold(
        self,
        cap: Cap,
        times: Floats,
        window: float,
        state: tuple[Floats, Floats, Floats, Floats, NDArray[np.int64]],
    ) -> None:
        """Bring a cap into the arrays of ``state``, in place, for its GPUs' columns."""
        still, dynamic, power, clock, reasons = state
        at, gpus = times[:, cap.node], cap.gpus
        now = (cap.course.level(at) > 0)[:, None]
        share = cap.course.mean(at, window)[:, None]
        own, moving = still[:, gpus], dynamic[:, gpus]
        room = np.divide(cap.watts - own, moving, out=np.full(moving.shape, 9.0), where=moving > 1.0)
        # What is worth braking is the work: a brake divides the clock also where little power is drawn.
        held = np.minimum(self.clock_within(np.minimum(room, 1.0)), self.working_clock(cap.watts, gpus) * 1.06)
        power[:, gpus] += share * (own + np.minimum(moving, cap.watts - own) - power[:, gpus])
        clock[:, gpus] = np.where(now, held, clock[:, gpus])
        reasons[:, gpus] = np.where(now, cap.reasons, reasons[:, gpus])
