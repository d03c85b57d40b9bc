"""The laws on every detector found, and the proof that each law catches the detector that breaks it."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detectors import laws
from detectors.contract import Batch, Detector, DetectorConfig, Finding, Instant
from detectors.core.columns import REUSED
from detectors.engine.engine import Choice
from detectors.engine.state import pack, unpack
from detectors.fleet.fleet import Fleet
from detectors.power_throttle.detector import PowerThrottle
from detectors.registry import choose
from detectors.tapes.altered import spoiled
from detectors.tapes.tape import Handling, Tape

CHOICES = {kind.spec.name: (kind, config) for kind, config in choose()}
every_detector = pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES.keys())
few = settings(max_examples=int(os.environ.get("HINDCAST_LAW_EXAMPLES", "20")), deadline=None)
"""CI asks for 25 examples of each law and detector (.ci/run)."""


def _tapes(choice: Choice) -> Sequence[Tape]:
    return laws.examples_of(choice[0]).tapes


def _handlings(tape: Tape) -> st.SearchStrategy[Handling]:
    anywhere = st.integers(tape.start, tape.end)
    return st.builds(
        Handling, cuts=st.lists(anywhere, max_size=12), seed=st.none() | st.integers(0, 2**32), carried=st.booleans()
    )


@every_detector
@few
@given(data=st.data())
def test_findings_do_not_depend_on_cuts_order_repeats_or_restarts(choice: Choice, data: st.DataObject) -> None:
    tape = data.draw(st.sampled_from(_tapes(choice)))
    laws.deterministic_however_handled(choice, tape, data.draw(_handlings(tape)))


@every_detector
@few
@given(data=st.data())
def test_spoiled_input_is_survived_and_handled_alike(choice: Choice, data: st.DataObject) -> None:
    tape = spoiled(data.draw(st.sampled_from(_tapes(choice))), data.draw(st.integers(0, 2**32)))
    laws.sound(choice, tape)
    laws.deterministic_however_handled(choice, tape, data.draw(_handlings(tape)))


@every_detector
@few
@given(data=st.data())
def test_a_feed_that_ends_anywhere_is_decided_on_to_its_end_however_handled(
    choice: Choice, data: st.DataObject
) -> None:
    tape = data.draw(st.sampled_from(_tapes(choice)))
    short = tape.until(data.draw(st.integers((tape.start + tape.end) // 2, tape.end)))
    laws.sound(choice, short)
    laws.deterministic_however_handled(choice, short, data.draw(_handlings(short)))


@every_detector
@few
@given(data=st.data())
def test_the_future_changes_nothing(choice: Choice, data: st.DataObject) -> None:
    tape = data.draw(st.sampled_from(_tapes(choice)))
    laws.causal(choice, tape, data.draw(st.integers(tape.start + 10_000, tape.end)))


@every_detector
def test_findings_are_sound(choice: Choice) -> None:
    for tape in _tapes(choice):
        laws.sound(choice, tape)


@every_detector
def test_a_healthy_tape_is_quiet(choice: Choice) -> None:
    for tape in laws.examples_of(choice[0]).healthy:
        laws.quiet(choice, tape)


@every_detector
def test_scrapes_that_get_lost_in_runs_alert_nobody(choice: Choice) -> None:
    for seed, tape in enumerate(laws.examples_of(choice[0]).healthy):
        laws.unmoved_by_lost_scrapes(choice, tape, seed)


@every_detector
def test_fields_that_some_machines_report_no_more_raise_no_alarm(choice: Choice) -> None:
    for seed in range(5) if choice[0].spec.name != "telemetry_gap" else ():  # which finds just that
        laws.unmoved_by_fields_that_stop(choice, laws.examples_of(choice[0]).healthy[0], seed)


@every_detector
def test_a_fault_is_named_in_time(choice: Choice) -> None:
    for fault in laws.examples_of(choice[0]).faults:
        laws.prompt(choice, fault)


@every_detector
def test_what_falls_silent_is_not_raised_again_and_again(choice: Choice) -> None:
    for fault in laws.examples_of(choice[0]).faults:
        laws.patient(choice, fault)


@every_detector
def test_healthy_machines_beside_it_do_not_hide_a_fault_or_join_it(choice: Choice) -> None:
    examples = laws.examples_of(choice[0])
    for fault in examples.faults:
        laws.unmoved_by_company(choice, fault, examples.healthy[0])


@every_detector
def test_machines_that_are_gone_leave_nothing_behind(choice: Choice) -> None:
    examples = laws.examples_of(choice[0])
    for fault in examples.faults[:2]:
        laws.unmoved_by_the_gone(choice, fault, examples.healthy[0])


@every_detector
def test_a_field_that_is_missing_makes_no_finding_on_anything_else(choice: Choice) -> None:
    for fault in laws.examples_of(choice[0]).faults:
        for rows in fault.tape.rows:
            for name in sorted(set(choice[0].spec.fields.get(rows.kind, ())) & set(rows.values)):
                laws.never_wrong_without(choice, fault, rows.kind, name)


@every_detector
def test_the_state_is_bounded(choice: Choice) -> None:
    for tape in _tapes(choice):
        laws.bounded(choice, tape)


@every_detector
def test_nothing_outside_is_touched(choice: Choice) -> None:
    laws.pure(choice, _tapes(choice)[-1])


@every_detector
def test_the_configuration_keeps_its_promises(choice: Choice) -> None:
    laws.configurable(choice)


class _Broken(PowerThrottle):
    """Base of the detectors that break a law."""


class _CountsCalls(_Broken):
    """Its findings depend on how often it was called."""

    calls = 0

    def observe(self, batch: Batch) -> Sequence[Finding]:
        self.calls += 1
        return super().observe(batch)

    def advance(self, now: Instant) -> Sequence[Finding]:
        return [_renamed(finding, score=self.calls / 1e6) for finding in super().advance(now)]


class _Forgets(_Broken):
    """Loses the open findings over a restart."""

    @classmethod
    def restore(cls, config: DetectorConfig, fleet: Fleet, state: bytes) -> Self:
        document, arrays = unpack(state)
        return super().restore(config, fleet, pack(document | {"book": {"open": [], "latest": []}}, arrays))


class _Meddles(_Broken):
    """Writes into what it is given."""

    def observe(self, batch: Batch) -> Sequence[Finding]:
        for values in batch.values.values():
            values[:] = 0.0
        return super().observe(batch)


class _Insists(_Broken):
    """Says every finding twice."""

    def advance(self, now: Instant) -> Sequence[Finding]:
        return [finding for finding in super().advance(now) for _ in range(2)]


class _Overrates(_Broken):
    """Is surer than sure."""

    def advance(self, now: Instant) -> Sequence[Finding]:
        return [_renamed(finding, score=1.5) for finding in super().advance(now)]


class _Hoards(_Broken):
    """Keeps a little of every call for ever."""

    def __init__(self, config: DetectorConfig, fleet: Fleet) -> None:
        super().__init__(config, fleet)
        self.hoard = np.empty(0)

    def advance(self, now: Instant) -> Sequence[Finding]:
        self.hoard = np.append(self.hoard, np.full(64, float(now)))
        return super().advance(now)

    def snapshot(self) -> bytes:
        return pack(None, {"hoard": self.hoard}) + super().snapshot()


class _Sleeps(_Broken):
    """Never says anything."""

    def advance(self, now: Instant) -> Sequence[Finding]:
        super().advance(now)
        return ()


class _Panics(_Broken):
    """Cries at a fixed moment, whatever happens."""

    def advance(self, now: Instant) -> Sequence[Finding]:
        found = list(super().advance(now))
        if now % 60_000 == 0:
            entity = {"node": "v001"}
            found.append(
                Finding("f" * 16, "power_throttle", "power_throttle", entity, "firing", now, now, "page", 1, "", "")
            )
        return found


class _Startles(_Broken):
    """Cries when nothing is heard for a while."""

    heard: Instant | None = None

    def observe(self, batch: Batch) -> Sequence[Finding]:
        self.heard = int(batch.at[batch.present].max())
        return super().observe(batch)

    def advance(self, now: Instant) -> Sequence[Finding]:
        found = list(super().advance(now))
        if self.heard is not None and now - self.heard > 18_000:
            entity = {"node": "v001"}
            found.append(
                Finding("e" * 16, "power_throttle", "power_throttle", entity, "firing", now, now, "page", 1, "", "")
            )
        return found


class _Reads(_Broken):
    """Looks at a file."""

    def advance(self, now: Instant) -> Sequence[Finding]:
        with open(__file__):  # noqa: PTH123 - the way that the law watches
            return super().advance(now)


class _Stumbles(_Broken):
    """Takes infinity for a number."""

    def observe(self, batch: Batch) -> Sequence[Finding]:
        for values in batch.values.values():
            for value in values.ravel():
                int(value)
        return super().observe(batch)


class _Foresees(_Broken):
    """Reports what it has not seen yet: a finding dated before the data that made it."""

    def advance(self, now: Instant) -> Sequence[Finding]:
        return [
            _renamed(finding, detected_at=max(finding.started_at, finding.detected_at - 60_000))
            for finding in super().advance(now)
        ]


class _Nags(_Broken):
    """Raises what it has raised once more every hour."""

    raised: Finding | None = None

    def advance(self, now: Instant) -> Sequence[Finding]:
        found = super().advance(now)
        self.raised = next((finding for finding in found if finding.state == "firing"), self.raised)
        if self.raised is None or now % 3_600_000:
            return found
        return [*found, _renamed(self.raised, id=f"{self.raised.id}-{now}", detected_at=now)]


class _FearsCrowds(_Broken):
    """Says nothing where many nodes are watched."""

    def advance(self, now: Instant) -> Sequence[Finding]:
        found = super().advance(now)
        return [finding for finding in found if len({node for node, _ in self._fleet.entities("dcgm")}) <= 5]


class _Guesses(_Broken):
    """Blames the first node where it has no clocks to look at."""

    blind = False

    def observe(self, batch: Batch) -> Sequence[Finding]:
        self.blind |= batch.kind == "dcgm" and not batch.valid["DCGM_FI_DEV_SM_CLOCK"].any()
        return super().observe(batch)

    def advance(self, now: Instant) -> Sequence[Finding]:
        found = super().advance(now)
        return [_renamed(one, entity={"node": "v999"}) if self.blind else one for one in found]


class _Misnumbers(_Broken):
    """Goes on with what it knows of a GPU by the number that it had."""

    def __init__(self, config: DetectorConfig, fleet: Fleet) -> None:
        super().__init__(config, fleet)
        self._gpus.usual["clock"].along(REUSED)


def _renamed(finding: Finding, **changes: Any) -> Finding:
    return replace(finding, **changes)


def _carried(tape: Tape) -> Handling:
    middle = next(f for f in laws.examples_of(PowerThrottle).faults if f.tape is tape).onset + 130_000
    return Handling(cuts=[middle], carried=True)


def _pieces(tape: Tape) -> Handling:
    return Handling(cuts=list(range(tape.start, tape.end, 1700)))


LAWS_AND_BREAKERS: list[tuple[type[Detector], Callable[[Choice, laws.Fault, Tape], None]]] = [
    (_CountsCalls, lambda c, f, _: laws.deterministic_however_handled(c, f.tape, _pieces(f.tape))),
    (_Forgets, lambda c, f, _: laws.deterministic_however_handled(c, f.tape, _carried(f.tape))),
    (_Meddles, lambda c, f, _: laws.sound(c, f.tape)),
    (_Insists, lambda c, f, _: laws.sound(c, f.tape)),
    (_Overrates, lambda c, f, _: laws.sound(c, f.tape)),
    (_Hoards, lambda c, f, _: laws.bounded(c, f.tape)),
    (_Sleeps, lambda c, f, _: laws.prompt(c, f)),
    (_Panics, lambda c, _, healthy: laws.quiet(c, healthy)),
    (_Startles, lambda c, _, healthy: laws.unmoved_by_lost_scrapes(c, healthy)),
    (_Reads, lambda c, f, _: laws.pure(c, f.tape)),
    (_Stumbles, lambda c, f, _: laws.sound(c, spoiled(f.tape, 3))),
    (_Foresees, lambda c, f, _: laws.causal(c, f.tape, f.onset)),
    (_Nags, lambda c, f, _: laws.patient(c, f)),
    (_FearsCrowds, laws.unmoved_by_company),
    (_Misnumbers, laws.unmoved_by_the_gone),
    (_Guesses, lambda c, f, _: laws.never_wrong_without(c, f, "dcgm", "DCGM_FI_DEV_SM_CLOCK")),
]


@pytest.mark.parametrize(("broken", "law"), LAWS_AND_BREAKERS, ids=[kind.__name__ for kind, _ in LAWS_AND_BREAKERS])
def test_a_broken_detector_is_caught(broken: type[Detector], law: Callable[[Choice, laws.Fault, Tape], None]) -> None:
    _, config = CHOICES["power_throttle"]
    examples = laws.examples_of(PowerThrottle)
    law((PowerThrottle, config), examples.faults[0], examples.healthy[0])
    with pytest.raises((AssertionError, ValueError, IndexError, OverflowError)):
        law((broken, config), examples.faults[0], examples.healthy[0])
