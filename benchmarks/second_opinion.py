"""Five incidents of the library and a healthy hour: what detectors found, what rules found, when, and which were right.

Of each incident the hour around its root cause is taken. The detectors run in this process and the rules in Prometheus'
own engine, both in event time; both are judged against the labels alike. In the healthy hour nothing may fire.

With --replay the same hours are also replayed at speed 60 through Kafka, detect, notify and Alertmanager, one after the
other (some eight minutes): the findings must be those of this process, byte for byte, and each one that fires must
reach the webhook.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from detectors.contract import Finding
from detectors.registry import choose
from services.cli.demo.clock import read_clock
from services.cli.pipeline import DETECT_GROUP, NOTIFY_GROUP, Pipeline
from services.kit.errors import UserError
from services.kit.kafka import KafkaSettings
from services.kit.times import format_time, parse_time
from services.kit.wait import until
from services.recording.cut import cut_recording
from services.recording.embedded import findings_of as detected
from services.recording.model import Label, words_of
from services.recording.reader import Recording
from services.rules.evaluation import Change, evaluate, evaluator_program
from services.rules.files import rule_files
from services.rules.verdict import entity_of, findings_of, node_names
from services.score.matching import Outcome, judge
from services.stack.hindcast_services import services
from services.stack.runner import Stack
from services.synth.library import ensure_recording
from services.synth.make import Variant

INCIDENTS = (
    "vela-power-brake",
    "vela-pcie-degraded",
    "sakuraone-pfc-storm",
    "vela-cuda-memory-error",
    "vela-hgx-crash",
)
HEALTHY = "vela-healthy"
_BEFORE_MS, _AFTER_MS = 25 * 60_000, 35 * 60_000
_SETTLE_S = 300.0
_ROOT = Path(__file__).resolve().parents[1]

Voice = Literal["detector", "rule"]


@dataclass(frozen=True)
class Opinion:
    """One alert: who gave it, what became of it, and after how many seconds from the onset it answers for."""

    voice: Voice
    name: str
    fault: str
    entity: dict[str, str | int]
    at: int
    verdict: str
    delay_s: float | None = None


@dataclass(frozen=True)
class Heard:
    """A recording with all findings and alerts on it, in order of time, and the labels that each voice missed."""

    recording: Recording
    opinions: Sequence[Opinion]
    missed: dict[Voice, list[Label]]
    findings: Sequence[Finding]

    @property
    def alarms(self) -> list[Opinion]:
        """Return what nothing explains."""
        return [one for one in self.opinions if one.verdict == "false"]


def hear(recording: Recording, evaluator: Path) -> Heard:
    """Run detectors and rules over a recording and judge both. UserError: it can't be read."""
    labels = list(recording.labels())
    shadow = {kind.spec.name for kind, config in choose() if config.shadow}
    findings = [one for one in detected(recording) if one.detector not in shadow]
    by_detectors = judge(findings, labels)
    changes = evaluate(evaluator, recording, rule_files(_ROOT / "alert-rules")).changes
    nodes = node_names([node.model_dump() for node in recording.topology.nodes])
    by_rules = judge(findings_of(changes, nodes)[0], labels)
    opinions = [*_judged("detector", by_detectors), *_judged("rule", by_rules)]
    known = {(one.name, one.at) for one in opinions}
    opinions += [one for one in _informative(changes, nodes) if (one.name, one.at) not in known]
    missed: dict[Voice, list[Label]] = {"detector": _missed(by_detectors), "rule": _missed(by_rules)}
    return Heard(recording, sorted(opinions, key=lambda one: (one.at, one.voice, one.name)), missed, findings)


def _judged(voice: Voice, outcomes: Sequence[Outcome]) -> Iterator[Opinion]:
    for outcome in outcomes:
        if (finding := outcome.finding) is not None:
            yield Opinion(
                voice,
                finding.detector,
                finding.fault,
                dict(finding.entity),
                finding.detected_at,
                outcome.kind,
                outcome.delay_s,
            )


def _informative(changes: Sequence[Change], nodes: frozenset[str]) -> Iterator[Opinion]:
    """Yield alerts that are not judged: they say no fault of the labels' (a supply, a fan), or disturb nobody."""
    for change in changes:
        if change.state == "firing":
            entity = dict(entity_of(change.labels, nodes))
            yield Opinion(
                "rule", change.labels["alertname"], change.labels.get("fault", ""), entity, change.at, "informative"
            )


def _missed(outcomes: Sequence[Outcome]) -> list[Label]:
    return [outcome.label for outcome in outcomes if outcome.kind == "miss" and outcome.label is not None]


def show(heard: Heard) -> None:
    """Print the labels of a recording, the findings and the alerts, repeats on one line."""
    recording = heard.recording
    print(f"\n{recording.manifest.name}, {format_time(recording.manifest.start)[:19]} to", end=" ")
    print(f"{format_time(recording.manifest.end)[11:19]}, {recording.manifest.cluster.gpus} GPUs")
    for label in recording.labels():
        if not label.distractor:
            required = "not required" if label.optional else f"due within {label.within_s:.0f} s"
            print(
                f"  label     {format_time(label.onset)[11:19]}  {label.fault} of {words_of(label.entity)}, {required}"
            )
    repeats = Counter((one.voice, one.name) for one in heard.opinions if one.verdict == "repeat")
    for one in heard.opinions:
        if one.verdict == "repeat":
            continue
        after = "" if one.delay_s is None else f" after {one.delay_s:.0f} s"
        more = repeats.pop((one.voice, one.name), 0)
        print(
            f"  {one.voice:9} {format_time(one.at)[11:19]}  {one.name}: {one.fault} of {words_of(one.entity)}: "
            f"{one.verdict}{after}{f', and {more} more of it' if more else ''}"
        )
    for (voice, name), count in repeats.items():
        print(f"  {voice:9}           {name}: {count} more of what another found")
    for who, labels in heard.missed.items():
        for label in labels:
            print(f"  {who:9} --------  missed: {label.fault} of {words_of(label.entity)}")
    if not heard.opinions:
        print("  no findings, no alerts")


def hours(scale: float, folder: Path) -> Iterator[Recording]:
    """Yield the hour of each incident, then the healthy one, cut into `folder`; recordings are made where needed."""
    for name in (*INCIDENTS, HEALTHY):
        whole = Recording.open(ensure_recording(name, variant=Variant(scale=scale)).path)
        root = next((label for label in whole.labels() if label.root), None)
        middle = (whole.manifest.start + whole.manifest.end) // 2 if root is None else root.onset
        start, end = middle - _BEFORE_MS, min(middle + _AFTER_MS, whole.manifest.end)
        yield Recording.open(cut_recording(whole, folder / name, start=start, end=end, name=name))


def replayed(stack: Stack, heard: Heard, speed: float) -> bool:
    """Replay a recording through the pipeline, print what came of it, and return whether all is as in this process."""
    pipeline = Pipeline(KafkaSettings(bootstrap=stack.addresses.kafka), stack.addresses.services)
    manifest = heard.recording.manifest
    status = pipeline.start_replay(str(heard.recording.path), speed=speed, name=manifest.name)
    unit = f"{status['cluster']}/{manifest.name}"
    seconds = (manifest.end - manifest.start) / 1000 / speed
    pipeline.wait_over(manifest.name, timeout_s=seconds + _SETTLE_S)
    pipeline.wait_caught_up(DETECT_GROUP, NOTIFY_GROUP, timeout_s=_SETTLE_S)
    found, want = pipeline.findings(unit), sorted(one.to_json() for one in heard.findings)
    due = {one.fault for one in heard.findings if one.state == "firing"}
    until(lambda: due <= set(_webhooks(pipeline, manifest.name)), timeout_s=_SETTLE_S, what="the webhooks")
    first, clock = _webhooks(pipeline, manifest.name), read_clock(pipeline, unit)
    print(f"\n{manifest.name} at speed {speed:g}: {len(found)} findings, {len(want)} in this process, ", end="")
    print("the same bytes" if found == want else "DIFFERENT", flush=True)
    for fault, wall_ms in sorted(first.items(), key=lambda pair: pair[1]):
        raised = min(one.detected_at for one in heard.findings if one.fault == fault and one.state == "firing")
        later_ms = wall_ms - clock.wall_at(raised)
        print(f"  {fault}: found at {format_time(raised)[11:19]}, first webhook {later_ms} ms later")
    if not first:
        print("  no webhook")
    return found == want and due == set(first)


def _webhooks(pipeline: Pipeline, replay: str) -> dict[str, int]:
    """Return by fault when its first firing webhook came (epoch ms)."""
    first: dict[str, int] = {}
    for hook in pipeline.webhooks(replay):
        for alert in hook["body"]["alerts"]:
            if alert["status"] == "firing":
                first.setdefault(alert["labels"]["fault"], parse_time(hook["received_at"]))
    return first


def main() -> None:
    """Print all; exit 1 where the healthy hour is not quiet, one is false, both miss a culprit, or a replay differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=0.1, help="nodes, times the profile's")
    parser.add_argument("--replay", action="store_true", help="replay them through the real pipeline, too")
    parser.add_argument("--speed", type=float, default=60.0, help="of the replays")
    arguments = parser.parse_args()
    try:
        evaluator = evaluator_program()
        with tempfile.TemporaryDirectory() as scratch:
            everything = []
            for recording in hours(arguments.scale, Path(scratch)):
                everything.append(hear(recording, evaluator))
                show(everything[-1])
                sys.stdout.flush()
            wrong = _summary(everything)
            if arguments.replay:
                with Stack.start(Path(scratch) / "stack", services=services) as stack:
                    wrong += [
                        one.recording.manifest.name for one in everything if not replayed(stack, one, arguments.speed)
                    ]
    except UserError as error:
        print(error.message, error.remedy, sep="\n", file=sys.stderr)
        sys.exit(error.exit_code)
    if wrong:
        sys.exit(f"not as it should be: {', '.join(wrong)}")


def _summary(everything: Sequence[Heard]) -> list[str]:
    """Print the counts and return the names of recordings where something is wrong."""
    print()
    for voice in ("detector", "rule"):
        kinds = Counter(one.verdict for heard in everything for one in heard.opinions if one.voice == voice)
        kinds["miss"] = sum(len(heard.missed[voice]) for heard in everything)
        counts = ", ".join(
            f"{kind} {kinds[kind]}" for kind in ("hit", "miss", "late", "repeat", "false", "informative")
        )
        print(f"by {voice}s: {counts}")
    wrong = []
    for heard in everything:
        labels = [label for label in heard.recording.labels() if not label.distractor]
        both = [label for label in heard.missed["detector"] if label in heard.missed["rule"]]
        if both or heard.alarms or (not labels and heard.opinions):
            wrong.append(heard.recording.manifest.name)
    return wrong


if __name__ == "__main__":
    main()
