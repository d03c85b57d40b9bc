"""What would have caught it sooner, in words: what the trials gained and cost, and what telemetry it took."""

from collections.abc import Sequence

from services.postmortem.actions import settings
from services.postmortem.case import Case
from services.postmortem.document import Block, Section, Table, Text
from services.postmortem.evidence import Shown
from services.postmortem.timeline import Moment, gap
from services.postmortem.whatif import Blind, LogAlert, Trial, Trials


def missing(case: Case) -> list[str]:
    """Return the streams that some detector reads and the recording lacks."""
    read = dict.fromkeys(stream for kind, _ in case.choices for stream in kind.spec.reads if stream != "logs")
    return [stream for stream in read if stream not in case.recording.streams()]


def sooner(
    case: Case, tried: Trials, course: Sequence[Moment], shown: Sequence[Shown], lacking: Sequence[str]
) -> Section:
    """Return the section; `lacking` are the streams that detectors would have read."""
    detector = case.root.detector
    blocks: list[Block] = [Text(_delay(case, course)), Text(_readings(case, shown))]
    if tried.on_log is not None:
        blocks.append(Text(_log(tried.on_log)))
    if tried.settings:
        rows = [_trial(one) for one in tried.settings]
        strong = frozenset(number for number, one in enumerate(tried.settings) if one.worth_it)
        against = "by the labels" if case.labels else "as findings on other parts, for there are no labels"
        blocks += [
            Text(
                f"{detector}, run again over the whole recording with other settings, and what changes."
                f" False alarms are counted {against}."
            ),
            Table(
                ["tried", "found", "more false alarms", "more findings", "settings"],
                rows,
                frozenset({1, 2, 3}),
                strong,
            ),
        ]
        if not strong:
            blocks.append(Text(_held(tried.settings)))
    lacks = (
        f"The recording lacks streams that detectors read: {', '.join(lacking)}."
        if lacking
        else "The recording has every stream that a detector reads."
    )
    blocks.append(Text(lacks))
    if tried.blind:
        rows = [[one.name, _when(one)] for one in tried.blind]
        blocks += [
            Text(f"{detector}, run again without one of the streams it reads:"),
            Table(["without", "found"], rows, frozenset({1})),
        ]
    return Section("What would have caught it sooner", blocks)


def _delay(case: Case, course: Sequence[Moment]) -> str:
    """Return how long it took, and which part of that was waiting for data."""
    onset = case.label.onset if case.label is not None else case.root.started_at
    signal = next((one.at for one in course if one.kind == "signal"), None)
    words = f"It was found {gap(case.root.detected_at - onset)} after the onset"
    if signal is not None and onset <= signal <= case.root.detected_at:
        sure = gap(case.root.detected_at - signal)
        words += f": the first signal was in the data after {gap(signal - onset)}, and {sure} later it was certain"
    return f"{words}."


def _readings(case: Case, shown: Sequence[Shown]) -> str:
    """Return how often readings come, and which was the first that showed it."""
    spec = next(kind.spec for kind, _ in case.choices if kind.spec.name == case.root.detector)
    streams = case.recording.manifest.streams
    often = [
        f"{stream} every {interval:g} s"
        for stream in spec.reads
        if stream in streams and (interval := streams[stream].interval_s)
    ]
    words = f"{spec.name} reads {', '.join(often)}" if often else f"{spec.name} reads the logs"
    onset = case.label.onset if case.label is not None else case.root.started_at
    left = [
        one
        for one in shown
        if one.signal.stream in spec.reads and one.left_at is not None and onset <= one.left_at <= case.root.detected_at
    ]
    first = min(left, key=lambda one: one.left_at or 0, default=None)
    if first is not None and first.left_at is not None:
        words += f"; the first reading that shows it, of {first.signal.title}, came {gap(first.left_at - onset)} after"
        words += " the onset"
    return f"{words}. With readings every 5 s it is to find such a fault within {spec.latency_s:g} s."


def _log(one: LogAlert) -> str:
    line = one.line
    beside = f"{one.elsewhere} times elsewhere" if one.elsewhere else "nowhere else"
    return (
        f"An alert on the log line `{' '.join(line.message.split())}` ({line.source}, {line.node}) would have come"
        f" {gap(round(1000 * one.gain_s))} before the finding. Lines like it came {beside} in the recording."
    )


def _held(trials: Sequence[Trial]) -> str:
    """Return what it means that no trial was worth it."""
    if all(one.gain_s is None or one.gain_s < 1 for one in trials):
        return "None of them finds it sooner: its settings did not hold it up."
    return "What finds it sooner also raises false alarms: this recording alone does not speak for a change."


def _trial(one: Trial) -> list[str]:
    return [
        one.name,
        _when(one),
        f"{one.false_alarms:+d}" if one.false_alarms else "0",
        f"{one.findings:+d}" if one.findings else "0",
        settings(one),
    ]


def _when(one: Trial | Blind) -> str:
    """Return when it is found, beside when it was."""
    if one.gain_s is None:
        return "not at this part"
    if abs(one.gain_s) < 0.05:
        return "as soon"
    return f"{gap(round(abs(one.gain_s) * 1000))} {'sooner' if one.gain_s > 0 else 'later'}"
