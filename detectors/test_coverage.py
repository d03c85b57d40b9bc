from typing import Any

import pytest

from detectors.contract import DetectorSpec, Rung
from detectors.coverage import Seen, additions, closing, coverage, csv_lines
from detectors.exporters import exporters
from detectors.registry import discover, needs

REASONS, CLOCK, LIMIT = (
    f"dcgm.DCGM_FI_DEV_{name}" for name in ("CLOCK_THROTTLE_REASONS", "SM_CLOCK", "ENFORCED_POWER_LIMIT")
)
LADDER = (
    Rung(sees="the brake, as the GPU says", needs=(REASONS,), within_s=15),
    Rung(sees="clocks below the peers' with a failed supply", needs=(CLOCK, "logs.sel|bmc.state"), within_s=15),
    Rung(sees="clocks below the peers'", needs=(CLOCK, "jobs"), within_s=60),
)


def spec(**ladders: tuple[Rung, ...]) -> DetectorSpec:
    document: dict[str, Any] = {
        "name": "power", "version": 1, "faults": ["power_throttle", "job_hang"], "reads": ["dcgm"], "fields": {},
        "latency_s": 15, "defaults": {}, "ladders": ladders,
    }  # fmt: skip
    return DetectorSpec.model_validate(document)


@pytest.mark.parametrize(
    ("shares", "verdict", "within"),
    [
        ({REASONS: 1.0}, "sees", [15]),
        ({CLOCK: 1.0, "bmc.state": 1.0}, "less", [15]),
        ({CLOCK: 1.0, "jobs": 1.0}, "late", [60]),
        ({REASONS: 0.6, CLOCK: 1.0, "jobs": 1.0}, "late", [15, 60]),
        ({REASONS: 0.6, CLOCK: 1.0}, "partly", [15]),
        ({REASONS: 0.999, "dcgm": 1.0}, "sees", [15]),
        ({CLOCK: 1.0}, "blind", []),
    ],
)
def test_a_fault_is_seen_as_the_best_rung_there_is_telemetry_for(
    shares: dict[str, float], verdict: str, within: list[float]
) -> None:
    row = coverage([spec(power_throttle=LADDER)], Seen(shares))[0]
    assert (row.verdict, [level.within_s for level in row.levels]) == (verdict, within)
    assert row.blind_share == pytest.approx({"blind": 1.0, "partly": 0.4}.get(verdict, 0.0))


def test_what_would_be_seen_with_more_names_only_what_is_missing() -> None:
    seen = Seen({"dcgm": 1.0, CLOCK: 1.0, "jobs": 1.0})
    rows = coverage([spec(power_throttle=LADDER)], seen)
    assert [gain.lacks for gain in rows[0].gains] == [(REASONS,)]
    assert [(one.needs, [fault for fault, _ in one.gives]) for one in additions(rows)] == [
        ((REASONS,), ["power_throttle"])
    ]
    assert csv_lines(rows, Seen(seen.shares, amd=True)) == []
    assert csv_lines(rows, seen) == ["DCGM_FI_DEV_CLOCK_THROTTLE_REASONS, gauge, Why clocks are held down (bit mask)."]


def test_a_lesser_rung_is_proposed_where_it_lacks_less() -> None:
    two = Rung(sees="both", needs=(REASONS, LIMIT), within_s=5)
    rows = coverage([spec(power_throttle=(two, *LADDER))], Seen({"dcgm": 1.0, CLOCK: 1.0}))
    assert [gain.lacks for gain in rows[0].gains] == [(REASONS, LIMIT), (REASONS,)]


def test_what_is_seen_best_already_needs_nothing() -> None:
    rows = coverage([spec(power_throttle=LADDER, job_hang=LADDER[:1])], Seen({REASONS: 1.0}))
    assert [row.gains for row in rows] == [(), ()]
    assert closing(rows) == []


def test_the_closing_lines_say_what_was_not_judged_and_for_lack_of_what() -> None:
    hang = Rung(sees="that no step comes", needs=("steps.step_time_s",), within_s=300)
    whole = spec(power_throttle=LADDER, job_hang=(hang,))
    assert closing(coverage([whole], Seen({"dcgm": 1.0, CLOCK: 1.0, "jobs": 1.0}))) == [
        "not judged: job_hang (no steps)",
        "seen later than it could be: power_throttle (no throttle reasons)",
    ]
    (line,) = closing(coverage([spec(power_throttle=LADDER, job_hang=LADDER)], Seen({"dcgm": 1.0, REASONS: 0.75})))
    assert line == ("judged on a part of the cluster only: power_throttle, job_hang (no throttle reasons on 25%)")
    assert closing(coverage([], Seen({}), off=[whole])) == ["switched off: power_throttle, job_hang"]


def test_a_fault_without_a_ladder_is_reported_as_such() -> None:
    rows = coverage([spec(power_throttle=LADDER)], Seen({REASONS: 1.0}))
    assert [(row.fault, row.verdict) for row in rows] == [("power_throttle", "sees"), ("job_hang", "undeclared")]
    assert closing(rows) == []


def test_every_detector_says_of_each_of_its_faults_what_it_needs() -> None:
    silent = {
        name: faults
        for name, kind in discover().items()
        if (faults := [fault for fault in kind.spec.faults if not kind.spec.ladders.get(fault)])
    }
    assert silent == {}


def test_every_need_of_every_ladder_has_words_and_a_source() -> None:
    """A field that a ladder names and exporters.yaml does not would be printed without its line for the CSV."""
    table = exporters()
    fields = {need.removeprefix("dcgm.") for need in needs() if need.startswith("dcgm.")}
    assert sorted(fields - set(table.dcgm)) == []
    others = {need for need in needs() if need.partition(".")[0] in {"logs", "topology"}}
    assert sorted(need for need in others if need not in table.others) == []
    assert sorted(need for need in needs() if not table.words(need)) == []
    assert all(field.default or field.help for field in table.dcgm.values())
