"""What another version, or other settings, go on with: what was open keeps its id, or is resolved for a reason."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, Self
from zipfile import ZipFile

import pytest

from detectors import laws
from detectors.contract import Detector, Finding, LogRecord
from detectors.engine.engine import Choice, Engine
from detectors.engine.state import StateError, pack, unpack
from detectors.power_throttle.detector import PowerThrottle
from detectors.registry import choose
from detectors.spec import configure
from detectors.tapes.tape import Handling, Tape, play, stretches

CHOICES = {kind.spec.name: (kind, config) for kind, config in choose()}
every_detector = pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES.keys())
BRAKE = CHOICES["power_throttle"]
NEXT = PowerThrottle.spec.version + 1
HOUR_MS = 3_600_000


def _version(kind: type[Detector], version: int, since: int) -> type[Detector]:
    """Return a detector as another version, which goes on with the states of versions from `since` on."""
    state = None if kind.spec.state is None else kind.spec.state.model_copy(update={"since": since})
    return type(kind.__name__, (kind,), {"spec": kind.spec.model_copy(update={"version": version, "state": state})})


def _lasting(choice: Choice) -> Tape:
    """Return a tape with a fault, which is over long before its end, of which little is heard."""
    tape = laws.examples_of(choice[0]).faults[0].tape
    end = tape.end + 3 * HOUR_MS
    heard = [LogRecord(at, "kernel", "nothing of interest") for at in range(tape.end, end, HOUR_MS // 2)]
    return replace(tape, end=end, logs=[*tape.logs, *heard])


def _upgraded(choice: Choice, *after: Choice, later_ms: int = 60_000) -> tuple[list[Finding], list[Finding]]:
    """Return what is found on a tape with a fault, and what if `after` go on `later_ms` after it was found."""
    tape = _lasting(choice)
    whole, _ = play(tape, [choice])
    cut = next(one.detected_at for one in whole if one.state == "firing") + later_ms
    return whole, play(tape, [choice], Handling([cut], carried=True, upgraded=after))[0]


@every_detector
def test_what_is_open_goes_on_in_a_version_with_the_same_state(choice: Choice) -> None:
    kind, config = choice
    assert kind.spec.state is not None, "test_a_version_that_changes_the_state_declares_it says what to add"
    whole, upgraded = _upgraded(choice, (_version(kind, kind.spec.version + 1, kind.spec.version), config))
    assert laws.lines(upgraded) == laws.lines(whole)


@every_detector
def test_what_is_open_goes_on_with_other_settings(choice: Choice) -> None:
    kind, _ = choice
    numbers = {name: one.value for name, one in kind.spec.defaults.items() if not isinstance(one.value, str | bool)}
    changed = {name: type(value)(1.1 * value) for name, value in numbers.items()}
    changed = {name: value for name, value in changed.items() if _allowed(kind, name, value)}
    assert changed
    whole, upgraded = _upgraded(choice, (kind, configure(kind.config_type, kind.spec, changed)))
    assert [one.id for one in upgraded[:1]] == [one.id for one in whole[:1]]


def test_what_the_new_version_finds_again_keeps_its_id_and_its_start() -> None:
    whole, upgraded = _upgraded(BRAKE, (_version(PowerThrottle, NEXT, NEXT), BRAKE[1]))
    assert [one.state for one in upgraded] == ["firing", "resolved"]
    assert [(one.id, one.started_at, one.detected_at) for one in upgraded] == [
        (one.id, one.started_at, one.detected_at) for one in whole
    ]


def test_what_the_new_version_does_not_find_is_resolved_for_that_reason() -> None:
    class Blind(PowerThrottle):
        spec = PowerThrottle.spec.model_copy(update={"version": NEXT, "state": None})

        def advance(self, now: int) -> list[Finding]:
            del now
            return []

    whole, upgraded = _upgraded(BRAKE, (Blind, BRAKE[1]))
    assert [(one.id, one.state) for one in upgraded] == [(whole[0].id, "firing"), (whole[0].id, "resolved")]
    assert upgraded[1].summary.endswith(f"version {NEXT} of power_throttle, which took over, does not find it")
    assert upgraded[1].detected_at - upgraded[0].detected_at <= HOUR_MS + 65_000


def test_what_runs_no_more_leaves_nothing_open() -> None:
    whole, upgraded = _upgraded(BRAKE, CHOICES["node_down"])
    assert [(one.id, one.state) for one in upgraded] == [(whole[0].id, "firing"), (whole[0].id, "resolved")]
    assert upgraded[1].summary.endswith("power_throttle does not run any more")
    assert upgraded[1].detected_at - upgraded[0].detected_at <= 65_000


def test_of_another_severity_it_is_another_finding() -> None:
    class Milder(PowerThrottle):
        spec = PowerThrottle.spec.model_copy(update={"version": NEXT, "state": None})

        def advance(self, now: int) -> list[Finding]:
            return [replace(one, severity="ticket") for one in super().advance(now)]

    _, upgraded = _upgraded(BRAKE, (Milder, BRAKE[1]))
    assert [(one.severity, one.state) for one in upgraded] == [
        ("page", "firing"), ("ticket", "firing"), ("page", "resolved"), ("ticket", "resolved"),
    ]  # fmt: skip


class _Older(NamedTuple):
    """A snapshot that an older version took of all detectors, right after a finding; the telemetry to `end` waits."""

    about: Mapping[str, Any]
    state: bytes

    @classmethod
    def read(cls, name: str) -> Self:
        with ZipFile(Path(__file__).parent / "testdata" / f"{name}.zip") as file:
            return cls(json.loads(file.read("about.json")), file.read("engine.state"))

    def gone_on_with(self, minutes: int = 0) -> list[Finding]:
        """Return what the detectors of today find in the rest, and in some more minutes of uneventful log."""
        engine = Engine.restore(self.about["topology"], choose(), self.about["streams"], self.state)
        until = self.about["end"] + minutes * 60_000
        engine.feed_logs(LogRecord(at, "kernel", "nothing") for at in range(self.about["end"], until, 60_000))
        for stream in self.about["streams"]:
            engine.mark(stream, until)
        return engine.process()


def test_a_snapshot_of_format_4_and_a_version_that_judged_otherwise_is_gone_on_with() -> None:
    older = _Older.read("nvlink-4")
    assert [one.summary for one in older.gone_on_with()] == [], "nvlink finds it again, which is no news"
    over = [one for one in older.gone_on_with(minutes=90) if one.detector == "nvlink"]
    assert [(one.id, one.state) for one in over] == [("04b24550250fe476", "resolved")]
    assert "does not find it" not in over[0].summary


def test_what_a_snapshot_of_an_older_version_has_open_is_resolved_with_the_reason() -> None:
    found = _Older.read("straggler-5").gone_on_with(minutes=90)
    (over,) = [one for one in found if one.detector == "straggler"]
    assert (over.id, over.state, over.entity) == ("1f1d4b4ff6cbcac2", "resolved", {"node": "v002", "gpu": 2})
    version = CHOICES["straggler"][0].spec.version
    assert over.summary == (
        f"straggler on v002 GPU 2 is over: version {version} of straggler, which took over, does not find it"
    )


def test_a_format_that_is_not_known_is_refused() -> None:
    older = _Older.read("straggler-5")
    length = int.from_bytes(older.state[:8], "little")
    document, arrays = unpack(older.state[8 : 8 + length])
    own = pack(document | {"format": 3}, arrays)
    state = len(own).to_bytes(8, "little") + own + older.state[8 + length :]
    with pytest.raises(StateError, match="format 3, of another version of hindcast"):
        Engine.restore(older.about["topology"], choose(), older.about["streams"], state)


@every_detector
def test_a_version_that_changes_the_state_declares_it(choice: Choice) -> None:
    kind, _ = choice
    lines = sorted({line for tape in laws.examples_of(kind).tapes for line in _kept_on(choice, tape)})
    layout = sha256("\n".join(lines).encode()).hexdigest()[:8]
    declared = kind.spec.state
    assert declared is not None, (
        f"{kind.spec.name}/detector.yaml: add `state: {{since: {kind.spec.version}, layout: '{layout}'}}`, so that an "
        "upgrade of hindcast goes on with what is open"
    )
    assert declared.since <= kind.spec.version
    assert declared.layout == layout, (
        f"{kind.spec.name}/detector.yaml: the state is not as it was: set layout to {layout!r}, and since to its "
        "version, unless only its examples are others, or what is new begins afresh"
    )


def _kept_on(choice: Choice, tape: Tape) -> Iterator[str]:
    """Yield what is kept on a tape, in the middle, when something is open, and at the end: name, type and rows."""
    at = [one.detected_at for one in laws.whole(choice, tape) if one.state == "firing"]
    names = {event.job.job_id for event in tape.jobs}
    for _, engine in stretches(tape, [choice], Handling([(tape.start + tape.end) // 2, *at])):
        (detector,) = engine._detectors
        document, arrays = unpack(detector.snapshot())
        yield from _laid_out("", document, names)
        for name, array in arrays.items():
            yield f"{_shape_of(name, names)} {array.dtype} {array.shape[:-1]}"


def _laid_out(path: str, document: Any, names: set[str]) -> Iterator[str]:
    """Yield the paths in a document down to cases' memos; below a name that is data, such as a job's, nothing."""
    if isinstance(document, dict) and path.count("/") < 2:
        for name, value in document.items():
            yield from _laid_out(f"{path}/{_shape_of(name, names)}", value, names)
    elif path.endswith("book/open"):
        for case in document:
            yield f"{path} {sorted(case)} {case['fault']} {case['aspect'].isalpha()} {sorted(case['memo'])}"
    else:
        yield f"{path} {'list' if isinstance(document, list) else 'value'}"


def _shape_of(name: str, names: set[str]) -> str:
    return re.sub(r"\d+", "#", ".".join("*" if part in names else part for part in name.split(".")))


def _allowed(kind: type[Detector], name: str, value: float) -> bool:
    try:
        configure(kind.config_type, kind.spec, {name: value})
    except ValueError:
        return False
    return True
