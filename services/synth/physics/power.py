"""Power and clocks of GPUs: what they draw at what clock, the limit that software holds, the brake that firmware pulls.

Dynamic power goes with clock times voltage squared; the voltage falls with the clock down to a knee and then stays.
That one curve gives both the clock that fits under a limit and the power at a clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors.signals.throttle_bits import GPU_IDLE, HW_SLOWDOWN, SW_POWER_CAP
from services.synth.cluster.profile import ClusterProfile
from services.synth.physics.caps import Hold
from services.synth.physics.effects import Floats
from services.synth.physics.scatter import Scatter

_COPY_W = 28.0  # what a copy engine at full tilt adds to a resident process, estimated
_WORK_NOISE = 0.02  # relative: layers differ in how hot they run; of a 1 s mean
_SWING_NOISE = 0.09  # relative to the swing between working and waiting, where a second holds some of both
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
    intensity: Floats


@dataclass(frozen=True)
class PowerReading:
    """What a GPU's sensors say at a time, shape (ticks, gpus): watts, MHz, DCGM's reason bits."""

    power_w: Floats
    sm_clock_mhz: Floats
    reasons: NDArray[np.int64]


class PowerModel:
    """The power and clocks of every GPU of a cluster; GPUs of one kind differ by a few percent."""

    def __init__(self, profile: ClusterProfile, caps: Sequence[Hold], rng: np.random.Generator) -> None:
        gpu = profile.gpu
        leak, work = 1 + gpu.power_spread * np.clip(rng.standard_normal((2, profile.gpu_count)), -2.5, 2.5)
        of_nodes = np.repeat(profile.conditions.factors("nodes.power_spread", profile.nodes), profile.node.gpus)
        leak, work = leak * of_nodes, work * of_nodes
        self._gpu, self._noise = gpu, profile.noise
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

    def working_clock(self, cap_w: Floats | float = np.inf, gpus: NDArray[np.int64] | slice = slice(None)) -> Floats:
        """Return each GPU's relative clock in training under its limit, or under ``cap_w`` (one, or each GPU's)."""
        limit = np.minimum(self._gpu.power_limit_w, cap_w)
        return self.clock_within((limit - self._resident[gpus]) / self._steady[gpus])

    def working_power(self, gpus: NDArray[np.int64]) -> Floats:
        """Return the mean watts of GPUs in training when nothing but their own limit holds them, shape (gpus,)."""
        return np.asarray(np.minimum(self._resident[gpus] + self._steady[gpus], self._gpu.power_limit_w))

    def power_at_clock(self, clock: float, gpus: NDArray[np.int64]) -> Floats:
        """Return the mean watts of GPUs in training at a relative clock, shape (gpus,)."""
        return np.asarray(self._resident[gpus] + self._steady[gpus] * self._power_at(np.array(clock)))

    def _dynamic(self, activity: Activity, work: Floats | float) -> Floats:
        computing = activity.busy * activity.intensity * self._work * work
        return np.asarray(computing + activity.collective * self._collective + activity.copying * _COPY_W)

    def _still(self, activity: Activity) -> Floats:
        return np.asarray(self._idle + activity.resident * (self._resident - self._idle))

    def mean_power(self, activity: Activity, times: Floats, window: float) -> Floats:
        """Return mean watts over the window before ``times`` (ticks, nodes): what the energy counter integrates."""
        still = self._still(activity)
        held = self._power_at(self.working_clock())  # of dense training; less dense work fits under the limit
        power = still + self._dynamic(activity, np.minimum(1.0, held / activity.intensity))
        for cap in self.caps:
            at = times[:, cap.node]
            share, most = cap.share(at, window), cap.watts(at)
            power[:, cap.gpus] += share * (np.minimum(power[:, cap.gpus], most) - power[:, cap.gpus])
        return np.minimum(power, self._gpu.power_limit_w)

    def held_share(self, activity: Activity, times: Floats, window: float) -> tuple[Floats, Floats]:
        """Return for which part of the window before ``times`` a GPU's clock was held down: for power, for heat."""
        over = self._resident + self._steady - self._gpu.power_limit_w
        for_power = activity.busy * np.clip(0.5 + over / (2 * _CAP_BAND_W), 0.0, 1.0)
        for_heat = np.zeros_like(for_power)
        for cap in self.caps:
            at, gpus = times[:, cap.node], cap.gpus
            firm = (cap.reasons(at) & HW_SLOWDOWN) > 0
            bites = self._resident[gpus] + self._steady[gpus] > cap.watts(at)
            held = cap.share(at, window) * np.where(firm, 1.0, activity.busy[:, gpus] * bites)
            share = for_heat if cap.thermal else for_power
            share[:, gpus] = np.maximum(share[:, gpus], held)
        return for_power, for_heat

    def read(self, activity: Activity, times: Floats, window: float, scatter: Scatter) -> PowerReading:
        """Return the sensors' values at ``times`` (ticks, nodes); ``activity`` is of the ``window`` before them."""
        gpu, shape = self._gpu, activity.busy.shape
        work = 1 + self._noise * _WORK_NOISE * scatter.normal("work", shape)
        swing = np.sqrt(activity.busy * (1 - activity.busy)) * scatter.normal("beat", shape)
        work += self._noise * _SWING_NOISE * swing
        still, dynamic = self._still(activity), self._dynamic(activity, work)
        room = np.divide(gpu.power_limit_w - still, dynamic, out=np.full(shape, 9.0), where=dynamic > 1.0)
        clock = self.clock_within(np.minimum(room, 1.0))
        power = still + np.minimum(dynamic, gpu.power_limit_w - still)
        reasons = np.where(room < 1.0, SW_POWER_CAP, 0)
        for cap in self.caps:
            self._hold(cap, times, window, (still, dynamic, power, clock, reasons))
        power += self._noise * _METER_NOISE_W * scatter.rng.standard_normal(shape)
        step = gpu.sm_clock_step_mhz
        mhz = np.round(clock * gpu.sm_clock_mhz / step) * step
        idle = activity.resident <= 0
        mhz[idle] = gpu.sm_clock_idle_mhz
        reasons[idle & ((reasons & HW_SLOWDOWN) == 0)] = GPU_IDLE
        return PowerReading(power, mhz, reasons)

    def _hold(
        self,
        cap: Hold,
        times: Floats,
        window: float,
        state: tuple[Floats, Floats, Floats, Floats, NDArray[np.int64]],
    ) -> None:
        """Bring a hold into the arrays of ``state``, in place, for its GPUs' columns."""
        still, dynamic, power, clock, reasons = state
        at, gpus = times[:, cap.node], cap.gpus
        bits = cap.reasons(at)
        if not bits.any() and not cap.share(at, window).any():
            return
        most, own, moving = cap.watts(at), still[:, gpus], dynamic[:, gpus]
        room = np.divide(most - own, moving, out=np.full(moving.shape, 9.0), where=moving > 1.0)
        fitting = self.clock_within(np.clip(room, 0.0, 1.0))
        # What is worth braking is the work: a brake divides the clock also where little power is drawn.
        firm = (bits & HW_SLOWDOWN) > 0
        held = np.where(firm, np.minimum(fitting, self.working_clock(most, gpus) * 1.06), fitting)
        now = firm | ((bits > 0) & (room < 1.0))
        allowed = own + np.clip(np.minimum(moving, most - own), 0.0, None)
        power[:, gpus] += cap.share(at, window) * (np.minimum(allowed, power[:, gpus]) - power[:, gpus])
        clock[:, gpus] = np.where(now, np.minimum(clock[:, gpus], held), clock[:, gpus])
        reasons[:, gpus] = np.where(now, bits, reasons[:, gpus])
