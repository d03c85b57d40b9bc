"""What every detector must obey, whatever it detects; `test_laws.py` runs all of it on every detector found.

A law takes a detector with its configuration and a tape, and raises AssertionError where it is broken. Each detector
brings, in its `examples.py`, tapes on which it must be quiet and tapes on which it must fire.
"""

import builtins
import importlib
import io
import json
import os
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn
from unittest.mock import patch

import numpy as np
from pydantic import ValidationError

from detectors.contract import Batch, Detector, Entity, Finding, Instant, Kind, LogRecord
from detectors.core.columns import Columns
from detectors.core.survivors import parts_of
from detectors.engine.engine import GRID_MS, Choice
from detectors.engine.pulse import SILENCE_MS
from detectors.engine.rows import Rows
from detectors.fleet.fleet import KEYS
from detectors.spec import configure
from detectors.tapes.altered import GONE, is_about, with_company, with_gone_company, with_lost_scrapes
from detectors.tapes.tape import Handling, Tape, play, stretches, take

_HOURS_MS = 4 * 3_600_000
_FORGOTTEN_MS = 90_000


@dataclass(frozen=True)
class Fault:
    """A tape with a fault: which entity must be named, counted from when."""

    tape: Tape
    entity: Entity
    onset: Instant


@dataclass(frozen=True)
class Examples:
    """What a detector's `examples.py` offers as EXAMPLES."""

    healthy: Sequence[Tape]
    faults: Sequence[Fault]

    @property
    def tapes(self) -> list[Tape]:
        """Return all tapes."""
        return [*self.healthy, *(fault.tape for fault in self.faults)]


def examples_of(kind: type[Detector]) -> Examples:
    """Return a detector's examples."""
    name = f"detectors.{kind.spec.name}.examples"
    examples = getattr(importlib.import_module(name), "EXAMPLES", None)
    assert isinstance(examples, Examples), f"{name} needs `EXAMPLES = Examples(healthy=[...], faults=[...])`"
    assert examples.healthy, "a detector needs a tape on which it must be quiet"
    assert examples.faults, "a detector needs a tape on which it must fire"
    return examples


def lines(findings: Sequence[Finding]) -> list[str]:
    """Return findings as canonical JSON."""
    return [finding.to_json() for finding in findings]


_WHOLES_KEPT = 256
_wholes: dict[tuple[type[Detector], str, int], tuple[Tape, list[Finding]]] = {}
"""What was found on tapes that were played whole lately; the tape is kept beside, so that none takes its number.

So many that the examples of all detectors are among them, beside those that are drawn anew."""


def whole(choice: Choice, tape: Tape) -> list[Finding]:
    """Return what is found on a tape that is played in one piece; several laws ask it, of hundreds of examples."""
    key = choice[0], choice[1].model_dump_json(), id(tape)
    if key not in _wholes:
        return _kept(choice, tape, play(tape, [choice])[0])
    _wholes[key] = _wholes.pop(key)  # the last to be forgotten
    return _wholes[key][1]


def _kept(choice: Choice, tape: Tape, found: list[Finding]) -> list[Finding]:
    while len(_wholes) >= _WHOLES_KEPT:
        del _wholes[next(iter(_wholes))]
    _wholes[choice[0], choice[1].model_dump_json(), id(tape)] = tape, found
    return found


def deterministic_however_handled(choice: Choice, tape: Tape, handling: Handling) -> None:
    """Demand the same findings in the same order, however the tape is cut, shuffled, repeated and carried over."""
    handled, _ = play(tape, [choice], handling)
    assert lines(handled) == lines(whole(choice, tape)), (
        "findings depend on where the tape was cut, or on a restart: in `observe` and `logs` go by the row and by what "
        "the last `advance` left, and name in KEPT all that is kept"
    )


def causal(choice: Choice, tape: Tape, at: Instant) -> None:
    """Demand that what comes after a time never changes what was found up to it."""
    upto = at // GRID_MS * GRID_MS
    early, _ = play(tape.until(upto), [choice])
    known = [finding for finding in whole(choice, tape) if finding.detected_at <= upto]
    assert lines(early) == lines(known), "what came later has changed what was found before"


def sound(choice: Choice, tape: Tape) -> None:
    """Demand well-formed findings, and at most one resolved after each firing, of what the detector itself says."""
    kind, config = choice
    raw: list[Finding] = []
    found, _ = play(tape, [(_overheard(kind, raw), config)])
    _kept(choice, tape, found)
    open_ids: set[str] = set()
    seen: set[str] = set()
    for finding in raw:
        assert finding.detector == kind.spec.name
        assert finding.fault in kind.spec.faults, f"{finding.fault} is not among `faults` in detector.yaml"
        assert 0 <= finding.score <= 1, f"a score of {finding.score}"
        assert finding.started_at <= finding.detected_at <= tape.end, "it starts after it is found"
        assert json.loads(finding.to_json())["id"] == finding.id
        if finding.state == "firing":
            assert finding.id not in seen, "an id fires twice"
            seen.add(finding.id)
            open_ids.add(finding.id)
        else:
            assert finding.id in open_ids, "resolved, but not firing"
            open_ids.remove(finding.id)


def quiet(choice: Choice, tape: Tape) -> None:
    """Demand that nothing is found on a healthy tape."""
    assert lines(whole(choice, tape)) == [], "a healthy tape of examples.py has findings"


def unmoved_by_lost_scrapes(choice: Choice, tape: Tape, seed: int = 1) -> None:
    """Demand that scrapes which get lost in runs on a healthy tape, and a collector's pause, alert nobody."""
    found, _ = play(with_lost_scrapes(tape, seed), [choice])
    alarms = [finding for finding in found if finding.severity != "info"]
    assert lines(alarms) == [], "scrapes that got lost, as they do everywhere, raise an alarm"


def unmoved_by_fields_that_stop(choice: Choice, tape: Tape, seed: int) -> None:
    """Demand that nothing is found where half of the nodes or switches report half of the fields no more.

    Profiling ends where somebody else profiles, sensors and counters with their driver: on some machines, at any time.
    """
    chance = np.random.default_rng(seed)
    rows = []
    for part in tape.rows:
        names = sorted(part.values)
        stopped = set(chance.choice(names, (len(names) + 1) // 2, replace=False)) if len(names) > 1 else set()
        owner = next(iter(part.keys.values())).codes
        silent = (chance.random(owner.max(initial=0) + 1) < 0.5)[owner]
        silent &= part.times >= tape.start + chance.random() * (tape.end - tape.start)
        valid = {name: known & ~silent if name in stopped else known for name, known in part.valid.items()}
        rows.append(replace(part, valid=valid))
    found, _ = play(replace(tape, rows=rows), [choice])
    alarms = [finding for finding in found if finding.severity != "info"]
    assert lines(alarms) == [], "that some fields are not read any more raises an alarm"


def prompt(choice: Choice, fault: Fault) -> None:
    """Demand that the culprit, and nothing but it, is named within the promised latency."""
    firing = [finding for finding in whole(choice, fault.tape) if finding.state == "firing"]
    named = [dict(finding.entity) for finding in firing]
    assert named == [dict(fault.entity)], f"{fault.entity} has the fault, found were {named}"
    delay_s, promised_s = (firing[0].detected_at - fault.onset) / 1000, choice[0].spec.latency_s
    assert 0 <= delay_s <= promised_s, f"found after {delay_s:g} s; latency_s in detector.yaml promises {promised_s:g}"


def patient(choice: Choice, fault: Fault) -> None:
    """Demand that a fault on what then falls silent, while others are heard, is not raised again and again."""
    firing = (finding for finding in whole(choice, fault.tape) if finding.state == "firing")
    silent_from = next(firing).detected_at + GRID_MS
    rows = [
        take(part, np.flatnonzero((part.times < silent_from) | ~is_about(part, fault.entity)))
        for part in fault.tape.rows
    ]
    heard = range(fault.tape.end, fault.tape.end + _HOURS_MS, SILENCE_MS // 2)
    lines = [LogRecord(at, "kernel", "nothing of interest") for at in heard]
    kind, config = choice
    raw: list[Finding] = []
    longer = replace(fault.tape, end=heard.stop, rows=rows, logs=[*fault.tape.logs, *lines])
    play(longer, [(_overheard(kind, raw), config)])
    raised = Counter((f.fault, json.dumps(dict(f.entity), sort_keys=True)) for f in raw if f.state == "firing")
    assert max(raised.values(), default=0) <= 2, raised.most_common(1)


def unmoved_by_company(choice: Choice, fault: Fault, healthy: Tape) -> None:
    """Demand that machines that are well, beside those of a tape, change nothing but when its fault is found.

    More that is watched needs stronger evidence of each, so it may be found later, within the promised latency.
    """
    alone = _named(whole(choice, fault.tape))
    beside = _named(play(with_company(fault.tape, healthy), [choice])[0])
    assert beside.keys() == alone.keys(), "healthy machines beside it change who is named"
    for who, at in beside.items():
        assert at <= max(alone[who], fault.onset + int(choice[0].spec.latency_s * 1000)), who


def unmoved_by_the_gone(choice: Choice, fault: Fault, healthy: Tape) -> None:
    """Demand that forgetting machines that fell silent for good changes nothing of what is found on the others.

    Evidence about all that is watched may change: how often chance brings it, and the median. Nothing of the machines
    is left, also after a restart.
    """
    tape = with_gone_company(fault.tape, healthy)
    middle = (tape.start + tape.end) // 2
    forgetting = Handling([middle, (middle + tape.end) // 2], seed=1, carried=True, forget_ms=_FORGOTTEN_MS)
    remembered, _ = play(tape, [choice])
    forgotten, engine = play(tape, [choice], forgetting)
    assert lines(forgotten) == lines(play(tape, [choice], replace(forgetting, cuts=(), seed=None))[0])
    assert [_of_its_own(one) for one in forgotten] == [_of_its_own(one) for one in remembered]
    (detector,), fleet = engine._detectors, engine._fleet  # noqa: SLF001
    named = {str(key[0]) for kind in KEYS for key in fleet.entities(kind)}
    company = {name for rows in tape.rows for name in _owners_of(rows) if name.endswith(GONE)}
    assert company, "nobody was there"
    assert not company & named
    assert not [name for name in company if f'"{name}"'.encode() in detector.snapshot()], "somebody is left"
    for path, held, axis in parts_of(detector):
        if isinstance(held, Columns):
            assert axis is not None, f"{path} does not say what it is by"
            assert axis not in KEYS or len(held) <= len(fleet.entities(axis)), path


def _of_its_own(finding: Finding) -> str:
    """Return a finding without its evidence about all that is watched."""
    own = {name: value for name, value in finding.evidence.items() if not name.endswith(("by_chance", "_median"))}
    return replace(finding, evidence=own).to_json()


def _owners_of(rows: Rows) -> set[str]:
    """Return the machines that rows are of."""
    return {str(name) for key in {"node", "switch"} & rows.keys.keys() for name in rows.keys[key].categories}


def never_wrong_without(choice: Choice, fault: Fault, kind: Kind, name: str) -> None:
    """Demand that a field that is missing makes no finding on anything else: a later one, or none.

    The other end of the same cable, or what holds the entity, is as right (a GPU's node, a port's switch).
    """
    rows = [
        replace(part, values=_left(part.values, name), valid=_left(part.valid, name)) if part.kind == kind else part
        for part in fault.tape.rows
    ]
    less = _named(play(replace(fault.tape, rows=rows), [choice])[0])
    right = {
        who for one in _named(whole(choice, fault.tape)) for who in _as_right(json.loads(one), fault.tape.topology)
    }
    assert less.keys() <= right, f"without {name} something else is named"


def _as_right(entity: Entity, topology: Mapping[str, Any]) -> Iterator[str]:
    """Yield an entity, what holds it, and the other end of its cable."""
    cables = [
        ({"node": node["name"], "nic": nic["nic"]}, {"switch": nic["switch"], "port": nic["port"]})
        for node in topology.get("nodes", ())
        for nic in node.get("nics", ())
        if nic.get("switch") and nic.get("port")
    ]
    for link in topology.get("links", ()):
        (one, _, at), (other, _, there) = (str(link[end]).partition(":") for end in ("a", "b"))
        cables.append(({"switch": one, "port": at}, {"switch": other, "port": there}))
    ends = [entity, *(b for a, b in cables if a == entity), *(a for a, b in cables if b == entity)]
    for end in ends:
        yield json.dumps(dict(end), sort_keys=True)
        for holder in {"node", "switch"} & end.keys():
            yield json.dumps({holder: end[holder]}, sort_keys=True)


def _left(columns: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {field: column for field, column in columns.items() if field != name}


def _named(findings: Sequence[Finding]) -> dict[str, Instant]:
    """Return when each entity was first alerted on."""
    first: dict[str, Instant] = {}
    for finding in findings:
        if finding.state == "firing" and finding.severity != "info":
            first.setdefault(json.dumps(dict(finding.entity), sort_keys=True), finding.detected_at)
    return first


def bounded(choice: Choice, tape: Tape) -> None:
    """Demand that the state does not grow with time: at a tape's end it is hardly more than halfway."""
    middle = Handling([(tape.start + tape.end) // 2])
    half, whole = (len(engine.snapshot()) for _, engine in stretches(tape, [choice], middle))
    assert whole <= 1.1 * half + 2048, f"the state grows with time: {half} bytes halfway, {whole} at the end"


def pure(choice: Choice, tape: Tape) -> None:
    """Demand that no file, socket or clock is touched."""
    with _sealed():
        play(tape, [choice], Handling(cuts=[(tape.start + tape.end) // 2], carried=True))


def configurable(choice: Choice) -> None:
    """Demand that the configuration is frozen, refuses unknown names, and survives JSON."""
    kind, config = choice
    assert kind.config_type.model_validate_json(config.model_dump_json()) == config
    for wrong in ({"no_such_setting": 1},):
        try:
            configure(kind.config_type, kind.spec, wrong)
        except ValidationError:
            continue
        raise AssertionError("an unknown setting is accepted")
    name = next(iter(type(config).model_fields))
    try:
        setattr(config, name, getattr(config, name))
    except ValidationError:
        return
    raise AssertionError("the configuration can be changed")


def _overheard(kind: type[Detector], raw: list[Finding]) -> type[Detector]:
    """Return the detector with its own findings noted in `raw`, before the engine has looked at them."""

    class Overheard(kind):  # type: ignore[misc, valid-type]  # the base is chosen at run time
        def logs(self, records: Sequence[LogRecord]) -> Sequence[Finding]:
            return self._note(super().logs(records))

        def observe(self, batch: Batch) -> Sequence[Finding]:
            return self._note(super().observe(batch))

        def advance(self, now: Instant) -> Sequence[Finding]:
            return self._note(super().advance(now))

        def _note(self, found: Sequence[Finding]) -> Sequence[Finding]:
            raw.extend(found)
            return found

    return Overheard


@contextmanager
def _sealed() -> Iterator[None]:
    """Make every way to a file, a socket or a clock raise."""

    def refused(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise AssertionError("a detector touched a file, a socket or a clock")

    ways: list[tuple[Any, str]] = [(builtins, "open"), (io, "open"), (os, "open"), (socket, "socket")]
    ways += [(time, name) for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "sleep")]
    with ExitStack() as stack:
        for module, name in ways:
            stack.enter_context(patch.object(module, name, refused))
        yield
