"""What the BMCs say of the air: fans that stand still, and inlets that grow warm, in sensors and in log lines."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, Instant, LogRecord
from detectors.fleet import Fleet
from detectors.statistics import clamp
from detectors.thermal_throttle.config import ThermalThrottleConfig

FAN: Final = "fan"
INLET: Final = "inlet"
_FAN = re.compile(r"\bfan|fan\d|blower|\btach", re.IGNORECASE)
_INLET = re.compile(r"inlet|intake|ambient|front.?(panel|temp)|air.?in\b", re.IGNORECASE)
_AIR = re.compile(r"inlet|intake|ambient|\btemp(erature)?\b", re.IGNORECASE)
# IPMI sensor types 04h (fan) and 01h (temperature) with their thresholds, and what vendors say of the same.
_FAN_FAILED = re.compile(
    r"lower (non-)?(critical|recoverable)|non-recoverable|fail|fault|\bstop|redundancy (lost|degraded)|critical",
    re.IGNORECASE,
)
_TOO_WARM = re.compile(r"upper (non-)?(critical|recoverable)|over[- ]?(temp|heat)|too (hot|high)", re.IGNORECASE)
_OVER = re.compile(r"deassert|regained|restored|recovered|cleared|normal\b|\bok\b", re.IGNORECASE)
_SEL_HEAD = re.compile(r"^\s*[0-9a-f]+\s*\|[^|]*\|[^|]*\|", re.IGNORECASE)
_STATE = re.compile(r"(de)?assert(ed|ion)?", re.IGNORECASE)
_KEPT_MS = 6 * 3_600_000
_LINES_A_NODE = 32
_HABIT_MS = 2 * 3_600_000
"""The time constant with which an inlet's usual temperature is learnt."""
_TEMPERATURES = (-20.0, 90.0)
"""What an inlet may read at all, degrees Celsius."""


@dataclass(frozen=True, slots=True)
class CoolingAlarm:
    """Something wrong with the air of a node: since when, in what words, and whether a fan or the inlet."""

    at: Instant
    words: str
    part: str


def cooling_line(record: LogRecord) -> tuple[str, str, bool] | None:
    """Return (part, what the line is about, whether it is over) of a log line about a fan or the inlet; else None."""
    if record.source != "sel" or record.node is None:
        return None
    text = _SEL_HEAD.sub("", record.message).strip()
    if _FAN.search(text) and _FAN_FAILED.search(text):
        part = FAN
    elif _AIR.search(text) and _TOO_WARM.search(text):
        part = INLET
    else:
        return None
    return part, _STATE.sub("", text).strip(" |").lower(), _OVER.search(text) is not None


class Cooling:
    """By BMC sensor, as arrays: fans and inlets, and since when they are bad. Lines: the open ones of each node."""

    _ARRAYS = ("is_fan", "is_inlet", "turned", "bad_since", "last_at", "reading", "habit")

    def __init__(self, config: ThermalThrottleConfig, fleet: Fleet) -> None:
        self._config, self._fleet = config, fleet
        self._lines: dict[str, dict[str, CoolingAlarm]] = {}
        self.is_fan = np.empty(0, bool)
        self.is_inlet = np.empty(0, bool)
        self.turned = np.empty(0, bool)
        self.bad_since = np.empty(0, np.int64)
        self.last_at = np.empty(0, np.int64)
        self.reading = np.empty(0)
        self.habit = np.empty(0)
        self._of_node: dict[str, list[int]] = {}

    def take_lines(self, records: Sequence[LogRecord]) -> None:
        """Take log lines; what was asserted stays until it is deasserted, or is old."""
        for record in records:
            said = cooling_line(record)
            if said is None or record.node is None:
                continue
            part, about, over = said
            lines = self._lines.setdefault(record.node, {})
            if over:
                lines.pop(about, None)
            elif about in lines or len(lines) < _LINES_A_NODE:
                known = lines.get(about)
                if known is None or record.at - known.at > _KEPT_MS:
                    lines[about] = CoolingAlarm(record.at, record.message.strip(), part)
            if not lines:
                del self._lines[record.node]

    def take_sensors(self, batch: Batch) -> None:
        """Take sensor readings."""
        self._extend(int(batch.entities.max(initial=-1)) + 1)
        here = np.flatnonzero((self.is_fan | self.is_inlet)[batch.entities])
        if len(here):
            for tick in range(len(batch.at)):
                self._take_tick(batch, tick, here[batch.present[tick, here]])

    def _extend(self, count: int) -> None:
        start = len(self.is_fan)
        if count <= start:
            return
        keys = self._fleet.entities("bmc")[start:count]
        fans = np.array([_FAN.search(str(key[1])) is not None for key in keys], bool)
        inlets = np.array([_INLET.search(str(key[1])) is not None for key in keys], bool) & ~fans
        for offset in np.flatnonzero(fans | inlets).tolist():
            self._of_node.setdefault(str(keys[offset][0]), []).append(start + offset)
        blank = len(keys)
        for name, more in (
            ("is_fan", fans),
            ("is_inlet", inlets),
            ("turned", np.zeros(blank, bool)),
            ("bad_since", np.full(blank, -1, np.int64)),
            ("last_at", np.full(blank, -1, np.int64)),
            ("reading", np.full(blank, np.nan)),
            ("habit", np.full(blank, np.nan)),
        ):
            setattr(self, name, np.concatenate([getattr(self, name), more]))

    def _take_tick(self, batch: Batch, tick: int, here: NDArray[np.int64]) -> None:
        sensors, at = batch.entities[here], batch.at[tick, here]
        value, state = _field(batch, "reading", tick, here), _field(batch, "state", tick, here)
        fan = self.is_fan[sensors]
        value = np.where(fan | ((value >= _TEMPERATURES[0]) & (value <= _TEMPERATURES[1])), value, np.nan)
        told = np.isfinite(value) | np.isfinite(state)
        if not told.all():
            sensors, at, value, state, fan = sensors[told], at[told], value[told], state[told], fan[told]
        still = fan & (value == 0) & self.turned[sensors]
        habit = self.habit[sensors]
        warm = ~fan & ((value >= self._config.inlet_most_c) | (value >= habit + self._config.inlet_rise_k))
        bad = np.where(fan, still | (state >= 2), warm | (state >= 1))
        # What the sensor reads while it is bad is not what it usually reads.
        share = clamp((at - self.last_at[sensors]) / _HABIT_MS, 0.0, 1.0)
        learnt = np.where(np.isfinite(habit), habit + share * (value - habit), value)
        self.habit[sensors] = np.where(bad | ~np.isfinite(value), habit, learnt)
        self.turned[sensors] |= fan & (value > 0)
        since = self.bad_since[sensors]
        self.bad_since[sensors] = np.where(bad, np.where(since < 0, at, since), -1)
        self.last_at[sensors], self.reading[sensors] = at, value

    def advance(self, now: Instant) -> None:
        """Forget lines that are old."""
        for node in [node for node, lines in self._lines.items() if _old(lines, now)]:
            kept = {about: alarm for about, alarm in self._lines[node].items() if now - alarm.at <= _KEPT_MS}
            if kept:
                self._lines[node] = kept
            else:
                del self._lines[node]

    def alarm(self, node: str, now: Instant) -> CoolingAlarm | None:
        """Return what is wrong with a node's air now: the first alarm that is not over; fans before inlets."""
        alarms = list(self._lines.get(node, {}).values())
        for sensor in self._bad(node, now):
            name = str(self._fleet.entities("bmc")[sensor][1])
            part = FAN if self.is_fan[sensor] else INLET
            alarms.append(CoolingAlarm(int(self.bad_since[sensor]), f"sensor {name}", part))
        return min(alarms, key=lambda alarm: (alarm.part != FAN, alarm.at, alarm.words), default=None)

    def fan_down(self, node: str, now: Instant) -> bool:
        """Return whether a sensor says at present that a fan of a node has failed."""
        return any(self.is_fan[sensor] for sensor in self._bad(node, now))

    def inlet(self, node: str) -> tuple[float, float]:
        """Return what a node's warmest inlet reads and what it usually reads, degrees; NaN: not known."""
        inlets = [sensor for sensor in self._of_node.get(node, ()) if self.is_inlet[sensor]]
        known = [sensor for sensor in inlets if np.isfinite(self.reading[sensor])]
        if not known:
            return np.nan, np.nan
        warmest = max(known, key=lambda sensor: (self.reading[sensor], -sensor))
        return float(self.reading[warmest]), float(self.habit[warmest])

    def _bad(self, node: str, now: Instant) -> list[int]:
        patience = int(self._config.bmc_stale_s * 1000)
        return [
            sensor
            for sensor in self._of_node.get(node, ())
            if self.bad_since[sensor] >= 0 and now - self.last_at[sensor] <= patience
        ]

    def snapshot(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the state as JSON can say it, and arrays."""
        lines = {
            node: {about: asdict(alarm) for about, alarm in alarms.items()} for node, alarms in self._lines.items()
        }
        return lines, {f"bmc_{name}": getattr(self, name) for name in self._ARRAYS}

    def load(self, lines: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take what `snapshot` returned."""
        self._lines = {
            node: {about: CoolingAlarm(**alarm) for about, alarm in alarms.items()} for node, alarms in lines.items()
        }
        for name in self._ARRAYS:
            setattr(self, name, arrays[f"bmc_{name}"])
        self._of_node = {}
        for sensor in np.flatnonzero(self.is_fan | self.is_inlet).tolist():
            self._of_node.setdefault(str(self._fleet.entities("bmc")[sensor][0]), []).append(sensor)


def _old(lines: Mapping[str, CoolingAlarm], now: Instant) -> bool:
    return any(now - alarm.at > _KEPT_MS for alarm in lines.values())


def _field(batch: Batch, name: str, tick: int, here: NDArray[np.int64]) -> NDArray[np.float64]:
    if name not in batch.values:
        return np.full(len(here), np.nan)
    value = batch.values[name][tick, here]
    return np.where(batch.valid[name][tick, here] & np.isfinite(value), value, np.nan)
