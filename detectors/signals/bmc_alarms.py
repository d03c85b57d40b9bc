"""What management controllers say is wrong with a node's power supplies, fans and inlets: event log and sensors."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray, LogRecord
from detectors.core.columns import Columns, column
from detectors.core.statistics import clamp
from detectors.fleet.fleet import Fleet

Part = Literal["supply", "fan", "inlet"]
PARTS: Final[tuple[Part, ...]] = ("supply", "fan", "inlet")
# IPMI sensor types 08h (power supply), 09h (power unit), 04h (fan), 01h (temperature), and what vendors call them.
_SUPPLY = re.compile(r"power[ _-]?(supply|unit|card|feed|module|shelf|brake)|psu|\bps\d", re.IGNORECASE)
_FAN = re.compile(r"\bfan|fan\d|blower|\btach", re.IGNORECASE)
_INLET = re.compile(r"inlet|intake|ambient|front.?(panel|temp)|air.?in\b", re.IGNORECASE)
_AIR = re.compile(r"inlet|intake|ambient|\btemp(erature)?\b", re.IGNORECASE)
_SENSORS: Final = (_SUPPLY, _FAN, _INLET)
_LINES: Final[Mapping[Part, tuple[re.Pattern[str], re.Pattern[str]]]] = {
    "supply": (
        _SUPPLY,
        re.compile(
            r"fail|fault|\blost\b|out[- ]of[- ]range|redundancy degraded|power off|brake|over[- ]?current|critical",
            re.IGNORECASE,
        ),
    ),
    "fan": (
        _FAN,
        re.compile(
            r"lower (non-)?(critical|recoverable)|non-recoverable|fail|fault|\bstop|redundancy lost|critical",
            re.IGNORECASE,
        ),
    ),
    "inlet": (
        _AIR,
        re.compile(r"upper (non-)?(critical|recoverable)|over[- ]?(temp|heat)|too (hot|high)", re.IGNORECASE),
    ),
}
_OVER = re.compile(r"deassert|regained|restored|fully redundant|recovered|cleared|normal\b|\bok\b", re.IGNORECASE)
_BACK = re.compile(r"regained|restored|fully redundant|recovered", re.IGNORECASE)
_SWITCHED = re.compile(r"power unit\b.*\bpower[ -](off|down|cycle)", re.IGNORECASE)
"""Event 00h of a power unit: somebody switched the node off, as every planned reboot does."""
_SEL_HEAD = re.compile(r"^\s*[0-9a-f]+\s*\|[^|]*\|[^|]*\|", re.IGNORECASE)
_STATE = re.compile(r"(de)?assert(ed|ion)?", re.IGNORECASE)
_KEPT_MS: Final = 6 * 3_600_000
"""A line whose end is never logged holds for a shift; what is wrong for longer is in the sensors."""
_LINES_A_NODE: Final = 32
_STALE_MS: Final = 300_000
"""Five readings of 60 s, the usual interval of BMC telemetry: after that a sensor's word holds no longer."""
_HABIT_MS: Final = 2 * 3_600_000
"""The time constant with which an inlet's usual temperature is learnt: aisles follow the weather within hours."""
_CRITICAL: Final = 2
"""States are 0 nominal, 1 warning, 2 critical (ipmi_exporter); another number is none."""
_INLET_RANGE_C: Final = (-20.0, 90.0)
_INLET_MOST_C: Final = 35.0
"""ASHRAE class A2 allows 35 degrees at the inlet."""
_INLET_RISE_K: Final = 8.0
"""ASHRAE recommends 18 to 27 degrees: what is further from its habit than this range is wide has another cause."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something wrong with a node's power or air: since when, in what words, and of which part."""

    at: Instant
    words: str
    part: Part


def alarm_line(record: LogRecord) -> tuple[Part, str, bool] | None:
    """Return (part, what the line is about, whether it is over) of a line of a node's event log; else None."""
    if record.source != "sel" or record.node is None:
        return None
    text = _SEL_HEAD.sub("", record.message).strip()
    over = _OVER.search(text) is not None
    if _SWITCHED.search(text):
        return None
    for part, (what, wrong) in _LINES.items():
        if what.search(text) and (wrong.search(text) or (part == "supply" and _BACK.search(text))):
            return part, _about(part, text), over
    return None


def _about(part: Part, text: str) -> str:
    """Return what a line and its end have in common; of a supply it is the unit, whatever happened to it."""
    return (text.split("|", maxsplit=1)[0] if part == "supply" else _STATE.sub("", text)).strip(" |").lower()


class _Sensors(Columns):
    axis = "bmc"
    part: IntArray = column(-1)
    turned: BoolArray = column(False)
    bad_since: IntArray = column(-1)
    last_at: IntArray = column(-1)
    reading: FloatArray = column(np.nan)
    habit: FloatArray = column(np.nan)
    state: FloatArray = column(np.nan)


class BmcAlarms:
    """The open alarms of every node, of some parts: lines of its event log, and sensors by their readings.

    A fan that turned and reads 0, or any sensor in a state above nominal, is bad; an inlet also above 35 C or well
    above its habit. Read only at points of the grid.
    """

    def __init__(self, fleet: Fleet, parts: Sequence[Part]) -> None:
        self._fleet = fleet
        self._parts = frozenset(parts)
        self._lines: dict[str, dict[str, Alarm]] = {}
        self._sensors = _Sensors()
        self._of_node: dict[str, list[int]] = {}

    def take_lines(self, records: Sequence[LogRecord]) -> None:
        """Take log lines; what was asserted stays until it is deasserted, or is old."""
        for record in records:
            found = alarm_line(record)
            if found is None or record.node is None or found[0] not in self._parts:
                continue
            part, about, over = found
            lines = self._lines.setdefault(record.node, {})
            known = lines.get(about)
            if over:
                lines.pop(about, None)
            elif (known is None and len(lines) < _LINES_A_NODE) or (known and record.at - known.at > _KEPT_MS):
                lines[about] = Alarm(record.at, record.message.strip(), part)
            if not lines:
                del self._lines[record.node]

    def take_sensors(self, batch: Batch) -> None:
        """Take sensor readings."""
        self._extend(batch.reach)
        here = np.flatnonzero(self._sensors.part[batch.entities] >= 0)
        if len(here):
            for tick in range(len(batch.at)):
                self._take_tick(batch, tick, here[batch.present[tick, here]])

    def _extend(self, count: int) -> None:
        start = len(self._sensors)
        if count <= start:
            return
        self._sensors.grow(count)
        for index, key in enumerate(self._fleet.entities("bmc")[start:count], start):
            part = next((n for n, named in enumerate(_SENSORS) if named.search(str(key[1]))), -1)
            if part >= 0 and PARTS[part] in self._parts:
                self._sensors.part[index] = part
                self._of_node.setdefault(str(key[0]), []).append(index)

    def _take_tick(self, batch: Batch, tick: int, here: IntArray) -> None:
        sensors, at = batch.entities[here], batch.at[tick, here]
        value, state = _field(batch, "reading", tick, here), _field(batch, "state", tick, here)
        kept = self._sensors
        fan, inlet = kept.part[sensors] == PARTS.index("fan"), kept.part[sensors] == PARTS.index("inlet")
        value = np.where(inlet & ((value < _INLET_RANGE_C[0]) | (value > _INLET_RANGE_C[1])), np.nan, value)
        state = np.where((state >= 0) & (state <= _CRITICAL), state, np.nan)
        reports = np.isfinite(value) | np.isfinite(state)
        if not reports.all():
            sensors, at, value, state = sensors[reports], at[reports], value[reports], state[reports]
            fan, inlet = fan[reports], inlet[reports]
        habit = kept.habit[sensors]
        still = fan & (value == 0) & kept.turned[sensors]
        warm = inlet & ((value >= _INLET_MOST_C) | (value >= habit + _INLET_RISE_K))
        # A fan whose speed is low for a moment says so as a warning: only a critical one has failed.
        bad = still | warm | (state >= np.where(fan, _CRITICAL, 1))
        # What the sensor reads while it is bad is not what it usually reads.
        part = clamp((at - kept.last_at[sensors]) / _HABIT_MS, 0.0, 1.0)
        learnt = np.where(np.isfinite(habit), habit + part * (value - habit), value)
        kept.habit[sensors] = np.where(bad | ~np.isfinite(value), habit, learnt)
        kept.turned[sensors] |= fan & (value > 0)
        since = kept.bad_since[sensors]
        kept.bad_since[sensors] = np.where(bad, np.where(since < 0, at, since), -1)
        kept.last_at[sensors], kept.reading[sensors], kept.state[sensors] = at, value, state

    def advance(self, now: Instant) -> None:
        """Forget lines that are old."""
        for node in [node for node, lines in self._lines.items() if min(a.at for a in lines.values()) < now - _KEPT_MS]:
            kept = {about: alarm for about, alarm in self._lines[node].items() if now - alarm.at <= _KEPT_MS}
            if kept:
                self._lines[node] = kept
            else:
                del self._lines[node]

    def alarm(self, node: str, now: Instant) -> Alarm | None:
        """Return what is wrong with a node now, the first of it: fans before inlets, lines before sensors."""
        alarms = list(self._lines.get(node, {}).values())
        for sensor in self._bad(node, now):
            name = str(self._fleet.entities("bmc")[sensor][1])
            alarms.append(
                Alarm(int(self._sensors.bad_since[sensor]), f"sensor {name}", PARTS[self._sensors.part[sensor]])
            )
        return min(
            alarms, key=lambda alarm: (PARTS.index(alarm.part), _is_sensor(alarm), alarm.at, alarm.words), default=None
        )

    def alarmed(self, now: Instant) -> list[str]:
        """Return the nodes that have an alarm now."""
        bad = self._sensors.bad_since >= 0
        if np.count_nonzero(bad):
            bad &= now - self._sensors.last_at <= _STALE_MS
        keys = self._fleet.entities("bmc")
        return sorted({*self._lines, *(str(keys[sensor][0]) for sensor in bad.nonzero()[0].tolist())})

    def fan_down(self, node: str, now: Instant) -> bool:
        """Return whether a sensor says at present that a fan of a node has failed."""
        return any(PARTS[self._sensors.part[sensor]] == "fan" for sensor in self._bad(node, now))

    def inlet(self, node: str) -> tuple[float, float]:
        """Return what a node's warmest inlet reads and what it usually reads, degrees; NaN: not known."""
        kept = self._sensors
        known = [
            sensor
            for sensor in self._of_node.get(node, ())
            if PARTS[kept.part[sensor]] == "inlet" and np.isfinite(kept.reading[sensor])
        ]
        if not known:
            return np.nan, np.nan
        warmest = max(known, key=lambda sensor: (kept.reading[sensor], -sensor))
        return float(kept.reading[warmest]), float(kept.habit[warmest])

    def worst_state(self, node: str) -> int | None:
        """Return the worst state of a node's sensors (0 nominal, 1 warning, 2 critical); None: none says."""
        states = [self._sensors.state[sensor] for sensor in self._of_node.get(node, ())]
        return max((int(state) for state in states if np.isfinite(state)), default=None)

    def _bad(self, node: str, now: Instant) -> list[int]:
        kept = self._sensors
        return [
            sensor
            for sensor in self._of_node.get(node, ())
            if kept.bad_since[sensor] >= 0 and now - kept.last_at[sensor] <= _STALE_MS
        ]

    def snapshot(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the state as JSON can say it, and arrays."""
        lines = {node: {about: asdict(alarm) for about, alarm in of.items()} for node, of in self._lines.items()}
        return lines, self._sensors.arrays("bmc_")

    def load(self, lines: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take what `snapshot` returned."""
        self._lines = {node: {about: Alarm(**alarm) for about, alarm in of.items()} for node, of in lines.items()}
        self._sensors.load(arrays, "bmc_")
        self._of_node = {}
        for sensor in np.flatnonzero(self._sensors.part >= 0).tolist():
            self._of_node.setdefault(str(self._fleet.entities("bmc")[sensor][0]), []).append(sensor)


def _is_sensor(alarm: Alarm) -> bool:
    return alarm.words.startswith("sensor ")


def _field(batch: Batch, name: str, tick: int, here: IntArray) -> FloatArray:
    if name not in batch.values:
        return np.full(len(here), np.nan)
    value = batch.values[name][tick, here]
    return np.where(batch.valid[name][tick, here] & np.isfinite(value), value, np.nan)
