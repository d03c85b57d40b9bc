"""What would have caught it sooner, and how near silent detectors came: both by running them with other settings."""

import itertools
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from detectors.contract import Detector, DetectorConfig, Finding
from detectors.engine.engine import Choice
from detectors.spec import configure
from services.postmortem.case import Case, related
from services.recording.cut import cut_recording
from services.recording.embedded import findings_of, steps
from services.recording.model import Event
from services.recording.reader import Recording
from services.score.matching import judge, same_place

SHARES = (0.75, 0.5, 0.25)
"""Of the thresholds, tried one after the other until something fires."""
_LEAD_MS, _LONGEST_MS = 3_600_000, 3_600_000
"""How much of the recording the silent detectors see: an hour of before, and an hour of the incident at most."""

_LOG_GAIN_S = 1.0
_NAMED = re.compile(r"\w*\d\w*")
Settings = Mapping[str, float | int]


@dataclass(frozen=True)
class Blind:
    """When the root's detector would have found it without the stream `name`, and seconds sooner than it was."""

    name: str
    gain_s: float | None


@dataclass(frozen=True)
class Trial:
    """The root's detector with other settings: when it would have found it, and what that would have cost."""

    name: str
    settings: Settings
    gain_s: float | None
    """Seconds sooner than it was; None where it was not found."""
    false_alarms: int
    """More than with the settings as they are; without labels, findings more on other parts."""
    findings: int
    """Findings more, false or not."""

    @property
    def worth_it(self) -> bool:
        """Whether it is sooner, by a reading at least, and cost nothing in this recording."""
        return self.gain_s is not None and self.gain_s >= 1 and self.false_alarms <= 0


@dataclass(frozen=True)
class LogAlert:
    """An alert on log lines of one kind: how much sooner it would have come, and how often beside this incident."""

    line: Event
    gain_s: float
    elsewhere: int
    """Lines alike in the recording, of other machines or at other times."""


@dataclass(frozen=True)
class Trials:
    """All that was tried: other settings, one stream less each, an alert on the log."""

    settings: Sequence[Trial] = ()
    blind: Sequence[Blind] = ()
    on_log: LogAlert | None = None


@dataclass(frozen=True)
class Nearness:
    """How near a silent detector came: the share of its thresholds at which it first fired, with what; else None."""

    detector: str
    share: float | None
    finding: Finding | None
    at_culprit: bool
    settings: Settings


def eased(
    kind: type[Detector], config: DetectorConfig, share: float, *, patience: bool, level: bool
) -> dict[str, float | int]:
    """Return the settings of a detector at `share` of its thresholds; empty where it has none of the kind."""
    now = config.model_dump()
    wanted: dict[str, float | int] = {}
    for name, default in kind.spec.defaults.items():
        match default.fires:
            case "above" if level:
                wanted[name] = now[name] * share
            case "below" if level:
                wanted[name] = 1 - (1 - now[name]) * share
            case "within" if level:
                wanted[name] = now[name] / share
            case "after" if patience:
                wanted[name] = now[name] * share
    found: dict[str, float | int] = {}
    for name, value in wanted.items():
        rounded = max(1, round(value)) if isinstance(now[name], int) and now[name] >= 1 else float(f"{value:.4g}")
        if rounded == now[name]:
            continue
        try:
            configure(kind.config_type, kind.spec, now | found | {name: rounded})
        except ValidationError:
            continue
        found[name] = rounded
    return found


def trials(case: Case, pool: Executor) -> Iterator[Trial]:
    """Return what the root's detector would have done with less patience, lower thresholds, and both; begun at once."""
    kind, config = _of_root(case)
    asked = [
        ("half the patience", eased(kind, config, 0.5, patience=True, level=False)),
        ("a quarter of the patience", eased(kind, config, 0.25, patience=True, level=False)),
        ("thresholds at three quarters", eased(kind, config, 0.75, patience=False, level=True)),
        ("thresholds at half", eased(kind, config, 0.5, patience=False, level=True)),
        ("half of both", eased(kind, config, 0.5, patience=True, level=True)),
    ]
    unlike: list[tuple[str, Settings]] = []
    for name, settings in asked:
        if settings and all(settings != known for _, known in unlike):
            unlike.append((name, settings))
    return pool.map(_tried, itertools.repeat(case), *zip(*unlike, strict=True)) if unlike else iter(())


def _of_root(case: Case) -> Choice:
    return next(choice for choice in case.choices if choice[0].spec.name == case.root.detector)


def _tried(case: Case, name: str, settings: Settings) -> Trial:
    kind, config = _of_root(case)
    choice = (kind, configure(kind.config_type, kind.spec, {**config.model_dump(), **settings}))
    plain = [one for one in case.findings if one.detector == kind.spec.name]
    now = list(findings_of(case.recording, [choice]))
    return Trial(
        name, settings, _gain(case, now), _wrong(case, now) - _wrong(case, plain), _firing(now) - _firing(plain)
    )


def without_streams(case: Case, pool: Executor) -> Iterator[Blind]:
    """Return when the root's detector would have found it without each of the streams that it reads; begun at once."""
    kind, _ = _of_root(case)
    read = [stream for stream in kind.spec.reads if stream in case.recording.manifest.streams]
    return pool.map(_without, itertools.repeat(case), read)


def _without(case: Case, stream: str) -> Blind:
    manifest = case.recording.manifest
    left = {name: info for name, info in manifest.streams.items() if name != stream}
    blind = replace(case.recording, manifest=manifest.model_copy(update={"streams": left}))
    end = case.over_at or manifest.end
    for step in steps(blind, [_of_root(case)]):
        gain = _gain(case, step.findings)
        # Only when it is first found is asked: what comes later is not run.
        if gain is not None or step.at > end:
            return Blind(stream, gain)
    return Blind(stream, None)


def on_log(case: Case, lines: Sequence[Event]) -> LogAlert | None:
    """Return the alert on one of the culprit's `lines` that would have come before the finding; the rarest of them."""
    early = [one for one in lines if case.root.detected_at - one.timestamp >= _LOG_GAIN_S * 1000]
    if not early:
        return None
    end = case.over_at or case.recording.manifest.end
    beside = Counter(
        _kind(event)
        for event in case.recording.events()
        if not (event.node == early[0].node and early[0].timestamp <= event.timestamp <= end)
    )
    best = min(early, key=lambda one: (beside[_kind(one)], one.timestamp))
    return LogAlert(best, (case.root.detected_at - best.timestamp) / 1000, beside[_kind(best)])


def _kind(event: Event) -> tuple[str, str]:
    """Return a line without its names and numbers."""
    return event.source, _NAMED.sub("#", event.message)


def _gain(case: Case, findings: Sequence[Finding]) -> float | None:
    """Return how much sooner (s) some findings name the root than it was found; None where none of them does."""
    root, end = case.root, case.over_at or case.recording.manifest.end
    # Not before what the labels or the finding itself date the onset at: such a finding is of something else.
    begin = min(case.label.onset if case.label is not None else root.started_at, root.started_at)
    of_it = [
        one.detected_at
        for one in findings
        if one.state == "firing"
        and one.fault == root.fault
        and same_place(one.entity, root.entity)
        and begin <= one.detected_at <= end
    ]
    return (root.detected_at - min(of_it)) / 1000 if of_it else None


def _firing(findings: Sequence[Finding]) -> int:
    return sum(one.state == "firing" for one in findings)


def _wrong(case: Case, findings: Sequence[Finding]) -> int:
    """Return how many are false alarms by the labels; without any, how many are about other parts than the culprit."""
    if case.labels:
        return sum(outcome.kind == "false" for outcome in judge(findings, case.labels))
    return sum(one.state == "firing" and not related(one.entity, case.cause.entity) for one in findings)


def nearness(case: Case) -> list[Nearness]:
    """Return, of each detector with nothing in this incident, at which share of its thresholds it would have spoken."""
    loud = {member.detector for member in case.incident.members}
    silent = [choice for choice in case.choices if choice[0].spec.name not in loud]
    found: dict[str, Nearness] = {}
    with tempfile.TemporaryDirectory() as folder:
        recording = _window(case, Path(folder) / "window")
        for share in SHARES:
            left = [choice for choice in silent if choice[0].spec.name not in found]
            changed = {kind.spec.name: eased(kind, config, share, patience=True, level=True) for kind, config in left}
            choices = [
                (kind, configure(kind.config_type, kind.spec, config.model_dump() | changed[kind.spec.name]))
                for kind, config in left
                if changed[kind.spec.name]
            ]
            if not choices:
                break
            spoken = _within(case, findings_of(recording, choices))
            for name, finding in spoken.items():
                at_culprit = related(finding.entity, case.cause.entity)
                found[name] = Nearness(name, share, finding, at_culprit, changed[name])
    return [
        found.get(kind.spec.name, Nearness(kind.spec.name, None, None, at_culprit=False, settings={}))
        for kind, _ in silent
    ]


def _within(case: Case, findings: Iterable[Finding]) -> dict[str, Finding]:
    """Return the first finding of each detector while the incident lasted, those at the culprit before others."""
    end = case.over_at or case.recording.manifest.end
    best: dict[str, Finding] = {}
    for one in findings:
        if one.state != "firing" or not case.incident.started_at <= one.detected_at <= end:
            continue
        known = best.get(one.detector)
        if known is None or (related(one.entity, case.cause.entity) and not related(known.entity, case.cause.entity)):
            best[one.detector] = one
    return best


def _window(case: Case, out: Path) -> Recording:
    manifest = case.recording.manifest
    begin = max(manifest.start, case.incident.started_at - _LEAD_MS)
    end = min(manifest.end, (case.over_at or manifest.end) + 60_000, case.root.detected_at + _LONGEST_MS)
    if (begin, end) == (manifest.start, manifest.end):
        return case.recording
    return Recording.open(cut_recording(case.recording, out, start=begin, end=end))
