"""What would have caught it sooner, in words: what the trials gained and cost, and what telemetry it took."""

from collections.abc import Sequence

from services.postmortem.actions import settings
from services.postmortem.case import Case
from services.postmortem.document import Block, Section, Table, Text
from services.postmortem.timeline import Moment, gap
from services.postmortem.whatif import Trial


def missing(case: Case) -> list[str]:
    """Return the streams that some detector reads and the recording lacks."""
    read = dict.fromkeys(stream for kind, _ in case.choices for stream in kind.spec.reads if stream != "logs")
    return [stream for stream in read if stream not in case.recording.streams()]


def sooner(
    case: Case, trials: Sequence[Trial], blind: Sequence[Trial], course: Sequence[Moment], lacking: Sequence[str]
) -> Section:
    """Return the section; `lacking` are the streams that detectors would have read, `blind` trials without a stream."""
    manifest = case.recording.manifest
    kind = next(kind for kind, _ in case.choices if kind.spec.name == case.root.detector)
    onset = case.label.onset if case.label is not None else case.root.started_at
    signal = next((one.at for one in course if one.kind == "signal"), None)
    intervals = [
        f"{stream} every {interval:g} s"
        for stream in kind.spec.reads
        if stream in manifest.streams and (interval := manifest.streams[stream].interval_s)
    ]
    split = f"From the onset to the finding it took {gap(case.root.detected_at - onset)}"
    if signal is not None and onset <= signal <= case.root.detected_at:
        sure = gap(case.root.detected_at - signal)
        split += (
            f": {gap(signal - onset)} until the first signal was in the data, {sure} until {kind.spec.name} was sure"
        )
    heard = f" It reads {', '.join(intervals)}." if intervals else ""
    blocks: list[Block] = [Text(f"{split}.{heard} It promises {kind.spec.latency_s:g} s at readings every 5 s.")]
    if trials:
        rows = [_trial(one) for one in trials]
        strong = frozenset(number for number, one in enumerate(trials) if one.worth_it)
        against = "by the labels" if case.labels else "on other parts, as there are no labels"
        blocks += [
            Text(
                f"{kind.spec.name}, run again over the whole recording with other settings. False alarms are those"
                f" more than with the settings as they are, {against}."
            ),
            Table(
                ["tried", "sooner by", "false alarms more", "findings more", "settings"],
                rows,
                frozenset({1, 2, 3}),
                strong,
            ),
        ]
        if not strong:
            blocks.append(Text(_held(trials)))
    lacks = (
        f"Streams that the recording lacks and detectors read: {', '.join(lacking)}."
        if lacking
        else "No stream that a detector reads was missing."
    )
    blocks.append(Text(lacks))
    if blind:
        rows = [[one.name, _when(one)] for one in blind]
        blocks += [
            Text(f"What it owes to its telemetry: {kind.spec.name}, run again without one of the streams it reads."),
            Table(["without", "found"], rows, frozenset({1})),
        ]
    return Section("What would have caught it sooner", blocks)


def _held(trials: Sequence[Trial]) -> str:
    """Return what it means that no trial was worth it."""
    if all(one.gain_s is None or one.gain_s < 1 for one in trials):
        return "None of them is sooner: not the settings held it up, but how often readings come."
    return "What is sooner here also cries wolf here: the settings are a trade, and this recording does not decide it."


def _sooner_by(one: Trial) -> str:
    if one.gain_s is None:
        return "not found on it"
    if abs(one.gain_s) < 0.05:
        return "no sooner"
    return gap(round(one.gain_s * 1000)) if one.gain_s > 0 else f"{gap(round(-one.gain_s * 1000))} later"


def _when(one: Trial) -> str:
    """Return when it is found without a stream."""
    if one.gain_s is None:
        return "not at all"
    if abs(one.gain_s) < 0.05:
        return "as soon"
    return f"{gap(round(abs(one.gain_s) * 1000))} {'sooner' if one.gain_s > 0 else 'later'}"


def _trial(one: Trial) -> list[str]:
    return [
        one.name,
        _sooner_by(one),
        f"{one.false_alarms:+d}" if one.false_alarms else "0",
        f"{one.findings:+d}" if one.findings else "0",
        settings(one),
    ]
